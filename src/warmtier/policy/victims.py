"""Choosing victims among segments: the oldest segment of each class competes, leaves go first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from typing import Final, Generic, NamedTuple

from warmtier.policy.base import K, Pinned
from warmtier.policy.segments import Segment, SegmentTree

_DESCENT_MAX: Final = 10_000


class Ranking(NamedTuple, Generic[K]):
    """How victims are ordered: the lowest value goes. ``blend`` joins the values of a blocked parent and its leaf."""

    value: Callable[[Segment[K]], float]
    blend: Callable[[float, float], float]


class Victims(Generic[K]):
    """The victims of one call, lowest value first. Looks at one segment per class, so costs O(classes) to make.

    ``owner``, ``guard`` and ``own`` name what the call must not evict: segments of a request, one key, some keys.
    A segment that cannot go now moves to the end of its queue, so that no scan meets it twice in a row.
    """

    def __init__(
        self,
        tree: SegmentTree[K],
        ranking: Ranking[K],
        pinned: Pinned[K],
        owner: object = None,
        own: Collection[K] = (),
    ) -> None:
        self._tree = tree
        self._ranking = ranking
        self._pinned = pinned
        self._owner = owner
        self._own = own
        self.guard: K | None = None
        self.refused_by_value = False
        self._skipped: dict[int, int] = {}
        self._heap: list[
            tuple[float, int, int, bool]
        ] = []  # value, order of the oldest segment, class, value is of a leaf
        for class_, queue in tree.queues.items():
            segment = next(iter(queue))
            self._heap.append((ranking.value(segment), segment.order, class_, False))
        heapq.heapify(self._heap)

    def take(self, count: int, bound: float) -> list[K]:
        """Turn up to ``count`` resident chunks into ghosts and return them, while their value is at most ``bound``.

        Sets ``refused_by_value`` when it stopped for the bound.
        """
        taken: list[K] = []
        heap, tree = self._heap, self._tree
        while len(taken) < count and heap:
            value, order, class_, of_leaf = heap[0]
            queue = tree.queues.get(class_)
            if queue is None:
                heapq.heappop(heap)
                continue
            segment = next(iter(queue))
            if segment.order != order:
                heapq.heapreplace(heap, (self._ranking.value(segment), segment.order, class_, False))
                continue
            target = self._leaf(segment)
            if target is not segment and not of_leaf:
                leaf_value = self._ranking.value(target)
                if leaf_value > value:
                    heapq.heapreplace(heap, (self._ranking.blend(value, leaf_value), order, class_, True))
                    continue
            if value > bound:
                self.refused_by_value = True
                break
            got = self._tails(target, count - len(taken), target is segment)
            if got:
                taken += got
                if of_leaf and segment.keys:
                    heapq.heapreplace(heap, (self._ranking.value(segment), order, class_, False))
            else:
                self._skip(class_, segment)
        return taken

    def _leaf(self, segment: Segment[K]) -> Segment[K]:
        """Go down from the tail of ``segment`` to a segment whose tail has nothing resident below it."""
        below = self._tree.below
        for _ in range(_DESCENT_MAX):
            deeper = below.get(segment.keys[-1])
            if not deeper:
                break
            segment = next(iter(deeper))
        return segment

    def _tails(self, segment: Segment[K], count: int, many: bool) -> list[K]:
        """Take chunks from the tail of ``segment`` while they are free leaves (one only, unless ``many``)."""
        taken: list[K] = []
        if segment.owner is self._owner and self._owner is not None:
            return taken
        tree, pinned, own = self._tree, self._pinned, self._own
        below = tree.below
        tails = segment.keys[: -count - 1 : -1] if many else segment.keys[-1:]
        if not own and self.guard not in tails and below.keys().isdisjoint(tails) and not any(map(pinned, tails)):
            return tree.demote_tails(segment, tails)
        for key in tails:
            if key in below or key == self.guard or key in own or pinned(key):
                break
            taken.append(key)
        return tree.demote_tails(segment, taken) if taken else taken

    def _skip(self, class_: int, segment: Segment[K]) -> None:
        queue = self._tree.queues[class_]
        queue.move_to_end(segment)
        skipped = self._skipped[class_] = self._skipped.get(class_, 0) + 1
        if skipped >= len(queue):
            heapq.heappop(self._heap)
        else:
            first = next(iter(queue))
            heapq.heapreplace(self._heap, (self._ranking.value(first), first.order, class_, False))
