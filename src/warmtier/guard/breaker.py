"""Circuit breaker of one tier: a tier that fails or stalls is left alone, then probed. Pure: time is an argument."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class BreakerState(enum.StrEnum):
    """Closed lets all through, open nothing, half-open one probe at a time."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """Opens when failures (each success halves the score) reach ``failures``.

    The cool-down starts at ``cooldown_s`` and doubles with each failed probe up to ``max_cooldown_s``. A probe without
    an answer after ``probe_timeout_s`` counts as failed.
    """

    failures: int = 5
    cooldown_s: float = 10.0
    max_cooldown_s: float = 300.0
    probe_timeout_s: float = 30.0


class Breaker:
    """Ask ``allows`` before a job, tell ``started`` when one is sent and ``succeeded`` or ``failed`` when it ends."""

    def __init__(self, settings: BreakerSettings = BreakerSettings()) -> None:
        self.settings = settings
        self.state = BreakerState.CLOSED
        self.trips = 0
        self._score = 0.0
        self._cooldown_s = settings.cooldown_s
        self._until_s = 0.0  # open: when to probe; half-open: when the probe is given up
        self._probing = False

    def allows(self, now: float) -> bool:
        """Return whether a job may start now. Changes nothing."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN:
            return now >= self._until_s
        return not self._probing

    def tick(self, now: float) -> bool:
        """Give up a probe that never answered; return whether the state changed."""
        if self._probing and now >= self._until_s:
            self._open(now, backoff=True)
            return True
        return False

    def started(self, now: float) -> None:
        """A job was sent. In an open breaker whose cool-down is over it is the probe."""
        if self.state is BreakerState.OPEN and now >= self._until_s:
            self.state = BreakerState.HALF_OPEN
        if self.state is BreakerState.HALF_OPEN and not self._probing:
            self._probing = True
            self._until_s = now + self.settings.probe_timeout_s

    def succeeded(self, now: float) -> None:
        """A job ended well."""
        del now
        self._score /= 2
        if self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.CLOSED
            self._probing = False
            self._score = 0.0
            self._cooldown_s = self.settings.cooldown_s

    def failed(self, now: float) -> None:
        """A job failed, or stalled past its deadline."""
        if self.state is BreakerState.OPEN:
            return
        self._score += 1
        if self.state is BreakerState.HALF_OPEN:
            self._open(now, backoff=True)
        elif self._score >= self.settings.failures:
            self._open(now, backoff=False)

    def _open(self, now: float, *, backoff: bool) -> None:
        if backoff:
            self._cooldown_s = min(self._cooldown_s * 2, self.settings.max_cooldown_s)
        self.state = BreakerState.OPEN
        self.trips += 1
        self._probing = False
        self._score = 0.0
        self._until_s = now + self._cooldown_s
