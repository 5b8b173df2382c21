"""File tier: GB/s storing and loading, beside vLLM's own fs tier and plain pwrite/pread in a preallocated file.

All columns move the same bytes from and into the same kind of page-aligned memory, with O_DIRECT (so reads are cold)
and without fsync, at most ``threads`` I/O calls at a time. The columns take turns within each round; an aim is the
median of the rounds' ratios. warmtier's checksums are on, both ways; its files are new in every round, and making its
segments counts.
"""

from __future__ import annotations

import os
import select
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

import common
from warmtier.core.types import Key, Namespace
from warmtier.core.units import format_size
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.file import FileStore
from warmtier.store.file.io import O_DIRECT, aligned
from warmtier.store.namespace import weight_files, weights_digest

CHUNKS = (256 << 10, 3 << 20, 32 << 20)
THREADS = (1, 4)
REQUEST_BYTES = 128 << 20
START_CHUNKS = 100_000
WEIGHT_BYTES = 140_000_000_000


class Column(Protocol):
    """One way to keep chunks. ``slots`` are row numbers of the slab and name the chunks."""

    def store(self, slab: memoryview, slots: Sequence[int]) -> None: ...

    def load(self, slab: memoryview, slots: Sequence[int]) -> None: ...

    def close(self) -> None: ...


class Warmtier:
    def __init__(self, path: Path, chunk: int, threads: int, total: int) -> None:
        self._chunk = chunk
        self._store = FileStore(
            path, Namespace(bytes(16)), capacity_bytes=2 * total + (1 << 30), chunk_bytes=chunk, io_threads=threads
        )
        self._store.open()

    def _row(self, slab: memoryview, slot: int) -> memoryview:
        return slab[slot * self._chunk : (slot + 1) * self._chunk]

    def store(self, slab: memoryview, slots: Sequence[int]) -> None:
        outcomes = self._store.put([Write(_key(s), self._row(slab, s)) for s in slots]).outcomes
        if set(outcomes) != {WriteOutcome.STORED}:
            raise SystemExit(f"not stored: {set(outcomes)}")

    def load(self, slab: memoryview, slots: Sequence[int]) -> None:
        outcomes = self._store.get([Read(_key(s), self._row(slab, s)) for s in slots])
        if set(outcomes) != {ReadOutcome.OK}:
            raise SystemExit(f"not loaded: {set(outcomes)}")

    def close(self) -> None:
        self._store.close()


