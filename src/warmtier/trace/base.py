"""What every reader of a trace file shares: order, skipping, re-reading."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from warmtier.trace.lines import BadLine, Problems
from warmtier.trace.schema import TraceRequest, check

REORDER_WINDOW: Final = 8192
"""Requests held back to sort logs that are written when a request ends."""

Numbered = tuple[int, TraceRequest]
"""Line number and its request; ``arrival_s`` still from the file's own origin."""


class FileTrace(ABC):
    """A trace file, read anew at every iteration. Memory is bounded whatever the file's length.

    ``problems`` belongs to the latest reading. ``notes`` are for people: what was assumed.
    """

    format_name: ClassVar[str]
    unordered: ClassVar[bool] = False

    def __init__(self, path: Path, *, skip_bad: bool = False) -> None:
        self.path = path
        self.problems = Problems(skip=skip_bad)
        self.notes: list[str] = []

    @property
    @abstractmethod
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""

    @abstractmethod
    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        """Yield the requests of the lines that can be used; add the others to ``problems``."""

    def __iter__(self) -> Iterator[TraceRequest]:
        problems = self.problems = Problems(skip=self.problems.skip)
        numbered: Iterable[Numbered] = self._requests(problems)
        if self.unordered:
            numbered = reorder(numbered, REORDER_WINDOW)
        start_s: float | None = None
        latest_s = 0.0
        for line, request in numbered:
            start_s = request.arrival_s if start_s is None else start_s
            request.arrival_s -= start_s
            reason = check(request)
            if reason is None and request.arrival_s < latest_s:
                reason = f"arrives {latest_s - request.arrival_s:.3f}s before a request above it"
            if reason is not None:
                problems.add(str(self.path), line, reason)
                continue
            latest_s = request.arrival_s
            yield request


def reorder(numbered: Iterable[Numbered], window: int) -> Iterator[Numbered]:
    """Yield in order of arrival what is at most ``window`` requests out of place."""
    heap: list[tuple[float, int, TraceRequest]] = []
    for line, request in numbered:
        heapq.heappush(heap, (request.arrival_s, line, request))
        if len(heap) > window:
            _, first, earliest = heapq.heappop(heap)
            yield first, earliest
    while heap:
        _, first, earliest = heapq.heappop(heap)
        yield first, earliest


__all__ = ["BadLine", "FileTrace", "Numbered", "reorder"]
