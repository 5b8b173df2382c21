"""Index, budget and range planning: pure bookkeeping, compared with simple models."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from warmtier.core.types import Key
from warmtier.store.object.budget import Budget, entry_bytes_of
from warmtier.store.object.filling import record_bytes
from warmtier.store.object.index import Location, ObjectIndex, Pack
from warmtier.store.object.options import ObjectOptions
from warmtier.store.object.reader import plan
from warmtier.store.object.region import Regions

OPTIONS = ObjectOptions(capacity_bytes=1 << 30, writer="w", range_bytes=64 << 10, coalesce_gap_bytes=4 << 10)


def key(number: int) -> Key:
    return Key(b"k%d" % number)


def pack(name: str, numbers: list[int], *, writer: str = "w", expires_s: float = 100.0, size_bytes: int = 0) -> Pack:
    made = Pack(name, writer, expires_s, size_bytes)
    for position, number in enumerate(numbers):
        made.append(key(number), 1000 * position, number)
    return made


operations = st.lists(
    st.tuples(st.sampled_from(["add", "drop_pack", "drop_key", "drop_chunk"]), st.integers(0, 9), st.integers(0, 5)),
    max_size=60,
)


@given(operations)
@settings(max_examples=60, deadline=None)
def test_the_index_agrees_with_a_model_of_packs(steps: list[tuple[str, int, int]]) -> None:
    index = ObjectIndex(10_000)
    model: dict[str, set[int]] = {}
    readable: dict[Key, int] = {}
    for action, number, name_number in steps:
        name = f"p{name_number}"
        if action == "add" and name not in model:
            numbers = sorted({number, number + 1, 2 * number})
            index.add(pack(name, numbers))
            model[name] = set(numbers)
        elif action == "drop_pack":
            before = set().union(*model.values())
            gone = model.pop(name, set())
            lost = index.drop_pack(name)
            assert set(lost) == {key(n) for n in before - set().union(*model.values())}
            assert {key(n) for n in gone} >= set(lost)
        elif action == "drop_key":
            index.drop_key(key(number))
            for numbers_of in model.values():
                numbers_of.discard(number)
        elif action == "drop_chunk" and (location := index.find(key(number))) is not None:
            index.drop_chunk(location)
            model[location.pack.name].discard(number)
        alive = set().union(*model.values())
        assert len(index) == len(alive)
        for each in range(22):
            found = index.find(key(each))
            assert (found is not None) == (each in alive)
            if found is not None:
                assert each in model[found.pack.name]
                assert (found.key, found.length, found.offset % 1000) == (key(each), each, 0)
        added, removed = index.take_changes()
        readable.update(dict(added))
        for each_key in removed:
            readable.pop(each_key, None)
        assert set(readable) == {key(n) for n in alive}


def test_the_index_has_a_bound() -> None:
    index = ObjectIndex(5)
    index.add(pack("a", [1, 2, 3]))
    assert index.has_room(2)
    assert not index.has_room(3)
    index.drop_pack("a")
    assert index.has_room(5)


def test_changes_that_nobody_takes_are_bounded() -> None:
    index = ObjectIndex(4)
    for number in range(100):
        index.add(pack(f"p{number}", [number]))
        index.drop_pack(f"p{number}")
    added, removed = index.take_changes()
    assert (list(added), len(removed)) == ([], 4)


@given(st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=60))
def test_the_budget_is_never_exceeded_when_its_victims_go(sizes: list[tuple[int, bool]]) -> None:
    capacity_bytes = 2000
    budget = Budget(capacity_bytes)
    order: list[str] = []
    for number, (size_bytes, touch) in enumerate(sizes):
        made = pack(f"p{number}", [number], size_bytes=size_bytes)
        reserve = entry_bytes_of(made)
        victims = budget.victims(size_bytes + reserve, ())
        assert victims is not None
        assert victims == order[: len(victims)]
        for name in victims:
            budget.release(name)
            order.remove(name)
        budget.adopt(made)
        order.append(made.name)
        assert budget.used_bytes <= capacity_bytes
        if touch:
            budget.touch(order[0])
            order.append(order.pop(0))


def test_packs_in_memory_and_protected_packs_are_no_victims() -> None:
    budget = Budget(1000)
    regions = Regions(4096, 1)
    sent, waiting = pack("sent", [1], size_bytes=300), pack("waiting", [2], size_bytes=300)
    waiting.region = regions.take()
    budget.adopt(sent)
    budget.adopt(waiting)
    assert budget.victims(400, ()) == ["sent"]
    assert budget.victims(400, {"sent"}) is None
    assert budget.victims(900, ()) is None


def test_regions_are_reused_only_without_users() -> None:
    regions = Regions(4096, 2)
    first = regions.take()
    assert first is not None
    first.users += 1
    second = regions.take()
    assert second is not None
    assert regions.take() is None
    regions.release(first)
    assert regions.take() is None
    regions.release(first)
    third = regions.take()
    assert third is not None
    assert third.view is first.view
    regions.release(second, reuse=False)
    fourth = regions.take()
    assert fourth is not None
    assert fourth.view is not second.view


@given(st.lists(st.tuples(st.integers(0, 30_000), st.booleans()), min_size=1, max_size=40))
def test_ranges_cover_what_is_wanted_and_little_else(records: list[tuple[int, bool]]) -> None:
    made = Pack("p", "w", 1.0)
    offset = 0
    for number, (length, _) in enumerate(records):
        made.append(key(number), offset, length)
        offset += record_bytes(key(number), length)
    wanted = [(n, Location(made, n)) for n, (_, ask) in enumerate(records) if ask]
    fetches = plan(wanted, OPTIONS)
    served = [number for fetch in fetches for number, _ in fetch.wanted]
    assert sorted(served) == [number for number, _ in wanted]
    for fetch in fetches:
        useful = 0
        for _, location in fetch.wanted:
            size = record_bytes(location.key, location.length)
            assert fetch.start <= location.offset
            assert location.offset + size <= fetch.start + fetch.length
            useful += size
        assert fetch.length - useful <= OPTIONS.coalesce_gap_bytes * (len(fetch.wanted) - 1)
        assert fetch.length <= OPTIONS.range_bytes or len(fetch.wanted) == 1
    ends = [(fetch.start, fetch.start + fetch.length) for fetch in sorted(fetches, key=lambda f: f.start)]
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ends))
