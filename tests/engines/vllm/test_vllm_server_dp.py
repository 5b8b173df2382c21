"""Two data-parallel engines of one server: each with its own slab, directory, lock, socket and log."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from vllm_server import VllmServer, judge_digests, prompt_tokens

from warmtier.engines.vllm import control

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("WARMTIER_SLOW"),
        reason="the file tier in vLLM is not proven yet: set WARMTIER_SLOW=1 to run two engines",
    ),
]


def test_two_engines_start_serve_and_stay_apart(tmp_path: Path) -> None:
    settings = {
        "file": {
            "directory": str(tmp_path / "kv"),
            "capacity": "256MiB",
            "segment_size": "16MiB",
            "free_space_floor": "0B",
        },
        "engine": {"verify": "always", "control_socket": str(tmp_path / "c.sock"), "memory_headroom": "0B"},
        "access_log": {"path": str(tmp_path / "access.jsonl")},
    }
    with VllmServer(tmp_path, capacity="24MiB", settings=settings, data_parallel=2, flags=["--seed", "1"]) as server:
        deadline_s = time.monotonic() + 120
        while server.metrics().total("warmtier_tier_mode", tier="file") != 6:
            assert time.monotonic() < deadline_s, "both engines open a file tier of their own"
            time.sleep(0.5)
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                list(pool.map(lambda seed: server.complete(prompt_tokens(seed, 700)), range(16)))
        server.settle()
        judge_digests(server.digests())
        stored = server.metrics().by_label("warmtier_store_bytes_total", "engine")
        assert set(stored) == {"0", "1"}
        assert all(stored.values()), "both engines took part"
        for name in ("c.sock", "c.sock.dp1"):
            assert control.call(tmp_path / name, control.Mode())["tiers"]["file"]["mode"] == "on"
    assert sorted(path.name for path in (tmp_path / "kv").iterdir()) == ["dp0", "dp1"]
    for name in ("access.jsonl", "access.jsonl.dp1"):
        assert (tmp_path / name).stat().st_size > 0
