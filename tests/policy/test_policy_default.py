"""The default policy against LRU and the first index, cell by cell on public traces, and on cycles.

A sample of the cells; ``benchmarks/policy_sweep.py`` runs all of them.
"""

from __future__ import annotations

import random

import pytest
from policy_traces import public_trace

from warmtier.policy.base import Access
from warmtier.policy.evidence import EvidencePolicy
from warmtier.sim.hits import make_cache, run_hits

LRU_POINTS = 0.001
INDEX_POINTS = 0.003
CELLS = [
    ("conv", 3_000, 0.140),
    ("conv", 40_000, 0.350),
    ("synth", 500, 0.047),
    ("synth", 4_000, 0.268),
    ("synth", 16_000, 0.563),
    ("magagent", 200, 0.519),
    ("magagent", 500, 0.710),
    ("magagent", 2_000, 0.840),
    ("miniswe", 300, 0.569),
    ("miniswe", 3_000, 0.936),
]


def ratio(trace: str, policy: str, chunks: int) -> float:
    loaded = public_trace(trace)
    return run_hits(loaded, make_cache(loaded, policy, chunks, "production")).block_hit_ratio


@pytest.mark.parametrize(("trace", "chunks", "index2"), CELLS)
def test_never_below_lru_and_at_least_the_first_index(trace: str, chunks: int, index2: float) -> None:
    evidence, lru = ratio(trace, "evidence", chunks), ratio(trace, "lru", chunks)
    assert evidence >= lru - LRU_POINTS
    assert evidence >= index2 - INDEX_POINTS


def cycle_hits(turns: int, seed: int, sessions: int = 10) -> float:
    """Hit ratio in the second half: sessions in random order, each a chunk longer after its visit, half of them fit."""
    rng = random.Random(seed)
    policy: EvidencePolicy[tuple[int, int]] = EvidencePolicy(int(sessions * (8 + turns / 2) / 2))
    lengths = [8] * sessions
    now, hits, total = 0.0, 0, 0
    for turn in range(turns):
        for session in rng.sample(range(sessions), sessions):
            now += 1 + rng.random()
            path = [(session, depth) for depth in range(lengths[session])]
            present = next((i for i, key in enumerate(path) if key not in policy), len(path))
            access = Access(path, 512, len(path) * 512, now)
            policy.begin(access, now)
            policy.touch(access, path[:present], now)
            if present < len(path):
                policy.admit(access, path[present:], path[present - 1] if present else None, now, lambda _key: False)
            policy.finish(access, now)
            if turn >= turns // 2:
                hits += present
                total += len(path) - 1
            lengths[session] += 1
    return hits / total


@pytest.mark.parametrize("turns", [8, 16, 24])
def test_cycles_keep_a_useful_part(turns: int) -> None:
    ratios = [cycle_hits(turns, seed) for seed in range(5)]
    assert sum(ratios) / len(ratios) >= 0.40, [round(value, 3) for value in ratios]
