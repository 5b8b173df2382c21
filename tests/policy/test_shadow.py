"""Shadows: which requests are in the sample, what is measured, when the rule changes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from warmtier.policy.base import Access
from warmtier.policy.evidence import EvidenceConfig, EvidencePolicy
from warmtier.policy.index import IndexPolicy, Rule
from warmtier.policy.shadow import PathSampler, Shadows
from warmtier.testing.policy_suite import SuiteKey, make_access, serve


def test_the_whole_traffic_is_the_sample_of_share_one() -> None:
    sampler: PathSampler[SuiteKey] = PathSampler(1.0)
    assert sampler.wants(make_access([1], 0.0))
    assert sampler.wants(Access([], 16, 0, 0.0))


def test_sessions_are_in_the_sample_whole_or_not_at_all() -> None:
    sampler: PathSampler[SuiteKey] = PathSampler(0.3)
    answers: dict[int, set[bool]] = {}
    for turn in range(5):
        for session in range(300):
            steps = [0, session, *range(turn)]
            if turn:  # the first turn is where the depth is looked for
                answers.setdefault(session, set()).add(sampler.wants(make_access(steps, 0.0)))
            else:
                sampler.wants(make_access(steps, 0.0))
    assert sampler.depth == 1, "all share the first chunk, nothing below it"
    assert all(len(answer) == 1 for answer in answers.values())
    assert 0.2 < sum(True in answer for answer in answers.values()) / 300 < 0.4


def test_a_session_name_decides_before_the_path() -> None:
    sampler: PathSampler[SuiteKey] = PathSampler(0.5)
    for session in range(200):
        wanted = {
            sampler.wants(Access([(root,)], 16, 16, 0.0, session=f"session {session}"))
            for root in range(session, 400, 97)
        }
        assert len(wanted) == 1


def test_sampler_memory_is_bounded() -> None:
    sampler: PathSampler[SuiteKey] = PathSampler(0.5)
    for root in range(6_000):
        sampler.wants(make_access([root], 0.0))
    assert sum(map(len, sampler._counts)) <= 12 * 128


def test_shadows_compare_only_once_all_are_full() -> None:
    shadows: Shadows[SuiteKey] = Shadows({rule: IndexPolicy(20, rule=rule) for rule in Rule}, 100.0)
    for root in range(4):
        shadows.run(make_access([root, 1, 2], float(root)), float(root))
    assert (shadows.requests, shadows.counted, shadows.chunks) == (4, 0, 0.0)
    assert (shadows.gain(Rule.INDEX, Rule.LRU), shadows.doubt(Rule.INDEX, Rule.LRU)) == (0.0, 0.0)
    for root in range(4, 40):
        shadows.run(make_access([root, 1, 2], float(root)), float(root))
    assert shadows.counted > 0
    assert shadows.chunks > 0


def hot_and_flood(seed: int, count: int, frozen_clock: bool) -> Iterator[tuple[list[int], float]]:
    """Popular prompts at long distances among chunks used once; every use looks alike to a clock that stands."""
    rng = random.Random(seed)
    for number in range(count):
        steps = [rng.randrange(60), 1, 2] if rng.random() < 0.25 else [1_000 + number, 1, 2]
        yield steps, 0.0 if frozen_clock else float(number)


def played(policy: EvidencePolicy[SuiteKey] | IndexPolicy[SuiteKey], seed: int, count: int) -> int:
    return sum(serve(policy, steps, now) for steps, now in hot_and_flood(seed, count, frozen_clock=False))


@pytest.mark.parametrize("seed", range(2))
def test_evidence_is_not_worse_than_its_rules(seed: int) -> None:
    hits = {rule: played(IndexPolicy(120, rule=rule), seed, 3_000) for rule in Rule}
    mine = played(EvidencePolicy(120), seed, 3_000)
    assert mine >= hits[Rule.LRU], f"seed {seed}: {mine} against {hits}"
    assert mine >= 0.85 * max(hits.values()), f"seed {seed}: {mine} against {hits}"


def test_a_rule_that_loses_is_replaced_and_moves_no_chunk() -> None:
    policy: EvidencePolicy[SuiteKey] = EvidencePolicy(120, EvidenceConfig(patience=10, half_life=300.0))
    policy.rule = Rule.LRU
    for number, (steps, now) in enumerate(hot_and_flood(3, 6_000, frozen_clock=False)):
        before, rule = set(policy.resident()), policy.rule
        access = make_access(steps, now)
        serve_hits = [key for key in access.path if key in before]
        policy.begin(access, now)
        policy.touch(access, serve_hits, now)
        policy.finish(access, now)
        assert set(policy.resident()) == before, number
        if policy.rule is not rule:
            break
        serve(policy, steps, now)
    assert policy.rule is not Rule.LRU, policy.explain()
    assert policy.explain()["switches"] == 1


def test_resize_keeps_the_rule_and_starts_the_shadows_anew() -> None:
    policy: EvidencePolicy[SuiteKey] = EvidencePolicy(50)
    for steps, now in hot_and_flood(4, 500, frozen_clock=False):
        serve(policy, steps, now)
    policy.rule = Rule.TOUCH2
    policy.resize(200)
    facts = policy.explain()
    assert (facts["rule"], facts["sampled_requests"]) == ("touch2", 0)
