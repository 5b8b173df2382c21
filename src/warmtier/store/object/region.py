"""Memory in which packs are put together. Reused, because the first touch of a page is many times slower."""

from __future__ import annotations

import mmap
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Region:
    """The memory of one pack. ``users`` (its writer, its upload, readers) keep it from being reused."""

    view: memoryview
    users: int = 1


class Regions:
    """At most ``maximum`` regions of ``size_bytes``. Not thread-safe: its owner holds a lock."""

    def __init__(self, size_bytes: int, maximum: int) -> None:
        self._size_bytes = size_bytes
        self._maximum = maximum
        self._free: list[memoryview] = []
        self._out = 0

    def take(self) -> Region | None:
        """Return a region with one user, or None when all are in use."""
        if self._out >= self._maximum:
            return None
        self._out += 1
        return Region(self._free.pop() if self._free else memoryview(mmap.mmap(-1, self._size_bytes)))

    def release(self, region: Region, *, reuse: bool = True) -> None:
        """Take one user off. Without ``reuse`` the memory is given back: a lost request may still send from it."""
        region.users -= 1
        if region.users == 0:
            self._out -= 1
            if reuse:
                self._free.append(region.view)

    @property
    def in_use(self) -> int:
        """Regions that have users."""
        return self._out
