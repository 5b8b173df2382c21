"""A writer killed at random moments leaves only right bytes. The long run is ``scripts/fuzz_file_store.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 200 if "WARMTIER_FUZZ_EXAMPLES" in os.environ else 10
SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_file_store.py"


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["none", "segment"])
def test_fuzz_killed_writers_leave_nothing_wrong(tmp_path: Path, durability: str) -> None:
    """Twenty rounds in all, 400 under ``make fuzz``. Nothing acknowledged is lost: the kernel outlives the process."""
    command = [sys.executable, str(SCRIPT), "--rounds", str(ROUNDS), "--durability", durability, "--format", "json"]
    result = subprocess.run([*command, "--directory", str(tmp_path)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    print(document)
    (tally,) = document["tallies"]
    assert (tally["rounds"], tally["corrupt"], tally["phantom"], tally["over_capacity"]) == (ROUNDS, 0, 0, 0)
    assert tally["lost"] == 0
    assert tally["acknowledged"] > 0
    assert tally["reread"] >= tally["acknowledged"] // 2
