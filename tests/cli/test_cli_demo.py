"""`warmtier demo` end to end against the fake server: files, exit code, words when the tier does not work."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from warmtier.cli import demo
from warmtier.cli.app import run

FAKE = Path(__file__).resolve().parents[1] / "bench" / "fake_openai.py"


def use_fake(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    commands = {
        "without": [sys.executable, "-u", str(FAKE)],
        "host_tier": [sys.executable, "-u", str(FAKE), *flags],
    }
    monkeypatch.setattr(demo, "_check_requirements", lambda _model: None)
    monkeypatch.setattr(demo, "_commands", lambda _model, _host_tier: commands)


class Page(HTMLParser):
    """Collects what would be fetched from elsewhere, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_working_tier_passes_and_leaves_result_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake(monkeypatch, "--tier")
    assert run(["demo", "--directory", str(tmp_path), "--batches", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("An evicted prefix came back from host memory in ")
    assert "with the same text" in captured.out
    assert "77.3 ms" in captured.out
    assert "with the host tier 6/6" in captured.err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["schema_version"] == 1
    assert result["kind"] == "demo.evict"
    assert result["verdict"] == {**result["verdict"], "passed": True, "failures": []}
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["warmtier"]
    assert result["servers"]["host_tier"]["run"]["cases"]["resent"]["tokens"]["host"] == 1536
    page = Page()
    page.feed((tmp_path / "report.html").read_text())
    assert page.fetched == [], "the report must not need a network"
    assert result["verdict"]["sentence"] in page.text


def test_a_slow_machine_runs_fewer_batches_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake(monkeypatch, "--tier")
    assert run(["demo", "--directory", str(tmp_path), "--batches", "3", "--time-limit", "1us"]) == 0
    assert "1 of 3 batches were run" in capsys.readouterr().err
    settings = json.loads((tmp_path / "result.json").read_text())["settings"]
    assert (settings["batches"], settings["batches_asked"]) == (1, 3)


@pytest.mark.parametrize(("limit_s", "batch_s", "expected"), [(330.0, 60.0, 3), (330.0, 10.0, 18), (5.0, 60.0, 1)])
def test_the_pace_follows_the_first_batch(limit_s: float, batch_s: float, expected: int) -> None:
    pace = demo._Pace(limit_s)
    pace._started_s -= batch_s
    assert pace.batches(batch_s) == expected


def test_a_tier_that_does_not_work_fails_and_says_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake(monkeypatch)
    assert run(["demo", "--directory", str(tmp_path), "--batches", "1", "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"]["passed"] is False
    assert "error: the demo failed" in captured.err
    assert "batch 1: the resent prefix did not come from the host tier" in captured.err
    assert "did not come from the host tier" in (tmp_path / "report.html").read_text()


def test_a_server_that_does_not_start_is_exit_3_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fake(monkeypatch, "--die")
    assert run(["demo", "--directory", str(tmp_path), "--batches", "1"]) == 3
    assert "fake: out of memory" in capsys.readouterr().err


def test_a_missing_model_is_exit_3_with_the_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vllm", reason="the demo asks for vLLM first")
    assert run(["demo", "--model", str(tmp_path), "--directory", str(tmp_path)]) == 3
    assert "fix: run `make setup`" in capsys.readouterr().err


def test_both_servers_differ_in_the_tier_alone() -> None:
    commands = demo._commands(Path("m"), "1GiB")
    without, tiered = commands["without"], commands["host_tier"]
    assert tiered[: len(without)] == without
    assert tiered[len(without)] == "--kv-transfer-config"
    assert len(tiered) == len(without) + 2
