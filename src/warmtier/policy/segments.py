"""Chunks as runs: all that one request used and that shares a use count moves as one segment.

A segment is a stretch of one path. A newer request takes its head away; evictions take its tail. So a segment always is
one stretch, resident chunks first and remembered (ghost) chunks after them, and work is per segment, not per chunk.
This rests on the engine's keys: a key fixes its parent, hence the whole path above it.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Generic

import numpy as np

from warmtier.policy.base import K
from warmtier.policy.hazard import Floats


class Segment(Generic[K]):
    """A stretch of a path that was last used by one request.

    ``keys``: resident, root first. ``ghosts``: remembered only, DEEPEST first, all below ``keys``. ``slot`` is -1 once
    the segment has been dissolved. ``owner`` is the state of the request that used it last. ``clock`` counts the chunks
    used by all requests until then; ``near``: its chunks had been used before, not too many chunks ago.
    """

    __slots__ = ("class_", "clock", "ghosts", "keys", "near", "order", "owner", "parent", "slot", "time_s", "uses")

    def __init__(self, class_: int, uses: int, time_s: float, parent: K | None, owner: object) -> None:
        self.class_ = class_
        self.uses = uses
        self.time_s = time_s
        self.parent = parent
        self.owner = owner
        self.order = 0
        self.clock = 0
        self.near = False
        self.slot = -1
        self.keys: list[K] = []
        self.ghosts: list[K] = []

    def __len__(self) -> int:
        return len(self.keys) + len(self.ghosts)

    @property
    def first(self) -> K:
        """The key nearest to the root."""
        return self.keys[0] if self.keys else self.ghosts[-1]

    @property
    def last(self) -> K:
        """The deepest key, ghosts included."""
        return self.ghosts[0] if self.ghosts else self.keys[-1]


class Slab:
    """Class, time and length of every segment in flat arrays, so that a scan over all is one numpy expression."""

    def __init__(self) -> None:
        self.classes = array("q")
        self.times_s = array("d")
        self.counts = array("d")
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.counts) - len(self._free)

    def take(self, class_: int, time_s: float, count: int) -> int:
        """Return a slot filled with these."""
        if self._free:
            slot = self._free.pop()
            self.classes[slot], self.times_s[slot], self.counts[slot] = class_, time_s, count
            return slot
        self.classes.append(class_)
        self.times_s.append(time_s)
        self.counts.append(count)
        return len(self.counts) - 1

    def give(self, slot: int) -> None:
        """Free a slot; it no longer counts."""
        self.counts[slot] = 0
        self._free.append(slot)

    def columns(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Floats, Floats]:
        """Return copies of classes, times and counts."""
        return np.array(self.classes, np.int64), np.array(self.times_s), np.array(self.counts)


class SegmentTree(Generic[K]):
    """All tracked segments: where each key is, what hangs below it, which are resident, which are only remembered.

    Memory: proportional to resident plus ghost chunks; ``trim`` bounds the ghosts.
    """

    def __init__(self) -> None:
        self.where: dict[K, Segment[K]] = {}
        self.cached: set[K] = set()
        self.below: dict[K, dict[Segment[K], None]] = {}  # key -> segments with resident chunks right below it
        self.branches: dict[K, int] = {}  # key -> tracked segments right below it
        self.ends: dict[K, bool] = {}  # key -> True: a request ended here, False: one chunk later
        self.queues: dict[
            int, OrderedDict[Segment[K], None]
        ] = {}  # class -> segments with resident chunks, oldest first
        self.ghostly: OrderedDict[Segment[K], None] = OrderedDict()  # segments with ghosts, oldest first
        self.ghost_count = 0
        self.slab = Slab()
        self.clock = 0
        self._order = 0

    def known(self, path: Sequence[K], start: int) -> int:
        """Return the end of the tracked stretch of ``path`` that begins at ``start``."""
        where, end = self.where, len(path)
        if start >= end or path[start] not in where:
            return start
        if path[end - 1] in where:
            return end
        low, high = start + 1, end - 1  # path[low - 1] is tracked, path[high] is not
        while low < high:
            middle = (low + high) // 2
            if path[middle] in where:
                low = middle + 1
            else:
                high = middle
        return low

    def shared(self, segment: Segment[K], path: Sequence[K], start: int, end: int) -> int:
        """Return how many leading chunks of ``segment`` lie on ``path[start:end]`` (at least one)."""
        length = len(segment)
        limit = min(length, end - start)
        where = self.where
        if where.get(path[start + limit - 1]) is segment:
            return limit
        low, high = 1, limit - 1
        while low < high:
            middle = (low + high) // 2
            if where.get(path[start + middle]) is segment:
                low = middle + 1
            else:
                high = middle
        return low

    def children(self, key: K) -> int:
        """Return the number of tracked chunks right below ``key``."""
        return self.branches.get(key, 0) + (self.where[key].last != key)

    def attach(self, segment: Segment[K]) -> None:
        """Enter a filled segment: map its keys, queue it, hang it below its parent."""
        size = len(segment)
        segment.slot = self.slab.take(segment.class_, segment.time_s, size)
        self._order += 1
        segment.order = self._order
        segment.clock = self.clock
        self.where.update(zip(segment.keys, repeat(segment)))
        if segment.ghosts:
            self.where.update(zip(segment.ghosts, repeat(segment)))
            self.ghostly[segment] = None
        self._hang(segment)
        if segment.keys:
            self._enqueue(segment)

    def take_head(self, segment: Segment[K], count: int, parent: K) -> tuple[list[K], list[K]]:
        """Cut the first ``count`` chunks off; return the resident and the ghost ones, root first.

        What is left hangs below ``parent``, the last chunk taken; a segment that is used up is dissolved.
        """
        keys, ghosts = segment.keys, segment.ghosts
        self._unhang(segment)
        taken = keys[:count]
        remembered: list[K] = []
        if count >= len(keys):
            if keys:
                segment.keys = []
                self._dequeue(segment)
            rest = count - len(taken)
            if rest:
                remembered = ghosts[: -rest - 1 : -1]
                del ghosts[len(ghosts) - rest :]
                if not ghosts:
                    del self.ghostly[segment]
        else:
            del keys[:count]
        self._shrunk(segment, count)
        if segment.slot >= 0:
            segment.parent = parent
            self._hang(segment)
        return taken, remembered

    def admit(self, segment: Segment[K], count: int) -> None:
        """Make the first ``count`` ghosts of ``segment`` resident."""
        ghosts = segment.ghosts
        if not segment.keys:
            self._enqueue(segment)
            if segment.parent is not None:
                self.below.setdefault(segment.parent, {})[segment] = None
        moved = ghosts[: -count - 1 : -1]
        del ghosts[len(ghosts) - count :]
        segment.keys += moved
        self.cached.update(moved)
        self.ghost_count -= count
        if not ghosts:
            del self.ghostly[segment]

    def extend(self, segment: Segment[K], keys: Sequence[K]) -> None:
        """Add ghosts below the last chunk of ``segment`` (the caller counts them)."""
        if not segment.ghosts:
            self.ghostly[segment] = None
        segment.ghosts[0:0] = keys[::-1]
        self.where.update(zip(keys, repeat(segment)))
        self.slab.counts[segment.slot] += len(keys)

    def demote_tails(self, segment: Segment[K], tails: list[K]) -> list[K]:
        """Turn the last resident chunks of ``segment``, ``tails`` (deepest first), into ghosts; return them."""
        del segment.keys[len(segment.keys) - len(tails) :]
        self.cached.difference_update(tails)
        if not segment.ghosts:
            self.ghostly[segment] = None
        segment.ghosts += tails
        self.ghost_count += len(tails)
        if not segment.keys:
            self._dequeue(segment)
            self._unhang_resident(segment)
        return tails

    def refresh(self, segment: Segment[K], now: float) -> None:
        """Count the segment as used now."""
        segment.time_s = now
        self.slab.times_s[segment.slot] = now
        self._order += 1
        segment.order = self._order
        segment.clock = self.clock
        if segment.keys:
            self.queues[segment.class_].move_to_end(segment)
        if segment.ghosts:
            self.ghostly.move_to_end(segment)

    def trim(self, limit: int) -> Iterator[tuple[Segment[K], int]]:
        """Forget the oldest ghosts above ``limit``; yield the segments and how many each lost (before it is gone)."""
        while self.ghost_count > limit:
            segment = next(iter(self.ghostly))
            count = min(len(segment.ghosts), self.ghost_count - limit)
            yield segment, count
            for key in segment.ghosts[:count]:
                del self.where[key]
                self._forget_marks(key)
            del segment.ghosts[:count]
            self.ghost_count -= count
            if not segment.ghosts:
                del self.ghostly[segment]
            if not segment.keys and not segment.ghosts:
                self._unhang(segment)
            self._shrunk(segment, count)

    def cut(self, key: K) -> None:
        """Make ``key`` the first of its segment, by splitting it if need be."""
        segment = self.where[key]
        if segment.first == key:
            return
        rest: Segment[K] = Segment(segment.class_, segment.uses, segment.time_s, None, segment.owner)
        rest.near = segment.near
        if key in self.cached:
            at = segment.keys.index(key)
            rest.keys, rest.ghosts = segment.keys[at:], segment.ghosts
            del segment.keys[at:]
            segment.ghosts = []
            if rest.ghosts:
                del self.ghostly[segment]
        else:
            at = segment.ghosts.index(key)
            rest.ghosts = segment.ghosts[: at + 1]
            del segment.ghosts[: at + 1]
            if not segment.ghosts:
                del self.ghostly[segment]
        self.slab.counts[segment.slot] -= len(rest)
        rest.parent = segment.last
        self.attach(rest)

    def drop(self, key: K) -> None:
        """Forget one key altogether; what is below it becomes a root of its own."""
        self.cut(key)
        segment = self.where.pop(key)
        taken, ghosts = self.take_head(segment, 1, key)
        self.cached.difference_update(taken)
        self.ghost_count -= len(ghosts)
        self._forget_marks(key)

    def _shrunk(self, segment: Segment[K], count: int) -> None:
        if segment.keys or segment.ghosts:
            self.slab.counts[segment.slot] -= count
        else:
            self.slab.give(segment.slot)
            segment.slot = -1
            segment.owner = None

    def _forget_marks(self, key: K) -> None:
        self.ends.pop(key, None)
        self.branches.pop(key, None)

    def _enqueue(self, segment: Segment[K]) -> None:
        queue = self.queues.get(segment.class_)
        if queue is None:
            queue = self.queues[segment.class_] = OrderedDict()
        queue[segment] = None

    def _dequeue(self, segment: Segment[K]) -> None:
        queue = self.queues[segment.class_]
        del queue[segment]
        if not queue:
            del self.queues[segment.class_]

    def _hang(self, segment: Segment[K]) -> None:
        parent = segment.parent
        if parent is None:
            return
        self.branches[parent] = self.branches.get(parent, 0) + 1
        if segment.keys:
            self.below.setdefault(parent, {})[segment] = None

    def _unhang(self, segment: Segment[K]) -> None:
        parent = segment.parent
        if parent is None:
            return
        left = self.branches.get(parent, 0) - 1
        if left > 0:
            self.branches[parent] = left
        else:
            self.branches.pop(parent, None)
        self._unhang_resident(segment)

    def _unhang_resident(self, segment: Segment[K]) -> None:
        parent = segment.parent
        if parent is None:
            return
        below = self.below.get(parent)
        if below is not None:
            below.pop(segment, None)
            if not below:
                del self.below[parent]
