"""The two hard bounds: bytes of ours on the disk, everything included, and bytes that stay free for others."""

from __future__ import annotations

import contextlib
from typing import Final

from warmtier.core.units import format_size
from warmtier.store.file.format import PAGE, padded
from warmtier.store.file.segment import segment_number
from warmtier.store.file.shared import Shared

_EXTENTS_BYTES: Final = 4 * PAGE  # what a filesystem may add to a segment's blocks as its extents split
_RECORD_IN_SNAPSHOT_BYTES: Final = 16  # besides the key


class Budget:
    """Counts blocks, not lengths. Room for two snapshots (the old and the new one) is always kept."""

    def __init__(self, shared: Shared, capacity_bytes: int, least_free_bytes: int) -> None:
        self._shared = shared
        self.capacity_bytes = capacity_bytes
        self._least_free_bytes = least_free_bytes
        self._other_bytes = 0

    def recount(self) -> None:
        """Count all in the directory that is not a segment: lock, snapshot, the directory itself, what others left."""
        directory = self._shared.directory
        total = directory.own_bytes()
        for name in directory.names():
            if segment_number(name) is None:
                with contextlib.suppress(FileNotFoundError):  # a snapshot in the making comes and goes
                    total += directory.size_on_disk(name)[1]
        self._other_bytes = total

    def used_bytes(self) -> int:
        """Return the bytes on the disk. The caller holds the store's lock."""
        return self._other_bytes + sum(s.blocks_bytes for s in self._shared.index.segments.values())

    def snapshot_bytes(self) -> int:
        """Return the most that a snapshot of the present index takes. The caller holds the store's lock."""
        index = self._shared.index
        return padded(index.key_bytes + _RECORD_IN_SNAPSHOT_BYTES * len(index) + 64 * len(index.segments) + PAGE)

    def may_grow(self, segment_bytes: int) -> bool:
        """Return whether one more segment stays within both bounds."""
        if self._charged(1) + segment_bytes > self.capacity_bytes:
            return False
        free_bytes = self._shared.directory.free_bytes()
        if free_bytes - segment_bytes < self._least_free_bytes:
            free = format_size(free_bytes)
            self._shared.say_once("room", "only %s are free: it stays below %s", free, format_size(self.capacity_bytes))
            return False
        return True

    def exceeded(self) -> bool:
        """Return whether something must go."""
        return self._charged(0) > self.capacity_bytes or self._shared.directory.free_bytes() < self._least_free_bytes

    def _charged(self, more_segments: int) -> int:
        with self._shared.lock:
            extents = _EXTENTS_BYTES * (len(self._shared.index.segments) + more_segments)
            return self.used_bytes() + extents + 2 * self.snapshot_bytes()
