"""Data to stdout, notes to stderr, a dash for what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmtier.cli.output import Format, Output, Table


def test_tables_align_and_show_what_is_missing() -> None:
    text = Table(["name", "size"], [["a", 5], ["long name", None]], title="Sizes", notes=["in bytes"]).text()
    assert text.splitlines() == [
        "Sizes",
        "",
        "name       size",
        "---------  ----",
        "a             5",
        "long name     -",
        "",
        "in bytes",
    ]


def test_an_empty_table_still_names_its_columns() -> None:
    assert Table(["key", "tier"], []).text().splitlines()[0] == "key  tier"


def test_json_carries_schema_kind_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    Output(Format.JSON).emit("x.y", {"path": Path("/a"), "missing": None, "raw": b"\x01"})
    document = json.loads(capsys.readouterr().out)
    assert document["schema_version"] == 1
    assert document["kind"] == "x.y"
    assert document["missing"] is None
    assert (document["path"], document["raw"]) == ("/a", "01")
    assert {"warmtier", "python", "machine", "seconds"} <= set(document["run"])


def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises(TypeError, match="object cannot be written"):
        Output(Format.JSON).emit("x", {"bad": object()})


def test_notes_and_progress_go_to_stderr_and_can_be_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.note("hello")
    for done in range(1, 101):
        out.progress(done, 100, "working")
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "hello"
    assert len(lines) == 1 + 11
    assert lines[-1] == "working 100/100"
    quiet = Output(quiet=True)
    quiet.note("hello")
    quiet.progress(1, 1, "working")
    assert capsys.readouterr().err == ""
