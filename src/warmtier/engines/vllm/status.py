"""One line every minute that says whether warmtier earns its keep, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from warmtier.core.units import format_size
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.stats import CacheStats, TierStats

_REASONS_SHOWN: Final = 3


class StatusLine:
    """Logs what happened since the last line. Silent while nothing happens. One clock comparison per step."""

    def __init__(self, log: Callable[[str], None], chunk_bytes: int, interval_s: float = 60.0) -> None:
        self._log = log
        self._chunk_bytes = chunk_bytes
        self._interval_s = interval_s
        self._due_s: float | None = None
        self._last: dict[str, Counts] = {}

    def tick(self, cache: TieredCache, now: float) -> None:
        """Write the line when it is due."""
        if self._due_s is None:
            self._due_s = now + self._interval_s
        if now < self._due_s:
            return
        self._due_s = now + self._interval_s
        if (text := self.line(cache.stats())) is not None:
            self._log(text)

    def line(self, stats: CacheStats) -> str | None:
        """Return the line for the time since the last call, or None if nothing happened."""
        parts = []
        for tier, facts in stats.tiers.items():
            now, before = Counts(facts), self._last.get(tier)
            self._last[tier] = now
            if (text := now.since(before, self._chunk_bytes)) is not None:
                parts.append(f"{tier} tier {facts.mode.value}: {text}, {self._occupancy(facts)}")
        return "; ".join(parts) or None

    def _occupancy(self, facts: TierStats) -> str:
        held = (facts.resident + facts.writing) * self._chunk_bytes
        return f"{format_size(held)} of {format_size(facts.capacity * self._chunk_bytes)} used"


class Counts:
    """A copy of the counters of one tier that the line is made of."""

    def __init__(self, facts: TierStats) -> None:
        counters = facts.counters
        self.hits = counters.hits
        self.evictions = counters.evictions
        self.misses = {reason.value: count for reason, count in counters.misses.items()}
        self.stores = {outcome.value: count for outcome, count in counters.stores.items()}

    def since(self, before: Counts | None, chunk_bytes: int) -> str | None:
        """Return what was added to ``before``, in words, or None if nothing was."""
        hits = self.hits - (before.hits if before else 0)
        evictions = self.evictions - (before.evictions if before else 0)
        misses = _added(self.misses, before.misses if before else {})
        stores = _added(self.stores, before.stores if before else {})
        if not (hits or misses or stores):
            return None
        stored = stores.pop("stored", 0)
        return (
            f"{hits} chunks hit ({format_size(hits * chunk_bytes)}), {sum(misses.values())} missed{_top(misses)}, "
            f"{stored} stored ({format_size(stored * chunk_bytes)}){_top(stores)}, {evictions} evicted"
        )


def _added(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items() if count > before.get(name, 0)}


def _top(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])[:_REASONS_SHOWN]
    return f" ({', '.join(f'{name} {count}' for name, count in most)})" if most else ""
