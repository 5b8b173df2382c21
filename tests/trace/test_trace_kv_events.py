from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from warmtier.core.errors import UsageError
from warmtier.trace.kv_events import KvEventTrace, log_batch
from warmtier.trace.lines import BadLine, TraceError
from warmtier.trace.readers import open_trace, sniff
from warmtier.trace.record import Recording, record


def stored(hashes: list[bytes], parent: bytes | None, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": [1] * 16 * len(hashes),
        "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None, **more,
    }  # fmt: skip


def batch(at_s: float, *events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([at_s, list(events), 0])


def names(*numbers: int) -> list[bytes]:
    return [bytes([n]) * 32 for n in numbers]


def write_log(path: Path, *batches: bytes) -> Path:
    lines = [msgspec.json.encode(event) for payload in batches for event in log_batch(payload)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_requests_reach_back_over_their_parents(tmp_path: Path) -> None:
    path = write_log(
        tmp_path / "e.jsonl",
        batch(10.0, stored(names(1, 2), None)),
        batch(10.5, stored(names(3), names(2)[0], session_id="s")),  # chunked prefill of the same request
        batch(20.0, stored(names(4), names(2)[0])),  # another request: leaves at block 2
        batch(21.0, {"type": "BlockRemoved", "block_hashes": names(1), "medium": "GPU"}, {"type": "AllBlocksCleared"}),
    )
    assert sniff(path) == "kv-events"
    opened = open_trace(path)
    first, second = list(opened.trace)
    assert len(first.keys) == 3
    assert first.prompt_tokens == 48
    assert second.keys[:2] == first.keys[:2]
    assert second.keys[2] != first.keys[2]
    assert second.arrival_s == 10.0
    assert "computed blocks only" in opened.notes[0]


def test_merge_gap_decides_what_is_one_request(tmp_path: Path) -> None:
    path = write_log(
        tmp_path / "e.jsonl", batch(0.0, stored(names(1), None)), batch(5.0, stored(names(2), names(1)[0]))
    )
    assert [len(r.keys) for r in KvEventTrace(path)] == [1, 2]
    assert [len(r.keys) for r in KvEventTrace(path, merge_gap_s=10.0)] == [2]


def test_log_keeps_no_token_and_no_hash_and_only_the_device(tmp_path: Path) -> None:
    payload = batch(
        1.0, stored(names(65), None), stored(names(66), None, medium="CPU"), stored(names(67), None, group_idx=1)
    )
    path = write_log(tmp_path / "e.jsonl", payload)
    text = path.read_text()
    assert len(text.splitlines()) == 1
    assert "token" not in text.replace("block_tokens", "")
    assert "AAAA" not in text


def test_messages_of_another_form_are_refused() -> None:
    with pytest.raises(BadLine, match="not a KV event message"):
        log_batch(msgspec.msgpack.encode({"ts": 1}))


def test_log_without_blocks_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "e.jsonl", batch(1.0, {"type": "AllBlocksCleared"}))
    with pytest.raises(TraceError, match="no stored block"):
        KvEventTrace(path)


def test_record_follows_a_live_publisher(tmp_path: Path) -> None:
    zmq = pytest.importorskip("zmq")
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    seen, log = Recording(), tmp_path / "live.jsonl"
    stop = threading.Event()
    thread = threading.Thread(target=lambda: record(f"tcp://127.0.0.1:{port}", log, seen, stop=stop.is_set))
    thread.start()
    try:
        # A subscription takes a moment to arrive: publish until one message was seen, then three more, one lost.
        number, deadline = 0, time.monotonic() + 20
        while not seen.messages and time.monotonic() < deadline:
            socket.send_multipart(
                [b"", number.to_bytes(8, "big"), batch(float(number), stored(names(number % 250), None))]
            )
            number += 1
            time.sleep(0.02)
        start = seen.messages
        for extra in (number, number + 2):
            socket.send_multipart([b"", extra.to_bytes(8, "big"), batch(float(extra), stored(names(251), None))])
        socket.send_multipart([b"", (number + 3).to_bytes(8, "big"), b"\xc1"])
        while seen.messages < start + 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        stop.set()
        thread.join(10)
        socket.close(0)
        context.term()
    assert seen.messages >= 4
    assert seen.malformed == 1
    assert seen.lost >= 1
    assert (log.stat().st_mode & 0o777) == 0o600
    assert len(list(KvEventTrace(log))) == seen.events


def test_record_ends_at_its_size_and_refuses_bad_endpoints(tmp_path: Path) -> None:
    pytest.importorskip("zmq")
    with pytest.raises(UsageError, match="cannot be subscribed"):
        record("nonsense", tmp_path / "x", Recording())
    seen = Recording()
    record("tcp://127.0.0.1:9", tmp_path / "y", seen, duration_s=0.05)
    assert seen.messages == 0
