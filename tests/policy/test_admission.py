"""The admission filters one by one and ANDed."""

from __future__ import annotations

from warmtier.core.types import StoreOutcome
from warmtier.policy.admission import AllOf, Candidates, MinimumPriority, NthTouch, Presence, TierState, Verdict

TIER = TierState(capacity=10, resident=4)


def offer(keys: str, **columns: list[int] | list[bool]) -> Candidates[str]:
    return Candidates(list(keys), columns.pop("uses", [0] * len(keys)), **columns)  # type: ignore[arg-type]


def test_room_is_what_can_be_written_without_eviction() -> None:
    assert TIER.room == 6
    assert TierState(capacity=3, resident=5).room == 0


def test_presence_stops_at_the_first_present_chunk() -> None:
    judge = Presence[str]().judge
    assert judge(None, offer("abc", present=[False, True, False]), TIER, 0.0) == Verdict(1, StoreOutcome.PRESENT)
    assert judge(None, offer("abc"), TIER, 0.0) == Verdict(3, None)


def test_minimum_priority_is_prefix_contiguous_and_lets_present_chunks_pass() -> None:
    judge = MinimumPriority[str](40).judge
    low = Verdict(1, StoreOutcome.REFUSED_PRIORITY)
    assert judge(None, offer("abc", priorities=[50, 30, 90]), TIER, 0.0) == low
    assert judge(None, offer("abc", priorities=[50, 30, 90], present=[False, True, False]), TIER, 0.0).admitted == 3
    assert judge(None, offer("abc"), TIER, 0.0).admitted == 0, "the default priority, 35, is below 40"
    assert judge(None, offer("abc", present=[True, False, False]), TIER, 0.0) == low
    assert MinimumPriority[str](35).judge(None, offer("abc"), TIER, 0.0) == Verdict(3, None)


def test_nth_touch_admits_at_the_nth_use() -> None:
    filter_ = NthTouch[str](touches=3, remember=4)
    for expected in (0, 0, 1):
        filter_.on_used(["a"], 0.0)
        assert filter_.judge(None, offer("ab"), TIER, 0.0).admitted == expected
    assert filter_.judge(None, offer("ab"), TIER, 0.0).reason is StoreOutcome.REFUSED_TOUCH
    assert filter_.judge(None, offer("ab", uses=[0, 3]), TIER, 0.0) == Verdict(2, None), "what the caller knows counts"


def test_nth_touch_is_bounded_and_the_sketch_remembers_a_while_longer() -> None:
    filter_ = NthTouch[str](touches=2, remember=4)
    filter_.on_used(["a"], 0.0)
    filter_.on_used(list("bcdef"), 1.0)
    assert filter_.explain() == {"touch_remembered": 4}
    filter_.on_used(["a"], 2.0)
    assert filter_.judge(None, offer("a"), TIER, 2.0).admitted == 1
    for number in range(400):
        filter_.on_used([f"other{number}"], 3.0)
    assert len(filter_._recent) == 4


def test_all_of_gives_the_reason_of_the_strictest_and_feeds_every_filter() -> None:
    touch = NthTouch[str](touches=2)
    both = AllOf[str]([MinimumPriority(40), touch])
    both.on_used(list("ab"), 0.0)
    both.on_used(["a"], 1.0)
    both.on_hit(["a"], 1.0)
    both.on_written(["a"], 1.0)
    both.on_evicted(["a"], 1.0)
    verdict = both.judge(None, offer("abc", priorities=[50, 50, 0]), TIER, 1.0)
    assert verdict == Verdict(1, StoreOutcome.REFUSED_TOUCH)
    assert both.judge(None, offer("abc", priorities=[0, 50, 0]), TIER, 1.0) == Verdict(0, StoreOutcome.REFUSED_PRIORITY)
    assert both.explain() == {"touch_remembered": 2}
