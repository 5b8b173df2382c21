"""Retention: the test vectors of TensorRT-LLM's semantics, and where ours differs on purpose."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import UsageError
from warmtier.core.types import DEFAULT_PRIORITY
from warmtier.policy.base import Access
from warmtier.policy.lru import LruPolicy
from warmtier.policy.ranges import RetentionRange, normalize_ranges, range_of
from warmtier.policy.retention import RetentionPolicy, Wish

BLOCK = 16


# --- ranges ---


@pytest.mark.parametrize(
    ("start", "end", "blocks"),
    [(0, 17, [0, 1]), (10, 61, [1, 2, 3]), (0, 16, [0]), (16, None, [1, 2, 3, 4, 5]), (1, 16, [])],
)
def test_a_block_takes_the_range_of_its_first_token(start: int, end: int | None, blocks: list[int]) -> None:
    ranges = normalize_ranges([RetentionRange(start, end, 80)])
    assert [block for block in range(6) if range_of(ranges, block * BLOCK) is not None] == blocks


def test_ranges_are_sorted() -> None:
    ranges = [RetentionRange(32, None, 1), RetentionRange(0, 16, 2)]
    assert [entry.start for entry in normalize_ranges(ranges)] == [0, 32]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([RetentionRange(-1, 4)], "cannot start"),
        ([RetentionRange(4, 4)], "empty"),
        ([RetentionRange(0, 10), RetentionRange(9, 20)], "overlap"),
        ([RetentionRange(0, None), RetentionRange(9, 20)], "open but not the last"),
        ([RetentionRange(0, 4, 101)], "not in 0 to 100"),
        ([RetentionRange(0, 4, -1)], "not in 0 to 100"),
        ([RetentionRange(0, 4, 5, 0.0)], "duration"),
    ],
)
def test_malformed_ranges_are_refused(ranges: list[RetentionRange], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        normalize_ranges(ranges)


# --- the policy ---


class Rig:
    """A retention policy over LRU; wishes are set before each call."""

    def __init__(self, capacity: int, *, exact: bool = False, max_high_share: float = 1.0) -> None:
        self.wish: Wish | None = None
        self.policy: RetentionPolicy[str] = RetentionPolicy(
            LruPolicy(capacity), self._classify, exact=exact, max_high_share=max_high_share
        )

    def _classify(self, access: Access[str], keys: Sequence[str]) -> Sequence[Wish] | None:
        del access
        return None if self.wish is None else [self.wish] * len(keys)

    def store(
        self,
        key: str,
        now: float,
        priority: int | None = None,
        duration_s: float | None = None,
        parent: str | None = None,
    ) -> list[str]:
        """One request stores and releases one chunk; return the victims, or raise if it was refused."""
        self.wish = None if priority is None and duration_s is None else Wish(priority, duration_s)
        access = Access([*([parent] if parent else []), key], BLOCK, 0, now)
        admission = self.policy.admit(access, [key], parent, now, lambda _: False)
        if not admission.admitted:
            raise LookupError(f"{key} was refused, by value: {admission.refused_by_value}")
        self.policy.finish(access, now)
        return admission.victims

    def reuse(self, key: str, now: float, wish: Wish | None = None) -> None:
        """One request uses and releases a resident chunk."""
        self.wish = wish
        access = Access([key], BLOCK, 0, now)
        self.policy.touch(access, [key], now)
        self.policy.finish(access, now)


def test_without_a_wish_the_priority_is_the_default_and_lasts() -> None:
    rig = Rig(4)
    rig.store("a", 0.0)
    assert rig.policy.priority("a") == DEFAULT_PRIORITY
    assert rig.policy.expiry("a") is None


def test_the_lowest_priority_goes_first_then_the_one_released_longest_ago() -> None:
    rig = Rig(5)
    for now, (key, priority) in enumerate([("high", 80), ("old", 35), ("low1", 10), ("low2", 10), ("new", 35)]):
        rig.store(key, float(now), priority)
    order = [rig.store(f"next{i}", 10.0 + i, 90) for i in range(5)]
    assert order == [["low1"], ["low2"], ["old"], ["new"], ["high"]]


def test_a_parent_outlives_its_child_whatever_its_priority() -> None:
    rig = Rig(2)
    rig.store("parent", 0.0, 0)
    rig.store("child", 1.0, 60, parent="parent")
    assert rig.store("x", 2.0, 90) == ["child"]
    assert rig.store("y", 3.0, 90) == ["parent"]


def test_a_reuse_with_a_priority_replaces_it_also_downward() -> None:
    rig = Rig(4)
    rig.store("a", 0.0, 80)
    rig.reuse("a", 1.0, Wish(20))
    assert rig.policy.priority("a") == 20
    rig.reuse("a", 2.0)
    assert rig.policy.priority("a") == 20, "no wish keeps the priority"
    rig.reuse("a", 3.0, Wish(35))
    assert rig.policy.priority("a") == DEFAULT_PRIORITY


def test_a_reuse_raises_a_default_chunk() -> None:
    rig = Rig(2)
    rig.store("a", 0.0)
    rig.store("b", 1.0)
    rig.reuse("a", 2.0, Wish(70))
    rig.reuse("b", 3.0)
    assert rig.store("c", 4.0) == ["b"]


def test_the_timer_starts_at_release_and_expiry_returns_to_the_recent_end_of_the_default() -> None:
    rig = Rig(3)
    rig.store("timed", 0.0, 80, duration_s=5.0)
    assert rig.policy.expiry("timed") == 5.0
    rig.store("b", 1.0)
    rig.store("c", 2.0)
    assert rig.store("d", 6.0) == ["b"], "expired at 5, it is the most recent of the default priority"
    assert rig.policy.priority("timed") == DEFAULT_PRIORITY
    assert rig.store("e", 7.0) == ["c"]
    assert rig.store("f", 8.0) == ["timed"]
    assert rig.policy.expired == 1


def test_expiry_raises_a_chunk_below_the_default() -> None:
    rig = Rig(2)
    rig.store("low", 0.0, 10, duration_s=5.0)
    rig.store("b", 1.0)
    assert rig.store("c", 6.0) == ["b"]


def test_ours_keeps_the_later_expiry_on_reuse() -> None:
    rig = Rig(4)
    rig.store("a", 0.0, 80, duration_s=10.0)
    rig.reuse("a", 1.0)
    assert rig.policy.expiry("a") == 10.0, "a reuse without a duration must not make it permanent"
    rig.reuse("a", 2.0, Wish(80, 3.0))
    assert rig.policy.expiry("a") == 10.0, "a shorter one must not shorten it"
    rig.reuse("a", 3.0, Wish(80, 20.0))
    assert rig.policy.expiry("a") == 23.0


def test_exact_overwrites_the_duration_on_reuse_none_included() -> None:
    rig = Rig(4, exact=True)
    rig.store("a", 0.0, 80, duration_s=10.0)
    rig.reuse("a", 1.0, Wish(80, 3.0))
    assert rig.policy.expiry("a") == 4.0
    rig.reuse("a", 2.0)
    assert rig.policy.expiry("a") is None
    assert rig.policy.priority("a") == 80, "and so the priority has become permanent"


def test_ours_refuses_a_newcomer_rather_than_displace_a_higher_priority() -> None:
    rig = Rig(2)
    rig.store("a", 0.0, 80)
    rig.store("b", 1.0, 80)
    for priority in (None, 10, 79):
        with pytest.raises(LookupError, match="by value: True"):
            rig.store("c", 2.0, priority)
    assert rig.store("c", 3.0, 80) == ["a"]


def test_exact_displaces_whatever_is_lowest() -> None:
    rig = Rig(2, exact=True)
    rig.store("a", 0.0, 90)
    rig.store("b", 1.0, 80)
    assert rig.store("c", 2.0, 10) == ["b"]


def test_high_priorities_hold_no_more_than_their_share() -> None:
    rig = Rig(10, max_high_share=0.3)
    for i in range(6):
        rig.store(f"k{i}", float(i), 90)
    assert [rig.policy.priority(f"k{i}") for i in range(6)] == [90, 90, 90, 35, 35, 35]
    assert rig.policy.capped == 3


def test_high_priorities_in_the_way_are_passed_over_once() -> None:
    rig = Rig(1000, max_high_share=0.5)
    for i in range(500):
        rig.store(f"high{i}", 0.0, 90)
    for i in range(500):
        rig.store(f"low{i}", 1.0)
    asked = 0

    def pinned(key: str) -> bool:
        nonlocal asked
        asked += 1
        return False

    rig.wish = None
    for i in range(100):
        access = Access([f"n{i}"], BLOCK, 0, 2.0)
        assert rig.policy.admit(access, [f"n{i}"], None, 2.0, pinned).victims == [f"low{i}"]
    assert asked <= 200


def test_timers_are_bounded() -> None:
    rig = Rig(4)
    rig.store("a", 0.0, 80, duration_s=1.0)
    for step in range(1, 2000):
        rig.reuse("a", step * 0.5, Wish(80, 1.0))
    assert len(rig.policy._timers) <= 2 * 4 + 65


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "reuse", "remove", "evict"]),
            st.integers(0, 12),
            st.sampled_from([None, 0, 20, 35, 50, 100]),
            st.sampled_from([None, 1.0, 7.0]),
        ),
        max_size=80,
    ),
    st.booleans(),
)
def test_it_keeps_its_books(steps: list[tuple[str, int, int | None, float | None]], exact: bool) -> None:
    rig = Rig(6, exact=exact, max_high_share=0.5)
    policy = rig.policy
    for now, (what, number, priority, duration_s) in enumerate(steps):
        key = f"k{number}"
        before = {k: policy.priority(k) for k in policy.resident()}
        if what == "store" and key not in policy:
            try:
                victims = rig.store(key, float(now), priority, duration_s)
            except LookupError:
                victims = []
            if not exact and victims:
                assert all(before[v] <= max(policy.priority(key), DEFAULT_PRIORITY) for v in victims)
        elif what == "reuse" and key in policy:
            rig.reuse(key, float(now), Wish(priority, duration_s))
        elif what == "remove":
            policy.remove([key], float(now))
        elif what == "evict":
            policy.evict(1, float(now), lambda _: False)
        assert len(policy) == len(set(policy.resident())) <= 6
        assert set(policy._kept) <= set(policy.resident())
        queued = {k for queue in policy._queues.values() for k in queue}
        assert queued == set(policy._kept)
        assert policy._high == sum(kept.priority > DEFAULT_PRIORITY for kept in policy._kept.values())
