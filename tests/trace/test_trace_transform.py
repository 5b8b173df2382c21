from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_helpers import lru_prefix_hits, random_requests

from warmtier.core.errors import UsageError
from warmtier.trace.anonymize import Anonymizer
from warmtier.trace.readers import ReadOptions, open_trace
from warmtier.trace.sample import infer_sessions, sample_keys, sample_sessions
from warmtier.trace.schema import TraceRequest, check
from warmtier.trace.synth import PATTERNS, SynthTrace
from warmtier.trace.tokens import TokenSource
from warmtier.trace.writer import write_trace

SECRET = b"0123456789abcdef0123456789abcdef"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), round_tokens=st.sampled_from([1, 3, 64]))
def test_disguise_changes_no_hit_and_keeps_no_name(seed: int, round_tokens: int) -> None:
    trace = random_requests(seed, 40, tails=False)
    for request in trace:
        request.session, request.tenant = "alice", "acme"
    hidden = list(Anonymizer(SECRET, round_tokens=round_tokens).apply(trace))
    assert all(check(request) is None for request in hidden)
    for capacity in (2, 7, 30):
        assert lru_prefix_hits([r.keys for r in hidden], capacity) == lru_prefix_hits([r.keys for r in trace], capacity)
    assert {r.session for r in hidden} != {"alice"}
    assert not {key for r in hidden for key in r.keys} & {key for r in trace for key in r.keys}


def test_disguise_is_keyed_and_rounds() -> None:
    request = TraceRequest(12.7, 10, 7, [1, 2, 3], 4, partial_tail=True)
    one, same, other = (next(Anonymizer(s, 4, 5.0).apply([request])) for s in (SECRET, SECRET, SECRET[::-1]))
    assert one == same
    assert one.keys != other.keys
    assert (one.arrival_s, one.prompt_tokens, one.output_tokens, one.partial_tail) == (10.0, 8, 8, False)
    assert len(one.keys) == 2, "a tail of no token has no key"
    assert Anonymizer().secret != Anonymizer().secret


@pytest.mark.parametrize("bad", [{"secret": b"short"}, {"secret": SECRET, "round_tokens": 0}])
def test_disguise_refuses_bad_settings(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"secret|round"):
        Anonymizer(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_written_traces_read_back_and_repeat_byte_for_byte(tmp_path: Path, name: str) -> None:
    trace = random_requests(11, 60)
    path = tmp_path / name
    assert write_trace(trace, path, renumber=False) == 60
    back = list(open_trace(path, ReadOptions(block_tokens=4)).trace)
    for before, after in zip(trace, back, strict=True):
        assert after.arrival_s == pytest.approx(before.arrival_s - trace[0].arrival_s, abs=0.002)
        assert (after.keys, after.prompt_tokens, after.partial_tail) == (
            before.keys,
            before.prompt_tokens,
            before.partial_tail,
        )
    first = path.read_bytes()
    write_trace(trace, path, renumber=False)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [name], "no temporary file stays"


def test_renumbered_traces_have_small_ids_in_order(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace([TraceRequest(0.0, 8, 1, [900, 700], 4), TraceRequest(1.0, 8, 1, [900, 5], 4)], path)
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert [line["hash_ids"] for line in lines] == [[0, 1], [0, 2]]
    assert set(lines[0]) == {"timestamp", "input_length", "output_length", "hash_ids"}


def test_failed_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("old")

    def broken() -> Iterator[TraceRequest]:
        yield TraceRequest(0.0, 4, 1, [1], 4)
        raise RuntimeError("reader failed")

    with pytest.raises(RuntimeError):
        write_trace(broken(), path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_session_sample_keeps_sessions_whole() -> None:
    trace = list(infer_sessions(random_requests(2, 600)))
    kept = list(sample_sessions(trace, 0.3, seed=5))
    chosen = {r.session for r in kept}
    assert 0.1 < len(kept) / len(trace) < 0.6
    assert len(kept) == sum(r.session in chosen for r in trace)
    assert kept == list(sample_sessions(trace, 0.3, seed=5))
    assert {r.session for r in sample_sessions(trace, 0.3, seed=6)} != chosen


def test_key_sample_keeps_a_key_everywhere_or_nowhere() -> None:
    trace = random_requests(4, 400)
    kept = list(sample_keys(trace, 0.25, seed=1))
    chosen = {key for request in kept for key in request.keys}
    all_keys = {key for request in trace for key in request.full_keys}
    assert 0.15 < len(chosen) / len(all_keys) < 0.35
    assert sum(len(r.keys) for r in kept) == sum(key in chosen for r in trace for key in r.full_keys)
    assert all(check(request) is None for request in kept)


def test_samples_refuse_what_they_cannot_do() -> None:
    with pytest.raises(UsageError, match="does not tell sessions"):
        list(sample_sessions([TraceRequest(0.0, 4, 1, [1], 4)], 0.5))
    with pytest.raises(UsageError, match="rate"):
        list(sample_keys([], 0.0))


# --- synthetic traces ---


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_patterns_are_valid_ordered_and_repeat(pattern: str) -> None:
    trace = SynthTrace(pattern, {"requests": "400", "seed": "3"})
    requests = list(trace)
    assert len(requests) == 400
    assert all(check(request) is None for request in requests)
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(requests))
    assert requests == list(trace)
    assert requests != list(SynthTrace(pattern, {"requests": "400", "seed": "4"}))


def ceiling(requests: list[TraceRequest]) -> float:
    seen: set[int] = set()
    hits = total = 0
    for request in requests:
        hits += next((i for i, key in enumerate(request.keys) if key not in seen), len(request.keys))
        total += len(request.keys)
        seen.update(request.keys)
    return hits / total


def test_patterns_do_what_their_names_say() -> None:
    made = {name: list(SynthTrace(name, {"requests": "1000"})) for name in PATTERNS}
    assert ceiling(made["one-shot"]) < 0.06
    assert ceiling(made["shared-prefix"]) > 0.85
    assert ceiling(made["sessions"]) > 0.6
    tight = made["tight-device"]
    latest: dict[str | None, int] = {}
    distance = []
    for index, request in enumerate(tight):
        if request.session in latest:
            distance.append(index - latest[request.session])
        latest[request.session] = index
    assert max(distance) < 2 * 40, "no session is idle for long"
    cold = made["cold-reuse"]
    assert cold[-1].arrival_s > 86_400, "reuse comes after days"


def test_knobs_are_checked() -> None:
    with pytest.raises(UsageError, match="unknown pattern"):
        SynthTrace("busy")
    for setting, reason in (
        ({"turns": "1"}, "unknown knob"),
        ({"requests": "x"}, "integer"),
        ({"prompt_tokens": "0"}, "above 0"),
    ):
        with pytest.raises(UsageError, match=reason):
            SynthTrace("one-shot", setting)


def test_tokens_follow_keys() -> None:
    source = TokenSource()
    one = source.prompt(TraceRequest(0.0, 10, 1, [5, 6, 7], 4, partial_tail=True), 0)
    two = source.prompt(TraceRequest(0.0, 12, 1, [5, 9, 4], 4), 1)
    again = TokenSource().prompt(TraceRequest(0.0, 10, 1, [5, 6, 7], 4, partial_tail=True), 0)
    assert len(one) == 10
    assert one == again
    assert one[:4] == two[:4]
    assert one[4:8] != two[4:8]
    assert source.prompt(TraceRequest(0.0, 10, 1, [5, 6, 7], 4, partial_tail=True), 2)[8:] != one[8:]
    assert min(one) >= 1000
