"""Admission by evidence: is a write worth its cost on this traffic, in this tier, at its present size?

Small shadow tiers run beside the real one, one per threshold of uses, on a sample of the chunks. Each counts the hits
it would have served and the writes it would have made. Between two neighbouring thresholds, extra hits over extra
writes is the predicted number of hits per write of the chunks in question, and the tier's own eviction age is in it:
what a write pushes out is missing from the hits. The threshold with the best hits x value - writes x cost decides.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from warmtier.core.types import StoreOutcome
from warmtier.policy.admission import Admitter, Candidates, TierState, Verdict
from warmtier.policy.base import Access, K
from warmtier.policy.sketch import GhostList, stable_hash

THRESHOLDS: Final = (1, 2, 3, 5)
_LOOK_EVERY: Final = 200  # sampled offers between two choices


@dataclass(frozen=True, slots=True)
class EvidenceCost:
    """What a write costs against what a hit is worth, both in any one unit (seconds, bytes, money).

    ``writes_per_s``: hard limit (endurance, PUT cost), None for none; ``burst``: writes that may be saved up.
    ``half_life``: sampled offers after which a hit or a write counts half. ``shadow_chunks``: size of one shadow.
    """

    hit_value: float = 1.0
    write_cost: float = 0.1
    writes_per_s: float | None = None
    burst: int = 1_000
    half_life: float = 5_000.0
    shadow_chunks: int = 4_000


class _ShadowTier(Generic[K]):
    """An LRU tier of keys only that admits at ``uses`` uses, or while it has room.

    A write counts when its fate is known, at its first hit or at its eviction: counted at once, recent writes whose
    hits are still to come would speak against writing.
    """

    def __init__(self, uses: int, size: int) -> None:
        self.uses = uses
        self.size = size
        self.hits = 0.0
        self.writes = 0.0
        self._items: OrderedDict[K, bool] = OrderedDict()  # True: the write has been counted

    def offer(self, key: K, uses: int) -> None:
        """A chunk left the tier above."""
        items = self._items
        if key in items:
            items.move_to_end(key)
            return
        if uses < self.uses and len(items) >= self.size:
            return
        if len(items) >= self.size:
            self.writes += not items.popitem(last=False)[1]
        items[key] = False

    def use(self, key: K) -> None:
        """A request wanted the chunk and only this tier could have it."""
        items = self._items
        if key in items:
            self.writes += not items[key]
            items[key] = True
            items.move_to_end(key)
            self.hits += 1

    def fade(self, keep: float) -> None:
        """Let the past count less."""
        self.hits *= keep
        self.writes *= keep

    def __len__(self) -> int:
        return len(self._items)


class EvidenceAdmission(Admitter[K]):
    """Admits while predicted hits per write x value of a hit exceed the cost of a write, or while there is room.

    Memory: four shadows of at most ``shadow_chunks`` keys and one list of twice as many.
    """

    def __init__(self, capacity: int, cost: EvidenceCost | None = None) -> None:
        self.cost = cost or EvidenceCost()
        if self.cost.hit_value <= 0 or self.cost.write_cost < 0 or self.cost.burst < 1 or self.cost.half_life <= 0:
            raise ValueError(f"hit_value, burst and half_life must be positive, write_cost not negative: {self.cost}")
        share = min(1.0, self.cost.shadow_chunks / max(1, capacity))
        size = max(1, round(share * capacity))
        self._everything = share >= 1.0
        self._limit = int(share * (1 << 64))
        self._shadows: list[_ShadowTier[K]] = [_ShadowTier(uses, size) for uses in THRESHOLDS]
        self._outside: GhostList[K] = GhostList(2 * size)  # offered, not used since: absent from the tier above
        self._offers = 0
        self._allowance = float(self.cost.burst)
        self._allowance_at_s: float | None = None
        self.threshold = THRESHOLDS[0]

    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Stop at the first chunk with too few uses, or where the write budget ends."""
        del access
        self._refill(now)
        for key, uses in zip(candidates.keys, candidates.uses, strict=True):
            self._offer(key, uses)
        room = tier.room
        left = self._allowance if self.cost.writes_per_s is not None else float("inf")
        for index, uses in enumerate(candidates.uses):
            if candidates.present is not None and candidates.present[index]:
                continue
            if room <= 0 and uses < self.threshold:
                return Verdict(index, StoreOutcome.REFUSED_EVIDENCE)
            if left < 1:
                return Verdict(index, StoreOutcome.WRITE_BUDGET)
            room -= 1
            left -= 1
        return Verdict(len(candidates.keys), None)

    def on_used(self, keys: Sequence[K], now: float) -> None:
        """Let the shadows serve what is not in the tier above."""
        del now
        outside = self._outside
        for key in keys:
            if key in outside:
                outside.pop(key)
                for shadow in self._shadows:
                    shadow.use(key)

    def on_written(self, keys: Sequence[K], now: float) -> None:
        """Spend the write budget."""
        self._refill(now)
        self._allowance -= len(keys)

    def on_evicted(self, keys: Iterable[K], now: float) -> None:
        """Nothing: the shadows evict by themselves."""

    def explain(self) -> dict[str, float | int | str]:
        """Return the threshold in charge and the predicted hits per further write below it."""
        facts: dict[str, float | int | str] = {"evidence_threshold": self.threshold}
        for lower, upper in zip(self._shadows, self._shadows[1:], strict=False):
            extra = lower.writes - upper.writes
            if extra >= 1:
                facts[f"hits_per_write_{lower.uses}"] = round((lower.hits - upper.hits) / extra, 4)
        return facts

    def _offer(self, key: K, uses: int) -> None:
        if not self._everything and stable_hash(key) >= self._limit:
            return
        self._outside.put(key)
        for shadow in self._shadows:
            shadow.offer(key, uses)
        self._offers += 1
        if self._offers % _LOOK_EVERY == 0:
            self._choose()

    def _choose(self) -> None:
        cost = self.cost
        keep = 0.5 ** (_LOOK_EVERY / cost.half_life)
        for shadow in self._shadows:
            shadow.fade(keep)
        best = max(self._shadows, key=lambda shadow: shadow.hits * cost.hit_value - shadow.writes * cost.write_cost)
        self.threshold = best.uses

    def _refill(self, now: float) -> None:
        rate = self.cost.writes_per_s
        if rate is not None and self._allowance_at_s is not None:
            earned = (now - self._allowance_at_s) * rate
            self._allowance = min(float(self.cost.burst), self._allowance + earned)
        self._allowance_at_s = now
