"""Calls into a client that may block far beyond any deadline, and the memory that such calls use.

A lane is one thread and one piece of registered memory. A call that does not end in time is abandoned, but its lane
stays out of use until the call has really ended: nothing else ever uses memory that a lost call may still write to.
When all lanes are lost, calls fail at once.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

import numpy as np

T = TypeVar("T")
_PAGE: Final = 4096


class _Job(Generic[T]):
    """One call: ``ended`` tells that ``result`` or ``error`` is set."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.ended = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            self.error = error
        self.ended.set()


class Lane:
    """One thread with memory: ``view``, which starts at ``address``."""

    def __init__(self, view: memoryview, address: int, number: int) -> None:
        self.view = view
        self.address = address
        self.lost = False
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"warmtier-lane-{number}", daemon=True)
        self._thread.start()

    def submit(self, job: _Job[T]) -> None:
        """Run a job on this lane's thread."""
        self._jobs.put(job)  # type: ignore[arg-type] # the queue does not care

    def stop(self) -> None:
        """End the thread after its present job."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


class Lanes:
    """A fixed number of lanes over one piece of memory, touched before use."""

    def __init__(self, count: int, bytes_each: int) -> None:
        self.bytes_each = -(-bytes_each // _PAGE) * _PAGE
        self._map = mmap.mmap(-1, count * self.bytes_each)
        self.view = memoryview(self._map)
        np.frombuffer(self.view, np.uint8)[::_PAGE] = 0
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._all = [self._lane(number) for number in range(count)]
        self._idle = list(self._all)
        self._changed = threading.Condition()

    def _lane(self, number: int) -> Lane:
        start = number * self.bytes_each
        return Lane(self.view[start : start + self.bytes_each], self.address + start, number)

    @property
    def lost(self) -> int:
        """Lanes whose call was abandoned and has not ended."""
        return sum(lane.lost for lane in self._all)

    def acquire(self, deadline_s: float) -> Lane:
        """Return a lane for the caller alone; TimeoutError when none can be had before the deadline."""
        with self._changed:
            while not self._idle:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or all(lane.lost for lane in self._all):
                    raise TimeoutError("earlier calls have not ended")
                self._changed.wait(left_s)
            return self._idle.pop()

    def release(self, lane: Lane) -> None:
        """Give a lane back."""
        with self._changed:
            lane.lost = False
            self._idle.append(lane)
            self._changed.notify()

    def call(self, lane: Lane, work: Callable[[], T], deadline_s: float) -> T:
        """Run ``work`` on the lane's thread and return its result.

        Past the deadline: TimeoutError, and the lane is no longer the caller's: it comes back by itself once ``work``
        has ended.
        """
        job = _Job(work)
        lane.submit(job)
        if not job.ended.wait(max(0.0, deadline_s - time.monotonic())):
            with self._changed:
                lane.lost = True
                self._changed.notify_all()
            lane.submit(_Job(lambda: self.release(lane)))
            raise TimeoutError("the call has not ended")
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value] # set together with ended

    def close(self, timeout_s: float) -> None:
        """End the threads that can be ended in time."""
        for lane in self._all:
            lane.stop()
        deadline_s = time.monotonic() + timeout_s
        for lane in self._all:
            lane.join(max(0.0, deadline_s - time.monotonic()))
