"""The cold tiers on the scheduler's side: takes the cache's actions to the executor and results back, without waiting.

Everything here but ``close`` is called by the scheduler's thread. Queues between threads are deques and SimpleQueues,
used only in ways that neither block nor lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.clock import Clock
from warmtier.core.types import Key, TierMode
from warmtier.engines.vllm.epochs import Keeper
from warmtier.engines.vllm.slab import STORED, Slab
from warmtier.store.base import StoreStats
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.executor import Executor
from warmtier.tiering.types import Demote, JobResult, Promote

_RESTORED_AT_ONCE: Final = 256  # chunks taken into the index per step: about a millisecond
_OPENING_S: Final = 60.0  # how long an idle engine keeps stepping for a store that opens
_STALLED_S: Final = 3.0  # how long it keeps stepping for jobs of which none ends


@dataclass(slots=True)
class Flow:
    """What went through one cold tier since start."""

    read_bytes: int = 0
    read_seconds: float = 0.0
    read_chunks: int = 0
    read_failures: int = 0
    written_bytes: int = 0
    write_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # of promotions, since the last ``take_latencies``


@dataclass(slots=True)
class _Tier:
    keeper: Keeper
    wanted: TierMode
    restoring: deque[Key] | None = None
    ready: bool = False
    reset_while_opening: bool = False
    flow: Flow = field(default_factory=Flow)


class MonotonicSeconds:
    """A ``Clock`` from a function, so that executor and scheduler agree on deadlines."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time in seconds."""
        return self._now()


class ColdTiers:
    """Drives the tiers below the host. A tier is off until its store is open and its chunks are known."""

    def __init__(
        self,
        cache: TieredCache,
        slab: Slab,
        keepers: Sequence[Keeper],
        *,
        readers: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._slab = slab
        modes = cache.stats().tiers
        self._tiers = {keeper.name: _Tier(keeper, modes[keeper.name].mode) for keeper in keepers}
        self.filled: Callable[[Sequence[int]], None] = lambda _: None  # told which host slots get other chunks
        self._slots: dict[int, tuple[str, Sequence[int]]] = {}  # promotions under way
        self._writes: dict[int, str] = {}
        self._moved_s = self._started_s = clock()
        self._started = False
        self.changed = False  # figures moved since someone last cleared this
        for name in self._tiers:
            cache.set_mode(name, TierMode.OFF, self._moved_s, why="not open yet")
        executor_clock: Clock = MonotonicSeconds(clock)
        stores = {keeper.name: keeper.store for keeper in keepers}
        self._executor = Executor(
            stores, slab.chunk, executor_clock, part_bytes=slab.layout.chunk_bytes, readers=readers
        )

    # --- every step ---

    def pump(self, now: float) -> None:
        """Hand results to the cache and new actions to the executor. Never blocks."""
        if not self._started:
            self._started, self._started_s = True, now
            for tier in self._tiers.values():
                tier.keeper.start()
        for tier in self._tiers.values():
            if not tier.ready:
                self._restore(tier, now)
        for result in self._executor.take_results():
            self._moved_s = now
            self.changed = True
            self._note(result)
            self._cache.job_done(result, now)
        self._submit(now)

    def pending(self, now: float) -> bool:
        """Return whether the engine should step although it has no request: something will end soon."""
        if any(tier.restoring for tier in self._tiers.values()):
            return True
        if now < self._started_s + _OPENING_S and any(self._opening(tier) for tier in self._tiers.values()):
            return True
        return bool(self._slots or self._writes) and now < self._moved_s + _STALLED_S

    def _opening(self, tier: _Tier) -> bool:
        return not tier.ready and (not self._started or tier.keeper.waiting_for is None)

    def _restore(self, tier: _Tier, now: float) -> None:
        if tier.restoring is None:
            opened = tier.keeper.take()
            if opened is None:
                return
            tier.restoring = deque() if tier.reset_while_opening else deque(opened.keys)
        keys = [tier.restoring.popleft() for _ in range(min(_RESTORED_AT_ONCE, len(tier.restoring)))]
        if keys:
            self._cache.restore(tier.keeper.name, keys, now)
        if not tier.restoring:
            tier.ready = self.changed = True
            if tier.wanted is not TierMode.OFF:
                self._cache.set_mode(tier.keeper.name, tier.wanted, now, why="the store is open")

    def _submit(self, now: float) -> None:
        actions = self._cache.take_actions()
        if not actions:
            return
        self._moved_s = now
        for action in actions:
            if isinstance(action, Promote):
                self._slots[action.job_id] = action.tier, action.slots
                self.filled(action.slots)
            elif isinstance(action, Demote):
                self._writes[action.job_id] = action.tier
        self._executor.submit(actions)

    def _note(self, result: JobResult) -> None:
        """Mark what arrived in the slab as loadable, and count. Digests travel in the chunk and are checked at load."""
        promotion = self._slots.pop(result.job_id, None)
        if promotion is None:
            name = self._writes.pop(result.job_id, None)
            if name is not None:
                flow = self._tiers[name].flow
                flow.written_bytes += result.size_bytes
                flow.write_seconds += result.seconds
            return
        name, slots = promotion
        arrived = [slot for slot, ok in zip(slots, result.ok, strict=False) if ok]
        if arrived:
            self._slab.mark(arrived, STORED)
        flow = self._tiers[name].flow
        flow.read_bytes += result.size_bytes
        flow.read_seconds += result.seconds
        flow.read_chunks += len(arrived)
        flow.read_failures += len(slots) - len(arrived)
        flow.latencies.append(result.seconds)

    # --- control ---

    def set_mode(self, name: str, mode: TierMode, now: float, *, why: str) -> None:
        """Switch a tier as ``TieredCache.set_mode``; before its store is open, switch what it will be then."""
        tier = self._tiers.get(name)
        if tier is not None and not tier.ready and mode is not TierMode.OFF:
            tier.wanted = mode
            return
        self._cache.set_mode(name, mode, now, why=why)
        if tier is not None:
            tier.wanted = mode

    def reset(self, now: float) -> None:
        """The cache began a new epoch: what is still being taken into the index belongs to the old one."""
        for tier in self._tiers.values():
            if tier.restoring is not None:
                tier.restoring.clear()
            elif not tier.ready:
                tier.reset_while_opening = True
        self._submit(now)

    # --- figures ---

    def waiting_for(self) -> Mapping[str, str | None]:
        """Return for each tier why its store is not open, None where it is or is being opened."""
        return {name: tier.keeper.waiting_for for name, tier in self._tiers.items()}

    def samples(self) -> Mapping[str, StoreStats]:
        """Return each store's figures, at most about a second old."""
        return {name: tier.keeper.sample for name, tier in self._tiers.items()}

    def flows(self) -> Mapping[str, Flow]:
        """Return what went through each tier."""
        return {name: tier.flow for name, tier in self._tiers.items()}

    def queued(self, name: str) -> tuple[int, int]:
        """Return how many promotions and writes of a tier are queued or at hand."""
        return self._executor.queued(name)

    def errors(self, name: str) -> int:
        """Return how many operations of a tier raised instead of answering."""
        return self._executor.errors(name)

    # --- the end ---

    def close(self, *, drain_s: float = 1.0, timeout_s: float = 2.0) -> bool:
        """Write what is queued, stop the threads, seal the stores; return whether all of it ended in time. Blocks."""
        self._executor.submit(self._cache.take_actions())
        self._executor.drain(drain_s)
        stopped = self._executor.close(timeout_s)
        closed = [tier.keeper.stop(timeout_s) for tier in self._tiers.values()]
        return stopped and all(closed)
