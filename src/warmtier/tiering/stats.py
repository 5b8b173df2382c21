"""Counters and the snapshot of a ``TieredCache``. Every decision increments one counter by its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from warmtier.core.types import MissReason, StoreOutcome, TierKind, TierMode
from warmtier.guard.breaker import BreakerState
from warmtier.tiering.types import TierCounters

if TYPE_CHECKING:
    from warmtier.tiering.cold import ColdState
    from warmtier.tiering.state import CacheState


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier at one moment. Sizes are in parts (for one KV group: chunks); ``facts`` are the policy's own."""

    kind: TierKind
    mode: TierMode
    capacity: int
    resident: int
    writing: int
    reading: int
    quarantined: int
    counters: TierCounters
    breaker: BreakerState = BreakerState.CLOSED
    breaker_trips: int = 0
    read_bytes_in_flight: int = 0
    write_bytes_in_flight: int = 0
    facts: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The whole cache at one moment; counters grow from the start of the process."""

    epoch: int
    requests: int
    jobs: int
    late_completions: int
    dropped_events: int
    tenants: Mapping[str, int] = field(default_factory=dict)
    tiers: Mapping[str, TierStats] = field(default_factory=dict)


def snapshot(state: CacheState) -> CacheStats:
    """Return the figures of ``state`` now."""
    return CacheStats(
        epoch=state.epoch,
        requests=len(state.requests),
        jobs=len(state.jobs),
        late_completions=state.late_completions,
        dropped_events=state.dropped_events,
        tenants=state.ledger.usage() if state.ledger.active else {},
        tiers={state.host.name: _host(state)} | {tier.name: _cold(tier) for tier in state.cold},
    )


def _host(state: CacheState) -> TierStats:
    return TierStats(
        kind=TierKind.HOST,
        mode=state.host_mode.mode,
        capacity=state.host.slots,
        resident=len(state.index.ready),
        writing=len(state.index.busy),
        reading=state.index.loads,
        quarantined=state.unavailable,
        counters=state.host_counters,
        facts=state.policy.explain(),
    )


def _cold(tier: ColdState) -> TierStats:
    return TierStats(
        kind=tier.spec.kind,
        mode=tier.mode.mode,
        capacity=tier.policy.capacity,
        resident=len(tier.index),
        writing=tier.writes.size_bytes,
        reading=len(tier.reading),
        quarantined=len(tier.stale),
        counters=tier.counters,
        breaker=tier.breaker.state,
        breaker_trips=tier.breaker.trips,
        read_bytes_in_flight=tier.reads.size_bytes,
        write_bytes_in_flight=tier.writes.size_bytes,
        facts=tier.policy.explain() | ({} if tier.spec.admit is None else tier.spec.admit.explain()),
    )


def count_miss(counters: TierCounters, reason: MissReason, count: int) -> None:
    """Add ``count`` misses for ``reason``."""
    if count > 0:
        counters.misses[reason] = counters.misses.get(reason, 0) + count


def count_store(counters: TierCounters, outcome: StoreOutcome, count: int) -> None:
    """Add ``count`` offers that ended in ``outcome``."""
    if count > 0:
        counters.stores[outcome] = counters.stores.get(outcome, 0) + count
