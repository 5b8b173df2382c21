from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import lru_prefix_hits, random_requests, shared_trace

from warmtier.trace.columns import part, read_columns
from warmtier.trace.lines import TraceError
from warmtier.trace.readers import open_trace
from warmtier.trace.sample import key_hash, key_hashes
from warmtier.trace.schema import TraceRequest
from warmtier.trace.stack import find_runs, miss_ratio_curve, standard_errors


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), requests=st.integers(1, 60), tails=st.booleans())
def test_curve_equals_an_lru_at_every_capacity(seed: int, requests: int, tails: bool) -> None:
    trace = random_requests(seed, requests)
    columns = read_columns(trace, 4)
    curve = miss_ratio_curve(columns, tails=tails)
    paths = [r.keys if tails else r.full_keys for r in trace]
    for capacity in (1, 2, 3, 5, 8, 13, 40, 1000):
        ratio = curve.hit_ratio(capacity)
        expected = lru_prefix_hits(paths, capacity) / max(1, columns.accesses)
        assert ratio == pytest.approx(expected), f"seed {seed}, capacity {capacity}"


def test_distances_of_runs_are_those_of_their_first_chunk() -> None:
    requests = [TraceRequest(float(i), 4 * len(k), 1, k, 4) for i, k in enumerate([[1, 2, 3], [1, 9], [1, 2, 3]])]
    runs = find_runs(read_columns(requests, 4))
    rows = list(
        zip(runs.request.tolist(), runs.previous.tolist(), runs.count.tolist(), runs.distance.tolist(), strict=True)
    )
    assert rows == [(0, -1, 3, -1), (1, 0, 1, 0), (1, -1, 1, -1), (2, 1, 1, 0), (2, 0, 2, 2)]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("mooncake_conversation_trace", {1000: 0.045, 3000: 0.065, 10_000: 0.212, 20_000: 0.288, 40_000: 0.351}),
        ("mooncake_synthetic_trace", {500: 0.045, 1500: 0.119, 4000: 0.235, 8000: 0.373, 16_000: 0.530, 30_000: 0.624}),
        ("lmcache_agent_magagent_blk16", {200: 0.498, 500: 0.643, 1000: 0.783, 2000: 0.840, 5000: 0.841}),
        ("lmcache_agent_miniswe_blk16", {300: 0.569, 1000: 0.803, 2000: 0.932, 3000: 0.936}),
    ],
)  # fmt: skip
def test_lru_rows_of_public_traces(name: str, cells: dict[int, float]) -> None:
    trace = open_trace(shared_trace(f"{name}.jsonl.gz")).trace
    curve = miss_ratio_curve(read_columns(trace, trace.chunk_tokens), tails=True)
    for capacity, golden in cells.items():
        assert curve.hit_ratio(capacity) == pytest.approx(golden, abs=0.0011), capacity


def test_lru_without_partial_tails_on_a_public_trace() -> None:
    trace = open_trace(shared_trace("mooncake_conversation_trace.jsonl.gz")).trace
    curve = miss_ratio_curve(read_columns(trace, 512))
    for capacity, golden in {3000: 0.067, 10_000: 0.215, 20_000: 0.294, 40_000: 0.352, 80_000: 0.363}.items():
        assert curve.hit_ratio(capacity) == pytest.approx(golden, abs=0.0011)


def test_sampled_curve_is_within_its_stated_error() -> None:
    trace = open_trace(shared_trace("mooncake_conversation_trace.jsonl.gz")).trace
    capacities = [3000, 10_000, 20_000, 40_000]
    exact = miss_ratio_curve(read_columns(trace, 512))
    outside = 0
    for seed in range(3):
        columns = read_columns(trace, 512, rate=0.1, seed=seed)
        curve, errors = miss_ratio_curve(columns), standard_errors(columns, capacities)
        assert 0.09 < columns.keys / 182_790 < 0.11
        for capacity, error in zip(capacities, errors, strict=True):
            assert error > 0
            outside += abs(curve.hit_ratio(capacity) - exact.hit_ratio(capacity)) > 3 * error
    assert outside <= 1, "12 estimates, three standard errors"


def test_too_many_accesses_are_thinned_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmtier.trace.columns._BATCH", 500)
    trace = random_requests(5, 800)
    total = sum(len(r.keys) for r in trace)
    columns = read_columns(trace, 4, max_accesses=total // 3)
    assert columns.rate in (0.5, 0.25, 0.125)
    assert columns.accesses <= total // 3
    assert columns.total == total
    again = read_columns(trace, 4, rate=columns.rate)
    assert (again.key == columns.key).all(), "thinning later gives the same sample as from the start"
    assert (again.tail == columns.tail).all()
    assert sum(part(columns, g).accesses for g in range(8)) == columns.accesses


def test_hashes_of_arrays_are_those_of_keys() -> None:
    import numpy as np

    keys = [0, 1, 2**62, 12345678901234567]
    assert key_hashes(np.array(keys, dtype=np.int64), 7).tolist() == [key_hash(key, 7) for key in keys]


@pytest.mark.parametrize("paths", [[[1, 2], [3, 2]], [[1, 1]], [[1, 2], [2, 1]], [[1, 2, 3], [1, 3]]])
def test_keys_that_are_not_chained_are_refused(paths: list[list[int]]) -> None:
    requests = [TraceRequest(float(i), 4 * len(p), 1, p, 4) for i, p in enumerate(paths)]
    with pytest.raises(TraceError, match="not prefix-chained"):
        read_columns(requests, 4)


def test_empty_trace_has_an_empty_curve() -> None:
    columns = read_columns([], 4)
    assert miss_ratio_curve(columns).hit_ratio(10) == 0.0
    assert columns.requests == columns.accesses == columns.keys == 0
