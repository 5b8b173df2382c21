from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from trace_helpers import shared_trace

from warmtier.cli.app import run


def call(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    found = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


@pytest.fixture
def trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "t.jsonl.gz"
    call(capsys, "trace", "synth", "sessions", "--to", path, "--set", "requests=300", "--set", "chunk_tokens=64")
    return path


def test_profile_answers_the_four_questions_by_name(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = call(capsys, "trace", "profile", trace, "--model", "qwen3-8b", "--bandwidth", "20GB/s")
    for words in (
        "an infinite cache would save", "Which prefixes are shared", "How long until reuse",
        "How large is a useful chunk", "What to evict outright", "Reuse by use count",
    ):  # fmt: skip
        assert words in out


def test_profile_as_json_is_complete(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = call(capsys, "trace", "profile", trace, "--format", "json", "--sample", "0.5", "--chunks", "10,100")
    found = json.loads(out)
    assert found["kind"] == "trace.profile"
    assert set(found["admission"]) == {
        "which_prefixes_are_shared", "how_long_until_reuse", "how_large_is_a_useful_chunk", "what_to_evict_outright",
    }  # fmt: skip
    assert [point["chunks"] for point in found["curve"]] == [10, 100]
    assert all(point["standard_error"] > 0 for point in found["curve"])


def test_public_trace_profile_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_trace("mooncake_conversation_trace.jsonl.gz")
    out, _ = call(capsys, "trace", "profile", path, "--format", "json", "--chunks", "10000")
    found = json.loads(out)
    assert found["ceiling"]["chunk"] == pytest.approx(0.366, abs=0.0006)
    assert found["curve"][0]["hit_ratio"] == pytest.approx(0.215, abs=0.0011)


def test_convert_anonymize_and_sample(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coarse, hidden, small = (tmp_path / name for name in ("c.jsonl", "h.jsonl", "s.jsonl"))
    call(capsys, "trace", "convert", trace, "--to", coarse, "--chunk-tokens", "128")
    call(capsys, "trace", "anonymize", trace, "--to", hidden, "--round-time", "1s", "--round-tokens", "8")
    call(capsys, "trace", "sample", trace, "--to", small, "--rate", "0.4")
    ceilings = {}
    for path, block in ((trace, 64), (hidden, 64), (coarse, 128), (small, 64)):
        out, _ = call(capsys, "trace", "profile", path, "--format", "json", "--block-tokens", block)
        ceilings[path.name] = json.loads(out)["ceiling"]["chunk"]
    assert ceilings[hidden.name] == pytest.approx(ceilings[trace.name], abs=1e-9)
    assert 0.3 < ceilings[small.name] < 1.0
    assert len(small.read_text().splitlines()) < 250


def test_same_synthetic_trace_twice(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "again.jsonl.gz"
    call(capsys, "trace", "synth", "sessions", "--to", again, "--set", "requests=300", "--set", "chunk_tokens=64")
    assert again.read_bytes() == trace.read_bytes()


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}\noops\n')
    _, err = call(capsys, "trace", "profile", bad, code=2)
    assert "bad.jsonl:2:" in err
    assert "--skip-bad" in err
    _, err = call(capsys, "trace", "profile", bad, "--skip-bad")
    assert "skipped 1 malformed lines" in err
    _, err = call(capsys, "trace", "synth", "nonsense", "--to", tmp_path / "x", code=2)
    assert "patterns:" in err
    _, err = call(capsys, "trace", "profile", bad, "--skip-bad", "--bandwidth", "fast", code=2)
    assert "not a size" in err


def test_recording_without_a_publisher_ends_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zmq")
    log = tmp_path / "events.jsonl"
    out, _ = call(capsys, "trace", "record", "tcp://127.0.0.1:9", "--to", log, "--duration", "100ms")
    assert "0 events" in out
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_sim_run_and_sweep(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--device-tokens", 20_000, "--model", "qwen3-0.6b", "--achieved-flops", "1e14")
    out, _ = call(capsys, "sim", "run", trace, *common, "--host-tier", "2GiB", "--file-tier", "8GiB")
    assert "speeds are assumed" in out
    assert "FLOP hits" in out
    journal = tmp_path / "journal"
    words = (
        "sim",
        "sweep",
        trace,
        *common,
        "--policy",
        "lru,evidence",
        "--host-tier",
        "none,2GiB",
        "--journal",
        journal,
    )
    out, _ = call(capsys, *words, "--format", "json", "--quiet")
    rows = json.loads(out)["rows"]
    assert [(row["spec"]["policy"], row["spec"]["host_tier"]) for row in rows] == [
        ("lru", "none"), ("lru", "2GiB"), ("evidence", "none"), ("evidence", "2GiB"),
    ]  # fmt: skip
    assert rows[1]["token_hit_ratio"] > rows[0]["token_hit_ratio"]
    again, _ = call(capsys, *words, "--format", "json", "--quiet")
    assert json.loads(again)["rows"] == rows


def test_sim_says_what_is_missing(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = call(capsys, "sim", "run", trace, code=2)
    assert "--device-tokens" in err
    _, err = call(capsys, "sim", "run", trace, "--device-tokens", "100", "--policy", "lru,index", code=2)
    assert "use `warmtier sim sweep`" in err
    _, err = call(capsys, "sim", "sweep", trace, "--device-tokens", "100", code=2)
    assert "--host-tier" in err


def test_calibrate_needs_a_server_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = call(capsys, "calibrate", "--to", tmp_path / "c.json", code=2)
    assert "--url" in err
    known = {"version": 1, "prefill": {"seconds_per_token": 0.001}, "links": {"file": {"bytes_per_second": 5.0}}}
    (tmp_path / "c.json").write_text(json.dumps(known))
    call(capsys, "calibrate", "--to", tmp_path / "c.json", "--file-tier", tmp_path, "--chunk-size", "64KiB")
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["prefill"]["seconds_per_token"] == 0.001
    assert found["links"]["file"]["bytes_per_second"] > 1000
    assert found["links"]["host"]["bytes_per_second"] > 1000
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]
