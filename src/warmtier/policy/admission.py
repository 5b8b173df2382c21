"""Admission to a tier: which leading chunks of a path are worth a write. ANDed filters, each pure and bounded.

``AllOf`` combines the filters of one tier edge. ``judge`` answers with a count of leading chunks and the reason of the
first refusal; the feedback methods tell a filter what became of the chunks. A chunk that the tier already holds always
passes (it needs no write). The filter by evidence is in ``warmtier.policy.cost``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple

from warmtier.core.types import DEFAULT_PRIORITY, StoreOutcome
from warmtier.policy.base import Access, K
from warmtier.policy.sketch import CountMinSketch, GhostList


@dataclass(slots=True)
class Candidates(Generic[K]):
    """Consecutive chunks of one path, root first, that could be written to a tier.

    ``uses``: requests that used each chunk so far, this one included (0: not known). ``priorities`` None: all default.
    ``present`` None: none is in the tier; True also while a write of the chunk is under way.
    """

    keys: Sequence[K]
    uses: Sequence[int]
    depth: int = 0
    priorities: Sequence[int] | None = None
    present: Sequence[bool] | None = None


@dataclass(frozen=True, slots=True)
class TierState:
    """How full the tier is, in chunks (those being written included), and how old its last victim was at eviction."""

    capacity: int
    resident: int
    eviction_age_s: float | None = None

    @property
    def room(self) -> int:
        """Chunks that can be written without evicting."""
        return max(0, self.capacity - self.resident)


class Verdict(NamedTuple):
    """The first ``admitted`` candidates may be in the tier; ``reason`` says why the next may not (None: all may)."""

    admitted: int
    reason: StoreOutcome | None


class Admitter(ABC, Generic[K]):
    """One admission filter of one tier. Synchronous, single-threaded, bounded; time comes in as ``now``."""

    @abstractmethod
    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Say how many leading candidates may be written. May remember what it refused."""

    def on_used(self, keys: Sequence[K], now: float) -> None:
        """A request used these chunks, wherever they were (once per request and chunk)."""

    def on_hit(self, keys: Sequence[K], now: float) -> None:
        """This tier served these chunks."""

    def on_written(self, keys: Sequence[K], now: float) -> None:
        """These chunks were written to this tier."""

    def on_evicted(self, keys: Iterable[K], now: float) -> None:
        """This tier gave these chunks up for room."""

    def explain(self) -> dict[str, float | int | str]:
        """Return a few bounded facts for people and metrics."""
        return {}


class Presence(Admitter[K]):
    """Stops at a chunk that the tier already holds: the caller wants only what is new. Seldom needed in ``AllOf``."""

    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Stop at the first present chunk."""
        del access, tier, now
        for index, present in enumerate(candidates.present or ()):
            if present:
                return Verdict(index, StoreOutcome.PRESENT)
        return Verdict(len(candidates.keys), None)


class MinimumPriority(Admitter[K]):
    """Stops at the first chunk whose retention priority is below ``minimum`` (prefix-contiguous)."""

    def __init__(self, minimum: int) -> None:
        self.minimum = minimum

    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Stop at the first chunk below the minimum."""
        del access, tier, now
        count = len(candidates.keys)
        priorities = candidates.priorities
        if priorities is None:
            return Verdict(count, None) if self.minimum <= DEFAULT_PRIORITY else _refuse_absent(candidates, 0)
        for index in range(count):
            if priorities[index] < self.minimum and not _present(candidates, index):
                return Verdict(index, StoreOutcome.REFUSED_PRIORITY)
        return Verdict(count, None)


class NthTouch(Admitter[K]):
    """Stops at the first chunk that fewer than ``touches`` requests have used.

    Uses are those of ``on_used``: a count-min sketch with aging for all, exact in a ghost list for the most recent
    ``remember`` chunks. ``candidates.uses`` counts where it knows more. Memory: about 50 bytes per remembered chunk.
    """

    def __init__(self, touches: int = 2, remember: int = 20_000) -> None:
        if touches < 1:
            raise ValueError(f"touches must be at least 1, got {touches}")
        self.touches = touches
        self._recent: GhostList[K] = GhostList(remember)
        self._sketch = CountMinSketch(remember)

    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Stop at the first chunk with too few uses."""
        del access, tier, now
        for index, key in enumerate(candidates.keys):
            few = candidates.uses[index] < self.touches and self._seen(key) < self.touches
            if few and not _present(candidates, index):
                return Verdict(index, StoreOutcome.REFUSED_TOUCH)
        return Verdict(len(candidates.keys), None)

    def on_used(self, keys: Sequence[K], now: float) -> None:
        """Count the uses."""
        del now
        for key in keys:
            count = self._recent.pop(key)
            if count is None:
                self._sketch.add(key)
                count = self._sketch.estimate(key) - 1
            self._recent.put(key, count + 1)

    def explain(self) -> dict[str, float | int | str]:
        """Return the number of chunks remembered exactly."""
        return {"touch_remembered": len(self._recent)}

    def _seen(self, key: K) -> int:
        count = self._recent.get(key)
        return self._sketch.estimate(key) if count is None else count


class AllOf(Admitter[K]):
    """ANDs filters: each judges what those before it left; the reason is that of the strictest."""

    def __init__(self, filters: Sequence[Admitter[K]]) -> None:
        self.filters = tuple(filters)

    def judge(self, access: Access[K] | None, candidates: Candidates[K], tier: TierState, now: float) -> Verdict:
        """Shorten the candidates filter by filter."""
        verdict = Verdict(len(candidates.keys), None)
        for item in self.filters:
            if verdict.admitted == 0:
                break
            left = candidates if verdict.reason is None else _head(candidates, verdict.admitted)
            answer = item.judge(access, left, tier, now)
            if answer.reason is not None:
                verdict = answer
        return verdict

    def on_used(self, keys: Sequence[K], now: float) -> None:
        """Tell every filter."""
        for item in self.filters:
            item.on_used(keys, now)

    def on_hit(self, keys: Sequence[K], now: float) -> None:
        """Tell every filter."""
        for item in self.filters:
            item.on_hit(keys, now)

    def on_written(self, keys: Sequence[K], now: float) -> None:
        """Tell every filter."""
        for item in self.filters:
            item.on_written(keys, now)

    def on_evicted(self, keys: Iterable[K], now: float) -> None:
        """Tell every filter."""
        gone = list(keys)
        for item in self.filters:
            item.on_evicted(gone, now)

    def explain(self) -> dict[str, float | int | str]:
        """Return the facts of all filters."""
        facts: dict[str, float | int | str] = {}
        for item in self.filters:
            facts.update(item.explain())
        return facts


def _present(candidates: Candidates[K], index: int) -> bool:
    return candidates.present is not None and candidates.present[index]


def _refuse_absent(candidates: Candidates[K], start: int) -> Verdict:
    for index in range(start, len(candidates.keys)):
        if not _present(candidates, index):
            return Verdict(index, StoreOutcome.REFUSED_PRIORITY)
    return Verdict(len(candidates.keys), None)


def _head(candidates: Candidates[K], count: int) -> Candidates[K]:
    present, priorities = candidates.present, candidates.priorities
    return Candidates(
        candidates.keys[:count],
        candidates.uses[:count],
        candidates.depth,
        None if priorities is None else priorities[:count],
        None if present is None else present[:count],
    )
