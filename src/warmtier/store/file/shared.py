"""What the parts of one file store share: the directory, the index with its lock, counters, threads and scratch."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.types import Namespace
from warmtier.store.file.format import PAGE, padded
from warmtier.store.file.index import Index
from warmtier.store.file.io import Directory, aligned

logger = logging.getLogger("warmtier.store.file")

PIECE_BYTES: Final = 16 << 20
"""The most that one read or write call moves: the kernel keeps a long call's parts in flight together, and the
checksums of one piece are computed during the next."""

_LEAST_PIECE_BYTES: Final = 512 << 10  # splitting further costs more calls than it wins

PIECE_RECORDS: Final = 256
"""The most records in one call: with header, body and tail each it stays below the kernel's limit of 1024 buffers."""


_MOST_KEPT: Final = 64


@dataclass(slots=True)
class Counters:
    """Grow from open. Guarded by the store's lock."""

    bytes_written: int = 0
    bytes_read: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0
    corrupt: int = 0
    errors: int = 0
    evicted: int = 0
    carried_bytes: int = 0


def piece_limit(total_bytes: int, threads: int) -> int:
    """Return how long the pieces of a call of ``total_bytes`` should be so that all ``threads`` have work."""
    share = padded(total_bytes // threads)
    return min(PIECE_BYTES, max(_LEAST_PIECE_BYTES, share))


class Scratch:
    """Page-aligned buffers for headers, kept for reuse: fresh memory costs a fault per page."""

    def __init__(self) -> None:
        self._kept: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer of ``PIECE_RECORDS`` pages with undefined content."""
        try:
            return self._kept.pop()
        except IndexError:
            return aligned(PIECE_RECORDS * PAGE)

    def give(self, buffer: memoryview) -> None:
        """Take a buffer back."""
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(buffer)


@dataclass(slots=True)
class Shared:
    """The common state of one open store. ``lock`` guards index, segments and counters; it is never held over I/O."""

    directory: Directory
    namespace: Namespace
    threads: ThreadPoolExecutor
    lock: threading.Lock = field(default_factory=threading.Lock)
    index: Index = field(default_factory=Index)
    counters: Counters = field(default_factory=Counters)
    scratch: Scratch = field(default_factory=Scratch)
    _said: set[str] = field(default_factory=set)

    def say_once(self, kind: str, message: str, *details: object) -> None:
        """Log a warning the first time that something of this ``kind`` happens; counters tell how often."""
        if kind not in self._said:
            self._said.add(kind)
            logger.warning("file tier %s: " + message, self.directory.path, *details)
