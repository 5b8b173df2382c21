"""Policies: chunk accesses per second on one core, flat in the size of the tier, beside libCacheSim driven from Python.

Requests are paths of 32 chunks: half continue a path of before, half are new, so that a full tier evicts all the time.
An access is one chunk of a request, served as the tiered cache does it: begin, touch, admit, finish. libCacheSim sees
the same chunks one by one. Rounds of all policies are interleaved. Rates are of CPU time, the longest request and the
calls of the scheduler thread of wall time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

from common import aim, emit, machine, parser
from warmtier.policy.base import Access, EvictionPolicy
from warmtier.policy.registry import create_policy

PATH_CHUNKS = 32
SHARED_CHUNKS = 4
POLICIES = ("lru", "arc", "index", "evidence")


def never(key: object) -> bool:
    """Nothing is pinned."""
    del key
    return False


def number_of(key: bytes) -> int:
    """Return the number by which libCacheSim knows a chunk."""
    return int.from_bytes(key[:7], "little")


def requests(chunks: int, count: int, seed: int) -> Iterator[list[bytes]]:
    """Yield paths: a quarter repeat a recent one, a quarter extend one, the rest are new below a shared head."""
    rng = random.Random(seed)
    head = [rng.randbytes(32) for _ in range(SHARED_CHUNKS)]
    recent: list[list[bytes]] = []
    keep = max(8, chunks // PATH_CHUNKS // 2)
    for number in range(count):
        choice = rng.random()
        if recent and choice < 0.5:
            path = recent[rng.randrange(len(recent))]
            if choice < 0.25:
                path = [*path[: PATH_CHUNKS - 4], *(rng.randbytes(32) for _ in range(4))]
        else:
            path = head + [rng.randbytes(32) for _ in range(PATH_CHUNKS - SHARED_CHUNKS)]
        if len(recent) < keep:
            recent.append(path)
        else:
            recent[number % keep] = path
        yield path


def drive(policy: EvictionPolicy[bytes], paths: Sequence[list[bytes]], start_s: float) -> tuple[float, float]:
    """Serve all paths; return seconds and the longest single request in seconds."""
    worst = 0.0
    began = time.process_time()
    for number, path in enumerate(paths):
        now = start_s + number * 0.05
        one = time.perf_counter()
        access: Access[bytes] = Access(list(path), 512, len(path) * 512, now)
        policy.begin(access, now)
        hits = next((i for i, key in enumerate(path) if key not in policy), len(path))
        policy.touch(access, path[:hits], now)
        if hits < len(path):
            policy.admit(access, path[hits:], path[hits - 1] if hits else None, now, never)
        policy.finish(access, now)
        worst = max(worst, time.perf_counter() - one)
    return time.process_time() - began, worst


def drive_reference(cache: Any, numbers: Sequence[list[int]]) -> float:  # noqa: ANN401 - no types upstream
    """Serve the same chunks through libCacheSim's Python binding."""
    import libcachesim

    request = libcachesim.Request()
    request.obj_size = 1
    began = time.process_time()
    for path in numbers:
        for number in reversed(path):
            request.obj_id = number
            cache.get(request)
    return time.process_time() - began


def reference(chunks: int) -> Any | None:  # noqa: ANN401
    """Return libCacheSim's LRU, or None where it is not installed."""
    try:
        import libcachesim
    except ImportError:
        return None
    return libcachesim.LRU(chunks, hashpower=20)


