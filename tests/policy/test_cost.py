"""Admission by evidence on small made-up streams: thresholds, room, the write budget, bounds."""

from __future__ import annotations

import random

import pytest

from warmtier.core.types import StoreOutcome
from warmtier.policy.admission import Candidates, TierState, Verdict
from warmtier.policy.cost import EvidenceAdmission, EvidenceCost

FULL = TierState(capacity=100, resident=100, eviction_age_s=5.0)
ROOM = TierState(capacity=100, resident=98)


def feed(admission: EvidenceAdmission[int], *, reuse_of_singles: float, seed: int, rounds: int = 4_000) -> None:
    """Offer new chunks at one use; use some again. Popular chunks come back always."""
    rng = random.Random(seed)
    pending: list[int] = []
    for number in range(rounds):
        single, popular = 1_000 + number, number % 40
        admission.judge(None, Candidates([single], [1]), FULL, float(number))
        admission.on_used([popular], float(number))
        admission.judge(None, Candidates([popular], [5]), FULL, float(number))
        if rng.random() < reuse_of_singles:
            pending.append(single)
        if len(pending) > 10:
            admission.on_used([pending.pop(0)], float(number))


@pytest.mark.parametrize("seed", range(3))
def test_singles_that_never_come_back_are_refused_once_full(seed: int) -> None:
    admission: EvidenceAdmission[int] = EvidenceAdmission(100)
    feed(admission, reuse_of_singles=0.0, seed=seed)
    assert admission.threshold > 1, admission.explain()
    assert admission.judge(None, Candidates([1, 2], [5, 1]), FULL, 9e3) == Verdict(1, StoreOutcome.REFUSED_EVIDENCE)
    assert admission.judge(None, Candidates([3, 4, 5], [1, 1, 1]), ROOM, 9e3).admitted == 2, "room for two"
    present = Candidates([1, 2], [1, 5], present=[True, False])
    assert admission.judge(None, present, FULL, 9e3) == Verdict(2, None), "a present chunk always passes"


@pytest.mark.parametrize("seed", range(3))
def test_singles_that_come_back_are_written(seed: int) -> None:
    admission: EvidenceAdmission[int] = EvidenceAdmission(100)
    feed(admission, reuse_of_singles=0.8, seed=seed)
    assert admission.threshold == 1, admission.explain()
    hits = admission.explain()["hits_per_write_1"]
    assert isinstance(hits, float)
    assert 0.4 < hits < 1.2


def test_the_cost_of_a_write_decides() -> None:
    dear: EvidenceAdmission[int] = EvidenceAdmission(100, EvidenceCost(write_cost=2.0))
    feed(dear, reuse_of_singles=0.8, seed=1)
    assert dear.threshold > 1


def test_the_write_budget_is_a_hard_limit_that_refills() -> None:
    admission: EvidenceAdmission[int] = EvidenceAdmission(100, EvidenceCost(writes_per_s=2.0, burst=3))
    keys = list(range(6))
    assert admission.judge(None, Candidates(keys, [9] * 6), ROOM, 0.0) == Verdict(3, StoreOutcome.WRITE_BUDGET)
    admission.on_written(keys[:3], 0.0)
    assert admission.judge(None, Candidates(keys, [9] * 6), ROOM, 0.4).admitted == 0
    assert admission.judge(None, Candidates(keys, [9] * 6), ROOM, 1.0).admitted == 2
    assert admission.judge(None, Candidates(keys, [9] * 6), ROOM, 1e6).admitted == 3, "the burst is the most"


def test_memory_is_bounded_by_the_shadows() -> None:
    admission: EvidenceAdmission[int] = EvidenceAdmission(1_000_000, EvidenceCost(shadow_chunks=50))
    for key in range(3_000_000, 3_400_000, 3):
        admission.judge(None, Candidates([key], [1]), FULL, 0.0)
    assert max(len(shadow) for shadow in admission._shadows) <= 50
    assert len(admission._outside) <= 100


def test_nonsense_settings_are_errors() -> None:
    with pytest.raises(ValueError, match="write_cost"):
        EvidenceAdmission(10, EvidenceCost(write_cost=-1.0))
