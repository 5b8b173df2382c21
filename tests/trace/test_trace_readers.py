from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from trace_helpers import shared_trace, write_lines

from warmtier.core.errors import UsageError
from warmtier.trace.access_log import AccessRecord, KeyHasher, encode_record
from warmtier.trace.claude_code import ClaudeCodeTrace, SessionStarts, Starts
from warmtier.trace.lines import TraceError
from warmtier.trace.mooncake import infer_block_tokens
from warmtier.trace.openai_log import OpenAILogTrace
from warmtier.trace.readers import ReadOptions, open_trace, sniff
from warmtier.trace.schema import TraceRequest, check


def moon(at_ms: float, tokens: int, ids: list[int], **more: Any) -> str:
    return json.dumps({"timestamp": at_ms, "input_length": tokens, "output_length": 3, "hash_ids": ids, **more})


def read(path: Path, **options: Any) -> list[TraceRequest]:
    return list(open_trace(path, ReadOptions(**options)).trace)


# --- Mooncake and its kin ---


def test_mooncake_plain_and_gzip_read_the_same(tmp_path: Path) -> None:
    lines = [moon(1000, 1100, [0, 1, 2]), moon(1500, 1536, [0, 1, 3], session_id="a")]
    plain, packed = write_lines(tmp_path / "t.jsonl", lines), write_lines(tmp_path / "t.jsonl.gz", lines)
    assert sniff(plain) == sniff(packed) == "mooncake"
    first, second = read(plain)
    assert read(packed) == [first, second]
    assert (first.arrival_s, second.arrival_s) == (0.0, 0.5)
    assert (first.chunk_tokens, first.partial_tail, first.full_keys) == (512, True, [0, 1])
    assert (second.partial_tail, second.session) == (False, "a")


@pytest.mark.parametrize(
    ("pairs", "size"),
    [([(6758, 14), (7322, 15)], 512), ([(323, 20), (813, 50)], 16), ([(10, 3), (7, 9)], None), ([], None)],
)
def test_block_size_is_found_from_lengths(pairs: list[tuple[int, int]], size: int | None) -> None:
    assert infer_block_tokens(pairs) == size


def test_malformed_lines_are_named_or_counted(tmp_path: Path) -> None:
    good = [moon(i, 512, [i]) for i in range(4)]
    bad = ['{"timestamp": 1}', "not json", moon(3, 512, [1, 2, 3, 4]), moon(1, 512, [-1]), moon(0, 512, [9])]
    path = write_lines(tmp_path / "t.jsonl", [*good, *bad])
    with pytest.raises(TraceError, match=r"t\.jsonl:5: .*input_length"):
        read(path)
    opened = open_trace(path, ReadOptions(skip_bad=True))
    assert len(list(opened.trace)) == 4
    assert opened.file.problems.skipped == 5
    assert "t.jsonl:5" in str(opened.file.problems.first)
    assert len(list(opened.trace)) == 4, "a trace can be read again"
    assert opened.file.problems.skipped == 5


def test_truncated_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(moon(i, 512, [i]) for i in range(5000)).encode())[:-2000])
    with pytest.raises(TraceError, match="cannot be decompressed"):
        read(path)


def test_unknown_files_and_formats_get_help(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", ['{"a": 1}'])
    with pytest.raises(UsageError, match="format is not known"):
        read(path)
    with pytest.raises(UsageError, match="unknown trace format") as error:
        read(path, format="moncake")
    assert "did you mean 'mooncake'" in str(error.value)
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "absent")
    with pytest.raises(UsageError, match="cannot be made"):
        read(write_lines(tmp_path / "m.jsonl", [moon(0, 512, [1])]), chunk_tokens=700)


