"""A writer killed at random moments leaves only right bytes. The long run is ``scripts/fuzz_file_store.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS, CHUNKS = (200, 50_000) if "WARMTIER_FUZZ_EXAMPLES" in os.environ else (10, 0)
SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_file_store.py"


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["none", "segment"])
def test_fuzz_killed_writers_leave_nothing_wrong(tmp_path: Path, durability: str) -> None:
    """Twenty rounds in all; under ``make fuzz`` 400 and 100,000 chunks. None is lost: the kernel lives on."""
    command = [sys.executable, str(SCRIPT), "--rounds", str(ROUNDS), "--chunks", str(CHUNKS), "--format", "json"]
    command += ["--durability", durability, "--directory", str(tmp_path)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    print(document)
    (tally,) = document["tallies"]
    assert (tally["corrupt"], tally["phantom"], tally["over_capacity"], tally["lost"]) == (0, 0, 0, 0)
    assert tally["rounds"] >= ROUNDS
    assert tally["acknowledged"] > CHUNKS
    assert tally["reread"] >= tally["acknowledged"] // 2
