"""Published and measured hit ratios, reproduced cell by cell (raw mode: tail first, partial tails stored)."""

from __future__ import annotations

import pytest
from policy_traces import public_trace

from warmtier.sim.hits import HitCounts, make_cache, run_hits

POINTS = 0.004
SIZES = {
    "conv": (1_000, 3_000, 10_000, 20_000, 40_000, 80_000),
    "synth": (500, 1_500, 4_000, 8_000, 16_000, 30_000),
    "magagent": (200, 500, 1_000, 2_000, 5_000),
    "miniswe": (300, 1_000, 2_000, 3_000),
}
GOLDENS = {
    ("conv", "opt"): (0.191, 0.295, 0.366, 0.366, 0.366, 0.366),
    ("conv", "lru"): (0.045, 0.065, 0.212, 0.288, 0.351, 0.362),
    ("conv", "fifo"): (0.045, 0.064, 0.182, 0.259, 0.319, 0.352),
    ("conv", "arc"): (0.053, 0.086, 0.223, 0.289, 0.326, 0.360),
    ("conv", "2touch"): (0.084, 0.144, 0.218, 0.235, 0.256, 0.292),
    ("conv", "sieve"): (0.048, 0.075, 0.132, 0.210, 0.321, 0.360),
    ("synth", "opt"): (0.199, 0.334, 0.493, 0.595, 0.640, 0.640),
    ("synth", "lru"): (0.045, 0.119, 0.235, 0.373, 0.530, 0.624),
    ("synth", "arc"): (0.044, 0.123, 0.245, 0.391, 0.557, 0.626),
    ("synth", "sieve"): (0.015, 0.079, 0.159, 0.302, 0.546, 0.626),
    ("synth", "2touch"): (0.057, 0.126, 0.264, 0.408, 0.536, 0.600),
    ("magagent", "opt"): (0.545, 0.726, 0.817, 0.841, 0.841),
    ("magagent", "lru"): (0.498, 0.643, 0.783, 0.840, 0.841),
    ("magagent", "arc"): (0.424, 0.592, 0.774, 0.834, 0.835),
    ("magagent", "sieve"): (0.193, 0.171, 0.276, 0.321, 0.563),
    ("magagent", "2touch"): (0.474, 0.593, 0.708, 0.755, 0.772),
    ("miniswe", "opt"): (0.569, 0.803, 0.932, 0.937),
    ("miniswe", "lru"): (0.569, 0.803, 0.932, 0.936),
    ("miniswe", "sieve"): (0.151, 0.191, 0.304, 0.316),
}
PARTIAL_NEVER_STORED = (0.045, 0.067, 0.215, 0.294, 0.352, 0.363)
TOKENS_512 = 512


def run(trace: str, policy: str, chunks: int, mode: str, score_from: float = 0.0) -> HitCounts:
    loaded = public_trace(trace)
    return run_hits(loaded, make_cache(loaded, policy, chunks, mode), score_from)


@pytest.mark.parametrize(("trace", "policy"), GOLDENS)
def test_raw_mode_reproduces_every_cell(trace: str, policy: str) -> None:
    got = [run(trace, policy, chunks, "raw").block_hit_ratio for chunks in SIZES[trace]]
    assert got == pytest.approx(GOLDENS[trace, policy], abs=POINTS), f"{trace} {policy}"


def test_production_mode_reproduces_the_row_without_partial_tails() -> None:
    got = [run("conv", "lru", chunks, "production").block_hit_ratio for chunks in SIZES["conv"]]
    assert got == pytest.approx(PARTIAL_NEVER_STORED, abs=0.001)


@pytest.mark.parametrize(
    ("tokens", "ratio"), [(1_000_000, 0.056), (4_000_000, 0.188), (16_000_000, 0.356), (10**9, 0.398)]
)
def test_token_weighted_lru_agrees_with_published_figures(tokens: int, ratio: float) -> None:
    counts = run("conv", "lru", tokens // TOKENS_512, "production", score_from=0.5)  # full blocks only
    assert counts.token_hit_ratio == pytest.approx(ratio, abs=0.001)


def test_the_optimum_bounds_every_policy() -> None:
    best = run("synth", "opt", 4_000, "production").hit_blocks
    for policy in ("lru", "arc", "index"):
        assert run("synth", policy, 4_000, "production").hit_blocks <= best, policy
