"""The file tier's store: opens, recovers and closes one directory, and hands puts and gets to their pipelines."""

from __future__ import annotations

import enum
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from warmtier.core.errors import InternalError, StoreError, UsageError
from warmtier.core.types import Key, Namespace, TierKind
from warmtier.core.units import format_size
from warmtier.store.base import Read, ReadOutcome, StoreStats, Write, WriteOutcome, WriteResult
from warmtier.store.file.format import NAMESPACE_BYTES, PAGE, record_bytes
from warmtier.store.file.io import Directory
from warmtier.store.file.lock import DirectoryLock
from warmtier.store.file.recovery import Recovery
from warmtier.store.file.session import Session, Settings

MOST_SEGMENT_BYTES: Final = 256 << 20
_SHARE: Final = 32  # a segment is at most this part of the capacity: what cannot be filled up stays small


class Durability(enum.StrEnum):
    """What survives a power failure. A killed process loses nothing that was acknowledged, with either."""

    NONE = "none"  # whatever the kernel had written; checksums decide
    SEGMENT = "segment"  # everything up to the last sealed segment


def engine_directory(root: Path, data_parallel_rank: int) -> Path:
    """Return the directory of one data-parallel engine below ``root``: directory, lock and budget are per engine."""
    return root / f"dp{data_parallel_rank}"


def pick_segment_bytes(capacity_bytes: int, chunk_bytes: int | None = None) -> int:
    """Return a segment size for ``capacity_bytes``: at most 256 MiB, whole chunks if their size is known."""
    target = min(MOST_SEGMENT_BYTES, capacity_bytes // _SHARE)
    unit = record_bytes(chunk_bytes) if chunk_bytes else PAGE
    return PAGE + max(1, (target - PAGE) // unit) * unit


class FileStore:
    """Chunks in log-structured segments below ``directory``, for one engine and one namespace.

    ``capacity_bytes`` bounds the blocks on disk, everything in the directory included; ``least_free_bytes`` stay
    free on the filesystem. ``io_threads`` share the reads or writes of one call. Every method may block on the
    medium and may be called from several threads.
    """

    kind = TierKind.FILE

    def __init__(
        self,
        directory: Path,
        namespace: Namespace,
        *,
        capacity_bytes: int,
        least_free_bytes: int = 0,
        segment_bytes: int | None = None,
        chunk_bytes: int | None = None,
        durability: Durability = Durability.NONE,
        io_threads: int = 4,
    ) -> None:
        segment_bytes = segment_bytes or pick_segment_bytes(capacity_bytes, chunk_bytes)
        if segment_bytes % PAGE or not PAGE < segment_bytes <= capacity_bytes:
            raise UsageError(
                f"a file tier of {format_size(capacity_bytes)} cannot have segments of {segment_bytes} bytes",
                fix=f"use a larger capacity, or segments of a multiple of {PAGE} bytes",
            )
        if len(namespace) != NAMESPACE_BYTES:
            raise InternalError(f"a namespace has {NAMESPACE_BYTES} bytes, not {len(namespace)}")
        self._path = directory
        self._settings = Settings(
            namespace=namespace,
            capacity_bytes=capacity_bytes,
            least_free_bytes=least_free_bytes,
            segment_bytes=segment_bytes,
            sync=durability is Durability.SEGMENT,
            io_threads=io_threads,
        )
        self._session: Session | None = None
        self._opening = threading.Lock()

    @property
    def capacity_bytes(self) -> int:
        """The hard bound on bytes in the directory."""
        return self._settings.capacity_bytes

    @property
    def direct_io(self) -> bool:
        """Whether the open store bypasses the page cache."""
        return self._session is not None and self._session.direct_io

    @property
    def recovery(self) -> Recovery | None:
        """What the last ``open`` found."""
        return self._session.recovery if self._session else None

    def open(self) -> Iterable[tuple[Key, int]]:
        """Lock and recover. Raises StoreLockedError while another engine holds the directory: call again later."""
        with self._opening:
            if self._session is None:
                self._session = self._start()
            return self._session.sizes()

    def _start(self) -> Session:
        directory = self._open_directory()
        try:
            lock = DirectoryLock(directory)
        except StoreError:
            directory.close()
            raise
        try:
            return Session(directory, lock, self._settings)
        except OSError as error:
            lock.release()
            directory.close()
            raise StoreError(f"cannot recover the file tier in {self._path}", why=str(error)) from error

    def _open_directory(self) -> Directory:
        """Tests replace this to make the medium fail."""
        return Directory(self._path)

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks, root first; make room by evicting segments. READ_ONLY before ``open`` and after ``close``."""
        session = self._session
        if session is None:
            return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
        return session.put(writes)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks into the callers' buffers. ABSENT before ``open`` and after ``close``."""
        session = self._session
        if session is None:
            return [ReadOutcome.ABSENT] * len(reads)
        return session.get(reads)

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget keys. They may come back if the process is killed before the next snapshot; their bytes are right."""
        session = self._session
        if session is not None:
            session.delete(keys)

    def stats(self) -> StoreStats:
        """Return the figures now."""
        session = self._session
        return session.stats() if session else StoreStats(self._settings.capacity_bytes, 0, 0)

    def close(self) -> None:
        """Let running calls end, seal, write a snapshot, give the directory back."""
        with self._opening:
            session, self._session = self._session, None
            if session is not None:
                session.close()
