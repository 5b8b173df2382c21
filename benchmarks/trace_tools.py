"""Reading, profiling and simulating traces: seconds and memory, each in a process of its own.

Aims are in CPU seconds of the process, so that other work on the machine does not decide them; wall time is beside.

``--quick``: the public conversation trace, and a synthetic one of 1M accesses. In full also 10M accesses.
Limits beside the figures: decoding the same file with msgspec alone, and Python's bare dict lookups per access.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

ROOT = Path(__file__).resolve().parents[1]
CONVERSATION = "mooncake_conversation_trace.jsonl.gz"
SMALL, LARGE = 1_000_000, 10_000_000


def conversation() -> Path:
    return Path(os.environ.get("WARMTIER_SHARED", ROOT.parent / "shared")) / "traces" / CONVERSATION


def task_profile(path: Path) -> dict[str, Any]:
    from warmtier.core.model import KNOWN_MODELS
    from warmtier.trace.profile import ProfileOptions, profile_trace
    from warmtier.trace.readers import open_trace

    found = profile_trace(open_trace(path).trace, ProfileOptions(model=KNOWN_MODELS["qwen3-8b"]))
    return {"accesses": found.chunks, "ceiling": round(found.ceiling.chunk, 4), "rate": found.rate}


def task_decode(path: Path) -> dict[str, Any]:
    import gzip

    import msgspec

    decoder = msgspec.json.Decoder(dict[str, Any])
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return {"accesses": sum(len(decoder.decode(line)["hash_ids"]) for line in stream)}


def task_lookups(path: Path) -> dict[str, Any]:
    from warmtier.trace.readers import open_trace

    requests = [request.keys for request in open_trace(path).trace]
    started = time.perf_counter()
    seen: dict[int, int] = {}
    for keys in requests:
        for key in keys:
            seen[key] = seen.get(key, 0) + 1
    return {"accesses": sum(map(len, requests)), "inner_seconds": round(time.perf_counter() - started, 3)}


def task_hits(policy: str) -> Callable[[Path], dict[str, Any]]:
    def run(path: Path) -> dict[str, Any]:
        from warmtier.sim.hits import make_cache, run_hits
        from warmtier.sim.sweep import load_trace

        trace = load_trace(path)
        started, cpu = time.perf_counter(), time.process_time()
        counts = run_hits(trace, make_cache(trace, policy, 10_000, "production"))
        return {
            "accesses": counts.blocks,
            "inner_seconds": round(time.perf_counter() - started, 3),
            "inner_cpu_seconds": round(time.process_time() - cpu, 3),
            "hit_ratio": round(counts.block_hit_ratio, 4),
        }

    return run


TASKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "decode alone (msgspec)": task_decode,
    "dict lookups alone": task_lookups,
    "profile": task_profile,
    "hits only, lru": task_hits("lru"),
    "hits only, evidence": task_hits("evidence"),
}


def child(task: str, path: Path) -> None:
    """Run one task in this process and print its figures."""
    started, cpu = time.perf_counter(), time.process_time()
    found = TASKS[task](path)
    found["seconds"] = round(time.perf_counter() - started, 3)
    found["cpu_seconds"] = round(time.process_time() - cpu, 3)
    found["peak_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, 1)
    print(json.dumps(found))


def measure(task: str, path: Path, repeats: int) -> dict[str, Any]:
    """Return the best of some runs, each in a new process."""
    command = [sys.executable, __file__, "--child", task, "--trace", str(path)]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(repeats)]
    best: dict[str, Any] = min(runs, key=lambda run: run["cpu_seconds"])
    per_access = round(1e6 * best["cpu_seconds"] / best["accesses"], 3)
    return {"task": task, "trace": path.name, **best, "us_per_access": per_access}


def synthetic(directory: Path, accesses: int) -> Path:
    """Write a synthetic trace of about that many accesses."""
    from warmtier.trace.synth import SynthTrace
    from warmtier.trace.writer import write_trace

    path = directory / f"sessions-{accesses}.jsonl"
    requests = accesses // 117  # keys per request at these settings
    settings = {"requests": str(requests), "chunk_tokens": "64", "turn_tokens": "1200"}
    write_trace(SynthTrace("sessions", settings), path)
    return path


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--child", choices=list(TASKS), help=argparse.SUPPRESS)
    options.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        child(given.child, given.trace)
        return
    about, rows, aims = common.machine(), [], []
    if conversation().is_file():
        rows += [measure(task, conversation(), 2 if given.quick else 3) for task in TASKS]
        found = {row["task"]: row for row in rows}
        aims += [
            common.aim("conversation profile, CPU seconds", found["profile"]["cpu_seconds"], 3.0, "lower"),
            common.aim("conversation profile, peak MB", found["profile"]["peak_mb"], 500.0, "lower"),
            common.aim(
                "conversation hits only, lru, CPU s", found["hits only, lru"]["inner_cpu_seconds"], 1.5, "lower"
            ),
            common.aim(
                "conversation hits only, evidence, CPU s",
                found["hits only, evidence"]["inner_cpu_seconds"],
                3.0,
                "lower",
            ),
        ]
    with tempfile.TemporaryDirectory() as directory:
        sizes = [SMALL] if given.quick else [SMALL, LARGE]
        profiles = [measure("profile", synthetic(Path(directory), size), 1) for size in sizes]
        rows += profiles
        if len(profiles) == 2:
            growth = profiles[1]["us_per_access"] / profiles[0]["us_per_access"]
            aims.append(common.aim("profile, time per access at 10M over 1M", growth, 1.5, "lower"))
    common.emit("trace_tools", rows, aims, format=given.format, about=about)


if __name__ == "__main__":
    main()
