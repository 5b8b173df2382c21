"""The engine without warmtier: what stands in when a set-up is unsupported and ``engine.on_unsupported`` is ``off``.

So an upgrade of vLLM costs the cache, not the service. Nothing is found, nothing is stored, one metric says so.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadingWorker,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
)

from warmtier.core.errors import InternalError
from warmtier.core.types import Key
from warmtier.engines.vllm.metrics import down_stats
from warmtier.engines.vllm.specs import HostSlots


class DownManager(OffloadingManager):  # type: ignore[misc]
    """Knows nothing and stores nothing."""

    def __init__(self) -> None:
        self._announce = True

    def lookup(self, key: Key, req_context: ReqContext) -> LookupResult:
        """Miss."""
        del key, req_context
        return LookupResult.MISS

    def prepare_load(self, keys: Collection[Key], req_context: ReqContext) -> HostSlots:
        """Never called: nothing was a hit."""
        del keys, req_context
        raise InternalError("a load was asked of an engine that runs without tiers")

    def prepare_store(self, keys: Collection[Key], req_context: ReqContext) -> PrepareStoreOutput:
        """Store nothing."""
        del keys, req_context
        return PrepareStoreOutput([], HostSlots([]), [])

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Keep no state."""
        del req_context
        return RequestOffloadingContext()

    def has_pending_work(self) -> bool:
        """Ask for one step, so that the metric is there."""
        return self._announce

    def get_stats(self) -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
        """Say once that warmtier is down."""
        if not self._announce:
            return None
        self._announce = False
        return down_stats()


class DownWorker(OffloadingWorker):  # type: ignore[misc]
    """Moves nothing; no job ever reaches it."""

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:  # noqa: ANN401
        """Never called."""
        del job_id, src_spec, dst_spec
        raise InternalError("a store was asked of an engine that runs without tiers")

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, **_: Any) -> bool:  # noqa: ANN401
        """Never called."""
        del job_id, src_spec, dst_spec
        raise InternalError("a load was asked of an engine that runs without tiers")

    def get_finished(self) -> list[TransferResult]:
        """Return nothing."""
        return []

    def wait(self, job_ids: set[int]) -> None:
        """Return at once."""
