"""When chunks of a class are used again: online reuse-time histograms and the index made of them.

The index of a class at an age is the Gittins index of its empirical reuse-time distribution (Gittins 1979; hit density
of LHD, Beckmann 2018, is a relative): the best ratio, over horizons T, of the chance of reuse within T to the expected
time that a place is held. Hazards are Kaplan-Meier estimates over log-spaced ages, shrunk towards coarser classes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

KINDS: Final = 3
USES: Final = 6
FRESH: Final = 7
CLASSES: Final = KINDS * USES * FRESH
USES_MAX: Final = 9
USE_BUCKET: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5)
"""Bucket of a use count (0 to ``USES_MAX``): 1 / 2 / 3 / 4-5 / 6-8 / 9+."""

_WAITING_MIN: Final = 1e-9

Floats = npt.NDArray[np.float64]


def class_of(kind: int, uses: int, fresh: int) -> int:
    """Return the number of the class of a chunk of a request of ``kind`` with ``fresh`` (bucket of new tokens).

    The new tokens matter most in requests that share nothing; elsewhere three buckets are one, to learn sooner.
    """
    if kind:
        fresh //= 3
    return (kind * USES + USE_BUCKET[uses]) * FRESH + fresh


def fresh_bucket(new_tokens: int) -> int:
    """Return floor(log2(new tokens / 256 + 1)), at most 6."""
    return min(FRESH - 1, int(math.log2(max(0, new_tokens) / 256 + 1)))


@dataclass(frozen=True, slots=True)
class AgeBins:
    """Log-spaced age bins: [0, first_s), then ``count - 1`` bins growing by ``ratio``; the last is open."""

    count: int = 36
    first_s: float = 0.1
    ratio: float = 1.35

    def of(self, age_s: float) -> int:
        """Return the bin of an age."""
        if age_s < self.first_s:
            return 0
        return min(self.count - 1, 1 + int(math.log(age_s / self.first_s) / math.log(self.ratio)))

    def of_many(self, ages_s: Floats) -> npt.NDArray[np.int64]:
        """Return the bins of many ages."""
        scaled = np.log(np.maximum(ages_s, self.first_s) / self.first_s) / math.log(self.ratio)
        bins: npt.NDArray[np.int64] = np.where(ages_s < self.first_s, 0, 1 + scaled.astype(np.int64))
        return bins.clip(0, self.count - 1)

    def widths(self) -> Floats:
        """Return the widths in seconds (the open bin as if closed)."""
        edges = np.concatenate(([0.0], self.first_s * self.ratio ** np.arange(self.count)))
        return np.diff(edges)


class ReuseTable:
    """Reuse and censoring counts per class and age bin, and the index table built from them.

    Counts are halved when their sum passes ``memory`` chunks, so old behaviour fades and numbers stay bounded.
    Before the first ``rebuild`` every index is 1.
    """

    def __init__(self, bins: AgeBins | None = None, shrinkage: float = 60.0, memory: float = 4e6) -> None:
        self.bins = bins or AgeBins()
        self._shrinkage = shrinkage
        self._memory = memory
        self._widths = self.bins.widths()
        self._inverse_log = 1 / math.log(self.bins.ratio)
        self.clear()

    def clear(self) -> None:
        """Forget all counts."""
        size = CLASSES * self.bins.count
        self._reused = array("d", bytes(8 * size))
        self._censored = array("d", bytes(8 * size))
        self._sum = 0.0
        self.index: list[list[float]] = [[1.0] * self.bins.count for _ in range(CLASSES)]
        self.built = False

    def bin(self, age_s: float) -> int:
        """Return the bin of an age (fast path of ``bins.of``)."""
        bins = self.bins
        if age_s < bins.first_s:
            return 0
        number = 1 + int(math.log(age_s / bins.first_s) * self._inverse_log)
        return number if number < bins.count else bins.count - 1

    def at(self, now: float) -> Callable[[int, float], float]:
        """Return the function (class, time of last use) -> index at ``now``, fast: victims are chosen by it."""
        index, bins, log, inverse = self.index, self.bins, math.log, self._inverse_log
        first_s, last = bins.first_s, bins.count - 1

        def value(class_: int, used_s: float) -> float:
            age_s = now - used_s
            if age_s < first_s:
                return index[class_][0]
            number = 1 + int(log(age_s / first_s) * inverse)
            return index[class_][min(number, last)]

        return value

    def reused(self, class_: int, age_s: float, count: int) -> None:
        """Record that ``count`` chunks were used again at this age."""
        self._reused[class_ * self.bins.count + self.bin(age_s)] += count
        self._sum += count

    def censored(self, class_: int, age_s: float, count: int) -> None:
        """Record that ``count`` chunks were lost sight of at this age, not used again until then."""
        self._censored[class_ * self.bins.count + self.bin(age_s)] += count
        self._sum += count

    def rebuild(self, classes: npt.NDArray[np.int64], ages_s: Floats, counts: Floats) -> None:
        """Build the index table from the history and the chunks tracked now (as censored at their present age)."""
        shape = (CLASSES, self.bins.count)
        reused = np.array(self._reused).reshape(shape)
        flat = classes * self.bins.count + self.bins.of_many(ages_s)
        live = np.bincount(flat, weights=counts, minlength=CLASSES * self.bins.count).reshape(shape)
        lives = reused + np.array(self._censored).reshape(shape) + live
        exposed = np.flip(np.flip(lives, 1).cumsum(1), 1)
        self.index = self._index(self._hazard(reused, exposed), exposed[:, 0] > 0).tolist()
        self.built = True
        if self._sum > self._memory:
            self._halve()

    def _index(self, hazard: Floats, seen: npt.NDArray[np.bool_]) -> Floats:
        """Return the index of every class. Unseen ones are alike within kind and uses: one stands for them."""
        groups = ~seen.reshape(KINDS * USES, FRESH)
        stand_in = groups.argmax(1) + FRESH * np.arange(KINDS * USES)
        rows = np.union1d(np.flatnonzero(seen), stand_in)
        index = np.empty_like(hazard)
        index[rows] = gittins(hazard[rows], self._widths)
        unseen = np.flatnonzero(~seen)
        index[unseen] = index[stand_in[unseen // FRESH]]
        return index

    def _hazard(self, reused: Floats, exposed: Floats) -> Floats:
        """Return the chance of reuse per bin, shrunk along all -> kind -> kind and uses -> class."""
        weight = self._shrinkage
        shape = (KINDS, USES, FRESH, self.bins.count)
        events, risk = reused.reshape(shape), exposed.reshape(shape)
        root = events.sum((0, 1, 2)) / np.maximum(risk.sum((0, 1, 2)), 5.0)
        kind = (events.sum((1, 2)) + weight * root) / (risk.sum((1, 2)) + weight)
        uses = (events.sum(2) + weight * kind[:, None]) / (risk.sum(2) + weight)
        full = (events + weight * uses[:, :, None]) / (risk + weight)
        hazard: Floats = full.reshape(CLASSES, -1).clip(0.0, 1.0)
        return hazard

    def _halve(self) -> None:
        self._reused = array("d", [value / 2 for value in self._reused])
        self._censored = array("d", [value / 2 for value in self._censored])
        self._sum /= 2


def gittins(hazard: Floats, widths_s: Floats) -> Floats:
    """Return the index (reuses per second held) of every class at the start of every age bin.

    With S(i) the share still waiting at the start of bin i and H(i) the time held until then, the index at bin a is the
    largest (S(a) - S(b)) / (H(b) - H(a)) over b > a: what was waiting at a cancels out.
    """
    classes, count = hazard.shape
    hazard = hazard.clip(0.0, 0.999)  # keeps every age reachable
    waiting = np.ones((classes, count + 1))
    np.cumprod(1 - hazard, axis=1, out=waiting[:, 1:])
    held = np.zeros((classes, count + 1))  # who is used again within a bin holds its place for half of it
    np.cumsum(waiting[:, :-1] * (1 - hazard / 2) * widths_s, axis=1, out=held[:, 1:])
    tiny = np.finfo(np.float64).tiny
    reused = waiting[:, :count, None] - waiting[:, None, 1:]
    spent = (held[:, None, 1:] - held[:, :count, None]).clip(tiny, None)
    reused[:, ~np.triu(np.ones((count, count), bool))] = 0.0
    best: Floats = (reused / spent).max(axis=2)
    one_bin = hazard / (widths_s * (1 - hazard / 2))
    gone = waiting[:, :count] < _WAITING_MIN  # the differences are rounding errors there
    best[gone] = one_bin[gone]
    return best