class VllmFs:
    """vLLM's functions, each thread with its share of the request's blocks, as its tier's workers call them."""

    def __init__(self, path: Path, chunk: int, threads: int, total: int) -> None:
        from vllm.v1.kv_offload.tiering.fs import io

        del total  # one file per chunk: nothing is allocated beforehand
        path.mkdir()
        self._io, self._path, self._chunk = io, path, chunk
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def _share(self, call: Callable[..., object], slab: memoryview, slots: Sequence[int]) -> None:
        futures = []
        for n in range(self._threads):
            mine = slots[n :: self._threads]
            if mine:
                paths = [str(self._path / f"{_key(s).hex()}.bin") for s in mine]
                offsets = [s * self._chunk for s in mine]
                futures.append(self._pool.submit(call, paths, slab, offsets, self._chunk, use_o_direct=True))
        for future in futures:
            future.result()

    def store(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(self._io.batch_store_block, slab, slots)

    def load(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(self._io.batch_load_block, slab, slots)

    def close(self) -> None:
        self._pool.shutdown()


class LmcacheFs:
    """LMCache's native file connector (C++), with as many workers; each submission is one worker's share."""

    def __init__(self, path: Path, chunk: int, threads: int, total: int) -> None:
        from lmcache.lmcache_fs import LMCacheFSClient

        del total
        path.mkdir()
        self._client = LMCacheFSClient(str(path), threads, relative_tmp_dir="", use_odirect=True, read_ahead_size=0)
        self._chunk = chunk
        self._threads = threads

    def _share(self, submit: Callable[..., int], slab: memoryview, slots: Sequence[int]) -> None:
        waiting = set()
        for n in range(self._threads):
            mine = slots[n :: self._threads]
            if mine:
                views = [slab[s * self._chunk : (s + 1) * self._chunk] for s in mine]
                waiting.add(submit([f"model@1@0@{_key(s).hex()}" for s in mine], views))
        while waiting:
            select.select([self._client.event_fd()], [], [])
            for number, succeeded, error, _ in self._client.drain_completions():
                if not succeeded:
                    raise SystemExit(f"lmcache: {error}")
                waiting.discard(number)

    def store(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(self._client.submit_batch_set, slab, slots)

    def load(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(self._client.submit_batch_get, slab, slots)

    def close(self) -> None:
        self._client.close()


class Plain:
    """The machine's limit: one preallocated file, a slot per chunk, one call per chunk, nothing checked."""

    def __init__(self, path: Path, chunk: int, threads: int, total: int) -> None:
        path.mkdir()
        self._fd = os.open(path / "plain", os.O_CREAT | os.O_RDWR | O_DIRECT, 0o600)
        os.posix_fallocate(self._fd, 0, total)
        self._chunk = chunk
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def _share(self, call: Callable[[int, memoryview, int], int], slab: memoryview, slots: Sequence[int]) -> None:
        def run(mine: Sequence[int]) -> None:
            for slot in mine:
                at = slot * self._chunk
                if call(self._fd, slab[at : at + self._chunk], at) != self._chunk:
                    raise SystemExit("short transfer")

        for future in [self._pool.submit(run, slots[n :: self._threads]) for n in range(self._threads)]:
            future.result()

    def store(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(os.pwrite, slab, slots)

    def load(self, slab: memoryview, slots: Sequence[int]) -> None:
        self._share(lambda fd, view, at: os.preadv(fd, [view], at), slab, slots)

    def close(self) -> None:
        self._pool.shutdown()
        os.close(self._fd)


def _key(slot: int) -> Key:
    return Key(b"chunk" + slot.to_bytes(27, "little"))


def _columns() -> dict[str, Callable[[Path, int, int, int], Column]]:
    columns: dict[str, Callable[[Path, int, int, int], Column]] = {"warmtier": Warmtier, "plain": Plain}
    try:
        import vllm.v1.kv_offload.tiering.fs.io  # noqa: F401
    except ImportError as error:
        print(f"no vLLM column: {error}", file=sys.stderr)
    else:
        columns["vllm_fs"] = VllmFs
    try:
        import torch  # noqa: F401 - its libraries first
        from lmcache.lmcache_fs import LMCacheFSClient  # noqa: F401
    except ImportError as error:
        print(f"no LMCache column: {error}", file=sys.stderr)
    else:
        columns["lmcache_fs"] = LmcacheFs
    return columns


def _one(make: Callable[[Path, int, int, int], Column], root: Path, source: memoryview, target: memoryview,
         chunk: int, threads: int) -> tuple[float, float]:  # fmt: skip
    """Return GB/s (store, load) of one column in one round, in a directory of its own."""
    count = len(source) // chunk
    total = count * chunk
    batch = max(1, REQUEST_BYTES // chunk)
    path = root / "column"
    column = make(path, chunk, threads, total)
    speeds = []
    for work, slab in ((column.store, source), (column.load, target)):
        started = time.perf_counter()
        for first in range(0, count, batch):
            work(slab, range(first, min(count, first + batch)))
        speeds.append(total / (time.perf_counter() - started) / 1e9)
    column.close()
    if not np.array_equal(np.frombuffer(target[:total], np.uint8), np.frombuffer(source[:total], np.uint8)):
        raise SystemExit("the loaded bytes differ from those stored")
    shutil.rmtree(path)
    os.sync()
    return speeds[0], speeds[1]


def _aims(ratios: dict[tuple[int, int, str, str], float]) -> list[common.Aim]:
    aims = []
    for (chunk, threads, what, other), ratio in ratios.items():
        name = f"{what} {format_size(chunk)}, {threads} threads, against {other}"
        target = None
        if other == "vllm_fs":
            if what == "store":
                target = 2.0 if chunk == CHUNKS[0] else None
            else:
                target = 1.3 if (chunk, threads) == (CHUNKS[0], 1) else 0.95
        elif chunk >= CHUNKS[1]:
            target = 0.9
        if target is not None:
            aims.append(common.aim(name, ratio, target, "higher"))
    return aims


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--directory", type=Path, help="where to write (default: the temporary directory)")
    options.add_argument("--rounds", type=int)
    arguments = options.parse_args()
    rounds = arguments.rounds or (2 if arguments.quick else 7)
    total = (128 if arguments.quick else 256) << 20
    about = common.machine()
    source, target = aligned(total), aligned(total)
    source[:] = os.urandom(1 << 20) * (total >> 20)
    for at in range(0, total, 4096):  # every page differs
        source[at : at + 8] = at.to_bytes(8, "little")
    rows: list[dict[str, str | int | float | None]] = []
    ratios: dict[tuple[int, int, str, str], float] = {}
    columns = _columns()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="warmtier-bench-") as scratch:
        for chunk in CHUNKS:
            for threads in THREADS:
                speeds: dict[str, list[tuple[float, float]]] = {name: [] for name in columns}
                for round_number in range(rounds):
                    order = list(columns)
                    order = order[round_number % len(order) :] + order[: round_number % len(order)]
                    for name in order:
                        np.frombuffer(target, np.uint8).fill(0)
                        speeds[name].append(_one(columns[name], Path(scratch), source, target, chunk, threads))
                _report(rows, ratios, speeds, chunk, threads)
        starts = _start(Path(scratch))
    rows += [row for row, _ in starts]
    aims = _aims(ratios) + [entry for _, entry in starts]
    common.emit("file_tier", rows, aims, format=arguments.format, about=about)


def _start(scratch: Path) -> list[tuple[dict[str, str | int | float | None], common.Aim]]:
    """Measure opening with a snapshot, and the digest of weights; both decide how long an engine's start takes."""
    store = FileStore(scratch / "start", Namespace(bytes(16)), capacity_bytes=4 << 30)
    store.open()
    data = memoryview(bytes(64))
    for first in range(0, START_CHUNKS, 1000):
        store.put([Write(_key(n), data) for n in range(first, first + 1000)])
    store.close()
    opening = []
    for _ in range(5):
        started = time.perf_counter()
        if len(list(store.open())) != START_CHUNKS:
            raise SystemExit("chunks are missing after opening")
        opening.append(time.perf_counter() - started)
        store.close()
    weights = scratch / "weights"
    weights.mkdir()
    for number in range(30):
        with (weights / f"{number}.safetensors").open("wb") as file:
            file.truncate(WEIGHT_BYTES // 30)
    started = time.perf_counter()
    weights_digest(weight_files(weights))
    digesting = time.perf_counter() - started
    return [
        _seconds(f"open {START_CHUNKS} chunks with a snapshot", statistics.median(opening), 0.5),
        _seconds("digest of 140 GB of weights (sparse files)", digesting, 2.0),
    ]


def _seconds(name: str, value: float, target: float) -> tuple[dict[str, str | int | float | None], common.Aim]:
    return {"what": name, "seconds": value}, common.aim(f"{name}, seconds", value, target, "lower")


def _report(
    rows: list[dict[str, str | int | float | None]],
    ratios: dict[tuple[int, int, str, str], float],
    speeds: dict[str, list[tuple[float, float]]],
    chunk: int,
    threads: int,
) -> None:
    for side, what in enumerate(("store", "load")):
        row: dict[str, str | int | float | None] = {"chunk": format_size(chunk), "threads": threads, "what": what}
        for name in ("warmtier", "vllm_fs", "plain", "lmcache_fs"):
            row[f"{name}_gbps"] = statistics.median(s[side] for s in speeds[name]) if name in speeds else None
        for other in ("vllm_fs", "plain", "lmcache_fs"):
            row[f"x_{other}"] = None
            if other in speeds:
                pairs = zip(speeds["warmtier"], speeds[other], strict=True)
                ratio = statistics.median(mine[side] / theirs[side] for mine, theirs in pairs)
                row[f"x_{other}"] = ratios[chunk, threads, what, other] = ratio
        rows.append(row)


if __name__ == "__main__":
    main()
