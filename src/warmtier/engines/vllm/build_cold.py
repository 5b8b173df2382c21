"""Makes the cold tiers of an engine: their stores, the threads that open them, the executor that drives them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.config import OffloadingConfig

from warmtier.config.assemble import FILE_TIER, open_file_store
from warmtier.config.schema import EngineConfig, FileTier
from warmtier.core.types import Namespace, TierKind
from warmtier.engines.vllm.cold import ColdTiers
from warmtier.engines.vllm.epochs import EpochedStore, Keeper
from warmtier.engines.vllm.namespace import namespace, unstable_hash
from warmtier.engines.vllm.slab import Slab
from warmtier.store.base import Store
from warmtier.store.file.inspect import collect
from warmtier.store.file.store import engine_directory
from warmtier.tiering.cache import TieredCache

logger = init_logger("vllm.warmtier")


def build_cold(
    config: OffloadingConfig,
    settings: EngineConfig,
    cache: TieredCache,
    slab: Slab,
    facts: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> ColdTiers | None:
    """Return the driver of the cold tiers, None if there are none. Opens nothing: that waits for the first step."""
    if settings.file is None:
        return None
    why = unstable_hash(facts, seeded="PYTHONHASHSEED" in os.environ)
    if why is not None:
        logger.warning("The file tier will be empty after each restart: %s", why)
    chunk_bytes, rank = slab.layout.chunk_bytes, config.parallel.data_parallel_index
    make = _file_store(settings.file, _namespaces(facts), chunk_bytes, rank)
    directory = engine_directory(settings.file.directory, rank)
    store = EpochedStore(TierKind.FILE, settings.file.capacity, make, lambda: _erase(directory))
    keeper = Keeper(FILE_TIER, store, chunk_bytes, logger.warning)
    return ColdTiers(cache, slab, [keeper], readers=settings.file.threads, clock=clock)


def _namespaces(facts: Mapping[str, Any]) -> Callable[[str | None], Namespace]:
    """Return what names an epoch. The root hash is read when a store is opened: vLLM sets it after its manager."""
    return lambda epoch: namespace(facts, bytes(kv_cache_utils.NONE_HASH), epoch=epoch)


def _file_store(
    settings: FileTier, namespace_in: Callable[[str | None], Namespace], chunk_bytes: int, rank: int
) -> Callable[[str | None], Store]:
    return lambda epoch: open_file_store(
        settings, namespace_in(epoch), chunk_bytes=chunk_bytes, data_parallel_rank=rank
    )


def _erase(directory: Path) -> None:
    if directory.exists():
        collect(directory, to_bytes=0)
