"""A small, bounded set of threads that copies blocks, loads before stores.

Jobs are lists of block moves; a job is cut into as many pieces as there are threads, so one large load uses them all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

Move = tuple[int, int, int, int]
"""KV group, device block, slot, place in the chunk."""

_SMALLEST_PIECE: Final = 4


@dataclass(slots=True)
class CopyJob:
    """One transfer. ``perform`` moves a single block and says whether that worked; it may raise."""

    job_id: int
    is_load: bool
    moves: Sequence[Move]
    perform: Callable[[int, int, int, int], bool]
    size_bytes: int
    failed_slots: set[int] = field(default_factory=set)
    error: Exception | None = None
    seconds: float = 0.0
    pieces_left: int = 0
    started_s: float | None = None


class CopyPool:
    """Runs copy jobs in ``threads`` threads. ``on_done`` is called in one of them, once, before a job counts as done.

    ``submit``, ``take_done`` and ``wait`` belong to the worker's main thread; only ``wait`` and ``close`` block.
    """

    def __init__(self, threads: int, on_done: Callable[[CopyJob], None], cpus: Collection[int] = ()) -> None:
        self._on_done = on_done
        self._cpus = cpus
        self._loads: deque[tuple[CopyJob, Sequence[Move]]] = deque()
        self._stores: deque[tuple[CopyJob, Sequence[Move]]] = deque()
        self._changed = threading.Condition()
        self._running: dict[int, CopyJob] = {}
        self._done: list[CopyJob] = []
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"warmtier-copy-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: CopyJob) -> None:
        """Queue a job; it is done when ``take_done`` returns it."""
        pieces = _split(job.moves, len(self._threads))
        job.pieces_left = len(pieces)
        with self._changed:
            self._running[job.job_id] = job
            queue = self._loads if job.is_load else self._stores
            queue.extend((job, piece) for piece in pieces)
            self._changed.notify_all()

    def take_done(self) -> list[CopyJob]:
        """Return the jobs that have ended since the last call, in the order they ended."""
        if not self._done:
            return []
        with self._changed:
            done, self._done = self._done, []
        return done

    def wait(self, job_ids: Collection[int]) -> None:
        """Block until none of the jobs is queued or running. Unknown ids are done."""
        with self._changed:
            self._changed.wait_for(lambda: not any(job_id in self._running for job_id in job_ids))

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        if self._cpus:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self._cpus)  # of this thread alone
        while (piece := self._next()) is not None:
            self._copy(*piece)

    def _next(self) -> tuple[CopyJob, Sequence[Move]] | None:
        with self._changed:
            while not (self._loads or self._stores):
                if self._closing:
                    return None
                self._changed.wait()
            return (self._loads or self._stores).popleft()

    def _copy(self, job: CopyJob, moves: Sequence[Move]) -> None:
        started = time.perf_counter()
        failed: set[int] = set()
        error: Exception | None = None
        for move in moves:
            try:
                worked = job.perform(*move)
            except Exception as raised:  # noqa: BLE001 - whatever it is, the chunk is lost and the engine lives
                worked, error = False, raised
            if not worked:
                failed.add(move[2])
        self._finish_piece(job, started, failed, error)

    def _finish_piece(self, job: CopyJob, started: float, failed: set[int], error: Exception | None) -> None:
        with self._changed:
            job.started_s = started if job.started_s is None else min(job.started_s, started)
            job.failed_slots |= failed
            job.error = job.error or error
            job.pieces_left -= 1
            last = job.pieces_left == 0
        if not last:
            return
        job.seconds = time.perf_counter() - job.started_s
        try:
            self._on_done(job)
        except Exception as raised:  # noqa: BLE001 - nobody was told how the job ended: it failed
            job.error = job.error or raised
            job.failed_slots |= {move[2] for move in job.moves}
        with self._changed:
            del self._running[job.job_id]
            self._done.append(job)
            self._changed.notify_all()


def _split(moves: Sequence[Move], parts: int) -> list[Sequence[Move]]:
    parts = max(1, min(parts, len(moves) // _SMALLEST_PIECE))
    size = max(1, -(-len(moves) // parts))
    return [moves[at : at + size] for at in range(0, len(moves), size)] or [moves]
