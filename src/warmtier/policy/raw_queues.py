"""More algorithms as published: S3-FIFO, SIEVE, W-TinyLFU. Unsafe on session prefixes (docs/evidence/policies.md)."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar, Final

from warmtier.policy.base import K
from warmtier.policy.raw import RawPolicy
from warmtier.policy.sketch import CountMinSketch


class RawS3Fifo(RawPolicy[K]):
    """S3-FIFO (Yang et al., SOSP 2023) with libCacheSim's defaults: small 10 %, ghosts 90 %, to main at 2 hits.

    Until the first eviction, blocks that the full small queue cannot take go to the main queue.
    """

    name: ClassVar[str] = "s3fifo"
    _TO_MAIN: Final = 2
    _FREQUENCY_MAX: Final = 3

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_limit = int(capacity * 0.1)
        self._main_limit = capacity - self._small_limit
        self._ghost_limit = int(capacity * 0.9)
        self._small: OrderedDict[K, int] = OrderedDict()
        self._main: OrderedDict[K, int] = OrderedDict()
        self._ghosts: OrderedDict[K, None] = OrderedDict()
        self._has_evicted = False

    def __contains__(self, key: object) -> bool:
        return key in self._small or key in self._main

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def access(self, key: K) -> bool:
        """Use ``key``."""
        for queue in (self._small, self._main):
            if key in queue:
                queue[key] += 1
                return True
        ghost = key in self._ghosts
        if ghost:
            del self._ghosts[key]
        if self._small_limit < 1:  # libCacheSim refuses blocks that do not fit in the small queue
            return False
        while len(self) >= self.capacity:
            self._evict()
        if ghost:
            self._main[key] = 0
        elif self._small_limit > 1:
            fill_main = not self._has_evicted and len(self._small) >= self._small_limit
            (self._main if fill_main else self._small)[key] = 0
        return False

    def _evict(self) -> None:
        self._has_evicted = True
        if len(self._main) > self._main_limit or not self._small:
            self._evict_main()
        else:
            self._evict_small()

    def _evict_small(self) -> None:
        while self._small:
            key, hits = self._small.popitem(last=False)
            if hits < self._TO_MAIN:
                if len(self._ghosts) >= self._ghost_limit:
                    self._ghosts.popitem(last=False)
                self._ghosts[key] = None
                return
            self._main[key] = 0

    def _evict_main(self) -> None:
        while self._main:
            key, hits = self._main.popitem(last=False)
            if hits == 0:
                return
            self._main[key] = min(hits, self._FREQUENCY_MAX) - 1


class RawSieve(RawPolicy[K]):
    """SIEVE (Zhang et al., NSDI 2024): a queue, a visited bit and a hand that moves from old to new."""

    name: ClassVar[str] = "sieve"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._visited: dict[K, bool] = {}
        self._newer: dict[K, K | None] = {}
        self._older: dict[K, K | None] = {}
        self._newest: K | None = None
        self._oldest: K | None = None
        self._hand: K | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._visited

    def __len__(self) -> int:
        return len(self._visited)

    def access(self, key: K) -> bool:
        """Use ``key``."""
        if key in self._visited:
            self._visited[key] = True
            return True
        if len(self._visited) >= self.capacity:
            self._evict()
        self._visited[key] = False
        self._newer[key], self._older[key] = None, self._newest
        if self._newest is not None:
            self._newer[self._newest] = key
        else:
            self._oldest = key
        self._newest = key
        return False

    def _evict(self) -> None:
        hand = self._hand if self._hand is not None else self._oldest
        while hand is not None and self._visited[hand]:
            self._visited[hand] = False
            following = self._newer[hand]
            hand = following if following is not None else self._oldest
        if hand is None:
            raise ValueError("evict from an empty cache")
        newer, older = self._newer.pop(hand), self._older.pop(hand)
        self._hand = newer
        if newer is None:
            self._newest = older
        else:
            self._older[newer] = older
        if older is None:
            self._oldest = newer
        else:
            self._newer[older] = newer
        del self._visited[hand]


class RawWTinyLfu(RawPolicy[K]):
    """W-TinyLFU (Einziger, Friedman and Manes, 2017): 1 % LRU window, segmented LRU with 80 % protected."""

    name: ClassVar[str] = "wtinylfu"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._window_limit = max(1, capacity // 100)
        self._main_limit = capacity - self._window_limit
        self._protected_limit = int(self._main_limit * 0.8)
        self._window: OrderedDict[K, None] = OrderedDict()
        self._probation: OrderedDict[K, None] = OrderedDict()
        self._protected: OrderedDict[K, None] = OrderedDict()
        self._sketch = CountMinSketch(capacity)

    def __contains__(self, key: object) -> bool:
        return key in self._window or key in self._probation or key in self._protected

    def __len__(self) -> int:
        return len(self._window) + len(self._probation) + len(self._protected)

    def access(self, key: K) -> bool:
        """Use ``key``."""
        self._sketch.add(key)
        if key in self._window:
            self._window.move_to_end(key)
            return True
        if key in self._protected:
            self._protected.move_to_end(key)
            return True
        if key in self._probation:
            del self._probation[key]
            self._protected[key] = None
            if len(self._protected) > self._protected_limit:
                self._probation[self._protected.popitem(last=False)[0]] = None
            return True
        self._window[key] = None
        if len(self._window) > self._window_limit:
            self._leave_window(self._window.popitem(last=False)[0])
        return False

    def _leave_window(self, candidate: K) -> None:
        if len(self._probation) + len(self._protected) < self._main_limit:
            self._probation[candidate] = None
            return
        main = self._probation or self._protected
        if not main:
            return
        victim = next(iter(main))
        if self._sketch.estimate(candidate) > self._sketch.estimate(victim):
            del main[victim]
            self._probation[candidate] = None
