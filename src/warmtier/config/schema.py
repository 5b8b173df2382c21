"""The typed configuration: one schema for the YAML file, the environment, flags and the engine's extra config.

``EngineConfig`` is the ``"warmtier"`` object inside vLLM's ``kv_connector_extra_config`` (parse it with
``config.parse.parse_extra_config``). ``WarmtierConfig`` is the file: the same sections, plus ``vllm`` for what vLLM
itself reads. Unknown keys are errors everywhere. Every knob lies in a section, so that ``WARMTIER_SECTION__KEY``
always names one.

Sizes are totals over tensor-parallel ranks, per data-parallel engine.
"""

from __future__ import annotations

import difflib
import enum
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from warmtier.config.fields import Count, Duration, Priority, Size, duration, size
from warmtier.core.types import TierMode
from warmtier.policy.registry import production_names
from warmtier.store.file.store import Durability
from warmtier.tiering.types import Placement


class Section(BaseModel):
    """Base of every section: immutable, unknown keys refused, defaults checked like given values."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


def _known_policy(name: str) -> str:
    if name not in production_names():
        near = difflib.get_close_matches(name, production_names(), 1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name!r} is not one of {', '.join(production_names())}{guess}")
    return name


PolicyName = Annotated[str, AfterValidator(_known_policy)]


class OnUnsupported(enum.StrEnum):
    """What to do at start with an engine version or model that warmtier does not support."""

    REFUSE = "refuse"
    OFF = "off"


class Verify(enum.StrEnum):
    """Which chunks loaded from host memory are compared with the digest taken when they were stored."""

    OFF = "off"
    SAMPLE = "sample"
    ALWAYS = "always"


class Admission(Section):
    """Which chunks may enter a tier. All conditions must hold."""

    minimum_priority: Priority = Field(0, description="refuse chunks whose retention priority is below this")
    minimum_touches: Count = Field(1, description="store a chunk at its n-th sighting; 1 stores at once")


class HostTier(Section):
    """Host memory beside the engine: one slab that all workers of an engine share."""

    capacity: Size = Field(description="bytes of host memory for KV, over all tensor-parallel ranks")
    policy: PolicyName = Field("lru", description=f"eviction policy: {', '.join(production_names())}")
    mode: TierMode = Field(TierMode.ON, description="off, observe (decide and count, move nothing), canary or on")
    admission: Admission = Field(default_factory=Admission, description="what may enter")


class FileTier(Section):
    """A directory of log-structured segments, owned by one engine."""

    directory: Path = Field(description="directory on a local file system; data-parallel engines use sub-directories")
    capacity: Size = Field(description="hard bound on the bytes in the directory, everything included")
    policy: PolicyName = Field("lru", description=f"eviction policy: {', '.join(production_names())}")
    mode: TierMode = Field(TierMode.ON, description="off, observe (decide and count, move nothing), canary or on")
    placement: Placement = Field(
        Placement.THROUGH,
        description="through (when stored above), selective (at the n-th touch) or back (when evicted)",
    )
    selective_touches: Count = Field(2, description="the n of `selective`")
    admission: Admission = Field(default_factory=Admission, description="what may enter")
    free_space_floor: Size = Field(size("1GiB"), description="bytes of the file system that stay free for others")
    segment_size: Size = Field(size("256MiB"), description="bytes of one segment file")
    threads: Count = Field(4, description="threads that share the reads or writes of one call")
    durability: Durability = Field(
        Durability.NONE,
        description="none (checksums decide after a power failure) or segment (sealed segments survive)",
    )
    deadline: Duration = Field(
        duration("2s"), description="a promotion that takes longer is a miss, whatever was measured"
    )
    promotion_bytes: Size = Field(size("1GiB"), description="bound on bytes being promoted at once")
    promotion_jobs: Count = Field(8, description="bound on promotions at once")
    write_rate: Size | None = Field(
        None, description="bytes written per second on average, to spare the disk; null: free"
    )
    breaker_failures: Count = Field(5, description="failures in a row after which the tier pauses")
    breaker_cooldown: Duration = Field(duration("10s"), description="time before a paused tier is tried again")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.directory.is_absolute():
            raise ValueError(
                f"directory {str(self.directory)!r} is relative; the engine's working directory is not yours"
            )
        if self.capacity < 2 * self.segment_size:
            raise ValueError("capacity must hold at least two segments; lower segment_size or raise capacity")
        return self


class Loading(Section):
    """When a hit is worth its load, and how long anyone waits for it."""

    minimum_tokens: int = Field(0, ge=0, description="shorter hits are computed again")
    margin: Annotated[float, Field(ge=1)] = Field(
        1.25, description="load from a cold tier only where computing would take this many times longer"
    )
    pending_deadline: Duration = Field(duration("2s"), description="longest wait for chunks that are on their way")
    promoting_requests: Count = Field(
        8, description="requests whose chunks are brought up from cold tiers at once, in the order of admission"
    )
    calibration: Path | None = Field(
        None, description="file of `warmtier calibrate`: speeds to decide by until enough was measured; null: none"
    )


class Hints(Section):
    """Bounds on what clients may ask for in ``kv_transfer_params["warmtier"]``."""

    maximum_priority: Priority = Field(100, description="higher retention priorities count as this")
    maximum_duration: Duration = Field(duration("1h"), description="longer retention counts as this")


class Tenant(Section):
    """One tenant, as named in hints. Accounting only: a hint is no isolation."""

    maximum: Size | None = Field(None, description="bound on its bytes in the host tier; null: none")
    reserved_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="fraction of the host tier below which other tenants do not push it"
    )


class Engine(Section):
    """How warmtier behaves inside its host engine."""

    on_unsupported: OnUnsupported = Field(
        OnUnsupported.REFUSE, description="refuse to start, or start the engine without tiers (off) and say so"
    )
    memory_headroom: Size = Field(size("1GiB"), description="free memory that must remain after the host tier is taken")
    log_interval: Duration = Field(duration("60s"), description="time between two lines that say whether it works")
    verify: Verify = Field(Verify.ALWAYS, description="digest checks of loads from host memory: off, sample or always")
    control: bool = Field(default=True, description="listen on a Unix domain socket for `warmtier ctl`")
    control_socket: Path | None = Field(
        None, description="where to listen; data-parallel engines add .dpN; null: in the user's runtime directory"
    )
    copy_threads: Count | None = Field(
        None, description="threads per worker that copy KV on the CPU platform; null: 1, or 2 from four processors on"
    )


class AccessLog(Section):
    """One line per request that has ended: lengths, hits per tier, decision, reason, waits. Keys are keyed hashes."""

    path: Path | None = Field(None, description="file to write; data-parallel engines add .dpN; null: no access log")
    capacity: Size = Field(size("256MiB"), description="hard bound on the log's bytes, rotated files included")
    files: Annotated[int, Field(ge=2)] = Field(4, description="files that share the capacity; the oldest is removed")
    queue: Count = Field(4096, description="requests waiting to be written; more are dropped and counted")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.path is not None and not self.path.is_absolute():
            raise ValueError(f"path {str(self.path)!r} is relative; the engine's working directory is not yours")
        return self


class EngineConfig(Section):
    """The ``"warmtier"`` object inside ``kv_connector_extra_config``."""

    host: HostTier = Field(description="host memory")
    file: FileTier | None = Field(None, description="a directory on a local disk; null for none")
    loading: Loading = Field(default_factory=Loading, description="load or recompute")
    hints: Hints = Field(default_factory=Hints, description="bounds on hints")
    tenants: dict[str, Tenant] = Field(default_factory=dict, description="bounds by tenant name")
    engine: Engine = Field(default_factory=Engine, description="behaviour inside the engine")
    access_log: AccessLog = Field(default_factory=AccessLog, description="what became of each request")


class Connector(enum.StrEnum):
    """The scheduler- and worker-side class that vLLM loads."""

    OFFLOADING = "offloading"
    WARMTIER = "warmtier"


class Vllm(Section):
    """What vLLM itself reads from ``--kv-transfer-config`` beside the ``"warmtier"`` object."""

    blocks_per_chunk: Count | None = Field(
        None, description="engine blocks in one chunk, the unit that moves; null lets warmtier choose"
    )
    connector: Connector = Field(
        Connector.OFFLOADING,
        description="offloading (vLLM's own: a failed load stops the engine) or warmtier (a thin subclass: recomputes)",
    )


class WarmtierConfig(EngineConfig):
    """A whole configuration file."""

    vllm: Vllm = Field(default_factory=Vllm, description="what vLLM reads itself")

    def engine_part(self) -> EngineConfig:
        """Return the part that travels inside ``kv_connector_extra_config``."""
        return EngineConfig.model_validate(
            {name: getattr(self, name) for name in EngineConfig.model_fields if name in self.model_fields_set}
        )


def dump(config: Section) -> dict[str, object]:
    """Return what was given explicitly, JSON-ready; parsing it again gives an equal object."""
    return config.model_dump(mode="json", exclude_unset=True)
