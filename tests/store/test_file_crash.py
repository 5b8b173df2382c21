"""A writer killed at random moments leaves only right bytes. The long run is ``scripts/fuzz_file_store.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_file_store.py"


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["none", "segment"])
def test_ten_killed_writers_leave_nothing_wrong(tmp_path: Path, durability: str) -> None:
    """Twenty in all. Nothing acknowledged is lost either: the kernel outlives the process."""
    command = [sys.executable, str(SCRIPT), "--rounds", "10", "--durability", durability, "--format", "json"]
    result = subprocess.run([*command, "--directory", str(tmp_path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    print(document)
    (tally,) = document["tallies"]
    assert (tally["rounds"], tally["corrupt"], tally["phantom"], tally["over_capacity"]) == (10, 0, 0, 0)
    assert tally["lost"] == 0
    assert tally["acknowledged"] > 0
    assert tally["reread"] >= tally["acknowledged"] // 2
