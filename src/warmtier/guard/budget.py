"""Budgets: what may be in flight at once, and what may flow on average. Pure: time is an argument."""

from __future__ import annotations


class InFlight:
    """Jobs and bytes under way, each with a hard bound."""

    def __init__(self, max_jobs: int, max_bytes: int) -> None:
        if max_jobs < 1 or max_bytes < 1:
            raise ValueError(f"bounds must be at least 1, got {max_jobs} jobs and {max_bytes} bytes")
        self.max_jobs = max_jobs
        self.max_bytes = max_bytes
        self.jobs = 0
        self.size_bytes = 0

    def room_bytes(self) -> int:
        """Return how many bytes one more job may have (0: no job may start)."""
        return max(0, self.max_bytes - self.size_bytes) if self.jobs < self.max_jobs else 0

    def add(self, size_bytes: int) -> None:
        """A job of ``size_bytes`` starts; the caller has asked ``room_bytes``."""
        self.jobs += 1
        self.size_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        """A job of ``size_bytes`` has ended."""
        self.jobs -= 1
        self.size_bytes -= size_bytes

    @property
    def fill(self) -> float:
        """The fuller of the two bounds, 0 to 1."""
        return max(self.jobs / self.max_jobs, self.size_bytes / self.max_bytes)


class TokenBucket:
    """``rate_per_s`` tokens a second on average, ``burst`` at once. A rate of None is unlimited."""

    def __init__(self, rate_per_s: float | None, burst: float) -> None:
        if rate_per_s is not None and (rate_per_s <= 0 or burst <= 0):
            raise ValueError(f"rate and burst must be positive, got {rate_per_s} and {burst}")
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._tokens = burst
        self._at_s: float | None = None

    def available(self, now: float) -> float:
        """Return the tokens that can be taken now."""
        if self.rate_per_s is None:
            return float("inf")
        if self._at_s is not None:
            self._tokens = min(self.burst, self._tokens + (now - self._at_s) * self.rate_per_s)
        self._at_s = now
        return self._tokens

    def take(self, amount: float, now: float) -> bool:
        """Take ``amount`` tokens if they are there."""
        if amount > self.available(now):
            return False
        if self.rate_per_s is not None:
            self._tokens -= amount
        return True
