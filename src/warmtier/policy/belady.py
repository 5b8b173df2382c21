"""The offline optimum: Belady's rule on requests, with bypass. An upper bound for reports, never for an engine."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import Final, Generic

from warmtier.policy.base import K

_NEVER: Final = 1 << 60


class BeladyCache(Generic[K]):
    """Keeps the blocks whose next request is nearest. Knows all requests in advance.

    Works head first; a block that is never used again is dropped at once; when full, a new block replaces the block
    with the farthest next request (the deeper of equals) only if its own is nearer. The result is prefix-closed.
    """

    def __init__(self, capacity: int, paths: Sequence[Sequence[K]]) -> None:
        self.capacity = capacity
        self._uses = _next_uses(paths)
        self._next: dict[K, int] = {}
        self._heap: list[tuple[int, int, int, K]] = []  # minus next use, minus depth, tie, key; entries may be stale
        self._tie = count()
        self.writes = 0

    def __contains__(self, key: object) -> bool:
        return key in self._next

    def __len__(self) -> int:
        return len(self._next)

    def request(self, index: int, path: Sequence[K]) -> int:
        """Serve request ``index``; return how many leading blocks were present before it."""
        present = self._next
        hits = next((depth for depth, key in enumerate(path) if key not in present), len(path))
        for depth, (key, following) in enumerate(zip(path, self._uses[index], strict=True)):
            if key in present:
                if following == _NEVER:
                    del present[key]
                else:
                    self._keep(key, following, depth)
            elif following != _NEVER and (len(present) < self.capacity or self._replace(following)):
                self._keep(key, following, depth)
                self.writes += 1
        return hits

    def _keep(self, key: K, following: int, depth: int) -> None:
        self._next[key] = following
        heapq.heappush(self._heap, (-following, -depth, next(self._tie), key))

    def _replace(self, following: int) -> bool:
        heap, present = self._heap, self._next
        while heap and present.get(heap[0][3]) != -heap[0][0]:
            heapq.heappop(heap)
        if not heap or -heap[0][0] <= following:
            return False
        del present[heapq.heappop(heap)[3]]
        return True


def _next_uses(paths: Sequence[Sequence[K]]) -> list[list[int]]:
    """Return, per request and block, the index of the next request with this block; one backward pass."""
    following: dict[K, int] = {}
    uses: list[list[int]] = []
    for index in range(len(paths) - 1, -1, -1):
        path = paths[index]
        uses.append([following.get(key, _NEVER) for key in path])
        following.update(dict.fromkeys(path, index))
    uses.reverse()
    return uses
