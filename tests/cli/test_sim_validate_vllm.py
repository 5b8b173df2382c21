"""The simulator against a real server: one request at a time, hits by tier are equal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from warmtier.cli.app import run

MODEL = Path(__file__).resolve().parents[2] / "models" / "SmolLM2-135M-Instruct"


@pytest.mark.vllm
@pytest.mark.skipif(not os.environ.get("WARMTIER_SLOW"), reason="calibrates and replays: set WARMTIER_SLOW=1 to run it")
@pytest.mark.timeout(900)
def test_one_by_one_hits_are_those_of_the_server(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    if not (MODEL / "config.json").is_file():
        pytest.skip("the demo model is not here (make setup)")
    result = tmp_path / "result.json"
    words = [
        "sim", "validate", "--model", str(MODEL), "--requests", "70", "--runs", "1", "--max-concurrency", "4",
        "--directory", str(tmp_path), "--format", "json", "--output", str(result), "--quiet",
    ]  # fmt: skip
    # Times are judged by `warmtier sim validate` itself, on a machine that does nothing else.
    assert run(words) in (0, 1)
    one, several = json.loads(result.read_text())["comparisons"]
    assert one["hits_error"] == dict.fromkeys(one["hits_error"], 0.0)
    assert one["server"][0]["hit_tokens"]["host"] > 0
    assert one["server"][0]["hit_tokens"]["device"] > 0
    assert max(several["hits_error"].values()) < 0.1