def test_bailian_content_ids_are_chained(tmp_path: Path) -> None:
    def line(chat: int, parent: int, at: float, ids: list[int]) -> str:
        lengths = {"input_length": 16 * len(ids), "output_length": 1}
        return json.dumps({"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "hash_ids": ids, **lengths})

    path = write_lines(
        tmp_path / "b.jsonl", [line(1, -1, 5.0, [7, 8]), line(2, 1, 6.5, [7, 8, 9]), line(3, -1, 7, [9, 8])]
    )
    assert sniff(path) == "bailian"
    first, second, third = read(path)
    assert second.keys[:2] == first.keys
    assert third.keys[1] != first.keys[1], "equal content behind another prefix is another chunk"
    assert [r.session for r in (first, second, third)] == ["1", "1", "3"]
    assert second.arrival_s == 1.5


# --- coding agents ---


def session(name: str, steps: list[dict[str, Any]]) -> str:
    return json.dumps({"id": name, "block_size": 64, "requests": steps})


def step(t: float, keep: int, add: list[list[int]], tokens: int) -> dict[str, Any]:
    return {"t": t, "in": tokens, "out": 5, "keep": keep, "add": add}


def test_sessions_keep_and_add_blocks_and_share_nothing(tmp_path: Path) -> None:
    agent = {"t": 4.0, "type": "subagent", "requests": [step(0.0, 0, [[1, 1], [50, 1]], 128)]}
    steps = [step(0.0, 0, [[1, 2]], 130), step(9.0, 1, [[10, 2]], 192), agent]
    path = write_lines(tmp_path / "c.jsonl", [session("a", steps), session("b", steps)])
    assert sniff(path) == "claude-code"
    starts = SessionStarts(Starts.REGULAR, 100.0)
    trace = ClaudeCodeTrace(path, starts=starts)
    requests = list(trace)
    assert [r.arrival_s for r in requests] == [0.0, 4.0, 9.0, 100.0, 104.0, 109.0]
    first, helper, second = requests[:3]
    assert second.keys[0] == first.keys[0]
    assert second.keys[1] != first.keys[1]
    assert helper.keys[0] == first.keys[0], "sub-agents share the session's blocks"
    assert not set(first.keys) & set(requests[3].keys)
    assert "regular, mean gap 100s, seed 0" in trace.notes[0]


def test_session_starts_are_seeded_and_stated() -> None:
    drawn = [[s for s, _ in zip(SessionStarts(seed=n).draw(), range(50), strict=False)] for n in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    gaps = [b - a for a, b in zip(drawn[0], drawn[0][1:], strict=False)]
    assert 20 < sum(gaps) / len(gaps) < 180
    assert [s for s, _ in zip(SessionStarts(Starts.TOGETHER).draw(), range(3), strict=False)] == [0.0, 0.0, 0.0]


def test_impossible_sessions_are_named(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "c.jsonl", [session("a", [step(0.0, 3, [], 640)]), session("b", [step(0, 0, [[1, 2]], 100)])]
    )
    with pytest.raises(TraceError, match=r"c\.jsonl:1: session a, t=0\.0: keeps 3 blocks"):
        list(ClaudeCodeTrace(path))
    trace = ClaudeCodeTrace(path, skip_bad=True)
    assert list(trace) == []
    assert trace.problems.skipped == 2


def test_real_coding_sessions_are_read_in_order() -> None:
    path = shared_trace("claude_code_weka_sessions_blk64_delta.jsonl.gz")
    count, latest, requests = 0, 0.0, iter(ClaudeCodeTrace(path))
    for request in requests:
        assert request.arrival_s >= latest
        assert check(request) is None
        latest, count = request.arrival_s, count + 1
        if count == 3000:
            break
    assert count == 3000


# --- access log ---


def test_access_log_round_trip_sorts_and_keeps_prefixes(tmp_path: Path) -> None:
    hasher = KeyHasher(b"0123456789abcdef")
    keys = [bytes([i]) * 32 for i in range(5)]
    records = [
        AccessRecord(
            request="late", arrival_s=103.0, prompt_tokens=70, output_tokens=2, chunk_tokens=16,
            keys=hasher.pack(keys[:4]),
        ),
        AccessRecord(
            request="early", arrival_s=100.0, prompt_tokens=40, output_tokens=1, chunk_tokens=16,
            keys=hasher.pack(keys[:2]), session=hasher.name("me"), hits={"device": 16, "host": 16}, decision="load",
            reason="absent",
        ),
    ]  # fmt: skip
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(map(encode_record, records)))
    assert sniff(path) == "access-log"
    early, late = read(path)
    assert (early.arrival_s, late.arrival_s) == (0.0, 3.0)
    assert late.keys[:2] == early.keys
    assert "me" not in path.read_text()
    decoded = msgspec.json.decode(path.read_bytes().splitlines()[1], type=AccessRecord)
    assert decoded.hits == {"device": 16, "host": 16}


def test_access_log_of_another_version_or_chunk_size_is_refused(tmp_path: Path) -> None:
    base = AccessRecord(request="r", arrival_s=1.0, prompt_tokens=32, output_tokens=1, chunk_tokens=16, keys="00" * 16)
    for change, reason in (({"v": 2}, "version 2"), ({"chunk_tokens": 32}, "began with 16"), ({"keys": "0g"}, "keys")):
        path = tmp_path / "a.jsonl"
        path.write_bytes(encode_record(base) + encode_record(msgspec.structs.replace(base, **change)))
        with pytest.raises(TraceError, match=rf"a\.jsonl:2: .*{reason}"):
            read(path)


# --- request logs with texts ---


def tokenize(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_openai_logs_become_keys_and_lengths_only(tmp_path: Path) -> None:
    system = {"role": "system", "content": "x" * 40}
    chat = {
        "model": "m",
        "messages": [system, {"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "user": "tom",
    }
    longer = {"model": "m", "messages": [system, {"role": "user", "content": "hello"}], "user": "tom"}
    lines = [
        json.dumps(
            {"timestamp": "2026-01-02T03:04:05+00:00", "body": chat, "response": {"usage": {"completion_tokens": 7}}}
        ),
        json.dumps({"timestamp": 1767323050, "request": longer, "session_id": "s"}),
        json.dumps({"timestamp": 1767323051000, "prompt": [1] * 40, "max_tokens": 9}),
    ]
    path = write_lines(tmp_path / "o.jsonl", lines)
    assert sniff(path) == "openai-log"
    first, second, third = list(OpenAILogTrace(path, tokenize))
    shared = sum(a == b for a, b in zip(first.keys, second.keys, strict=False))
    assert shared == len("<|im_start|>system\n" + "x" * 40 + "<|im_end|>\n<|im_start|>user\nh") // 16
    assert (first.output_tokens, third.output_tokens) == (7, 9)
    assert (first.arrival_s, second.arrival_s, third.arrival_s) == (0.0, 5.0, 6.0)
    assert first.tenant == second.tenant
    assert first.tenant != "tom"
    assert third.prompt_tokens == 40
    assert len(third.keys) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"timestamp": 1, "messages": "no"}, "prompt|messages"),
        ({"prompt": "x"}, "no time"),
        ({"timestamp": "yesterday", "prompt": "x"}, "is no time"),
        ({"timestamp": 1, "prompt": {"a": 1}}, "text or a list"),
    ],
)
def test_openai_lines_that_lack_something_are_named(tmp_path: Path, line: dict[str, Any], reason: str) -> None:
    path = write_lines(tmp_path / "o.jsonl", [json.dumps(line)])
    with pytest.raises((TraceError, KeyError), match=reason):
        list(OpenAILogTrace(path, tokenize))


def test_openai_logs_need_a_tokenizer(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "o.jsonl", [json.dumps({"timestamp": 1, "prompt": "x"})])
    with pytest.raises(UsageError, match="needs a tokenizer"):
        open_trace(path)
