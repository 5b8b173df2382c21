"""Clocks. Only drivers (engines, executors, the command line) hold one; everything below takes ``now`` as a number."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go back."""

    def now(self) -> float:
        """Return the current time in seconds from an arbitrary origin."""
        ...


class MonotonicClock:
    """The process's monotonic clock."""

    def now(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told. For tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward by ``seconds`` (not negative) and return the new time."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: advance({seconds})")
        self._now += seconds
        return self._now
