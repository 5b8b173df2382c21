"""Cold tiers: placement, promotion, budgets, deadlines, failures, breakers, epochs."""

from __future__ import annotations

from typing import Any

import pytest

from warmtier.core.errors import UsageError
from warmtier.core.types import JobId, MissReason, Source, StoreOutcome, TierKind, TierMode
from warmtier.guard.breaker import BreakerState
from warmtier.policy.admission import NthTouch
from warmtier.policy.lru import LruPolicy
from warmtier.testing.fakes import PART_BYTES, Driver, cold_tier, path_of, promotion, stored_below, with_file
from warmtier.testing.fakes import PATH_A as A
from warmtier.testing.fakes import PATH_B as B
from warmtier.testing.invariants import check, check_quiet
from warmtier.tiering.calibration import Calibration, LinkSpeed, PrefillSpeed
from warmtier.tiering.settings import HostTier
from warmtier.tiering.types import Clear, Delete, Demote, JobResult, Migrate, Placement, Promote

# --- placement ---


def test_through_writes_what_became_ready_heads_first() -> None:
    driver = with_file()
    request = driver.begin()
    driver.cache.offer(request, A, 0, 0.0)
    assert driver.actions() == []
    driver.cache.store_done(request, set(A[:2]), 0.0)
    (first,) = driver.actions()
    assert isinstance(first, Demote)
    assert list(first.keys) == A[:2]
    driver.cache.store_done(request, set(A[2:]), 0.0)
    (second,) = driver.actions()
    assert list(getattr(second, "keys", ())) == A[2:]


def test_a_tail_that_is_ready_first_waits_for_its_head() -> None:
    driver = with_file()
    request = driver.begin()
    driver.cache.offer(request, A, 0, 0.0)
    driver.cache.store_done(request, A[2:], 0.0)
    assert driver.actions() == []
    driver.cache.store_done(request, A[:2], 0.0)
    (action,) = driver.actions()
    assert list(getattr(action, "keys", ())) == A


def test_selective_writes_at_the_nth_use() -> None:
    driver = with_file(placement=Placement.SELECTIVE, touches=3)
    for uses in range(1, 5):
        driver.store(A)
        written = [action for action in driver.actions() if isinstance(action, Demote)]
        assert bool(written) == (uses == 3), f"at use {uses}"
        for action in written:
            driver.answer(action)


def test_back_writes_victims_with_their_prefix_and_never_waits() -> None:
    driver = Driver(64, [cold_tier(placement=Placement.BACK)])
    long = path_of("long", 60)
    driver.store(long)
    assert driver.actions() == [], "nothing is written before it is evicted"
    assert len(driver.store(path_of("next", 2))) == 2
    (action,) = driver.actions()
    assert isinstance(action, Demote)
    assert list(action.keys) == long, "the head goes down with its tail"
    assert len(driver.store(path_of("more", 2))) == 2
    check(driver.cache)
    driver.answer(action)
    driver.settle()
    check(driver.cache)
    assert driver.cache.stats().tiers["host"].quarantined == 0


def test_back_drops_victims_when_the_reserve_is_used_up() -> None:
    driver = Driver(32, [cold_tier(placement=Placement.BACK)])
    for number in range(8):
        assert len(driver.store(path_of(f"p{number}", 8))) == 8
        check(driver.cache)
    counters = driver.cache.stats().tiers["file"].counters
    assert counters.stores[StoreOutcome.QUEUE_FULL] > 0
    assert driver.cache.stats().tiers["host"].quarantined <= 2


def test_victims_of_a_cold_tier_migrate_further_down() -> None:
    near, far = cold_tier("file", capacity=4), cold_tier("object", placement=Placement.BACK)
    driver = Driver(4, [near, far])
    driver.store(A)
    driver.settle()
    driver.store(B)
    actions = driver.actions()
    (move,) = [action for action in actions if isinstance(action, Migrate)]
    assert (move.source, move.tier, list(move.keys)) == ("file", "object", A)
    assert not [a for a in actions if isinstance(a, Delete)], "nothing is deleted before it is copied"
    driver.answer(move)
    assert [list(a.keys) for a in driver.actions() if isinstance(a, Delete)] == [A]
    for action in actions:
        if isinstance(action, Demote):
            driver.answer(action)
    assert driver.cache.stats().tiers["object"].resident == 4
    check(driver.cache)


def test_a_filter_decides_what_is_worth_a_write() -> None:
    driver = with_file(admit=NthTouch(2))
    driver.store(A)
    assert driver.actions() == []
    assert driver.cache.stats().tiers["file"].counters.stores[StoreOutcome.REFUSED_TOUCH] == 4
    request = driver.begin()
    driver.cache.offer(request, [*A, *path_of("tail", 1)], 0, 0.0)
    driver.cache.store_done(request, path_of("tail", 1), 0.0)
    assert driver.actions() == [], "the use counts when the request ends"


def test_victims_of_a_full_cold_tier_are_deleted() -> None:
    driver = with_file(capacity=4)
    stored_below(driver)
    assert driver.usable(B) == 4
    assert driver.cache.stats().tiers["file"].resident == 4
    assert driver.cache.stats().tiers["file"].counters.evictions == 4


