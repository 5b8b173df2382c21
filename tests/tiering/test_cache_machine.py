"""A hypothesis state machine drives the tiered cache and a naive model side by side.

The model knows only what a reader of the contract knows: a chunk is in the host tier from ``store_done`` until an
offer, a promotion or a failure takes it away; in the file tier from the end of its write until a delete. What the cache
answers must be true in the model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from warmtier.core.types import Key, MissReason, StoreOutcome
from warmtier.testing.fakes import Driver, cold_tier
from warmtier.testing.invariants import check, check_quiet
from warmtier.tiering.request import Request
from warmtier.tiering.types import Action, Clear, Delete, Demote, JobResult, Placement, Promote

SLOTS = 8
EXAMPLES = int(os.environ.get("WARMTIER_FUZZ_EXAMPLES", "60"))


def path_from(branches: Sequence[int]) -> list[Key]:
    """Each element chooses a child; equal beginnings share keys."""
    name, keys = "", []
    for branch in branches:
        name += str(branch)
        keys.append(Key(name.encode()))
    return keys


paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(path_from)


class TieredCacheModel(RuleBasedStateMachine):
    """``host`` maps each chunk of the host tier to its slot and whether it is ready."""

    stores: Bundle[tuple[Request, tuple[Key, ...], int]] = Bundle("stores")
    loads: Bundle[tuple[Request, tuple[Key, ...], int]] = Bundle("loads")

    def __init__(self) -> None:
        super().__init__()
        self.host: dict[Key, tuple[int, bool]] = {}
        self.file: set[Key] = set()
        self.pinned: dict[int, int] = {}
        self.epoch = 0

    @initialize(placement=st.sampled_from(list(Placement)), capacity=st.sampled_from([0, 3, 20]))
    def build(self, placement: Placement, capacity: int) -> None:
        cold = [cold_tier("file", capacity, placement=placement, deadline_cap_s=50.0)] if capacity else []
        self.driver = Driver(SLOTS, cold, pending_deadline_s=50.0)

    # --- the model's view of events ---

    def take_events(self) -> None:
        """Chunks leave the host tier only by an event that says so."""
        for event in self.driver.cache.take_events():
            for key in event.keys:
                if event.tier == "host" and event.removed:
                    slot, ready = self.host.pop(key)
                    assert ready, "a chunk was evicted while it was being written"
                    assert not self.pinned.get(slot), "a chunk was evicted while it was being loaded"

    def take_actions(self) -> list[Action]:
        actions = self.driver.actions()
        for action in actions:
            if isinstance(action, Delete):
                self.file -= set(action.keys)
            elif isinstance(action, Clear):
                self.file.clear()
            elif isinstance(action, Promote):
                assert set(action.keys) <= self.file, "a promotion of what the tier does not hold"
                for key, slot in zip(action.keys, action.slots, strict=True):
                    assert key not in self.host
                    assert slot not in {used for used, _ in self.host.values()}
                    self.host[key] = (slot, False)
        return actions

    # --- rules ---

    @rule(target=stores, path=paths, data=st.data())
    def offer(self, path: list[Key], data: st.DataObject) -> tuple[Request, tuple[Key, ...], int]:
        start = data.draw(st.integers(0, len(path) - 1))
        request = self.driver.begin()
        self.driver.cache.lookup(request, path, start, self.driver.now)
        self.take_events()
        self.queue_jobs()
        before = dict(self.host)
        answer = self.driver.cache.offer(request, path[start:], start, self.driver.now)
        self.take_events()
        assert sum(answer.outcomes.values()) == len(path) - start
        assert answer.outcomes.get(StoreOutcome.PRESENT, 0) == sum(key in before for key in path[start:])
        assert set(answer.evicted) <= before.keys() - set(path)
        taken = {slot for slot, _ in self.host.values()}
        for key, slot in zip(answer.keys, answer.slots, strict=True):
            assert key not in before
            assert slot not in taken, "a slot was handed out twice"
            self.host[key] = (slot, False)
        self.queue_jobs()
        self.driver.cache.end_request(request, self.driver.now)
        self.queue_jobs()
        return request, tuple(answer.keys), self.epoch

    @rule(store=consumes(stores), ok=st.booleans())
    def store_done(self, store: tuple[Request, tuple[Key, ...], int], ok: bool) -> None:
        request, keys, epoch = store
        if epoch != self.epoch:
            return
        self.driver.cache.store_done(request, set(keys), self.driver.now, ok=ok)
        for key in keys:
            if ok:
                self.host[key] = (self.host[key][0], True)
            else:
                del self.host[key]
        self.take_events()
        self.queue_jobs()

    @rule(target=loads, path=paths)
    def load(self, path: list[Key]) -> tuple[Request, tuple[Key, ...], int]:
        request = self.driver.begin()
        answer = self.driver.cache.lookup(request, path, 0, self.driver.now)
        self.take_events()
        self.queue_jobs()
        ready = 0
        while ready < len(path) and self.host.get(path[ready], (0, False))[1]:
            ready += 1
        if answer.pending:
            return request, (), self.epoch
        assert answer.usable == ready, "neither more nor less than what is there"
        if ready < len(path) and path[ready] not in self.host and path[ready] not in self.file:
            assert answer.reason is MissReason.ABSENT
        keys = tuple(path[:ready])
        slots = self.driver.cache.pin_for_load(request, keys, self.driver.now)
        assert slots == [self.host[key][0] for key in keys]
        for slot in slots:
            self.pinned[slot] = self.pinned.get(slot, 0) + 1
        return request, keys, self.epoch

    @rule(load=consumes(loads), ok=st.booleans())
    def load_done(self, load: tuple[Request, tuple[Key, ...], int], ok: bool) -> None:
        request, keys, epoch = load
        if epoch != self.epoch:
            return
        for key in keys:
            if key in self.host:
                self.pinned[self.host[key][0]] -= 1
        if keys and not ok and any(self.pinned.get(self.host[k][0]) for k in keys if k in self.host):
            ok = True  # keep the model naive: bytes that others read are good
        self.driver.cache.load_done(request, set(keys), self.driver.now, ok=ok)
        self.take_events()
        self.driver.cache.end_request(request, self.driver.now)
        self.queue_jobs()

    def queue_jobs(self) -> None:
        """Every job ends at once, well; deadlines and failures are the schedules' part."""
        while actions := self.take_actions():
            for action in actions:
                if isinstance(action, Promote):
                    self.driver.cache.job_done(JobResult(action.job_id, [True] * len(action.keys)), self.driver.now)
                    for key, slot in zip(action.keys, action.slots, strict=True):
                        self.host[key] = (slot, True)
                elif isinstance(action, Demote):
                    self.file |= set(action.keys)
                    self.driver.cache.job_done(JobResult(action.job_id, [True] * len(action.keys)), self.driver.now)
                self.take_events()

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    def tick(self, seconds: float) -> None:
        self.driver.now += seconds
        self.driver.cache.tick(self.driver.now)
        self.take_events()

    @rule()
    def reset(self) -> None:
        self.driver.cache.reset(self.driver.now)
        self.driver.cache.flushed(self.driver.now)
        self.take_actions()
        self.driver.cache.take_events()
        self.host.clear()
        self.pinned.clear()
        self.epoch += 1

    # --- always ---

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "driver"):
            check(self.driver.cache)
            stats = self.driver.cache.stats().tiers["host"]
            assert stats.resident == sum(ready for _, ready in self.host.values())
            assert stats.writing == sum(not ready for _, ready in self.host.values())
            if "file" in self.driver.cache.stats().tiers:
                assert self.driver.cache.stats().tiers["file"].resident == len(self.file)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.reset()
            for request in list(self.driver.cache.state.requests.values()):
                self.driver.cache.end_request(request, self.driver.now)
            check_quiet(self.driver.cache)


TestTieredCacheModel = TieredCacheModel.TestCase
TestTieredCacheModel.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
