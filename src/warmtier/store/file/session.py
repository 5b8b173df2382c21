"""One time of a file store being open: everything between taking the lock and giving it back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from warmtier.core.types import Key, Namespace
from warmtier.store.base import Read, ReadOutcome, StoreStats, Write, WriteOutcome, WriteResult
from warmtier.store.file.budget import Budget
from warmtier.store.file.io import Directory
from warmtier.store.file.lock import DirectoryLock
from warmtier.store.file.reader import Reader
from warmtier.store.file.reclaim import Segments
from warmtier.store.file.recovery import recover
from warmtier.store.file.shared import Shared, logger
from warmtier.store.file.snapshot import remove_snapshot, write_snapshot
from warmtier.store.file.writer import Writer

_SNAPSHOT_EVERY: Final = 16  # a snapshot after this many times its size was sealed: at most 6 % more is written


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``FileStore`` was given, checked."""

    namespace: Namespace
    capacity_bytes: int
    least_free_bytes: int
    segment_bytes: int
    sync: bool
    io_threads: int


class Session:
    """An open directory. Raises OSError from construction when the directory cannot be read."""

    def __init__(self, directory: Directory, lock: DirectoryLock, settings: Settings) -> None:
        started_s = time.perf_counter()
        directory.probe_direct()
        threads = ThreadPoolExecutor(settings.io_threads, thread_name_prefix="warmtier-file")
        self._shared = Shared(directory, settings.namespace, threads)
        self._lock = lock
        self._settings = settings
        self._budget = Budget(self._shared, settings.capacity_bytes, settings.least_free_bytes)
        self.recovery = recover(self._shared)
        self._budget.recount()
        self._segments = Segments(self._shared, self._budget, segment_bytes=settings.segment_bytes, sync=settings.sync)
        self._segments.adopt(self.recovery.next_sequence)
        self._reader = Reader(self._shared, settings.io_threads)
        self._writer = Writer(self._shared, self._segments, settings.io_threads)
        self._calls = 0
        self._idle = threading.Condition()
        self._closing = False
        self._snapshotting = threading.Lock()
        self._say_hello(time.perf_counter() - started_s)

    def _say_hello(self, seconds: float) -> None:
        found, index = self.recovery, self._shared.index
        logger.info(
            "file tier %s: %d chunks in %d segments (%d foreign or unreadable, %d scanned, %d torn) in %.3f s, %s",
            self._shared.directory.path,
            len(index),
            len(index.segments),
            found.foreign,
            found.scanned,
            found.torn,
            seconds,
            "direct I/O" if self.direct_io else "buffered I/O: the filesystem refuses O_DIRECT",
        )

    @property
    def direct_io(self) -> bool:
        """Whether the page cache is bypassed."""
        return self._shared.directory.direct

    @contextlib.contextmanager
    def _call(self) -> Iterator[bool]:
        """Count a running call; yields False once closing has begun."""
        with self._idle:
            admitted = not self._closing
            self._calls += admitted
        try:
            yield admitted
        finally:
            with self._idle:
                self._calls -= admitted
                self._idle.notify_all()

    def sizes(self) -> list[tuple[Key, int]]:
        """Return all keys with their payload bytes."""
        with self._shared.lock:
            return self._shared.index.sizes()

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks."""
        with self._call() as admitted:
            if not admitted:
                return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
            result = self._writer.put(writes)
            self._maybe_snapshot()
            return result

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks."""
        with self._call() as admitted:
            return self._reader.get(reads) if admitted else [ReadOutcome.ABSENT] * len(reads)

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget keys."""
        with self._shared.lock:
            for key in keys:
                self._shared.index.discard(key)

    def stats(self) -> StoreStats:
        """Return the figures now."""
        shared, counters = self._shared, self._shared.counters
        with shared.lock:
            return StoreStats(
                capacity_bytes=self._settings.capacity_bytes,
                used_bytes=self._budget.used_bytes(),
                chunks=len(shared.index),
                bytes_written=counters.bytes_written,
                bytes_read=counters.bytes_read,
                write_seconds=counters.write_seconds,
                read_seconds=counters.read_seconds,
                corrupt=counters.corrupt,
                errors=counters.errors,
                evicted=counters.evicted,
                carried_bytes=counters.carried_bytes,
            )

    def close(self) -> None:
        """Wait for running calls, seal, write a snapshot, give the directory back."""
        with self._idle:
            self._closing = True
            self._idle.wait_for(lambda: self._calls == 0)
        self._shared.threads.shutdown()
        self._segments.close()
        self._snapshot()
        self._lock.release()
        self._shared.directory.close()

    def abandon(self) -> None:
        """Give the directory back as a killed process would: nothing is sealed, no snapshot written. For tests."""
        self._shared.threads.shutdown()
        self._lock.release()
        self._shared.directory.close()

    def _maybe_snapshot(self) -> None:
        sealed_bytes = self._segments.sealed_bytes
        if sealed_bytes < self._settings.segment_bytes:
            return
        with self._shared.lock:
            due = sealed_bytes >= _SNAPSHOT_EVERY * self._budget.snapshot_bytes()
        if due and self._snapshotting.acquire(blocking=False):
            try:
                self._snapshot()
            finally:
                self._snapshotting.release()

    def _snapshot(self) -> None:
        """Write a snapshot, or leave none: a stale one would bring deleted chunks back for longer than needed."""
        self._segments.sealed_bytes = 0
        try:
            write_snapshot(self._shared, sync=self._settings.sync)
        except OSError as error:
            remove_snapshot(self._shared.directory)
            self._shared.say_once("snapshot", "cannot write the snapshot (%s); the next start scans", error)
        with contextlib.suppress(OSError):
            self._budget.recount()
