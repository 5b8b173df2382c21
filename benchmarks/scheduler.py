"""What all tiers cost vLLM's scheduler thread: per call, per step with many waiting requests, and beside busy tiers.

Calls: CPU time at 1,024 chunks on the manager that vLLM gets, with a file tier below. Steps: manager time of whole
scheduler steps in which 64 requests of 1,024 chunks wait (all misses; all pending on the file tier), beside the time
that the same number of empty Python calls takes. Busy: wall time of a step of pure Python work while the executor's
threads read and write at full speed, against the same step with idle tiers, in turn.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext

import common
from common import Row
from manager import context, make_keys
from warmtier.core.types import Key, Namespace, TierKind, TierMode
from warmtier.engines.vllm.cold import ColdTiers
from warmtier.engines.vllm.epochs import EpochedStore, Keeper
from warmtier.engines.vllm.manager import WarmtierManager
from warmtier.engines.vllm.metrics import MetricsFeed
from warmtier.engines.vllm.slab import STORED, Slab, SlabLayout
from warmtier.engines.vllm.status import StatusLine
from warmtier.policy.registry import create_policy
from warmtier.store.base import Read, Write
from warmtier.store.file.store import FileStore
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier

CHUNKS, WAITING, TOKENS = 1024, 64, 16
BLOCK_BYTES = 8192 - 8
BUSY_CHUNK_BYTES = 1 << 20
END = ScheduleEndContext((), ())


class Bench:
    """One manager with a host and a file tier, in a directory of its own."""

    def __init__(self, directory: Path, slots: int, policy: str = "lru") -> None:
        layout = SlabLayout(slots, 1, 1, BLOCK_BYTES)
        self.slab = Slab.open(uuid.uuid4().hex, layout, {}, directory=directory)
        config = CacheConfig(
            part_bytes=layout.row_bytes, tokens_per_chunk=TOKENS, offload_prompt_only=False, events=False,
            static_min_tokens=1, load_conflict_wait_s=2.0,
        )  # fmt: skip
        file = ColdTier("file", TierKind.FILE, create_policy(policy, 1 << 17), max_write_bytes=1 << 32)
        self.cache = TieredCache(config, HostTier(create_policy(policy, slots), slots), [file])
        self.store = EpochedStore(TierKind.FILE, 4 << 30, lambda _: self._file(directory, layout.chunk_bytes))
        self.cold = ColdTiers(self.cache, self.slab, [Keeper("file", self.store, layout.chunk_bytes, print)])
        self.manager = WarmtierManager(
            self.cache,
            self.slab,
            MetricsFeed(self.cache.stats().tiers, layout.row_bytes),
            StatusLine(lambda _: None, layout.row_bytes),
            cold=self.cold,
        )
        while self.cache.stats().tiers["file"].mode is not TierMode.ON:
            self.manager.has_pending_work()
            time.sleep(0.001)

    def _file(self, directory: Path, chunk_bytes: int) -> FileStore:
        return FileStore(directory / "kv", Namespace(b"n" * 16), capacity_bytes=4 << 30, chunk_bytes=chunk_bytes)

    def begin(self, keys: Sequence[Key]) -> ReqContext:
        ctx = context(uuid.uuid4().hex, keys)
        self.manager.on_new_request(ctx)
        return ctx

    def keep(self, keys: Sequence[Key]) -> float:
        """Store a path; return the CPU time of ``prepare_store``."""
        ctx = self.begin(keys)
        started = time.thread_time()
        output = self.manager.prepare_store(keys, ctx)
        seconds = time.thread_time() - started
        self.slab.status[:] = STORED
        self.manager.complete_store(set(output.keys_to_store), ctx)
        self.manager.on_request_finished(ctx)
        self.step()
        return seconds

    def step(self) -> None:
        self.manager.on_schedule_end(END)
        self.manager.get_stats()

    def settle(self) -> None:
        while self.cache.stats().jobs:
            self.manager.has_pending_work()
            time.sleep(0.001)


def calls(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Return CPU times at 1,024 chunks that all are in the host tier."""
    hot = make_keys(CHUNKS)
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        times.setdefault("prepare_store", []).append(bench.keep(make_keys(CHUNKS)))
        bench.settle()
        bench.keep(hot)
        bench.settle()
        ctx = bench.begin(hot)
        marks = [time.thread_time()]
        for key in hot:
            assert bench.manager.lookup(key, ctx) is LookupResult.HIT
        marks.append(time.thread_time())
        bench.manager.prepare_load(hot, ctx)
        marks.append(time.thread_time())
        bench.manager.complete_load(set(hot), ctx)
        marks.append(time.thread_time())
        bench.manager.on_request_finished(ctx)
        bench.step()
        for name, begin, end in zip(("lookup", "prepare_load", "complete_load"), marks, marks[1:], strict=False):
            times.setdefault(name, []).append(end - begin)
    return times


