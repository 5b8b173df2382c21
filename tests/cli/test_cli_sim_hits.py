"""``warmtier sim sweep --hits-only``: rows, progress, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmtier.cli.app import run

FIELDS = {
    "trace", "policy", "mode", "host_chunks", "block_hit_ratio", "token_hit_ratio", "writes_per_access", "seconds",
}  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    lines = [
        {"timestamp": at * 1000, "input_length": 48, "output_length": 1, "hash_ids": [at % 3, 10 + at % 3, 20 + at % 3]}
        for at in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def sweep(trace: Path, *arguments: str) -> int:
    return run(["sim", "sweep", str(trace), "--hits-only", "--workers", "1", *arguments])


def test_rows_come_in_the_order_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(trace, "--policy", "lru,evidence,opt", "--host-chunks", "4,9", "--format", "json") == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [(row["policy"], row["host_chunks"]) for row in rows] == [
        (policy, size) for policy in ("lru", "evidence", "opt") for size in (4, 9)
    ]
    assert all(set(row) == FIELDS for row in rows)
    assert rows[1]["block_hit_ratio"] == pytest.approx(27 / 30)
    assert "6/6" in err


def test_quiet_says_nothing_on_stderr(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(trace, "--host-chunks", "9", "--quiet") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "block_hit_ratio" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--policy", "evidense", "--host-chunks", "9"), "did you mean 'evidence'"),
        (("--policy", "evidence", "--host-chunks", "9", "--mode", "raw"), "production"),
        (("--host-chunks", "many"), "many"),
        (("--host-chunks", ","), "--host-chunks"),
    ],
)
def test_wrong_words_are_usage_errors(
    trace: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert sweep(trace, *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_malformed_trace_names_its_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_text(trace.read_text() + "{]\n")
    assert sweep(trace, "--host-chunks", "9") == 2
    err = capsys.readouterr().err
    assert "t.jsonl" in err
    assert "31" in err
