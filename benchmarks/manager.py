"""What the manager costs vLLM's scheduler thread: CPU time per call, side by side with vLLM's own, and memory.

The same calls that the scheduler makes (one ``lookup`` per chunk, then ``prepare_load``, ``complete_load``,
``on_request_finished``; ``prepare_store``, ``complete_store``) against three managers in one process, round by round in
turn: ours, and vLLM's ``CPUOffloadingManager`` with LRU and with ARC. Times are CPU time of the thread, medians.

Memory is everything the core allocates per chunk that it tracks (tracemalloc), the key itself left out.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
import tracemalloc
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol

from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

import common
from common import Row
from warmtier.core.types import Key, RequestId
from warmtier.engines.vllm.manager import WarmtierManager
from warmtier.engines.vllm.metrics import MetricsFeed
from warmtier.engines.vllm.slab import STORED, Slab, SlabLayout
from warmtier.engines.vllm.status import StatusLine
from warmtier.policy.lru import LruPolicy
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.settings import CacheConfig, HostTier

HIT_CHUNKS, STORE_CHUNKS, KEY_BYTES = 1024, 2048, 36
TOKENS = 16
END = ScheduleEndContext((), ())


class Manager(Protocol):
    """The part of vLLM's interface that is measured."""

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext: ...
    def on_request_finished(self, req_context: ReqContext) -> None: ...
    def lookup(self, key: Key, req_context: ReqContext) -> LookupResult: ...
    def prepare_load(self, keys: Collection[Key], req_context: ReqContext) -> LoadStoreSpec: ...
    def complete_load(self, keys: Collection[Key], req_context: ReqContext) -> None: ...
    def prepare_store(self, keys: Collection[Key], req_context: ReqContext) -> PrepareStoreOutput | None: ...
    def complete_store(self, keys: Collection[Key], req_context: ReqContext) -> None: ...
    def on_schedule_end(self, context: ScheduleEndContext) -> None: ...


def make_keys(count: int) -> list[Key]:
    keys = [Key(os.urandom(KEY_BYTES)) for _ in range(count)]
    for key in keys:
        hash(key)  # bytes remember their hash; vLLM has used each key before it asks us
    return keys


def context(name: str, keys: Sequence[Key]) -> ReqContext:
    ctx = ReqContext(req_id=name)
    for index, key in enumerate(keys):
        ctx.set_offload_key_position(key, (index + 1) * TOKENS)
    return ctx


def our_cache(slots: int) -> TieredCache:
    config = CacheConfig(part_bytes=4096, tokens_per_chunk=TOKENS, offload_prompt_only=False, events=False)
    return TieredCache(config, HostTier(LruPolicy(slots), slots))


def our_manager(slots: int, directory: Path) -> tuple[Manager, Callable[[], None]]:
    """Return the manager as vLLM gets it, over a real slab, and what marks all stores as arrived (a worker's part)."""
    slab = Slab.open(uuid.uuid4().hex, SlabLayout(slots, 1, 1, 2048), {}, directory=directory)
    cache = our_cache(slots)
    feed = MetricsFeed(cache.stats().tiers, 4096)
    manager = WarmtierManager(cache, slab, feed, StatusLine(lambda _: None, 4096))

    def arrive() -> None:
        slab.status[:] = STORED

    return manager, arrive


def nothing() -> None:
    """vLLM's manager takes every store for good."""


class Rounds:
    """One manager and the times of its calls."""

    def __init__(self, manager: Manager, arrive: Callable[[], None]) -> None:
        self.manager = manager
        self.arrive = arrive
        self.times: dict[str, list[float]] = {}
        self._count = 0

    def begin(self, keys: Sequence[Key]) -> ReqContext:
        self._count += 1
        ctx = context(f"r{self._count}", keys)
        self.manager.on_new_request(ctx)
        return ctx

    def note(self, what: str, started_s: float) -> None:
        self.times.setdefault(what, []).append(time.thread_time() - started_s)

    def hit(self, keys: list[Key]) -> None:
        manager, ctx, done = self.manager, self.begin(keys), set(keys)
        start = time.thread_time()
        for key in keys:
            answer = manager.lookup(key, ctx)
        assert answer.name == "HIT", answer
        looked = time.thread_time()
        manager.prepare_load(keys, ctx)
        prepared = time.thread_time()
        manager.complete_load(done, ctx)
        completed = time.thread_time()
        manager.on_request_finished(ctx)
        self.note("hit", start)
        ended = time.thread_time()
        pieces = {"lookup": looked - start, "prepare_load": prepared - looked, "complete_load": completed - prepared}
        for what, seconds in {**pieces, "finish": ended - completed}.items():
            self.times.setdefault(what, []).append(seconds)
        manager.on_schedule_end(END)

    def store(self, keys: list[Key], *, evicts: bool) -> None:
        manager, ctx = self.manager, self.begin(keys)
        start = time.thread_time()
        output = manager.prepare_store(keys, ctx)
        self.note("prepare_store", start)
        assert output is not None
        assert len(output.keys_to_store) == len(keys)
        assert not evicts or len(output.evicted_keys) == len(keys)
        self.arrive()
        done = set(keys)
        again = time.thread_time()
        manager.complete_store(done, ctx)
        self.note("complete_store", again)
        self.times.setdefault("store", []).append(self.times["prepare_store"][-1] + self.times["complete_store"][-1])
        manager.on_request_finished(ctx)
        manager.on_schedule_end(END)


