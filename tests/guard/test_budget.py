from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.guard.budget import InFlight, TokenBucket


def test_jobs_and_bytes_are_bounded() -> None:
    budget = InFlight(max_jobs=2, max_bytes=100)
    budget.add(60)
    assert budget.room_bytes() == 40
    budget.add(10)
    assert budget.room_bytes() == 0, "no third job whatever its size"
    assert budget.fill == 1.0
    budget.remove(60)
    assert budget.room_bytes() == 90


@pytest.mark.parametrize(("jobs", "size"), [(0, 1), (1, 0)])
def test_a_bound_of_zero_is_refused(jobs: int, size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        InFlight(jobs, size)


def test_a_bucket_without_a_rate_is_unlimited() -> None:
    assert TokenBucket(None, 0.0).take(1e30, 0.0)


def test_a_bucket_refills_to_its_burst() -> None:
    bucket = TokenBucket(10.0, 20.0)
    assert bucket.take(20.0, 0.0)
    assert not bucket.take(11.0, 1.0)
    assert bucket.take(10.0, 1.0)
    assert bucket.available(100.0) == 20.0


def test_a_rate_that_cannot_act_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        TokenBucket(0.0, 1.0)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 30.0)), max_size=50))
def test_never_more_than_burst_and_rate_allow(steps: list[tuple[float, float]]) -> None:
    bucket, now, taken = TokenBucket(10.0, 20.0), 0.0, 0.0
    for dt, amount in steps:
        now += dt
        if bucket.take(amount, now):
            taken += amount
    assert taken <= 20.0 + 10.0 * now + 1e-6
