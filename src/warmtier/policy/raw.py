"""Algorithms exactly as published, per block and with unit sizes: no leaf rule, no paths. For goldens and comparison.

Where implementations differ, these follow libCacheSim's conventions, so that hits are equal to its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import ClassVar, Generic

from warmtier.policy.base import K
from warmtier.policy.sketch import GhostList


class RawPolicy(ABC, Generic[K]):
    """A cache of ``capacity`` blocks that sees one access at a time."""

    name: ClassVar[str]

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity

    @abstractmethod
    def access(self, key: K) -> bool:
        """Use ``key``, admit it if the algorithm says so, and return whether it was present."""

    @abstractmethod
    def __contains__(self, key: object) -> bool:
        """Return whether ``key`` is present."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of blocks present."""


class RawLru(RawPolicy[K]):
    """Least recently used."""

    name: ClassVar[str] = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._items: OrderedDict[K, None] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def access(self, key: K) -> bool:
        """Make ``key`` the most recent."""
        items = self._items
        if key in items:
            items.move_to_end(key)
            return True
        if len(items) >= self.capacity:
            items.popitem(last=False)
        items[key] = None
        return False


class RawFifo(RawLru[K]):
    """First in, first out."""

    name: ClassVar[str] = "fifo"

    def access(self, key: K) -> bool:
        """Enter ``key`` at the end of the queue unless it is in it."""
        return True if key in self._items else super().access(key)


class RawTwoTouch(RawLru[K]):
    """LRU that, once full, admits a block at its second use; remembers 4 x capacity absent blocks."""

    name: ClassVar[str] = "2touch"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._ghosts: GhostList[K] = GhostList(4 * capacity)

    def access(self, key: K) -> bool:
        """Use ``key``; a first use while the cache is full is only remembered."""
        items = self._items
        if key in items:
            items.move_to_end(key)
            return True
        if len(items) < self.capacity:
            self._ghosts.pop(key)
            items[key] = None
        elif self._ghosts.pop(key) is not None:
            self._ghosts.put(items.popitem(last=False)[0])
            items[key] = None
        else:
            self._ghosts.put(key)
        return False


class RawArc(RawPolicy[K]):
    """Adaptive replacement cache (Megiddo and Modha, FAST 2003)."""

    name: ClassVar[str] = "arc"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once: OrderedDict[K, None] = OrderedDict()  # T1
        self._often: OrderedDict[K, None] = OrderedDict()  # T2
        self._once_ghosts: OrderedDict[K, None] = OrderedDict()  # B1
        self._often_ghosts: OrderedDict[K, None] = OrderedDict()  # B2
        self._target = 0.0  # wanted size of T1

    def __contains__(self, key: object) -> bool:
        return key in self._once or key in self._often

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def access(self, key: K) -> bool:
        """Use ``key``; a hit in a ghost list moves the target."""
        if key in self._once:
            del self._once[key]
            self._often[key] = None
            return True
        if key in self._often:
            self._often.move_to_end(key)
            return True
        if key in self._once_ghosts:
            step = max(len(self._often_ghosts) / len(self._once_ghosts), 1)
            self._target = min(self._target + step, self.capacity)
            del self._once_ghosts[key]
            self._replace(ghost_of_often=False)
            self._often[key] = None
        elif key in self._often_ghosts:
            step = max(len(self._once_ghosts) / len(self._often_ghosts), 1)
            self._target = max(self._target - step, 0)
            del self._often_ghosts[key]
            self._replace(ghost_of_often=True)
            self._often[key] = None
        else:
            if len(self) >= self.capacity:
                self._make_room()
            self._once[key] = None
        return False

    def _make_room(self) -> None:
        once = len(self._once) + len(self._once_ghosts)
        if once >= self.capacity:
            if len(self._once) >= self.capacity:
                self._once.popitem(last=False)
                return
            self._once_ghosts.popitem(last=False)
        elif once + len(self._often) + len(self._often_ghosts) >= 2 * self.capacity:
            self._often_ghosts.popitem(last=False)
        self._replace(ghost_of_often=False)

    def _replace(self, *, ghost_of_often: bool) -> None:
        if len(self) < self.capacity:
            return
        once = len(self._once)
        if not self._often or once > self._target or (once == self._target and once > 0 and ghost_of_often):
            self._once_ghosts[self._once.popitem(last=False)[0]] = None
        else:
            self._often_ghosts[self._often.popitem(last=False)[0]] = None
