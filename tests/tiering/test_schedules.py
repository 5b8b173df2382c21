"""Deterministic simulation: two hundred seeds hold every invariant, and broken caches are found.

``make fuzz`` runs ten thousand. A failure names its seed; ``python scripts/fuzz_tiering.py --seed N`` replays it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import pytest

from warmtier.core.types import Key, MissReason
from warmtier.policy.base import Pinned
from warmtier.testing.invariants import BrokenInvariantError
from warmtier.testing.schedules import Schedule, make_setup, run_schedule
from warmtier.tiering.cold import ColdState
from warmtier.tiering.demote import Demoter
from warmtier.tiering.index import HostIndex
from warmtier.tiering.jobs import Job
from warmtier.tiering.request import Slots

SEEDS = 200
SEEDS_TO_NOTICE = 600


@pytest.fixture(scope="module")
def schedules() -> list[Schedule]:
    return [run_schedule(seed) for seed in range(SEEDS)]


def test_every_invariant_holds(schedules: list[Schedule]) -> None:
    loads = sum(schedule.loads for schedule in schedules)
    assert loads > 1000, "schedules that load nothing prove nothing"


def test_a_seed_replays_exactly() -> None:
    def trace(seed: int) -> tuple[object, ...]:
        schedule = Schedule(seed)
        schedule.run()
        return (schedule.world.now, schedule.seen, schedule.loads, schedule.world.cache.stats())

    assert all(trace(seed) == trace(seed) for seed in (3, 20, 41))
    assert make_setup(5, 10) == make_setup(5, 10)


def test_the_schedules_reach_what_they_are_for(schedules: list[Schedule]) -> None:
    reasons: set[MissReason] = set()
    late = trips = promoted = 0
    for schedule in schedules:
        for tier in schedule.world.cache.stats().tiers.values():
            reasons |= set(tier.counters.misses)
            late += tier.counters.late
            trips += tier.breaker_trips
            promoted += tier.counters.promotions
    assert late
    assert trips
    assert promoted > 100
    missing = set(MissReason) - reasons - {MissReason.HOLD_OUT}
    assert not missing, f"no schedule misses for {missing}"


# Each of these breaks one rule; a suite that does not notice proves nothing.


def _reuse_late_slots(self: HostIndex, keys: Iterable[Key]) -> list[int]:
    """Timed-out promotions: free the slots at once instead of quarantining them."""
    slots = [self.busy.pop(key) for key in keys if key in self.busy]
    self.allocator.free(slots)
    self.version += 1
    return []


def _nothing_pinned(self: HostIndex) -> Pinned[Key]:
    return lambda key: key not in self.ready


def _no_references(self: HostIndex, slots: Slots) -> None:
    del self, slots


def _holds_nothing(self: ColdState, key: Key) -> bool:
    return key in self.index


def _promise_nothing(self: HostIndex, slots: Sequence[int]) -> None:
    del self, slots


def _late_write_counts(self: Demoter, job: Job, tier: ColdState, now: float) -> None:
    del self, job, tier, now


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (HostIndex, "quarantine_busy", _reuse_late_slots),
        (HostIndex, "pinned", _nothing_pinned),
        (HostIndex, "ref", _no_references),
        (HostIndex, "hold", _promise_nothing),
        (ColdState, "holds", _holds_nothing),
        (Demoter, "overdue", _late_write_counts),
    ],
)
def test_a_broken_rule_is_found(
    owner: type, name: str, broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    for seed in range(SEEDS_TO_NOTICE):
        with contextlib.suppress(BrokenInvariantError):
            run_schedule(seed)
            continue
        return
    pytest.fail(f"{name} was broken and {SEEDS_TO_NOTICE} schedules did not notice")
