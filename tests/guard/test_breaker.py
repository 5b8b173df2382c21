from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmtier.guard.breaker import Breaker, BreakerSettings, BreakerState

SETTINGS = BreakerSettings(failures=3, cooldown_s=10.0, max_cooldown_s=35.0, probe_timeout_s=5.0)


def state(breaker: Breaker) -> BreakerState:
    return breaker.state


def tripped() -> Breaker:
    breaker = Breaker(SETTINGS)
    for _ in range(3):
        breaker.started(0.0)
        breaker.failed(0.0)
    return breaker


def test_it_opens_at_the_failures_set_and_not_before() -> None:
    breaker = Breaker(SETTINGS)
    breaker.failed(0.0)
    breaker.failed(0.0)
    assert state(breaker) is BreakerState.CLOSED
    breaker.failed(0.0)
    assert state(breaker) is BreakerState.OPEN
    assert not breaker.allows(9.9)
    assert breaker.trips == 1


def test_a_success_halves_the_score() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(20):
        breaker.failed(0.0)
        breaker.succeeded(0.0)
    assert state(breaker) is BreakerState.CLOSED


def test_one_probe_after_the_cooldown_closes_it() -> None:
    breaker = tripped()
    assert breaker.allows(10.0)
    breaker.started(10.0)
    assert state(breaker) is BreakerState.HALF_OPEN
    assert not breaker.allows(10.0), "a second probe must wait for the first"
    breaker.succeeded(11.0)
    assert state(breaker) is BreakerState.CLOSED
    assert breaker.allows(11.0)


def test_a_failed_probe_doubles_the_cooldown_up_to_its_cap() -> None:
    breaker = tripped()
    now = 10.0
    for expected_s in (20.0, 35.0, 35.0):
        breaker.started(now)
        breaker.failed(now)
        assert not breaker.allows(now + expected_s - 0.1)
        now += expected_s
        assert breaker.allows(now)


def test_a_probe_that_never_answers_is_given_up() -> None:
    breaker = tripped()
    breaker.started(10.0)
    assert not breaker.tick(14.9)
    assert breaker.tick(15.0)
    assert state(breaker) is BreakerState.OPEN
    assert not breaker.allows(34.9)
    assert breaker.allows(35.0)


@given(st.lists(st.tuples(st.sampled_from(["start", "ok", "fail", "tick"]), st.floats(0, 20)), max_size=60))
def test_it_always_allows_a_job_again_after_the_longest_cooldown(steps: list[tuple[str, float]]) -> None:
    breaker, now = Breaker(SETTINGS), 0.0
    for what, dt in steps:
        now += dt
        if what == "start" and breaker.allows(now):
            breaker.started(now)
        elif what == "ok":
            breaker.succeeded(now)
        elif what == "fail":
            breaker.failed(now)
        breaker.tick(now)
    now += SETTINGS.probe_timeout_s
    breaker.tick(now)
    assert breaker.allows(now + SETTINGS.max_cooldown_s)
