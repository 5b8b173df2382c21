"""Hits of a trace through one cache, by hand on small traces; the sweep and its command."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmtier.core.errors import UsageError
from warmtier.policy.belady import BeladyCache
from warmtier.policy.registry import create_raw
from warmtier.sim.hits import LoadedTrace, RawCache, make_cache, run_hits
from warmtier.sim.sweep import Cell, run_cell, run_sweep
from warmtier.trace.schema import TraceRequest


def trace_of(paths: Sequence[Sequence[int]], partial: bool = False) -> LoadedTrace:
    tail = 10 if partial else 0
    requests = [
        TraceRequest(float(at), len(keys) * 16 - (16 - tail if partial else 0), 5, list(keys), 16, partial)
        for at, keys in enumerate(paths)
    ]
    return LoadedTrace("made up", 16, tuple(requests))


def write_mooncake(path: Path, paths: Sequence[Sequence[int]]) -> Path:
    lines = [
        json.dumps({"timestamp": at * 1000, "input_length": len(keys) * 16, "output_length": 1, "hash_ids": keys})
        for at, keys in enumerate(paths)
    ]
    data = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_only_leading_blocks_are_hits() -> None:
    trace = trace_of([[1, 2, 3], [9], [1, 2, 3]])
    cache = RawCache(create_raw("fifo", 3))
    counts = run_hits(trace, cache)  # 9 pushes out 3, the first to enter; 1 and 2 stay
    assert (counts.blocks, counts.hit_blocks, counts.tokens, counts.hit_tokens) == (7, 2, 112, 32)
    assert counts.writes == 7, "the misses of the last request push each other out"
    assert counts.block_hit_ratio == pytest.approx(2 / 7)


def test_partial_tails_are_stored_in_raw_mode_only() -> None:
    trace = trace_of([[1, 2], [1, 2]], partial=True)
    assert run_hits(trace, make_cache(trace, "lru", 10, "raw")).hit_blocks == 2
    production = run_hits(trace, make_cache(trace, "lru", 10, "production"))
    assert (production.hit_blocks, production.hit_tokens, production.tokens) == (1, 16, 52)
    assert run_hits(trace, make_cache(trace, "opt", 10, "production")).hit_blocks == 1


def test_scoring_may_start_late() -> None:
    trace = trace_of([[1], [1], [1], [1]])
    assert run_hits(trace, make_cache(trace, "lru", 10, "raw")).block_hit_ratio == 0.75
    assert run_hits(trace, make_cache(trace, "lru", 10, "raw"), score_from=0.5).block_hit_ratio == 1.0


def test_the_optimum_keeps_what_is_needed_next_and_refuses_the_rest() -> None:
    paths = [[1], [2], [3], [1], [2], [3]]
    cache: BeladyCache[int] = BeladyCache(1, paths)
    assert [cache.request(index, path) for index, path in enumerate(paths)] == [0, 0, 0, 1, 0, 0]
    assert len(cache) <= 1
    assert cache.writes == 1, "a block that is needed later than the one kept, or never again, is not written"


def test_the_optimum_is_prefix_closed() -> None:
    paths = [[1, 2, 3], [7, 8], [1, 2, 3], [7, 8]]
    cache: BeladyCache[int] = BeladyCache(3, paths)
    for index, path in enumerate(paths):
        cache.request(index, path)
        for chain in ([1, 2, 3], [7, 8]):
            held = [key in cache for key in chain]
            assert held == sorted(held, reverse=True), (index, chain)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_a_sweep_gives_every_cell_its_row(tmp_path: Path, suffix: str) -> None:
    path = write_mooncake(tmp_path / f"small{suffix}", [[1, 2, 3], [4, 5], [1, 2, 3], [4, 5]])
    cells = [Cell(path, policy, chunks) for policy in ("lru", "evidence", "opt", "2touch") for chunks in (2, 5)]
    rows = dict(run_sweep(cells, workers=1))
    assert [(rows[i].policy, rows[i].host_chunks) for i in range(8)] == [(c.policy, c.host_chunks) for c in cells]
    assert rows[1].block_hit_ratio == 0.5
    assert {row.trace for row in rows.values()} == {"small"}
    assert (rows[0].mode, rows[6].mode) == ("production", "raw")


@pytest.mark.slow
def test_parallel_processes_agree_with_one(tmp_path: Path) -> None:
    path = write_mooncake(tmp_path / "small.jsonl", [[1, 2, 3], [4, 5], [1, 2, 3]])
    cells = [Cell(path, "lru", chunks) for chunks in (2, 3, 4, 5)]
    alone = {i: (row.host_chunks, row.block_hit_ratio) for i, row in run_sweep(cells, workers=1)}
    assert {i: (row.host_chunks, row.block_hit_ratio) for i, row in run_sweep(cells, workers=2)} == alone


def test_a_bad_line_names_file_line_and_reason(tmp_path: Path) -> None:
    path = write_mooncake(tmp_path / "bad.jsonl", [[1, 2], [1, 2]])
    path.write_text(path.read_text() + '{"timestamp": 3000, "input_length": "many"}\n')
    with pytest.raises(UsageError, match=r"bad\.jsonl.*3"):
        run_cell(Cell(path, "lru", 4))


def test_a_policy_without_the_mode_is_an_error() -> None:
    with pytest.raises(UsageError, match="evidence"):
        make_cache(trace_of([[1]]), "evidence", 4, "raw")
