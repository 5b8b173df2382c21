from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from trace_helpers import random_requests, shared_trace

from warmtier.core.model import KNOWN_MODELS
from warmtier.trace.columns import read_columns
from warmtier.trace.profile import ProfileOptions, profile_trace
from warmtier.trace.readers import open_trace
from warmtier.trace.reuse import by_use_count, give_sessions
from warmtier.trace.sample import infer_sessions
from warmtier.trace.schema import TraceRequest
from warmtier.trace.synth import SynthTrace


class Requests:
    def __init__(self, requests: list[TraceRequest], chunk_tokens: int = 4) -> None:
        self.requests = requests
        self.chunk_tokens = chunk_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)


def made(paths: list[list[int]], gap_s: float = 1.0, **more: object) -> list[TraceRequest]:
    return [TraceRequest(gap_s * i, 4 * len(p), 2, p, 4, **more) for i, p in enumerate(paths)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "ceiling", "again"),
    [
        ("mooncake_conversation_trace", 0.366, {1: 0.24, 2: 0.42, 3: 0.50, 5: 0.65}),
        ("mooncake_synthetic_trace", 0.640, {1: 0.42, 2: 0.84, 3: 0.78, 5: 0.76}),
    ],
)
def test_public_traces_have_their_ceiling_and_use_counts(name: str, ceiling: float, again: dict[int, float]) -> None:
    trace = open_trace(shared_trace(f"{name}.jsonl.gz")).trace
    columns = read_columns(trace, 512)
    assert columns.known.sum() / columns.accesses == pytest.approx(ceiling, abs=0.0006)
    found = {row.uses: row.used_again for row in by_use_count(columns)}
    for uses, share in again.items():
        assert found[uses] == pytest.approx(share, abs=0.006)


@pytest.mark.parametrize(("model", "golden"), [("qwen3-0.6b", 0.326), ("qwen3-8b", 0.348)])
def test_flop_weighted_ceiling_of_a_public_trace(model: str, golden: float) -> None:
    trace = open_trace(shared_trace("mooncake_conversation_trace.jsonl.gz")).trace
    found = profile_trace(trace, ProfileOptions(model=KNOWN_MODELS[model])).ceiling
    assert found.flop_whole_chunks == pytest.approx(golden, abs=0.005)
    assert found.flop is not None
    assert 0 < found.flop - golden < 0.01, "partial tails are shorter than whole chunks"


def test_token_ceiling_of_a_public_trace_by_the_published_protocol() -> None:
    trace = open_trace(shared_trace("mooncake_conversation_trace.jsonl.gz")).trace
    found = profile_trace(trace)
    assert found.ceiling.token == pytest.approx(0.373, abs=0.001)
    assert found.one_hit_share == pytest.approx(0.76, abs=0.005)
    tail = next(row for row in found.classes if row.request == "partial tail")
    assert tail.reused < 0.017, "a partial last block is never reused (98.3 %)"
    assert tail in found.admission.what_to_evict_outright.classes


def test_shared_prefix_is_found_with_what_it_saves() -> None:
    system = list(range(100, 110))
    paths = [[*system, 1000 + i] for i in range(30)] + [[7, 8], [7, 8]]
    requests = [TraceRequest(float(i), 4 * len(p), 1, p, 4, session=f"s{i}") for i, p in enumerate(paths)]
    answer = profile_trace(Requests(requests)).admission.which_prefixes_are_shared
    best, second = answer.prefixes
    assert (best.tokens, best.start_tokens, best.uses, best.sessions) == (40, 0, 30, 30)
    assert best.saved_tokens == 29 * 40
    assert best.median_gap_s == 1.0
    assert (second.tokens, second.uses, second.request) == (8, 2, 31)
    assert answer.known_from_other_sessions == pytest.approx((29 * 10 + 2) / (30 * 11 + 4))


def test_time_to_first_reuse_and_gaps() -> None:
    found = profile_trace(Requests(made([[1], [2], [1], [3], [1]], gap_s=2.0))).admission.how_long_until_reuse
    assert found.reused_share == pytest.approx(1 / 3)
    assert (found.first_reuse_s.p50, found.first_reuse_s.count) == (4.0, 1)
    assert (found.gap_s.p50, found.gap_s.count) == (4.0, 2)


def test_useful_chunk_is_the_largest_that_loses_little() -> None:
    # Reuse comes in multiples of 8 keys: chunks of 8 lose nothing, of 16 half.
    paths = [[*range(8), *range(100 + 8 * i, 108 + 8 * i)] for i in range(40)]
    options = ProfileOptions(kv_bytes_per_token=10, bandwidth=1000.0, fixed_s=0.5)
    answer = profile_trace(Requests(made(paths)), options).admission.how_large_is_a_useful_chunk
    assert answer.largest_useful_tokens == 32
    by_tokens = {row.tokens: row for row in answer.sizes}
    assert by_tokens[64].token_ceiling == 0.0
    assert by_tokens[32].size_bytes == 320
    assert by_tokens[32].transfer_s == pytest.approx(0.5 + 0.32)
    moved = answer.transfers
    assert moved is not None
    assert moved.load_mean == pytest.approx(39 * 32 * 10 / 39.0)
    assert moved.load_peak >= moved.load_mean


def test_sessions_are_inferred_where_prompts_go_on() -> None:
    paths = [[1, 2, 3], [1, 2, 3, 4], [1, 2, 9], [1, 2, 3, 4, 5], [50], [1, 2, 9, 10]]
    sessions = [r.session for r in infer_sessions(made(paths))]
    assert sessions[0] == sessions[1] == sessions[3]
    assert sessions[4] not in sessions[:4]
    assert sessions[5] == sessions[2]


def test_both_ways_to_infer_sessions_agree() -> None:
    for seed in range(20):
        trace = random_requests(seed, 120)
        streamed = [r.session for r in infer_sessions([msgspec.structs.replace(r) for r in trace])]
        columns = read_columns(trace, 4)
        give_sessions(columns)
        whole = [columns.session_names[i] for i in columns.session.tolist()]
        assert whole == streamed, f"seed {seed}"


def test_tenants_and_positions_are_counted() -> None:
    requests = made([[1, 2], [1, 3]], tenant="a") + made([[5]], tenant="b")
    for index, request in enumerate(requests):
        request.arrival_s = float(index)
    found = profile_trace(Requests(requests))
    assert [(row.name, row.requests, row.known) for row in found.by_tenant] == [("a", 2, 0.25), ("b", 1, 0.0)]
    assert sum(row.chunks for row in found.by_position) == found.chunks


@pytest.mark.parametrize("pattern", ["shared-prefix", "sessions", "one-shot", "tight-device", "cold-reuse"])
def test_sampled_profile_agrees_with_the_exact_one(pattern: str) -> None:
    trace = SynthTrace(pattern, {"requests": "1500", "chunk_tokens": "32"})
    exact, sampled = profile_trace(trace), profile_trace(trace, ProfileOptions(rate=0.3))
    assert exact.ceiling_error is None
    assert sampled.ceiling_error is not None
    assert sampled.ceiling.chunk == pytest.approx(exact.ceiling.chunk, abs=max(0.03, 5 * sampled.ceiling_error))
    assert sampled.unique_chunks == pytest.approx(exact.unique_chunks, rel=0.15)
    assert sampled.ceiling.flop is None


def test_profile_of_nothing() -> None:
    found = profile_trace(Requests([]))
    assert (found.requests, found.chunks, found.ceiling.token) == (0, 0, 0.0)
    assert found.prompt_lengths.p50 is None
