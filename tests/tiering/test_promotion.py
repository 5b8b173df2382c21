"""Promotion: origins, sharers, partial success, deadlines, budgets, room."""

from __future__ import annotations

from warmtier.core.types import MissReason, RequestId, TierKind
from warmtier.testing.fakes import PART_BYTES, Driver, cold_tier, path_of, promotion, stored_below, with_file
from warmtier.testing.fakes import PATH_A as A
from warmtier.testing.fakes import PATH_B as B
from warmtier.testing.invariants import check, check_quiet
from warmtier.tiering.types import Delete, JobResult, Promote, RequestHints


def test_a_promoted_chunk_is_served_and_keeps_its_origin() -> None:
    driver = stored_below(with_file())
    request = driver.begin()
    assert driver.cache.lookup(request, A, 0, 0.0).pending
    action = promotion(driver)
    assert list(action.keys) == A
    driver.answer(action, seconds=0.01, size_bytes=400)
    answer = driver.cache.lookup(request, A, 0, 0.1)
    assert (answer.usable, answer.pending, dict(answer.by_tier)) == (4, False, {TierKind.FILE: 4})
    assert driver.cache.pin_for_load(request, A, 0.1) == list(action.slots)
    driver.cache.load_done(request, A, 0.1)
    driver.cache.end_request(request, 0.1)
    driver.settle()
    check_quiet(driver.cache)


def test_sharers_wait_for_one_promotion_and_are_served_together() -> None:
    driver = stored_below(with_file())
    requests = [driver.begin() for _ in range(20)]
    assert all(driver.cache.lookup(request, A, 0, 0.0).pending for request in requests)
    driver.answer(promotion(driver))
    driver.cache.tick(0.1)
    assert len(driver.store(path_of("c", 4))) == 0, "what others wait for is not evicted under them"
    for request in requests:
        answer = driver.cache.lookup(request, A, 0, 0.1)
        assert (answer.usable, answer.pending) == (4, False)


def test_promoted_chunks_that_nobody_fetches_are_let_go() -> None:
    driver = stored_below(Driver(4, [cold_tier()], hold_deadline_s=1.0))
    request = driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    driver.answer(promotion(driver))
    driver.cache.tick(0.9)
    assert driver.store(path_of("c", 4)) == []
    driver.now = 1.1
    driver.cache.tick(1.1)
    assert len(driver.store(path_of("c", 4))) == 4


def test_partial_success_is_kept_as_a_prefix_and_ends_the_lookup() -> None:
    driver = stored_below(with_file())
    request, other = driver.begin(), driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    driver.cache.lookup(other, A, 0, 0.0)
    action = promotion(driver)
    driver.cache.job_done(JobResult(action.job_id, [True, True, False, True], [False, False, True, False]), 0.1)
    for waiting in (request, other):
        answer = driver.cache.lookup(waiting, A, 0, 0.1)
        assert (answer.usable, answer.pending, answer.reason) == (2, False, MissReason.LOAD_FAILED)
    deleted = [action for action in driver.actions() if isinstance(action, Delete)]
    assert [list(action.keys) for action in deleted] == [[A[2]]], "a corrupt chunk is written anew, not tried again"
    assert driver.cache.stats().tiers["file"].counters.misses == {MissReason.CORRUPT: 1}
    check(driver.cache)


def test_a_short_answer_is_a_failed_one() -> None:
    driver = stored_below(with_file())
    request = driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    driver.cache.job_done(JobResult(promotion(driver).job_id, [True]), 0.1)
    answer = driver.cache.lookup(request, A, 0, 0.1)
    assert (answer.usable, answer.reason) == (1, MissReason.LOAD_FAILED)
    check(driver.cache)


def test_a_late_promotion_is_a_miss_and_its_slots_are_quarantined_until_it_is_dead() -> None:
    driver = stored_below(with_file(deadline_cap_s=0.5))
    request = driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    action = promotion(driver)
    driver.cache.tick(0.5)
    driver.now = 0.5
    answer = driver.cache.lookup(request, A, 0, 0.5)
    assert (answer.usable, answer.pending, answer.reason) == (0, False, MissReason.PENDING_DEADLINE)
    assert driver.cache.stats().tiers["host"].quarantined == 4
    assert driver.store(path_of("c", 4)) == [], "all slots may still be written by the late transfer"
    driver.now = 60.0
    driver.answer(action)
    assert driver.cache.stats().tiers["host"].quarantined == 0
    assert driver.cache.stats().tiers["file"].counters.late == 1
    assert len(driver.store(path_of("c", 4))) == 4


def test_the_deadline_is_the_measured_95th_percentile_within_bounds() -> None:
    driver = with_file(slots=4, deadline_cap_s=2.0, deadline_floor_s=0.001, capacity=1000)
    for _ in range(20):
        driver.cache.observe_load("file", 1 << 20, 0.010)
    for _ in range(3):
        driver.cache.observe_load("file", 1 << 20, 0.030)
    stored_below(driver)
    driver.cache.lookup(driver.begin(), A, 0, 0.0)
    deadline_s = promotion(driver).deadline_s
    assert 0.001 <= deadline_s < 0.1
    unknown = stored_below(with_file(deadline_cap_s=2.0))
    unknown.cache.lookup(unknown.begin(), A, 0, 0.0)
    assert promotion(unknown).deadline_s == 2.0


