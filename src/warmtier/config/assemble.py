"""Builds the objects that a configuration names. The one place where names become parts."""

from __future__ import annotations

from dataclasses import dataclass

from warmtier.config.schema import Admission, EngineConfig, FileTier
from warmtier.core.types import Key, Namespace, TierKind, TierMode
from warmtier.guard.breaker import BreakerSettings
from warmtier.policy.admission import Admitter, AllOf, MinimumPriority, NthTouch
from warmtier.policy.registry import create_policy
from warmtier.store.file.store import FileStore, engine_directory
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.calibration import Calibration
from warmtier.tiering.settings import CacheConfig, ColdTier, HintLimits, HostTier, TenantQuota

FILE_TIER = "file"


@dataclass(frozen=True, slots=True)
class Shape:
    """What the engine decides: sizes and counts of one cache.

    ``store_threshold``: the n-th offer at which a chunk is stored. ``defers_shared_loads``: the engine holds a request
    back while another loads one of its chunks.
    ``part_bytes``: bytes of one part (one KV group) of a chunk; ``host_slots``: how many parts the host tier holds.
    """

    part_bytes: int
    tokens_per_chunk: int
    host_slots: int
    parts_per_chunk: int = 1
    prompt_only: bool = False
    events: bool = True
    defers_shared_loads: bool = False
    store_threshold: int = 1


def assemble_cache(config: EngineConfig, shape: Shape, calibration: Calibration | None = None) -> TieredCache:
    """Return the tiered cache with every tier of ``config``, in its modes. Pure: opens nothing."""
    host = HostTier(
        create_policy(config.host.policy, shape.host_slots), shape.host_slots, _admitter(config.host.admission)
    )
    cold = [_cold_tier(config.file, shape)] if config.file is not None else []
    cache = TieredCache(cache_config(config, shape), host, cold, calibration=calibration)
    modes = {host.name: config.host.mode}
    if config.file is not None:
        modes[FILE_TIER] = config.file.mode
    for name, mode in modes.items():
        if mode is not TierMode.ON:
            cache.set_mode(name, mode, 0.0)
    return cache


def cache_config(config: EngineConfig, shape: Shape) -> CacheConfig:
    """Return the settings of the whole cache."""
    return CacheConfig(
        part_bytes=shape.part_bytes,
        tokens_per_chunk=shape.tokens_per_chunk,
        parts_per_chunk=shape.parts_per_chunk,
        offload_prompt_only=shape.prompt_only,
        store_threshold=shape.store_threshold,
        pending_deadline_s=config.loading.pending_deadline,
        promoting_requests=config.loading.promoting_requests,
        load_conflict_wait_s=config.loading.pending_deadline if shape.defers_shared_loads else None,
        host_min_tokens=config.loading.minimum_tokens,
        load_margin=config.loading.margin,
        events=shape.events,
        hint_limits=HintLimits(config.hints.maximum_priority, config.hints.maximum_duration),
        quotas={
            name: TenantQuota(max_bytes=tenant.maximum, share=tenant.reserved_share)
            for name, tenant in config.tenants.items()
        },
    )


def open_file_store(config: FileTier, namespace: Namespace, *, chunk_bytes: int, data_parallel_rank: int) -> FileStore:
    """Return the store of the file tier, not yet opened. ``chunk_bytes`` is what one record holds."""
    return FileStore(
        engine_directory(config.directory, data_parallel_rank),
        namespace,
        capacity_bytes=config.capacity,
        least_free_bytes=config.free_space_floor,
        segment_bytes=config.segment_size,
        chunk_bytes=chunk_bytes,
        durability=config.durability,
        io_threads=config.threads,
    )


def _cold_tier(config: FileTier, shape: Shape) -> ColdTier:
    return ColdTier(
        FILE_TIER,
        TierKind.FILE,
        create_policy(config.policy, config.capacity // shape.part_bytes),
        placement=config.placement,
        touches=config.selective_touches,
        admit=_admitter(config.admission),
        max_reads=config.promotion_jobs,
        max_read_bytes=config.promotion_bytes,
        write_bytes_per_s=config.write_rate,
        deadline_cap_s=config.deadline,
        breaker=BreakerSettings(failures=config.breaker_failures, cooldown_s=config.breaker_cooldown),
    )


def _admitter(config: Admission) -> Admitter[Key] | None:
    filters: list[Admitter[Key]] = []
    if config.minimum_priority > 0:
        filters.append(MinimumPriority(config.minimum_priority))
    if config.minimum_touches > 1:
        filters.append(NthTouch(config.minimum_touches))
    return AllOf(filters) if filters else None
