"""Counters and the snapshot of a ``TieredCache``. Every decision increments one counter by its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmtier.core.types import MissReason, StoreOutcome, TierMode
from warmtier.tiering.types import TierCounters


@dataclass(frozen=True, slots=True)
class TierStats:
    """One tier at one moment. Sizes are in parts (for one KV group: chunks)."""

    mode: TierMode
    capacity: int
    resident: int
    writing: int
    reading: int
    quarantined: int
    counters: TierCounters


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The whole cache at one moment; counters grow from the start of the process."""

    epoch: int
    requests: int
    late_completions: int
    dropped_events: int
    tiers: Mapping[str, TierStats] = field(default_factory=dict)


def count_miss(counters: TierCounters, reason: MissReason, count: int) -> None:
    """Add ``count`` misses for ``reason``."""
    counters.misses[reason] = counters.misses.get(reason, 0) + count


def count_store(counters: TierCounters, outcome: StoreOutcome, count: int) -> None:
    """Add ``count`` offers that ended in ``outcome``."""
    counters.stores[outcome] = counters.stores.get(outcome, 0) + count
