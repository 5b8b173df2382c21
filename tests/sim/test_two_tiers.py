"""Admission to the slow tier: the measured table, and what admission by evidence must reach with one setting."""

from __future__ import annotations

import pytest
from policy_traces import public_trace

from warmtier.core.types import StoreOutcome
from warmtier.policy.admission import Admitter, Candidates, TierState, Verdict
from warmtier.policy.base import Access
from warmtier.policy.cost import EvidenceAdmission
from warmtier.sim.two_tiers import TwoTiers, run_two_tiers


class UsedTwice(Admitter[int]):
    """Writes what was used twice; anything at all ``if_room``."""

    def __init__(self, *, if_room: bool) -> None:
        self.if_room = if_room

    def judge(self, access: Access[int] | None, candidates: Candidates[int], tier: TierState, now: float) -> Verdict:
        admitted = candidates.uses[0] >= 2 or (self.if_room and tier.room > 0)
        return Verdict(int(admitted), None if admitted else StoreOutcome.REFUSED_TOUCH)


ROWS = [
    ("conv", 5_000, 10_000, (0.119, 0.254, 0.690, 0.252, 0.178, 0.242, 0.154)),
    ("conv", 5_000, 40_000, (0.119, 0.353, 0.593, 0.282, 0.244, 0.246, 0.149)),
    ("synth", 2_000, 8_000, (0.150, 0.414, 0.551, 0.432, 0.278, 0.413, 0.233)),
]


@pytest.mark.parametrize(("trace", "memory", "slow", "expected"), ROWS)
def test_the_table_is_reproduced(trace: str, memory: int, slow: int, expected: tuple[float, ...]) -> None:
    loaded = public_trace(trace)
    got = [run_two_tiers(loaded, TwoTiers(memory, 0)).block_hit_ratio]
    for admitter in (None, UsedTwice(if_room=True), UsedTwice(if_room=False)):
        counts = run_two_tiers(loaded, TwoTiers(memory, slow, admitter))
        got += [counts.block_hit_ratio, counts.writes_per_access]
    assert got == pytest.approx(expected, abs=0.004)


@pytest.mark.parametrize(
    ("trace", "memory", "slow", "hits_min", "writes_max"),
    [("conv", 5_000, 10_000, 0.244, 0.25), ("conv", 5_000, 40_000, 0.343, 1.0), ("synth", 2_000, 8_000, 0.422, 0.36)],
)
def test_evidence_admits_what_is_worth_its_write(
    trace: str, memory: int, slow: int, hits_min: float, writes_max: float
) -> None:
    admission: EvidenceAdmission[int] = EvidenceAdmission(slow)
    counts = run_two_tiers(public_trace(trace), TwoTiers(memory, slow, admission))
    assert counts.block_hit_ratio >= hits_min, admission.explain()
    assert counts.writes_per_access <= writes_max, admission.explain()
