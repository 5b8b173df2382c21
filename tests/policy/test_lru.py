"""LRU over runs, against a plain LRU that keeps every chunk for itself."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from warmtier.policy.base import Access
from warmtier.policy.lru import LruPolicy


class PlainLru:
    """One entry per chunk, oldest first; the victim is the first leaf that is not kept."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: list[str] = []

    def is_leaf(self, key: str) -> bool:
        return not any(other[:-1] == key for other in self.order)

    def touch(self, keys: Sequence[str]) -> None:
        for key in reversed(keys):
            if key in self.order:
                self.order.remove(key)
                self.order.append(key)

    def victim(self, kept: set[str]) -> str | None:
        return next((key for key in self.order if self.is_leaf(key) and key not in kept), None)

    def take(self, count: int, kept: set[str]) -> list[str]:
        victims: list[str] = []
        while len(victims) < count and (key := self.victim(kept)) is not None:
            self.order.remove(key)
            victims.append(key)
        return victims


def path_of(name: str) -> list[str]:
    """Chunks of the path ``abc`` are a, ab, abc: a key without its last letter is its parent."""
    return [name[: i + 1] for i in range(len(name))]


names = st.text("ab", min_size=1, max_size=7)
steps = st.lists(
    st.tuples(st.sampled_from(["use", "use", "use", "evict", "remove", "give_up"]), names, st.sets(names, max_size=3)),
    max_size=60,
)


@settings(max_examples=300)
@given(steps, st.integers(1, 12))
def test_runs_behave_like_single_chunks(steps: list[tuple[str, str, set[str]]], capacity: int) -> None:
    policy: LruPolicy[str] = LruPolicy(capacity)
    plain = PlainLru(capacity)
    removed = False
    for now, (what, name, pins) in enumerate(steps):
        path, at = path_of(name), float(now)
        if what == "use":
            victims, expected = use(policy, plain, path, pins, at)
        elif what == "evict":
            victims = policy.evict(len(name), at, pins.__contains__)
            expected = plain.take(len(name), pins)
        elif what == "remove":
            policy.remove([path[-1]], at)
            if path[-1] in plain.order:
                plain.order.remove(path[-1])
                removed = True
            victims, expected = [], []
        else:
            victims = policy.give_up(path[::-1], 2, at, pins.__contains__)
            expected = give_up(plain, path[::-1], 2, pins)
        if not removed:
            assert victims == expected
        if removed:  # the order of orphans may differ; the rules may not
            plain.order = list(policy.resident())
        assert set(policy.resident()) == set(plain.order)
        assert len(policy) == len(plain.order) <= capacity
        check_books(policy)


def use(
    policy: LruPolicy[str], plain: PlainLru, path: list[str], pins: set[str], now: float
) -> tuple[list[str], list[str]]:
    """One request: a hit on the resident prefix, the rest admitted, the path committed. Return both victims."""
    access: Access[str] = Access(list(path), 16, 0, now)
    hit = next((i for i, key in enumerate(path) if key not in policy), len(path))
    policy.touch(access, path[:hit], now)
    plain.touch(path[:hit])
    absent = next((i for i in range(hit, len(path)) if path[i] in policy), len(path))
    keys = path[hit:absent]
    admission = policy.admit(access, keys, path[hit - 1] if hit else None, now, pins.__contains__)
    victims = plain.take(len(plain.order) + len(keys) - plain.capacity, {*path, *pins})
    plain.order += keys[: max(0, min(len(keys), plain.capacity - len(plain.order)))]
    policy.finish(access, now)
    plain.touch(path)
    assert not set(admission.victims) & {*path, *pins}
    assert len(admission.victims) == len(victims)
    return admission.victims, victims


def give_up(plain: PlainLru, keys: list[str], count: int, pins: set[str]) -> list[str]:
    victims: list[str] = []
    for key in keys:
        if len(victims) < count and key in plain.order and plain.is_leaf(key) and key not in pins:
            plain.order.remove(key)
            victims.append(key)
    return victims


def check_books(policy: LruPolicy[str]) -> None:
    """Every run is where its keys say, and is counted below its parent."""
    below: dict[str, int] = {}
    for run in policy._order:
        assert run.keys
        assert all(policy._run_of[key] is run for key in run.keys)
        assert all(key[:-1] == above for above, key in zip(run.keys, run.keys[1:], strict=False))
        if run.parent is not None:
            below[run.parent] = below.get(run.parent, 0) + 1
    for key, run in policy._run_of.items():
        if run.keys[-1] == key:
            assert run.children == below.pop(key, 0)
    assert policy._orphans == below


def test_neighbours_that_are_used_together_become_one_run() -> None:
    policy: LruPolicy[str] = LruPolicy(100)
    access: Access[str] = Access(path_of("a" * 50), 16, 0, 0.0)
    other: Access[str] = Access(path_of("b"), 16, 0, 0.0)
    for i, key in enumerate(access.path):
        policy.admit(access, [key], access.path[i - 1] if i else None, 0.0, lambda _: False)
        policy.touch(other, other.path, 0.0)
    policy.finish(access, 1.0)
    assert len(policy._order) == 1
