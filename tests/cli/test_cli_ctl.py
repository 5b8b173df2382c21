"""`warmtier ctl` against a socket with a made-up engine behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warmtier.cli.app import run
from warmtier.core.errors import UsageError
from warmtier.engines.vllm import control

TIER = {
    "mode": "on", "breaker": "closed", "resident_chunks": 3, "capacity_chunks": 8, "hits": 5, "misses": {"absent": 2},
    "stores": {"stored": 4}, "evictions": 1, "promotions": 0, "waiting_for": None,
}  # fmt: skip


class Engine:
    """Answers like an engine and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[control.Request] = []
        self.jobs = 2

    def answer(self, request: control.Request) -> dict[str, Any]:
        self.asked.append(request)
        match request:
            case control.Mode():
                return {"tiers": {"host": TIER, "file": {**TIER, "mode": request.mode or "on"}}}
            case control.Stats():
                return {"epoch": 0, "requests": 1, "jobs": 0, "tiers": {"host": TIER}}
            case control.Drain():
                self.jobs -= 1
                return {"drained": self.jobs <= 0, "jobs": self.jobs}
            case control.Evict():
                return {"evicted": {"host": 1, "file": 2}, "known": 3, "forgotten_owners": 0}
            case control.Explain():
                if request.request == "none":
                    raise UsageError("no request 'none' among the last 4", fix="use a recent id")
                return {"explanation": {"request": "r1", "decision": "load", "hits": {"file": 64}, "reason": None}}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine()
    socket = control.ControlSocket(tmp_path / "s", made.answer)
    yield made
    socket.close()


def _ctl(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> tuple[int, str, str]:
    code = run(["ctl", "--socket", str(path / "s"), *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_modes_are_shown_and_set(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _ctl(capsys, tmp_path, "mode", "show")
    assert (code, "file  on" in out) == (0, True)
    code, out, _ = _ctl(capsys, tmp_path, "mode", "set", "file", "off")
    assert code == 0
    assert "takes effect with its next step" in out, "nothing steps here"
    assert engine.asked == [control.Mode()]


def test_figures_explanations_and_drains(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _ctl(capsys, tmp_path, "stats", "--format", "json")
    assert code == 0
    assert json.loads(out)["tiers"]["host"]["hits"] == 5
    code, out, _ = _ctl(capsys, tmp_path, "explain", "r1")
    assert (code, "load" in out, '{"file": 64}' in out) == (0, True, True)
    assert _ctl(capsys, tmp_path, "drain")[0] == 0
    assert _ctl(capsys, tmp_path, "stats")[0] == 0
    engine.jobs = 10_000
    code, _, error = _ctl(capsys, tmp_path, "drain", "--timeout", "10ms")
    assert (code, "still under way" in error) == (1, True)


def test_errors_have_words_and_exit_codes(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = _ctl(capsys, tmp_path, "explain", "none")
    assert (code, "no request 'none'" in error) == (2, True)
    code, _, error = _ctl(capsys, tmp_path / "elsewhere", "stats")
    assert (code, "no engine answers" in error) == (4, True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run(["ctl", "stats"]) == 2
    assert "which engine?" in capsys.readouterr().err
