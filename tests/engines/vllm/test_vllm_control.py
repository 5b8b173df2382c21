"""The control socket, the decisions it explains, and the access log. No server."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm_mini_engine import BLOCK_TOKENS, MiniEngine, cold_engine, fill, tokens

from warmtier.core.errors import RequirementError
from warmtier.core.types import Key
from warmtier.engines.vllm import control
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.control import ControlSocket, call
from warmtier.engines.vllm.decisions import DecisionRing
from warmtier.engines.vllm.operations import TenantKeys
from warmtier.trace.access_log import AccessLogTrace, AccessRecord


def _stepping(engine: MiniEngine, ask: Callable[[], Any]) -> Any:
    """Run ``ask`` in a thread while the engine makes steps."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    while thread.is_alive():
        engine.step()
        time.sleep(0.001)
    thread.join()
    return answers[0]


@pytest.fixture
def controlled(tmp_path: Path) -> Any:
    engine = cold_engine(tmp_path)
    engine.manager.control = ControlSocket(tmp_path / "c.sock", engine.manager.operations.answer)
    yield engine
    engine.close()
    assert not (tmp_path / "c.sock").exists()


def test_a_tier_is_switched_off_and_on_without_a_restart(controlled: MiniEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    fill(controlled, range(4))
    answer = _stepping(controlled, lambda: call(path, control.Mode("file", "off")))
    assert answer["tiers"]["file"]["mode"] == "off"
    assert controlled.serve(tokens(0, 6)).loaded_tokens == 0
    answer = _stepping(controlled, lambda: call(path, control.Mode("file", "on")))
    assert answer["tiers"]["file"]["mode"] == "on"
    assert controlled.serve(tokens(1, 6)).loaded_tokens == 6 * BLOCK_TOKENS


def test_an_idle_engine_answers_what_reads_and_queues_what_changes(controlled: MiniEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    answer = call(path, control.Stats())
    assert answer["ok"]
    assert answer["idle"]
    assert set(answer["tiers"]) == {"host", "file"}
    answer = call(path, control.Mode("host", "off"))
    assert "queued" in answer
    assert controlled.cache.stats().tiers["host"].mode.value == "on"
    controlled.step()
    assert controlled.cache.stats().tiers["host"].mode.value == "off"


def test_a_tenant_is_evicted_from_every_tier(controlled: MiniEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    for seed in (1, 2):
        controlled.serve(tokens(seed, 6), warmtier={"tenant": "a" if seed == 1 else "b"})
    controlled.idle()
    answer = _stepping(controlled, lambda: call(path, control.Evict("a")))
    assert answer["known"] == 6
    assert answer["evicted"]["file"] == 6
    controlled.idle()
    assert controlled.serve(tokens(1, 6)).loaded_tokens == 0
    assert controlled.serve(tokens(2, 6)).loaded_tokens == 6 * BLOCK_TOKENS
    assert _stepping(controlled, lambda: call(path, control.Evict("nobody")))["known"] == 0


def test_a_request_is_explained(controlled: MiniEngine, tmp_path: Path) -> None:
    fill(controlled, range(4))
    controlled.serve(tokens(0, 6), warmtier={"session": "s"})
    found = call(tmp_path / "c.sock", control.Explain(f"r{controlled.requests}"))["explanation"]
    assert found["decision"] == "load"
    assert found["hits"] == {"file": 6 * BLOCK_TOKENS}
    assert found["session"] == "s"
    assert not call(tmp_path / "c.sock", control.Explain("unknown"))["ok"]


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b'{"op":"fly"}\n', b'{"op":"mode","extra":1}\n', b"x" * 40_000])
def test_nonsense_is_answered_and_harms_nothing(controlled: MiniEngine, tmp_path: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(str(tmp_path / "c.sock"))
        try:
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            assert not json.loads(client.recv(65536))["ok"]
        except (BrokenPipeError, ConnectionResetError):
            pass  # it stopped reading
    assert call(tmp_path / "c.sock", control.Drain())["drained"]


def test_unknown_tiers_and_modes_are_named(controlled: MiniEngine, tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    for request, words in (
        (control.Mode("disk", "off"), "disk"),
        (control.Mode("file", "sideways"), "sideways"),
        (control.Mode("file", "canary"), "not available"),
        (control.Mode(None, "off"), "which tier"),
    ):
        answer = _stepping(controlled, lambda request=request: call(path, request))  # type: ignore[misc]
        assert not answer["ok"]
        assert words in answer["error"]


def test_a_second_engine_does_not_take_a_living_socket_and_takes_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "c.sock"
    first = ControlSocket(path, lambda _: {})
    with pytest.raises(RequirementError, match="another engine"):
        ControlSocket(path, lambda _: {})
    first.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    second = ControlSocket(path, lambda _: {})
    second.close()
    with pytest.raises(RequirementError, match="longer than"):
        ControlSocket(tmp_path / ("x" * 120), lambda _: {})


def test_the_ring_forgets_the_oldest_and_finds_what_clients_see() -> None:
    ring = DecisionRing(kept=3)
    for number in range(5):
        ring.note(f"cmpl-{number}-0-abcd1234", {"number": number})
    assert len(ring) == 3
    assert ring.find("cmpl-1") is None
    assert ring.find("cmpl-4") == {"request": "cmpl-4-0-abcd1234", "number": 4}


def test_owners_are_bounded_and_the_first_to_store_owns() -> None:
    owners = TenantKeys(max_keys=3)
    owners.stored("a", [Key(b"1"), Key(b"2")])
    owners.stored("b", [Key(b"2"), Key(b"3"), Key(b"4")])
    owners.stored(None, [Key(b"5")])
    assert len(owners) == 3
    assert owners.forgotten == 1
    assert owners.take("a") == [b"2"]
    assert owners.take("b") == [b"3", b"4"]


# --- the access log ---


def _record(number: int) -> AccessRecord:
    return AccessRecord(
        request=f"r{number}", arrival_s=float(number), prompt_tokens=8, output_tokens=1, chunk_tokens=4, keys="",
        session="chat",
    )  # fmt: skip


def test_the_log_is_a_trace_without_names_or_keys(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    log = AccessLog(path, capacity_bytes=1 << 20)
    for number in range(10):
        log.write(_record(number), [Key(b"key-one"), Key(b"key-two")])
    log.close()
    assert log.written == 10
    text = path.read_text()
    assert "chat" not in text
    assert b"key-one".hex() not in text
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "access.jsonl.key").stat().st_mode) == 0o600
    requests = list(AccessLogTrace(path))
    assert len(requests) == 10
    assert len({tuple(request.keys) for request in requests}) == 1
    again = AccessLog(path, capacity_bytes=1 << 20)
    again.write(_record(11), [Key(b"key-one"), Key(b"key-two")])
    again.close()
    assert len({tuple(request.keys) for request in AccessLogTrace(path)}) == 1, "keys are comparable over restarts"


def test_the_log_never_exceeds_its_capacity(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    log = AccessLog(path, capacity_bytes=8_000, files=4, max_queue=100_000)
    for number in range(500):
        log.write(_record(number), [Key(b"k")])
    log.close(30)
    files = sorted(file for file in tmp_path.iterdir() if file.suffix != ".key")
    assert [file.name for file in files] == ["access.jsonl", *(f"access.jsonl.{number}" for number in (1, 2, 3))]
    assert sum(file.stat().st_size for file in files) <= 8_000
    assert json.loads(path.read_text().splitlines()[-1])["request"] == "r499"


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    original = AccessLog._append
    monkeypatch.setattr(AccessLog, "_append", lambda self, *item: (stop.wait(20), original(self, *item)))
    log = AccessLog(tmp_path / "a.jsonl", capacity_bytes=1 << 20, max_queue=5)
    for number in range(20):
        log.write(_record(number), [])
    assert log.dropped >= 14
    stop.set()
    log.close(20)
    assert log.written + log.dropped == 20


def test_a_log_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequirementError, match="access log"):
        AccessLog(tmp_path / "file" / "a.jsonl", capacity_bytes=1 << 20)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said_once_and_counted(tmp_path: Path) -> None:
    lines: list[str] = []
    log = AccessLog(tmp_path / "a.jsonl", capacity_bytes=1 << 20, log=lines.append)
    log._file.close()
    log._file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115
    for number in range(5):
        log.write(_record(number), [])
    log.close()
    assert log.dropped == 5
    assert len(lines) == 1


def test_each_request_leaves_one_record(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    engine = cold_engine(tmp_path, access_log=AccessLog(path, capacity_bytes=1 << 20))
    fill(engine, range(4))
    engine.serve(tokens(0, 6), device_blocks=2, warmtier={"session": "s", "tenant": "t"})
    engine.close()
    records = [record for _, record in AccessLogTrace(path).records(_no_problems())]
    assert len(records) == 5
    last = records[-1]
    assert (last.decision, last.hits) == ("load", {"device": 2 * BLOCK_TOKENS, "file": 4 * BLOCK_TOKENS})
    assert last.session
    assert last.session != "s"
    assert last.pending_s is not None
    assert last.load_s is not None
    assert records[0].decision == "miss"
    assert records[0].stores == {"stored": 6}


def test_true_lengths_are_logged_where_a_connector_tells_them(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"
    engine = cold_engine(tmp_path, access_log=AccessLog(path, capacity_bytes=1 << 20))
    finished = engine.manager.on_request_finished

    def told(context: Any) -> None:
        engine.manager.note_lengths(context.req_id, 27, 5)
        engine.manager.note_lengths("unknown", 1, 1)
        finished(context)

    engine.manager.on_request_finished = told
    engine.serve(tokens(0, 6))
    engine.close()
    ((_, record),) = AccessLogTrace(path).records(_no_problems())
    assert (record.prompt_tokens, record.output_tokens) == (27, 5)


def _no_problems() -> Any:
    from warmtier.trace.lines import Problems

    return Problems(skip=False)
