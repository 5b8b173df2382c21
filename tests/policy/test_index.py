"""The evidence index and its segments: takeovers, forks, bypass, bounds."""

from __future__ import annotations

import random

from warmtier.policy.index import CONTINUING, FORK, NEW, IndexConfig, IndexPolicy, Rule
from warmtier.testing.policy_suite import SuiteKey, make_access, path_of, serve

SMALL = IndexConfig(ghosts_min=10, ghosts_per_chunk=1.0)


def free(key: object) -> bool:
    return False


def segments(policy: IndexPolicy[SuiteKey]) -> set[tuple[int, int, int, int]]:
    """(depth of the first key, resident, ghosts, uses) of every segment."""
    found = set(policy.tree.where.values())
    return {(len(item.first), len(item.keys), len(item.ghosts), item.uses) for item in found}


def test_one_request_is_one_segment() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(10)
    serve(policy, [1, 2, 3, 4], 0.0)
    assert segments(policy) == {(1, 4, 0, 1)}


def test_a_fork_takes_the_shared_head_and_leaves_the_rest() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(10)
    serve(policy, [1, 2, 3, 4], 0.0)
    serve(policy, [1, 2, 9], 1.0)
    assert segments(policy) == {(1, 2, 0, 2), (3, 1, 0, 1), (3, 2, 0, 1)}
    assert policy.tree.children((1, 2)) == 2
    serve(policy, [1, 2, 3, 4], 2.0)
    assert segments(policy) == {(1, 2, 0, 3), (3, 1, 0, 1), (3, 2, 0, 2)}


def test_a_path_that_grows_while_it_runs_stays_one_segment() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(10)
    access = make_access([1, 2], 0.0)
    policy.begin(access, 0.0)
    assert policy.admit(access, access.path[:], None, 0.0, free).admitted == 2
    access.path += path_of([1, 2, 3, 4])[2:]
    assert policy.admit(access, access.path[2:], (1, 2), 5.0, free).admitted == 2
    policy.finish(access, 6.0)
    assert segments(policy) == {(1, 4, 0, 1)}


def test_what_is_not_admitted_is_remembered_as_a_ghost() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(3)
    serve(policy, [1, 2, 3, 4, 5], 0.0)
    assert segments(policy) == {(1, 3, 2, 1)}
    assert (len(policy), policy.explain()["ghosts"]) == (3, 2)


def test_kinds_of_requests() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(50)
    kinds = []
    for now, steps in enumerate(([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 7], [1, 9], [5], [1, 2, 3, 4, 8])):
        access = make_access(steps, float(now))
        policy.begin(access, float(now))
        kinds.append(access.state.kind)  # type: ignore[attr-defined]
        policy.finish(access, float(now))
    assert kinds == [NEW, CONTINUING, CONTINUING, FORK, NEW, CONTINUING]


def test_the_table_learns_who_comes_back_and_newcomers_are_refused() -> None:
    """Twelve sessions that return every minute against requests that never do; only the sessions fit."""
    policy: IndexPolicy[SuiteKey] = IndexPolicy(60)
    rng = random.Random(2)
    now, refused, late_hits = 0.0, 0, 0
    for turn in range(60):
        for session in range(12):
            now += 2.0
            hits = serve(policy, [session, 1, 2, 3], now)
            late_hits += hits if turn >= 40 else 0
            flood = make_access([1_000 + turn * 100 + session, *range(rng.randint(3, 9))], now)
            policy.begin(flood, now)
            refused += policy.admit(flood, flood.path, None, now, free).refused_by_value
            policy.finish(flood, now)
    assert late_hits == 20 * 12 * 4, f"{late_hits} of {20 * 12 * 4} hits once learned"
    assert refused > 400


def test_lru_rule_equals_lru_by_request() -> None:
    from warmtier.policy.lru import LruPolicy

    rng = random.Random(8)
    ours: IndexPolicy[SuiteKey] = IndexPolicy(40, rule=Rule.LRU)
    reference: LruPolicy[SuiteKey] = LruPolicy(40)
    for now in range(1_500):
        steps = [rng.randrange(3) for _ in range(rng.randint(1, 8))]
        assert serve(ours, steps, float(now)) == serve(reference, steps, float(now)), now
        assert set(ours.resident()) == set(reference.resident()), now


def test_touch2_admits_at_the_second_use_once_full() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(3, rule=Rule.TOUCH2)
    serve(policy, [1, 2, 3], 0.0)
    serve(policy, [7, 8], 1.0)
    assert (7,) not in policy
    serve(policy, [7, 8], 2.0)
    assert (7, 8) in policy


def test_ghosts_reach_their_bound_and_marks_go_with_them() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(4, SMALL)
    for number in range(500):
        serve(policy, [number % 7, number, 1, 2], float(number))
    tree = policy.tree
    assert policy.ghost_limit == 10
    assert tree.ghost_count == 10
    assert len(tree.where) == 14
    assert set(tree.ends) <= set(tree.where)
    assert len(tree.branches) <= 14
    assert sum(len(queue) for queue in tree.queues.values()) <= 4
    assert len(tree.slab.counts) < 40, "slots are used again"


def test_chunks_below_a_removed_one_are_evictable_roots() -> None:
    policy: IndexPolicy[SuiteKey] = IndexPolicy(10)
    serve(policy, [1, 2, 3, 4], 0.0)
    policy.remove([(1, 2)], 1.0)
    assert set(policy.resident()) == {(1,), (1, 2, 3), (1, 2, 3, 4)}
    assert policy.evict(3, 2.0, free) == [(1, 2, 3, 4), (1, 2, 3), (1,)] or len(policy) == 0


def test_ghost_limit_grows_with_capacity_but_not_without_end() -> None:
    assert IndexPolicy[int](1_000).ghost_limit == 20_000
    assert IndexPolicy[int](50_000).ghost_limit == 200_000
    assert IndexPolicy[int](1_000_000).ghost_limit == 1_500_000


def test_keys_may_be_admitted_that_no_path_named_before() -> None:
    """A driver that learns keys late: they become a segment of their own below the parent."""
    policy: IndexPolicy[SuiteKey] = IndexPolicy(10)
    access = make_access([1], 0.0)
    policy.begin(access, 0.0)
    policy.admit(access, [(1,)], None, 0.0, free)
    assert policy.admit(access, [(1, 2), (1, 2, 3)], (1,), 0.0, free).admitted == 2
    assert policy.evict(1, 1.0, free) == [(1, 2, 3)]