def waiting_steps(bench: Bench, paths: Sequence[list[Key]], steps: int) -> list[float]:
    """Return manager time per step with one waiting request per path, asked as vLLM asks."""
    waiting = [(bench.begin(path), path) for path in paths]
    times = []
    for _ in range(steps):
        started = time.thread_time()
        for ctx, path in waiting:
            for key in path:  # vLLM's scan: a miss ends it, a hit or a pending chunk goes on
                if bench.manager.lookup(key, ctx) is LookupResult.MISS:
                    break
        bench.step()
        bench.manager.has_pending_work()
        times.append(time.thread_time() - started)
    for ctx, _ in waiting:
        bench.manager.on_request_finished(ctx)
    bench.step()
    return times


def trivial(paths: Sequence[list[Key]], steps: int) -> list[float]:
    """Return the time of as many empty Python calls as there are chunks."""

    def nothing(key: Key, ctx: object) -> None:
        del key, ctx

    times = []
    for _ in range(steps):
        started = time.thread_time()
        for path in paths:
            for key in path:
                nothing(key, None)
        times.append(time.thread_time() - started)
    return times


def beside(bench: Bench, directory: Path, steps: int) -> tuple[list[float], list[float]]:
    """Return wall times of a Python step with idle tiers and with a store that is read and written all the time."""
    stop, go = threading.Event(), threading.Event()
    keys = make_keys(256)
    size = BUSY_CHUNK_BYTES
    store = FileStore(directory / "busy", Namespace(b"b" * 16), capacity_bytes=2 << 30, chunk_bytes=size)
    store.open()
    data = memoryview(bytearray(np.random.default_rng(1).bytes(size)))

    def load() -> None:
        number = 0
        buffers = [memoryview(bytearray(size)) for _ in range(16)]
        while not stop.is_set():
            if not go.wait(0.05):
                continue
            number += 1
            piece = keys[number % 16 * 16 : number % 16 * 16 + 16]
            store.put([Write(key, data) for key in piece])
            store.get([Read(key, into) for key, into in zip(piece, buffers, strict=True)])
            store.delete(piece)

    thread = threading.Thread(target=load)
    thread.start()
    idle: list[float] = []
    busy: list[float] = []
    for round_number in range(2 * steps):
        (go.clear if round_number % 2 else go.set)()
        time.sleep(0.01)
        started = time.perf_counter()
        for _ in range(3):
            sum(i * i for i in range(20_000))
            bench.step()
        (idle if round_number % 2 else busy).append(time.perf_counter() - started)
    stop.set()
    thread.join()
    store.close()
    return idle, busy


def p99(times: Sequence[float]) -> float:
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]


def _row(case: str, times: Sequence[float]) -> Row:
    return {
        "case": case,
        "median_ms": round(statistics.median(times) * 1e3, 3),
        "p99_ms": round(p99(times) * 1e3, 3),
        "runs": len(times),
    }


def run(directory: Path, *, quick: bool) -> tuple[list[Row], list[common.Aim]]:
    bench = Bench(directory, 4 * CHUNKS)
    for _ in range(6):
        bench.keep(make_keys(CHUNKS))
        bench.settle()
    gc.collect()
    gc.freeze()
    times = calls(bench, 9 if quick else 31)
    below = [make_keys(CHUNKS) for _ in range(WAITING // 8)]
    for path in below:
        bench.keep(path)
        bench.settle()
    for _ in range(5):
        bench.keep(make_keys(CHUNKS))
        bench.settle()
    steps = 40 if quick else 200
    missing = waiting_steps(bench, [make_keys(CHUNKS) for _ in range(WAITING)], steps)
    pending = waiting_steps(bench, below * 8, steps)
    empty = trivial(below * 8, steps)
    idle, busy = beside(bench, directory, 100 if quick else 500)
    gc.unfreeze()
    bench.manager.shutdown()
    rows = [_row(name, seconds) for name, seconds in times.items()]
    rows += [
        _row(f"step, {WAITING} waiting, all absent", missing),
        _row(f"step, {WAITING} waiting, on the file tier", pending),
        _row("empty calls, one per chunk", empty),
        _row("Python work beside idle tiers", idle),
        _row("Python work beside busy tiers", busy),
    ]
    limits = {"lookup": 1.0, "prepare_load": 1.0, "complete_load": 1.0, "prepare_store": 4.0}
    aims = [
        common.aim(f"{name}, {CHUNKS} chunks, ms", statistics.median(times[name]) * 1e3, limit, "lower")
        for name, limit in limits.items()
    ]
    aims.append(common.aim("step p99, tiers busy / idle", p99(busy) / p99(idle), 1.1, "lower"))
    aims.append(common.aim("step p99 with 64 waiting, ms", p99([*missing, *pending]) * 1e3, 3.7, "lower"))
    return rows, aims


def main() -> None:
    args = common.parser(__doc__).parse_args()
    about = common.machine()
    init_none_hash(sha256_cbor)
    with tempfile.TemporaryDirectory() as directory:
        rows, aims = run(Path(directory), quick=args.quick)
    common.emit("scheduler", rows, aims, format=args.format, about=about)


if __name__ == "__main__":
    main()
