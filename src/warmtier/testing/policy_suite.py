"""The conformance suite of production policies. Subclass, give it a policy, and pytest proves it:

    class TestMyPolicy(PolicySuite):
        def make_policy(self, capacity):
            return MyPolicy(capacity)

    TestMyPolicyMachine = policy_machine(MyPolicy).TestCase

The state machine keeps the set of resident chunks beside the policy and checks every rule of ``policy/base.py``: leaf
first, head first, pins, own path, no phantom, no loss.
"""

from __future__ import annotations

import gc
import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmtier.policy.base import Access, EvictionPolicy

SuiteKey = tuple[int, ...]
"""A key that spells its path, so that its parent is plain to see."""

TOKENS_PER_CHUNK = 16


def path_of(steps: Sequence[int]) -> list[SuiteKey]:
    """Return the keys along ``steps``, root first."""
    return [tuple(steps[: depth + 1]) for depth in range(len(steps))]


def make_access(steps: Sequence[int], now: float) -> Access[SuiteKey]:
    """Return a request along ``steps``."""
    path = path_of(steps)
    return Access(path, TOKENS_PER_CHUNK, len(path) * TOKENS_PER_CHUNK + 3, now)


def serve(policy: EvictionPolicy[SuiteKey], steps: Sequence[int], now: float) -> int:
    """Drive one whole request as the tiered cache does; return its leading hits."""
    access = make_access(steps, now)
    path = access.path
    hits = next((depth for depth, key in enumerate(path) if key not in policy), len(path))
    policy.begin(access, now)
    policy.touch(access, path[:hits], now)
    if hits < len(path):
        policy.admit(access, path[hits:], path[hits - 1] if hits else None, now, lambda _key: False)
    policy.finish(access, now)
    return hits


class ResidentModel:
    """The naive model: which chunks are resident, nothing else."""

    def __init__(self) -> None:
        self.keys: set[SuiteKey] = set()

    def leaves(self, kept: Collection[SuiteKey]) -> set[SuiteKey]:
        """Return the resident chunks that could be given up."""
        parents = {key[:-1] for key in self.keys}
        return {key for key in self.keys if key not in parents and key not in kept}

    def give_up(self, victims: Sequence[SuiteKey], kept: Collection[SuiteKey]) -> None:
        """Check and take the victims one by one."""
        for victim in victims:
            if victim not in self.keys:
                raise AssertionError(f"victim {victim} was not resident")
            if victim in kept:
                raise AssertionError(f"victim {victim} was pinned or on the request's own path")
            if any(key[:-1] == victim for key in self.keys):
                raise AssertionError(f"victim {victim} has resident children")
            self.keys.remove(victim)


