"""A store in memory: the model that every other store is compared with, and a fake for tests.

Exact where others may be approximate: it evicts chunk by chunk, oldest stored first, and never fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from warmtier.core.types import Key, TierKind
from warmtier.store.base import Read, ReadOutcome, StoreStats, Write, WriteOutcome, WriteResult


class MemoryStore:
    """Keeps chunks in a dict, bounded by ``capacity_bytes`` of payload. Its content outlives ``close`` and ``open``."""

    def __init__(self, capacity_bytes: int, *, kind: TierKind = TierKind.FILE) -> None:
        self.kind = kind
        self._capacity = capacity_bytes
        self._chunks: dict[Key, bytes] = {}
        self._used = 0
        self._open = False
        self._written = 0
        self._read = 0
        self._lock = threading.Lock()

    @property
    def capacity_bytes(self) -> int:
        """The hard bound on payload bytes held."""
        return self._capacity

    def open(self) -> Iterable[tuple[Key, int]]:
        """Return what earlier sessions stored."""
        with self._lock:
            self._open = True
            return [(key, len(data)) for key, data in self._chunks.items()]

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks in order; the oldest others go first when room is short."""
        result = WriteResult([])
        with self._lock:
            protected = {write.key for write in writes}
            for write in writes:
                result.outcomes.append(self._put_one(write, protected, result.evicted))
        return result

    def _put_one(self, write: Write, protected: set[Key], evicted: list[Key]) -> WriteOutcome:
        if not self._open:
            return WriteOutcome.READ_ONLY
        if write.key in self._chunks:
            return WriteOutcome.PRESENT
        size_bytes = write.data.nbytes
        if not self._make_room(size_bytes, protected, evicted):
            return WriteOutcome.NO_ROOM
        self._chunks[write.key] = bytes(write.data)
        self._used += size_bytes
        self._written += size_bytes
        return WriteOutcome.STORED

    def _make_room(self, size_bytes: int, protected: set[Key], evicted: list[Key]) -> bool:
        if self._used + size_bytes <= self._capacity:
            return True
        victims: list[Key] = []
        room = self._capacity - self._used
        for key, data in self._chunks.items():
            if room >= size_bytes:
                break
            if key not in protected:
                victims.append(key)
                room += len(data)
        if room < size_bytes:
            return False
        for key in victims:
            self._used -= len(self._chunks.pop(key))
        evicted.extend(victims)
        return True

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Copy chunks out. A buffer of another length than the chunk is CORRUPT, as for every store."""
        with self._lock:
            return [self._get_one(read) for read in reads]

    def _get_one(self, read: Read) -> ReadOutcome:
        data = self._chunks.get(read.key) if self._open else None
        if data is None:
            return ReadOutcome.ABSENT
        if len(data) != read.into.nbytes:
            self._used -= len(self._chunks.pop(read.key))
            return ReadOutcome.CORRUPT
        read.into.cast("B")[:] = data
        self._read += len(data)
        return ReadOutcome.OK

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys."""
        with self._lock:
            for key in keys:
                data = self._chunks.pop(key, None)
                if data is not None:
                    self._used -= len(data)

    def stats(self) -> StoreStats:
        """Return the figures now."""
        with self._lock:
            return StoreStats(
                capacity_bytes=self._capacity,
                used_bytes=self._used,
                chunks=len(self._chunks),
                bytes_written=self._written,
                bytes_read=self._read,
            )

    def close(self) -> None:
        """Stop serving; what is stored stays for the next ``open``."""
        with self._lock:
            self._open = False
