"""The public traces of the goldens, outside the repository; tests that need them skip where they are absent."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from warmtier.sim.hits import LoadedTrace
from warmtier.sim.sweep import load_trace

SHARED = Path(os.environ.get("WARMTIER_SHARED", Path(__file__).resolve().parents[3] / "shared"))
FILES = {
    "conv": "mooncake_conversation_trace.jsonl.gz",
    "synth": "mooncake_synthetic_trace.jsonl.gz",
    "magagent": "lmcache_agent_magagent_blk16.jsonl.gz",
    "miniswe": "lmcache_agent_miniswe_blk16.jsonl.gz",
}


def trace_path(name: str) -> Path:
    """Return the file of a trace, or skip the test."""
    path = SHARED / "traces" / FILES[name]
    if not path.exists():
        pytest.skip(f"needs the public trace {path.name} in {path.parent} (set WARMTIER_SHARED)")
    return path


@lru_cache(maxsize=4)
def _load(path: Path) -> LoadedTrace:
    return load_trace(path)


def public_trace(name: str) -> LoadedTrace:
    """Return a trace in memory, or skip the test."""
    return _load(trace_path(name))
