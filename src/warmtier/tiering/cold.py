"""One tier below the host: which chunks it holds, what is in flight, and whether it may be used now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from warmtier.core.types import Key, MissReason, StoreOutcome
from warmtier.guard.breaker import Breaker
from warmtier.guard.budget import InFlight, TokenBucket
from warmtier.guard.mode import ModeSwitch
from warmtier.guard.watermark import Watermark
from warmtier.policy.base import Access
from warmtier.tiering.request import Request
from warmtier.tiering.settings import ColdTier
from warmtier.tiering.types import TierCounters

READY: Final = 1
WRITING: Final = 2


class ColdState:
    """Index and guards of one cold tier. Single-threaded; every call costs O(keys named)."""

    def __init__(self, spec: ColdTier, *, parents: bool = False) -> None:
        self.spec = spec
        self.name = spec.name
        self.policy = spec.policy
        self.index: dict[Key, int] = {}
        self.parents: dict[Key, Key | None] | None = {} if parents else None  # only if victims are written further down
        self.reading: Counter[Key] = Counter()
        self.leaving: set[Key] = set()  # gone from the index, still being read for a migration
        self.stale: Counter[Key] = Counter()  # writes of an earlier epoch under way: no new write of the same key yet
        self.reads = InFlight(spec.max_reads, spec.max_read_bytes)
        self.writes = InFlight(spec.max_writes, spec.max_write_bytes)
        self.bucket = TokenBucket(spec.write_bytes_per_s, spec.write_burst_bytes)
        self.watermark = Watermark(spec.high_water, spec.low_water)
        self.breaker = Breaker(spec.breaker)
        self.mode = ModeSwitch()
        self.counters = TierCounters()

    def readable(self, key: Key) -> bool:
        """Return whether the tier holds the chunk complete, whatever its mode."""
        return self.index.get(key) == READY

    def closed(self, now: float) -> MissReason | None:
        """Return why nothing may be read now, or None."""
        if not self.mode.on:
            return MissReason.TIER_OFF
        return None if self.breaker.allows(now) else MissReason.BREAKER_OPEN

    def refuses(self, now: float) -> StoreOutcome | None:
        """Return why nothing may be written now, or None."""
        if not self.mode.on:
            return StoreOutcome.TIER_OFF
        if not self.breaker.allows(now):
            return StoreOutcome.BREAKER_OPEN
        return StoreOutcome.QUEUE_FULL if self.watermark.update(self.writes.fill) else None

    def holds(self, key: Key) -> bool:
        """Return whether a write of the chunk is needless or must not start: held, being written, or on its way out."""
        return key in self.index or key in self.leaving or key in self.stale

    def pinned(self, key: Key) -> bool:
        """Return whether a chunk must stay: it is being written or read."""
        return self.index.get(key) != READY or key in self.reading

    def view(self, request: Request) -> Access[Key]:
        """Return the request as this tier's policy sees it: the same path, another policy state."""
        view = request.views.get(self.name)
        if view is None:
            view = Access(
                request.path,
                request.tokens_per_chunk,
                request.prompt_tokens,
                request.started_s,
                request.tenant,
                request.session,
            )
            request.views[self.name] = view
        return view

    def start_reading(self, keys: Iterable[Key]) -> None:
        """Keep ``keys`` from eviction until ``end_reading``."""
        for key in keys:
            self.reading[key] += 1

    def end_reading(self, keys: Iterable[Key]) -> None:
        """Undo ``start_reading``."""
        lower(self.reading, keys)

    def forget(self, keys: Sequence[Key], now: float) -> list[Key]:
        """The tier lost ``keys``; return those that it held."""
        gone = [key for key in keys if self.index.pop(key, None) is not None]
        if self.parents is not None:
            for key in gone:
                self.parents.pop(key, None)
        self.policy.remove(gone, now)
        return gone


def lower(counts: Counter[Key], keys: Iterable[Key]) -> None:
    """Lower each count by one; drop those that reach zero."""
    for key in keys:
        left = counts[key] - 1
        if left > 0:
            counts[key] = left
        else:
            del counts[key]