# --- bounds of writes ---


def test_writes_are_dropped_when_the_queue_is_full_and_loads_are_not() -> None:
    driver = stored_below(with_file(max_writes=1, capacity=40))
    driver.store(path_of("c", 2))
    (held,) = driver.actions()
    driver.store(path_of("d", 2))
    assert driver.actions() == []
    assert driver.cache.stats().tiers["file"].counters.stores[StoreOutcome.QUEUE_FULL] == 2
    assert driver.cache.lookup(driver.begin(), A, 0, 0.0).pending
    assert isinstance(driver.actions()[0], Promote)
    driver.answer(held)


def test_after_the_high_watermark_writes_wait_for_the_low_one() -> None:
    driver = Driver(64, [cold_tier(max_writes=4, high_water=1.0, low_water=0.5)])
    jobs = []
    for name in "abcd":
        driver.store(path_of(name, 1))
        jobs += driver.actions()
    assert len(jobs) == 4
    for name, left, expected in (("e", 4, 0), ("f", 3, 0), ("g", 2, 1)):
        while len(jobs) > left:
            driver.answer(jobs.pop())
        driver.store(path_of(name, 1))
        assert len(driver.actions()) == expected, f"with {left} writes in flight"


def test_the_write_budget_holds_on_average() -> None:
    driver = Driver(64, [cold_tier(write_bytes_per_s=2.0 * PART_BYTES, write_burst_bytes=3 * PART_BYTES)])
    driver.store(path_of("a", 5))
    (action,) = driver.actions()
    assert len(getattr(action, "keys", ())) == 3
    assert driver.cache.stats().tiers["file"].counters.stores[StoreOutcome.WRITE_BUDGET] == 2
    driver.now = 1.0
    driver.store(path_of("b", 5))
    assert [len(getattr(a, "keys", ())) for a in driver.actions()] == [2]


# --- load or recompute ---

SLOW = Calibration(1, PrefillSpeed(1e-3), {"file": LinkSpeed(1e3, 0.0)})
FAST = Calibration(1, PrefillSpeed(1e-3), {"file": LinkSpeed(1e9, 0.0)})


def test_static_minimum_of_tokens() -> None:
    driver = stored_below(Driver(4, [cold_tier()], static_min_tokens=65))
    answer = driver.cache.lookup(driver.begin(), A, 0, 0.0)
    assert (answer.usable, answer.reason, answer.source) == (0, MissReason.BELOW_MINIMUM, Source.STATIC)
    driver = stored_below(Driver(4, [cold_tier()], static_min_tokens=64))
    assert driver.cache.lookup(driver.begin(), A, 0, 0.0).pending


@pytest.mark.parametrize(("calibration", "reason"), [(SLOW, MissReason.RECOMPUTE_CHEAPER), (FAST, None)])
def test_a_calibrated_decision_names_its_source(calibration: Calibration, reason: MissReason | None) -> None:
    driver = stored_below(Driver(4, [cold_tier()], calibration=calibration))
    answer = driver.cache.lookup(driver.begin(), A, 0, 0.0)
    assert (answer.reason, answer.source, answer.pending) == (reason, Source.CALIBRATION, reason is None)


def test_what_is_measured_online_overrides_the_calibration() -> None:
    driver = stored_below(Driver(4, [cold_tier()], calibration=SLOW))
    for size in range(1, 20):
        driver.cache.observe_load("file", size << 20, size * 1e-3)
        driver.cache.observe_prefill(0, 100 * size, 0.1 * size)
    answer = driver.cache.lookup(driver.begin(), A, 0, 0.0)
    assert (answer.pending, answer.source) == (True, Source.ONLINE)


# --- guards ---


def test_failures_open_the_breaker_and_a_probe_closes_it() -> None:
    driver = with_file(capacity=100)
    for name in "abc":
        driver.store(path_of(name, 1))
        for action in driver.actions():
            driver.answer(action, ok=0)
    assert driver.cache.stats().tiers["file"].breaker is BreakerState.OPEN
    driver.store(path_of("d", 1))
    assert driver.actions() == []
    assert driver.cache.stats().tiers["file"].counters.stores[StoreOutcome.BREAKER_OPEN] == 1
    driver.now = 10.0
    driver.store(path_of("e", 1))
    (probe,) = driver.actions()
    driver.store(path_of("f", 1))
    assert driver.actions() == [], "one probe at a time"
    driver.answer(probe)
    driver.store(path_of("g", 1))
    assert len(driver.actions()) == 1


def test_an_open_breaker_is_the_reason_of_a_miss() -> None:
    driver = stored_below(with_file(deadline_cap_s=0.1, capacity=100))
    for _ in range(3):
        driver.cache.lookup(driver.begin(), A, 0, driver.now)
        driver.now += 0.2
        driver.cache.tick(driver.now)
        for action in driver.actions():
            driver.answer(action, ok=0, timed_out=True)
    answer = driver.cache.lookup(driver.begin(), A, 0, driver.now)
    assert (answer.usable, answer.reason) == (0, MissReason.BREAKER_OPEN)