class PolicyMachine(RuleBasedStateMachine):
    """Random requests, several at once, with pins, failures, pressure and resizing, against ``ResidentModel``."""

    make: Callable[[int], EvictionPolicy[SuiteKey]]

    def __init__(self) -> None:
        super().__init__()
        self.policy = type(self).make(6)
        self.model = ResidentModel()
        self.running: list[Access[SuiteKey]] = []
        self.now = 0.0

    @rule(steps=st.lists(st.integers(0, 2), min_size=1, max_size=8), seconds=st.sampled_from((0.0, 0.3, 7.0)))
    def begin(self, steps: list[int], seconds: float) -> None:
        """A request arrives."""
        self.now += seconds
        access = make_access(steps, self.now)
        self.policy.begin(access, self.now)
        self.policy.touch(access, access.path[: self._hits(access)], self.now)
        self.running.append(access)
        if len(self.running) > 3:
            self.finish(0)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 3), count=st.integers(1, 9), pins=st.sets(st.integers(0, 30), max_size=4))
    def admit(self, pick: int, count: int, pins: set[int]) -> None:
        """A running request stores its next chunks."""
        access = self.running[pick % len(self.running)]
        start = self._hits(access)
        stop = start
        while stop < min(len(access.path), start + count) and access.path[stop] not in self.model.keys:
            stop += 1
        keys = access.path[start:stop]
        if not keys:
            return
        pinned = self._pinned(pins)
        parent = access.path[start - 1] if start else None
        answer = self.policy.admit(access, keys, parent, self.now, pinned.__contains__)
        kept = pinned | set(access.path)
        self.model.give_up(answer.victims, kept)
        if not 0 <= answer.admitted <= len(keys):
            raise AssertionError(f"admitted {answer.admitted} of {len(keys)}")
        if answer.victims and not answer.refused_by_value and len(self.model.keys) >= self.policy.capacity:
            raise AssertionError("victims were taken and nothing was made of it")
        self.model.keys |= set(keys[: answer.admitted])
        full = len(self.model.keys) >= self.policy.capacity
        if answer.admitted < len(keys) and not answer.refused_by_value and (not full or self.model.leaves(kept)):
            raise AssertionError(f"refused {keys[answer.admitted]} for want of room, but there was room to be made")
        if len(self.model.keys) > self.policy.capacity and answer.admitted:
            raise AssertionError("admitted beyond capacity")

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 3), step=st.integers(0, 2))
    def grow(self, pick: int, step: int) -> None:
        """A running request fills one more chunk."""
        access = self.running[pick % len(self.running)]
        if len(access.path) < 12:
            access.path.append((*access.path[-1], step))

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 3))
    def finish(self, pick: int) -> None:
        """A request ends."""
        access = self.running.pop(pick % len(self.running))
        self.policy.finish(access, self.now)

    @rule(count=st.integers(0, 8), pins=st.sets(st.integers(0, 30), max_size=4))
    def evict(self, count: int, pins: set[int]) -> None:
        """Pressure."""
        pinned = self._pinned(pins)
        victims = self.policy.evict(count, self.now, pinned.__contains__)
        self.model.give_up(victims, pinned)
        if len(victims) > count or (len(victims) < count and self.model.leaves(pinned)):
            raise AssertionError(f"evict({count}) gave {len(victims)}")

    @precondition(lambda self: self.model.keys)
    @rule(
        picks=st.lists(st.integers(0, 30), min_size=1, max_size=4),
        count=st.integers(0, 3),
        pins=st.sets(st.integers(0, 30), max_size=2),
    )
    def give_up(self, picks: list[int], count: int, pins: set[int]) -> None:
        """A wrapper names the victims."""
        wanted = sorted(self._pinned(set(picks)), key=len, reverse=True)
        pinned = self._pinned(pins)
        victims = self.policy.give_up(wanted, count, self.now, pinned.__contains__)
        if len(victims) > count or not set(victims) <= set(wanted):
            raise AssertionError(f"give_up({wanted}, {count}) gave {victims}")
        self.model.give_up(victims, pinned)

    @precondition(lambda self: self.model.keys)
    @rule(picks=st.sets(st.integers(0, 30), min_size=1, max_size=3), absent=st.booleans())
    def remove(self, picks: set[int], absent: bool) -> None:
        """Stores failed or were corrupt: chunks are gone, perhaps from the middle of a path."""
        keys = self._pinned(picks)
        self.policy.remove([*keys, *([(9, 9)] if absent else [])], self.now)
        self.model.keys -= keys

    @rule(picks=st.sets(st.integers(0, 30), max_size=3))
    def defer(self, picks: set[int]) -> None:
        """A wrapper passes chunks over; nothing may change but the order."""
        self.policy.defer([*self._pinned(picks), (9, 9)])

    @rule(capacity=st.integers(0, 12))
    def resize(self, capacity: int) -> None:
        """A new capacity; the caller evicts what is above it."""
        self.policy.resize(capacity)
        excess = len(self.model.keys) - capacity
        if excess > 0:
            self.model.give_up(self.policy.evict(excess, self.now, lambda _key: False), ())

    @invariant()
    def agrees(self) -> None:
        """The policy holds exactly what the model holds."""
        resident = list(self.policy.resident())
        if len(resident) != len(self.policy) or set(resident) != self.model.keys:
            raise AssertionError(f"resident {sorted(resident)}, expected {sorted(self.model.keys)}")
        if any(key not in self.policy for key in self.model.keys) or (9, 9) in self.policy:
            raise AssertionError("membership disagrees")
        if not self.policy.explain()["policy"]:
            raise AssertionError("explain() names no policy")

    def _hits(self, access: Access[SuiteKey]) -> int:
        return next((i for i, key in enumerate(access.path) if key not in self.model.keys), len(access.path))

    def _pinned(self, picks: set[int]) -> set[SuiteKey]:
        ordered = sorted(self.model.keys)
        return {ordered[pick % len(ordered)] for pick in picks} if ordered else set()