def test_the_bytes_in_flight_are_bounded_and_the_prefix_that_fits_is_promoted() -> None:
    driver = stored_below(with_file(max_read_bytes=3 * PART_BYTES))
    request = driver.begin()
    answer = driver.cache.lookup(request, A, 0, 0.0)
    assert (answer.usable, answer.pending, answer.reason) == (3, True, MissReason.PROMOTION_BUDGET)
    other = driver.cache.lookup(driver.begin(), B[:0] + path_of("a", 4), 0, 0.0)
    assert other.pending, "it waits for the chunks on their way"
    driver.answer(promotion(driver))
    again = driver.cache.lookup(request, A, 0, 0.1)
    assert (again.usable, again.pending) == (3, False), "a wait ends once, it is not begun anew"


def test_the_jobs_in_flight_are_bounded_and_others_wait_for_their_turn_for_half_the_deadline() -> None:
    driver = with_file(slots=8, max_reads=1, capacity=1000)
    for name in ("a", "b", "c", "d"):
        driver.store(path_of(name, 4))
        driver.settle()
    assert driver.cache.lookup(driver.begin(), path_of("a", 4), 0, 0.0).pending
    second = driver.begin()
    assert driver.cache.lookup(second, path_of("b", 4), 0, 0.0).pending
    assert len(driver.cache.state.jobs) == 1
    answer = driver.cache.lookup(second, path_of("b", 4), 0, 1.0)
    assert (answer.pending, answer.reason) == (False, MissReason.PROMOTION_BUDGET)


def test_a_burst_is_promoted_in_turns_and_the_first_to_ask_are_the_first_served() -> None:
    driver = Driver(16, [cold_tier(capacity=1000)], promoting_requests=2)
    names = [f"n{i}" for i in range(6)]
    for name in names:
        driver.store(path_of(name, 4))
        driver.settle()
    for name in ("x", "y", "z", "w"):
        driver.store(path_of(name, 4))
        driver.settle()
    waiting = {name: driver.begin() for name in names}
    served = []
    for step in range(12):
        now = step * 0.01
        for name in [name for name in names if name not in served]:
            answer = driver.cache.lookup(waiting[name], path_of(name, 4), 0, now)
            if not answer.pending:
                assert answer.usable == 4, (name, answer)
                driver.cache.pin_for_load(waiting[name], path_of(name, 4), now)
                driver.cache.load_done(waiting[name], path_of(name, 4), now)
                served.append(name)
        driver.cache.tick(now)
        assert len(driver.cache.state.jobs) <= 2, "no more than two requests have promotions under way"
        for action in driver.cache.take_actions():
            if isinstance(action, Promote):
                driver.cache.job_done(JobResult(action.job_id, [True] * len(action.keys)), now)
    assert served == names


def test_a_request_may_name_the_tiers_that_it_is_served_from() -> None:
    driver = stored_below(with_file())
    hints = RequestHints(load_kinds=frozenset({TierKind.HOST}))
    request = driver.cache.begin_request(RequestId("picky"), 0.0, hints=hints)
    answer = driver.cache.lookup(request, A, 0, 0.0)
    assert (answer.usable, answer.pending, answer.reason) == (0, False, MissReason.HINT)
    assert driver.cache.lookup(driver.begin(), A, 0, 0.0).pending


def test_without_room_in_the_host_tier_a_promotion_is_a_miss() -> None:
    driver = stored_below(with_file())
    reader = driver.begin()
    driver.cache.lookup(reader, B, 0, 0.0)
    driver.cache.pin_for_load(reader, B, 0.0)
    answer = driver.cache.lookup(driver.begin(), A, 0, 0.0)
    assert (answer.usable, answer.pending, answer.reason) == (0, False, MissReason.NO_ROOM)


def test_a_promotion_never_evicts_what_the_same_lookup_promised() -> None:
    driver = with_file(slots=4, capacity=100)
    long = path_of("a", 8)
    driver.store(long[:4])
    driver.settle()
    driver.cache.restore("file", long[4:], 0.0)
    request = driver.begin()
    answer = driver.cache.lookup(request, long, 0, 0.0)
    assert (answer.usable, answer.pending, answer.reason) == (4, False, MissReason.NO_ROOM)
    assert len(driver.cache.pin_for_load(request, long[:4], 0.0)) == 4


def test_an_aborted_waiter_leaves_nothing_behind() -> None:
    driver = stored_below(with_file())
    request = driver.begin()
    driver.cache.lookup(request, A, 0, 0.0)
    driver.cache.end_request(request, 0.0)
    driver.settle()
    check_quiet(driver.cache)
    assert driver.usable(A) == 4
