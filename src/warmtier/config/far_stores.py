"""The stores of far tiers in the configuration: what is theirs alone. Credentials are in the environment only."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warmtier.config.fields import Count, Duration, Size, duration, size
from warmtier.core.errors import UsageError
from warmtier.core.types import Namespace, TierKind
from warmtier.store.base import Store
from warmtier.store.object.options import ObjectOptions
from warmtier.store.open_store import kind_of, open_object_store, open_shared_store, writer_name


def _of_kind(kind: TierKind) -> AfterValidator:
    def check(url: str) -> str:
        try:
            found = kind_of(url)
        except UsageError as error:
            raise ValueError(f"{error.message}; {error.fix}") from error
        if found is not kind:
            raise ValueError(f"this is the URL of a tier of kind {found}, not {kind}")
        return url

    return AfterValidator(check)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class ObjectStoreSettings(_Settings):
    """A bucket that replicas share."""

    url: Annotated[str, _of_kind(TierKind.OBJECT)] = Field(
        description="s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"
    )
    capacity: Size = Field(description="hard bound on what this replica keeps in the bucket, manifests included")
    writer: str | None = Field(
        None, description="name of this replica over restarts; null makes one of WARMTIER_WRITER or the host's name"
    )
    pack_size: Size = Field(size("64MiB"), description="largest object that chunks are packed into")
    pack_delay: Duration = Field(duration("1s"), description="longest time a chunk waits for its pack to fill")
    pack_buffers: int = Field(3, ge=2, description="packs in host memory at once")
    time_to_live: Duration = Field(duration("24h"), description="packs older than this are deleted")
    timeout: Duration = Field(duration("2s"), description="longest request, its bytes at 32 MiB/s not counted")
    poll_interval: Duration = Field(duration("2s"), description="time between two looks at what others stored")
    reads_in_flight: Count = Field(16, description="ranged reads at once")
    index_chunks: Count = Field(4_000_000, description="chunks of all replicas that are known at once, 200 bytes each")

    def open_store(self, namespace: Namespace, *, engine: str = "") -> Store:
        """Return the store, not opened. ``engine`` tells apart engines of one host. Raises UsageError."""
        return open_object_store(
            self.url,
            namespace,
            ObjectOptions(
                capacity_bytes=self.capacity,
                writer=self.writer or writer_name(engine),
                pack_bytes=self.pack_size,
                pack_delay_s=self.pack_delay,
                pack_buffers=self.pack_buffers,
                ttl_s=self.time_to_live,
                timeout_s=self.timeout,
                poll_interval_s=self.poll_interval,
                reads_in_flight=self.reads_in_flight,
                index_chunks=self.index_chunks,
            ),
        )


class SharedStoreSettings(_Settings):
    """A distributed store that replicas share. It bounds itself."""

    url: Annotated[str, _of_kind(TierKind.SHARED)] = Field(
        description="valkey://host:port/db, valkeys:// with TLS, unix:///socket, or mooncake://master:port"
    )
    time_to_live: Duration = Field(duration("24h"), description="values in Valkey and Redis go after this time")
    timeout: Duration = Field(duration("2s"), description="longest call, its bytes at 64 MiB/s not counted")

    def open_store(self, namespace: Namespace) -> Store:
        """Return the store, not opened. Raises UsageError."""
        return open_shared_store(self.url, namespace, timeout_s=self.timeout, ttl_s=self.time_to_live)