def test_a_stalled_write_frees_its_key_only_when_it_is_dead() -> None:
    driver = with_file(write_deadline_s=1.0)
    driver.store(A)
    (stalled,) = driver.actions()
    driver.now = 1.0
    driver.cache.tick(1.0)
    assert driver.cache.stats().tiers["file"].resident == 0
    driver.store(A)
    assert driver.actions() == [], "two writes of one key must not overlap"
    driver.answer(stalled)
    (deleted,) = driver.actions()
    assert isinstance(deleted, Delete)
    driver.store(A)
    assert isinstance(driver.actions()[0], Demote)
    check(driver.cache)


def test_a_cold_tier_that_is_off_says_so() -> None:
    driver = stored_below(with_file())
    driver.cache.set_mode("file", TierMode.OFF, 0.0)
    assert driver.cache.lookup(driver.begin(), A, 0, 0.0).reason is MissReason.TIER_OFF
    driver.store(path_of("c", 2))
    assert driver.cache.stats().tiers["file"].counters.stores[StoreOutcome.TIER_OFF] == 2


# --- epochs, restarts, stores with a will of their own ---


def test_a_reset_clears_every_tier_and_blocks_writes_of_the_old_epoch() -> None:
    driver = with_file()
    driver.store(A)
    (writing,) = driver.actions()
    driver.cache.reset(0.0)
    (clear,) = driver.actions()
    assert isinstance(clear, Clear)
    assert set(clear.keys) == set(A)
    driver.store(A)
    assert driver.actions() == [], "the old write of the same keys is still under way"
    driver.answer(writing)
    (deleted,) = driver.actions()
    assert isinstance(deleted, Delete)
    driver.store(A)
    assert isinstance(driver.actions()[0], Demote)
    check(driver.cache)


def test_a_promotion_of_the_old_epoch_serves_nobody() -> None:
    driver = stored_below(with_file())
    request = driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    action = promotion(driver)
    driver.cache.reset(0.0)
    assert driver.cache.stats().tiers["host"].quarantined == 4
    driver.answer(action)
    assert driver.cache.stats().tiers["host"].quarantined == 0
    answer = driver.cache.lookup(request, A, 0, 0.0)
    assert (answer.usable, answer.pending) == (0, False)
    driver.cache.end_request(request, 0.0)
    driver.settle()
    check_quiet(driver.cache)


def test_restored_chunks_are_accounted_and_served() -> None:
    driver = with_file(capacity=6)
    assert driver.cache.restore("file", [*A, *B], 0.0) == 6
    (surplus,) = driver.actions()
    assert isinstance(surplus, Delete)
    assert len(surplus.keys) == 2
    lost = set(surplus.keys)
    kept = next(path for path in (A, B) if not lost & set(path))
    assert driver.cache.lookup(driver.begin(), kept, 0, 0.0).pending
    check(driver.cache)
    with pytest.raises(UsageError, match="no tier"):
        driver.cache.restore("object", A, 0.0)


def test_what_a_store_evicts_itself_is_forgotten() -> None:
    driver = with_file(capacity=100)
    driver.store(A)
    driver.settle()
    driver.store(B)
    (action,) = driver.actions()
    driver.answer(action, evicted=A)
    assert driver.actions() == []
    assert driver.cache.stats().tiers["file"].resident == 4
    answer = driver.cache.lookup(driver.begin(), A, 0, 0.0)
    assert (answer.usable, answer.reason) == (0, MissReason.ABSENT)


def test_an_unknown_job_is_counted_and_ignored() -> None:
    driver = with_file()
    driver.cache.job_done(JobResult(JobId(99), [True]), 0.0)
    assert driver.cache.stats().late_completions == 1


def test_three_tiers_make_one_prefix() -> None:
    driver = Driver(4, [cold_tier("file", capacity=100), cold_tier("object", capacity=100)])
    long = path_of("a", 4)
    driver.store(long)
    driver.settle()
    driver.store(B)
    driver.settle()
    driver.store(long[:2])
    driver.settle()
    driver.cache.set_mode("file", TierMode.OFF, 0.0)
    request = driver.begin()
    assert driver.cache.lookup(request, long, 0, 0.0).pending
    action = promotion(driver)
    assert (action.tier, list(action.keys)) == ("object", long[2:])
    driver.answer(action)
    answer = driver.cache.lookup(request, long, 0, 0.0)
    assert dict(answer.by_tier) == {TierKind.OBJECT: 2, TierKind.HOST: 2}


def test_the_host_policy_may_refuse_a_promotion() -> None:
    class Refusing(LruPolicy[Any]):
        refuse = False

        def admit(self, access: Any, keys: Any, parent: Any, now: float, pinned: Any) -> Any:
            return super().admit(access, keys[:0] if self.refuse else keys, parent, now, pinned)

    policy = Refusing(4)
    driver = stored_below(Driver(4, [cold_tier()], host=HostTier(policy, 4)))
    policy.refuse = True
    assert driver.cache.lookup(driver.begin(), A, 0, 0.0).reason is MissReason.NO_ROOM
    check(driver.cache)
