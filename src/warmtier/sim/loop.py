"""Virtual time: a heap of things to happen. One thread, no clock, same order every run."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from warmtier.core.errors import InternalError


class Loop:
    """Runs callbacks in order of time, and of scheduling where times are equal."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        """Call ``callback`` at ``time_s``. Raises InternalError for a time that has passed."""
        if time_s < self.now:
            raise InternalError(f"an event for {time_s} was made at {self.now}")
        self._order += 1
        heapq.heappush(self._heap, (time_s, self._order, callback))

    def next_time(self) -> float | None:
        """Return when the next thing happens, or None."""
        return self._heap[0][0] if self._heap else None

    def run(self) -> None:
        """Run until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, callback = heapq.heappop(heap)
            callback()
