"""The exact miss-ratio curve of LRU for prefixes, all capacities in one pass; sampled for big traces.

A request uses its chunks last to first, so a parent is always at least as recent as its child, and the resident part
of a path is a prefix. Therefore a chunk hits in a cache of C chunks if and only if fewer than C distinct chunks were
used since (Mattson's stack distance), and the chunks whose latest use was one request are a run of its path. So one
Fenwick tree over *requests* replaces one over accesses: each run of a path costs one query, O(runs log requests).

Sampling: SHARDS (Waldspurger et al., FAST'15), with its adjustment of the expected number of samples; the error is
the standard error over disjoint parts of the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warmtier.trace.columns import GROUPS, Columns, Ints, part


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """Prefix hits of LRU by capacity. ``hits[c]``: chunks of all requests that hit with c chunks of room."""

    hits: NDArray[np.float64]
    chunks: float
    rate: float = 1.0

    def hit_ratio(self, capacity: int) -> float:
        """Return hits over chunks with room for ``capacity`` chunks; between two samples, a straight line."""
        if not self.chunks:
            return 0.0
        scaled = min(capacity * self.rate, len(self.hits) - 1.0)
        below = int(scaled)
        share = scaled - below
        hits = self.hits[below]
        if share:
            hits = hits + share * (self.hits[below + 1] - hits)
        return float(hits / self.chunks)

    @property
    def working_set(self) -> int:
        """The smallest capacity, in chunks, at which nothing more is gained."""
        return round(int(np.searchsorted(self.hits, self.hits[-1])) / self.rate)


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of consecutive chunks of one request whose latest use was one earlier request."""

    request: Ints
    previous: Ints
    start: Ints
    count: Ints
    distance: Ints
    """Distinct chunks used since the run's first chunk, itself left out; the next chunks' are one more each."""


def find_runs(columns: Columns, *, tails: bool = False) -> Runs:
    """Return all runs in order, with distances. Partial tails are left out unless ``tails``."""
    keep = np.ones(columns.accesses, dtype=np.bool_)
    if not tails:
        keep[columns.first[1:][columns.tail] - 1] = False
    request, previous = columns.request[keep].astype(np.int64), columns.previous[keep].astype(np.int64)
    depth = columns.depth[keep]
    change = np.ones(len(request), dtype=np.bool_)
    change[1:] = (request[1:] != request[:-1]) | (previous[1:] != previous[:-1])
    at = np.flatnonzero(change)
    count = np.diff(np.append(at, len(request)))
    runs = Runs(request[at], previous[at], depth[at], count, np.empty(0, dtype=np.int64))
    return Runs(runs.request, runs.previous, runs.start, runs.count, _distances(runs, columns.requests))


def _distances(runs: Runs, requests: int) -> Ints:
    """One pass with a Fenwick tree over requests: how many chunks were last used by each.

    A run begins with the newest chunk of its earlier request, so what is newer is what later requests used last.
    """
    tree = [0] * (requests + 1)
    distances = [-1] * len(runs.request)
    total, current, size = 0, -1, 0
    moved: list[tuple[int, int]] = []
    rows = zip(runs.request.tolist(), runs.previous.tolist(), runs.count.tolist(), strict=True)
    for row, (request, previous, count) in enumerate(rows):
        if request != current:
            total += _use(tree, moved, current, size)
            moved, current, size = [], request, 0
        size += count
        if previous >= 0:
            index, not_newer = previous + 1, 0
            while index:
                not_newer += tree[index]
                index &= index - 1
            distances[row] = total - not_newer
            moved.append((previous, count))
    return np.array(distances, dtype=np.int64)


def _use(tree: list[int], moved: list[tuple[int, int]], request: int, size: int) -> int:
    """Count a request's chunks as last used by it and no longer by earlier ones; return the growth of the whole."""
    if request < 0:
        return 0
    for previous, count in moved:
        _add(tree, previous + 1, -count)
    _add(tree, request + 1, size)
    return size - sum(count for _, count in moved)


def _add(tree: list[int], index: int, value: int) -> None:
    limit = len(tree)
    while index < limit:
        tree[index] += value
        index += index & -index


def miss_ratio_curve(columns: Columns, *, tails: bool = False) -> MissRatioCurve:
    """Return the curve of a trace, scaled if ``columns`` is a sample.

    Hits are over all chunks, partial tails included, whether or not ``tails`` are stored.
    """
    runs = find_runs(columns, tails=tails)
    reused = runs.distance >= 0
    at, count = runs.distance[reused], runs.count[reused]
    size = int((at + count).max(initial=0)) + 1
    change = np.bincount(at, minlength=size) - np.bincount(at + count, minlength=size)
    hits = np.concatenate([[0.0], np.cumsum(np.cumsum(change))])
    if columns.rate >= 1.0:
        return MissRatioCurve(hits, float(columns.total))
    # What the sample lacks or has too much of is the share of the hottest keys: distance 0.
    expected = columns.total * columns.rate
    hits[1:] = np.clip(hits[1:] + (expected - columns.accesses), 0.0, expected)
    return MissRatioCurve(hits, expected, columns.rate)


def standard_errors(columns: Columns, capacities: Sequence[int], *, tails: bool = False) -> list[float]:
    """Return the standard error of the sampled hit ratio at each capacity, from disjoint parts of the sample."""
    curves = [miss_ratio_curve(part(columns, group), tails=tails) for group in range(GROUPS)]
    errors = []
    for capacity in capacities:
        ratios = np.array([curve.hit_ratio(capacity) for curve in curves])
        errors.append(float(ratios.std(ddof=1) / np.sqrt(GROUPS)))
    return errors
