"""A deterministic world around a ``TieredCache``: slab, stores, engine and executor that lag, fail and come back late.

Bytes are values: the KV of chunk ``key`` computed in epoch ``e`` is the pair (key, e). Every load to the device checks
the value in the slot when it starts and when it ends; every write down checks it when it reads. One seed decides
everything, so a failure replays.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from warmtier.core.types import Key
from warmtier.testing.invariants import BrokenInvariantError
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.types import Action, Clear, Delete, Demote, JobResult, Migrate, Promote

Value = tuple[Key, int]


class WrongBytesError(BrokenInvariantError):
    """Somebody was given, or wrote down, other bytes than those of the key asked for."""


@dataclass(slots=True)
class Faults:
    """How the world misbehaves, as probabilities per job or transfer; delays in seconds."""

    lost: float = 0.0  # a store lost the chunk
    corrupt: float = 0.0
    timeout: float = 0.0  # the executor gave up, and says so
    late: float = 0.0  # the answer comes long after every deadline
    write_fails: float = 0.0
    store_evicts: float = 0.0
    transfer_fails: float = 0.0
    mean_delay_s: float = 0.02
    late_delay_s: float = 60.0


@dataclass(slots=True)
class FakeStore:
    """A store as a dict, with one queue of writes performed in order."""

    held: dict[Key, Value] = field(default_factory=dict)
    queue: deque[Action] = field(default_factory=deque)
    busy: bool = False


class World:
    """Time, slab and stores. The executor's part: performs actions with delays and faults."""

    def __init__(self, seed: int, faults: Faults, slots: int, tiers: list[str]) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.epoch = 0
        self.life = 0  # grows with each restart; answers of an earlier life are lost
        self.slab: list[Value | None] = [None] * slots
        self.stores = {name: FakeStore() for name in tiers}
        self.cache: TieredCache
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    # --- time ---

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do ``what`` later, unless the process has been restarted by then."""
        life = self.life
        due = (self.now + delay_s, next(self._order), lambda: what() if life == self.life else None)
        heapq.heappush(self._events, due)

    def run_until(self, until_s: float) -> None:
        """Let everything happen that is due."""
        while self._events and self._events[0][0] <= until_s:
            at_s, _, what = heapq.heappop(self._events)
            self.now = max(self.now, at_s)
            what()
        self.now = max(self.now, until_s)

    @property
    def waiting(self) -> int:
        """Things still to happen."""
        return len(self._events)

    def next_due_s(self) -> float:
        """When the next thing happens."""
        return self._events[0][0]

    def chance(self, probability: float) -> bool:
        """Toss a coin."""
        return self.random.random() < probability

    def delay(self) -> float:
        """How long the next thing takes."""
        return self.random.expovariate(1 / self.faults.mean_delay_s)

    # --- slab ---

    def require(self, slot: int, value: Value, who: str) -> None:
        """Raise unless the slot holds exactly this."""
        if self.slab[slot] != value:
            raise WrongBytesError(f"{who}: slot {slot} holds {self.slab[slot]}, not {value}")

    # --- the executor ---

    def perform(self) -> None:
        """Take the cache's actions and start them."""
        for action in self.cache.take_actions():
            if isinstance(action, Promote):
                self._promote(action)
            else:
                store = self.stores[action.tier]
                store.queue.append(action)
                self._next_write(store)

    def _job_delay(self) -> float:
        return self.faults.late_delay_s if self.chance(self.faults.late) else self.delay()

    def _promote(self, action: Promote) -> None:
        store = self.stores[action.tier]
        values = [store.held.get(key) for key in action.keys]
        delay_s = self._job_delay()
        timed_out = self.chance(self.faults.timeout)

        def arrive() -> None:
            ok, corrupt = [], []
            for key, slot, value in zip(action.keys, action.slots, values, strict=True):
                bad = self.chance(self.faults.corrupt)
                good = value is not None and not bad and not timed_out and not self.chance(self.faults.lost)
                if value is None:
                    store.held.pop(key, None)
                # Bytes land before anybody knows whether they are right.
                self.slab[slot] = value if good else (key, -1)
                ok.append(good)
                corrupt.append(bad and value is not None)
            self.cache.job_done(JobResult(action.job_id, ok, corrupt, (), delay_s, 4096 * len(ok), timed_out), self.now)

        self.after(delay_s, arrive)

    def _next_write(self, store: FakeStore) -> None:
        if store.busy or not store.queue:
            return
        store.busy = True
        action = store.queue.popleft()
        delay_s = self._job_delay() if isinstance(action, Demote | Migrate) else 0.0
        started = dict.fromkeys(action.keys) if not isinstance(action, Clear) else {}
        if isinstance(action, Demote):
            for key, slot in zip(action.keys, action.slots, strict=True):
                started[key] = self.slab[slot]
                if self.slab[slot] is None or self.slab[slot][0] != key:  # type: ignore[index]
                    raise WrongBytesError(f"write of {key!r} finds {self.slab[slot]} in slot {slot}")

        def end() -> None:
            self._write(store, action, started)
            store.busy = False
            self._next_write(store)

        self.after(delay_s, end)

    def _write(self, store: FakeStore, action: Action, started: dict[Key, Value | None]) -> None:
        if isinstance(action, Clear):
            store.held.clear()
        elif isinstance(action, Delete):
            for key in action.keys:
                store.held.pop(key, None)
        elif isinstance(action, Demote | Migrate):
            self._put(store, action, started)

    def _put(self, store: FakeStore, action: Demote | Migrate, started: dict[Key, Value | None]) -> None:
        timed_out = self.chance(self.faults.timeout)
        ok = []
        for position, key in enumerate(action.keys):
            if isinstance(action, Demote):
                value: Value | None = self.slab[action.slots[position]]
                if value != started[key]:
                    raise WrongBytesError(f"slot of {key!r} changed while it was written down")
            else:
                value = self.stores[action.source].held.get(key)
            good = value is not None and not timed_out and not self.chance(self.faults.write_fails)
            if good and value is not None:
                store.held.setdefault(key, value)
            ok.append(good)
        evicted = []
        if store.held and self.chance(self.faults.store_evicts):
            evicted = [self.random.choice(list(store.held))]
            del store.held[evicted[0]]
        self.cache.job_done(JobResult(action.job_id, ok, (), evicted, 0.01, 4096, timed_out), self.now)

    def restart(self) -> None:
        """The process dies: the slab and everything in flight is lost, the stores stay."""
        self.life += 1
        self._events.clear()
        self.slab = [None] * len(self.slab)
        for store in self.stores.values():
            store.queue.clear()
            store.busy = False