def measure(chunks: int, rounds: int, batch: int) -> list[dict[str, str | int | float]]:
    """Fill every cache, then time interleaved rounds; return one row per policy, medians over rounds."""
    policies = {name: create_policy(name, chunks) for name in POLICIES}
    other = reference(chunks)
    filled = list(requests(chunks, int(chunks * 1.5 / PATH_CHUNKS) + 50, 1))
    for policy in policies.values():
        drive(policy, filled, 0.0)
    if other is not None:
        drive_reference(other, [[number_of(key) for key in path] for path in filled])
    seconds: dict[str, list[float]] = {name: [] for name in (*policies, "libcachesim lru")}
    worst = dict.fromkeys(policies, 0.0)
    paths = list(requests(chunks, rounds * batch, 2))
    for number in range(rounds):
        part = paths[number * batch : (number + 1) * batch]
        start_s = (len(filled) + number * batch) * 0.05
        for name, policy in policies.items():
            took, longest = drive(policy, part, start_s)
            seconds[name].append(took)
            worst[name] = max(worst[name], longest)
        if other is not None:
            seconds["libcachesim lru"].append(drive_reference(other, [[number_of(k) for k in path] for path in part]))
    accesses = batch * PATH_CHUNKS
    return [
        {
            "policy": name,
            "chunks": chunks,
            "accesses_per_s": round(accesses / median(values)),
            "worst_request_ms": round(worst.get(name, 0.0) * 1e3, 2),
        }
        for name, values in seconds.items()
        if values
    ]


def long_paths(make: Callable[[], EvictionPolicy[bytes]], rounds: int) -> dict[str, float]:
    """Time the calls of the scheduler thread: a 1,024-chunk path used again; 2,048 chunks stored with eviction."""
    policy = make()
    rng = random.Random(3)
    now = 0.0
    times: dict[str, list[float]] = {"touch_finish_1024_ms": [], "admit_2048_ms": []}
    drive(policy, list(requests(policy.capacity, int(policy.capacity * 1.2 / PATH_CHUNKS), 4)), 0.0)
    for _ in range(rounds):
        now += 2_000.0
        path = [rng.randbytes(32) for _ in range(2_048)]
        access: Access[bytes] = Access(path, 512, len(path) * 512, now)
        policy.begin(access, now)
        began = time.perf_counter()
        policy.admit(access, path, None, now, never)
        times["admit_2048_ms"].append(time.perf_counter() - began)
        policy.finish(access, now)
        again: Access[bytes] = Access(path[:1_024], 512, 1_024 * 512, now + 1.0)
        began = time.perf_counter()
        policy.begin(again, now + 1.0)
        policy.touch(again, path[:1_024], now + 1.0)
        policy.finish(again, now + 2.0)
        times["touch_finish_1024_ms"].append(time.perf_counter() - began)
    return {name: round(median(values) * 1e3, 3) for name, values in times.items()}


def main() -> None:
    """Run and print."""
    arguments = parser(__doc__).parse_args()
    about = machine()
    sizes = (10_000, 100_000) if arguments.quick else (10_000, 100_000, 1_000_000)
    rounds, batch = (3, 300) if arguments.quick else (7, 500)
    rows: list[dict[str, str | int | float]] = []
    for chunks in sizes:
        rows += measure(chunks, rounds, batch)
    aims = []
    for name, target in (("lru", 1e6), ("evidence", 3e5)):
        rates = [float(row["accesses_per_s"]) for row in rows if row["policy"] == name]
        aims.append(aim(f"{name} accesses per second, slowest size", min(rates), target, "higher"))
        aims.append(aim(f"{name} slowest size against fastest", min(rates) / max(rates), 0.5, "higher"))
    for name in ("lru", "evidence"):
        calls = long_paths(lambda name=name: create_policy(name, 20_000), 5 if arguments.quick else 15)  # type: ignore[misc]
        rows.append({"policy": name, "chunks": 20_000, **calls})
        aims.append(aim(f"{name} admit of 2,048 chunks with eviction, ms", calls["admit_2048_ms"], 5.1, "lower"))
        aims.append(aim(f"{name} touch and finish of 1,024, ms", calls["touch_finish_1024_ms"], 0.2, "lower"))
    emit("policy", rows, aims, format=arguments.format, about=about)


if __name__ == "__main__":
    main()