def fill(rounds: Rounds, slots: int, hot: list[Key]) -> None:
    rounds.store(hot, evicts=False)
    for _ in range(slots // STORE_CHUNKS + 1):
        rounds.store(make_keys(STORE_CHUNKS), evicts=False)
        rounds.hit(hot)
    rounds.times.clear()


def compare(slots: int, count: int, directory: Path) -> list[Row]:
    managers: dict[str, tuple[Manager, Callable[[], None]]] = {
        "warmtier lru": our_manager(slots, directory),
        "vllm lru": (CPUOffloadingManager(slots, "lru"), nothing),
        "vllm arc": (CPUOffloadingManager(slots, "arc"), nothing),
    }
    contestants = {name: Rounds(*made) for name, made in managers.items()}
    hot = make_keys(HIT_CHUNKS)
    for rounds in contestants.values():
        fill(rounds, slots, hot)
    gc.collect()
    gc.freeze()
    for _ in range(count):
        fresh = make_keys(STORE_CHUNKS)
        for rounds in contestants.values():
            rounds.store(fresh, evicts=True)
        for rounds in contestants.values():
            rounds.hit(hot)
    gc.unfreeze()
    return [_row(name, slots, rounds) for name, rounds in contestants.items()]


def _row(name: str, slots: int, rounds: Rounds) -> Row:
    medians = {f"{what}_ms": round(statistics.median(times) * 1e3, 3) for what, times in rounds.times.items()}
    return {"manager": name, "slots": slots, **medians}


def bytes_per_chunk(chunks: int) -> float:
    """Fill a cache of exactly ``chunks`` slots and return what it allocated per chunk."""
    keys = make_keys(chunks)
    gc.collect()
    tracemalloc.start(1)
    cache = our_cache(chunks)
    for start in range(0, chunks, STORE_CHUNKS):
        path = keys[start : start + STORE_CHUNKS]
        request = cache.begin_request(RequestId(str(start)), 0.0)
        offer = cache.offer(request, path, 0, 0.0)
        assert len(offer.keys) == len(path)
        cache.store_done(request, set(path), 0.0)
        cache.end_request(request, 0.0)
        cache.tick(0.0)
    del path, request, offer
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / chunks


def main() -> None:
    args = common.parser(__doc__).parse_args()
    about = common.machine()
    count = 9 if args.quick else 31
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for slots in (20_000,) if args.quick else (20_000, 100_000):
            rows += compare(slots, count, Path(directory))
    sizes = {
        chunks: bytes_per_chunk(chunks)
        for chunks in ((10_000, 100_000) if args.quick else (10_000, 100_000, 1_000_000))
    }
    rows += [
        {"manager": "warmtier memory", "slots": chunks, "bytes_per_chunk": round(size, 1)}
        for chunks, size in sizes.items()
    ]
    aims = []
    for slots in sorted({int(row["slots"] or 0) for row in rows if "hit_ms" in row}):
        mine, theirs = (
            next(r for r in rows if r["manager"] == n and r["slots"] == slots) for n in ("warmtier lru", "vllm lru")
        )
        for what in ("hit", "store", "prepare_store"):
            ratio = float(mine[f"{what}_ms"] or 0) / float(theirs[f"{what}_ms"] or 1)
            aims.append(common.aim(f"{what} / vLLM LRU, {slots} slots", ratio, 0.5, "lower"))
    aims.append(common.aim("bytes per tracked chunk, worst", max(sizes.values()), 200, "lower"))
    common.emit("manager", rows, aims, format=args.format, about=about)


if __name__ == "__main__":
    main()
