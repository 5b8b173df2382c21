"""Slots are handed out once, taken back once, and withheld while a transfer may still write into them."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmtier.core.errors import InternalError
from warmtier.store.host import SlotAllocator


def test_hands_out_every_slot_once_and_fewer_when_short() -> None:
    slots = SlotAllocator(5)
    assert slots.allocate(3) == [0, 1, 2]
    assert slots.allocate(9) == [3, 4]
    assert slots.allocate(1) == []
    assert (slots.free_slots, slots.used_slots) == (0, 5)


def test_the_slot_freed_last_is_handed_out_first() -> None:
    slots = SlotAllocator(4)
    taken = slots.allocate(4)
    slots.free([taken[2]])
    slots.free([taken[0], taken[1]])
    assert slots.allocate(3) == [taken[0], taken[1], taken[2]]


@pytest.mark.parametrize("bad", [[1, 1], [0, 7], [-1], [3]])
def test_a_double_or_foreign_slot_is_an_internal_error_and_changes_nothing(bad: list[int]) -> None:
    slots = SlotAllocator(7)
    slots.allocate(3)
    with pytest.raises(InternalError):
        slots.free(bad)
    assert (slots.free_slots, slots.used_slots) == (4, 3)
    slots.free([0, 1, 2])
    assert sorted(slots.allocate(7)) == list(range(7))


def test_quarantined_slots_are_withheld_until_released() -> None:
    slots = SlotAllocator(2)
    taken = slots.allocate(2)
    slots.quarantine(taken[:1])
    with pytest.raises(InternalError):
        slots.free(taken[:1])
    slots.free(taken[1:])
    assert slots.allocate(2) == taken[1:]
    slots.release(taken[:1])
    assert slots.allocate(2) == taken[:1]


class _Allocator(RuleBasedStateMachine):
    """Against three plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotAllocator(11)
        self.used: set[int] = set()
        self.held: set[int] = set()

    @rule(count=st.integers(0, 13))
    def allocate(self, count: int) -> None:
        taken = self.slots.allocate(count)
        assert len(taken) == min(count, 11 - len(self.used) - len(self.held))
        assert not self.used.intersection(taken)
        assert not self.held.intersection(taken)
        self.used.update(taken)

    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.used)))) if self.used else set()
        self.slots.free(sorted(some))
        self.used -= some

    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.used)))) if self.used else set()
        self.slots.quarantine(sorted(some))
        self.used -= some
        self.held |= some

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        some = data.draw(st.sets(st.sampled_from(sorted(self.held)))) if self.held else set()
        self.slots.release(sorted(some))
        self.held -= some

    @invariant()
    def counts_agree(self) -> None:
        assert self.slots.used_slots == len(self.used)
        assert self.slots.quarantined_slots == len(self.held)
        assert self.slots.free_slots == 11 - len(self.used) - len(self.held)


TestAllocator = _Allocator.TestCase