def policy_machine(make: Callable[[int], EvictionPolicy[Any]], examples: int = 60) -> type[PolicyMachine]:
    """Return a state machine for the policies that ``make`` (capacity) returns; give pytest its ``TestCase``."""
    name = f"Machine_{getattr(make, '__name__', 'policy')}"
    machine: type[PolicyMachine] = type(name, (PolicyMachine,), {"make": staticmethod(make)})
    machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=30, deadline=None)
    return machine


class PolicySuite:
    """Plain tests that every production policy passes."""

    @abstractmethod
    def make_policy(self, capacity: int) -> EvictionPolicy[SuiteKey]:
        """Return a new, empty policy."""

    def test_equal_events_give_equal_decisions(self) -> None:
        """No clock, no unseeded randomness: two policies that see the same do the same."""
        first, second = self.make_policy(50), self.make_policy(50)
        for policy in (first, second):
            rng = random.Random(11)
            for now in range(400):
                serve(policy, [rng.randrange(4) for _ in range(rng.randint(1, 7))], float(now))
        if list(first.resident()) and set(first.resident()) != set(second.resident()):
            raise AssertionError("equal events, different residents")

    def test_a_working_set_that_fits_is_kept(self) -> None:
        """With room for all, every path hits from its second request on."""
        policy = self.make_policy(40)
        paths = [[root, *range(6)] for root in range(5)]
        for turn in range(4):
            for index, steps in enumerate(paths):
                hits = serve(policy, steps, turn * 10.0 + index)
                if turn and hits != len(steps):
                    raise AssertionError(f"turn {turn}: {hits} of {len(steps)} hit although all fit")

    def test_zero_capacity_admits_nothing(self) -> None:
        """A tier without room refuses and evicts nothing."""
        policy = self.make_policy(0)
        if serve(policy, [1, 2, 3], 0.0) or serve(policy, [1, 2, 3], 1.0) or len(policy):
            raise AssertionError("a policy of capacity 0 holds chunks")

    def test_clear_forgets_everything(self) -> None:
        """After ``clear`` the policy is as new."""
        policy = self.make_policy(8)
        serve(policy, [1, 2, 3], 0.0)
        policy.clear()
        if len(policy) or list(policy.resident()) or serve(policy, [1, 2, 3], 1.0):
            raise AssertionError("clear() left something behind")

    def test_memory_is_bounded_by_capacity(self) -> None:
        """A flood of new chunks reaches a plateau of memory; a further flood adds nothing to speak of."""
        policy = self.make_policy(64)
        rng = random.Random(5)
        sizes = []
        number = 0
        for flood in (6_000, 1_000, 2_000):  # the first fills every memory: 20,000 ghosts and more
            for _ in range(flood):
                number += 1
                serve(policy, [number, *range(rng.randint(1, 9))], number * 0.1)
            sizes.append(count_objects(policy))
        if sizes[2] > sizes[1] * 1.1 + 1_000:
            raise AssertionError(f"objects held after floods, which should have reached a plateau: {sizes}")

    def test_one_request_larger_than_the_tier(self) -> None:
        """A path that cannot fit keeps a head and does not fail."""
        policy = self.make_policy(5)
        for now in range(3):
            serve(policy, list(range(30)), float(now))
            if not 0 < len(policy) <= 5:
                raise AssertionError(f"{len(policy)} resident of capacity 5")
        if set(policy.resident()) != set(path_of(list(range(len(policy))))):
            raise AssertionError("what is kept of an oversized path is not its head")


def count_objects(root: object) -> int:
    """Return the number of objects that ``root`` holds, directly or not; code and types are left out."""
    seen: set[int] = set()
    stack: list[object] = [root]
    while stack:
        item = stack.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType | MethodType):
            continue
        seen.add(id(item))
        stack += gc.get_referents(item)
    return len(seen)
