"""Builders for tests of the tiered cache: keys, caches with plain settings, an executor that answers when told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warmtier.core.types import Key, RequestId, TierKind
from warmtier.guard.breaker import BreakerSettings
from warmtier.policy.lru import LruPolicy
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.calibration import Calibration
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.tiering.types import NO_HINTS, Action, Demote, JobResult, Migrate, Promote, RequestHints

PART_BYTES = 100
TOKENS = 16


def path_of(name: str, length: int, *, parts: int = 1) -> list[Key]:
    """Return the part keys of a path of ``length`` chunks; paths of one name share their prefix."""
    return [Key(f"{name}{index}.{part}".encode()) for index in range(length) for part in range(parts)]


def cold_tier(name: str = "file", capacity: int = 100, **settings: Any) -> ColdTier:  # noqa: ANN401
    """Return a cold tier with LRU and a breaker that opens at three failures."""
    settings.setdefault("breaker", BreakerSettings(failures=3, cooldown_s=10.0))
    kind = TierKind.FILE if name == "file" else TierKind.OBJECT
    return ColdTier(name, kind, LruPolicy(capacity), **settings)


class Driver:
    """A ``TieredCache`` of ``slots`` with time in ``now``, driven by hand. ``settings``: of ``CacheConfig``."""

    def __init__(
        self,
        slots: int = 16,
        cold: Sequence[ColdTier] = (),
        *,
        calibration: Calibration | None = None,
        host: HostTier | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        settings = {"part_bytes": PART_BYTES, "tokens_per_chunk": TOKENS, "offload_prompt_only": False} | settings
        settings.setdefault("static_min_tokens", 0)
        host = HostTier(LruPolicy(slots), slots) if host is None else host
        self.cache = TieredCache(CacheConfig(**settings), host, cold, calibration=calibration)
        self.now = 0.0
        self._count = 0

    def begin(self, *, tokens: int | None = None, hints: RequestHints = NO_HINTS) -> Request:
        """Begin a request."""
        self._count += 1
        return self.cache.begin_request(RequestId(f"r{self._count}"), self.now, prompt_tokens=tokens, hints=hints)

    def store(self, path: Sequence[Key], *, hints: RequestHints = NO_HINTS, tokens: int | None = None) -> list[Key]:
        """Run a request that computes all of ``path``; return the keys that were stored."""
        request = self.begin(hints=hints, tokens=tokens)
        offer = self.cache.offer(request, path, 0, self.now)
        self.cache.store_done(request, offer.keys, self.now)
        self.cache.end_request(request, self.now)
        self.cache.tick(self.now)
        return offer.keys

    def usable(self, path: Sequence[Key], start: int = 0) -> int:
        """Return how much of ``path`` a new request could load."""
        request = self.begin()
        answer = self.cache.lookup(request, path, start, self.now)
        self.cache.end_request(request, self.now)
        self.cache.tick(self.now)
        return answer.usable

    def actions(self) -> list[Action]:
        """Take the actions."""
        return self.cache.take_actions()

    def answer(self, action: Action, *, ok: int | None = None, **result: Any) -> None:  # noqa: ANN401
        """End a job: the first ``ok`` keys (default: all) are good."""
        if isinstance(action, Promote | Demote | Migrate):
            count = len(action.keys)
            good = [index < (count if ok is None else ok) for index in range(count)]
            self.cache.job_done(JobResult(action.job_id, good, **result), self.now)

    def settle(self) -> None:
        """End every job well, those that follow included."""
        while actions := self.actions():
            for action in actions:
                self.answer(action)


PATH_A, PATH_B = path_of("a", 4), path_of("b", 4)


def with_file(slots: int = 4, **settings: Any) -> Driver:  # noqa: ANN401
    """Return a driver of a small host tier above one written-through file tier."""
    return Driver(slots, [cold_tier(**settings)])


def stored_below(driver: Driver) -> Driver:
    """Return the driver with ``PATH_A`` in the file tier only, ``PATH_B`` in both (in a host tier of four slots)."""
    driver.store(PATH_A)
    driver.settle()
    driver.store(PATH_B)
    driver.settle()
    return driver


def promotion(driver: Driver) -> Promote:
    """Take the actions; return the one promotion among them."""
    found = [action for action in driver.actions() if isinstance(action, Promote)]
    if len(found) != 1:
        raise AssertionError(f"one promotion expected, got {found}")
    return found[0]
