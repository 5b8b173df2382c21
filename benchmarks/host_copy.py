"""How fast KV blocks move between the device (CPU tensors) and the host tier, beside plain memcpy of the same bytes.

Everything that production does is in the figure: vLLM's transfer specs, the copy worker's threads, the slab in
/dev/shm, digests where they are on. Two references in the same rounds: ``memcpy`` moves the bytes as one piece, for
which the C library may use stores that bypass the cache; ``memcpy by page`` moves them in the same pieces as the KV
pages, in order, which is the most that any copy of separate pages can do with ordinary stores. All memory is touched
before the first round; rounds are interleaved; figures are medians, ratios are medians of per-round ratios.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from common import Aim, Row, aim, emit, machine, parser

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.kv_offload.base import GPULoadStoreSpec

    from warmtier.engines.vllm.copier import BlockCopier, stack_pages
    from warmtier.engines.vllm.slab import Slab, SlabLayout
    from warmtier.engines.vllm.specs import HostSlots
    from warmtier.engines.vllm.worker import HostCopyWorker

LAYERS = 30
AIM = 0.9


@dataclass(frozen=True)
class Case:
    """One layout: ``blocks`` blocks of ``LAYERS`` pages move at once, a random choice of twice as many."""

    name: str
    page_bytes: int
    blocks_per_chunk: int
    blocks: int

    @property
    def total_bytes(self) -> int:
        return self.blocks * LAYERS * self.page_bytes


def cases(*, quick: bool) -> list[Case]:
    size = (96 if quick else 256) << 20
    layouts = [
        ("SmolLM2", 98_304, 1),
        ("SmolLM2", 98_304, 4),
        ("48 KiB pages", 48 << 10, 4),
        ("400 KiB pages", 400 << 10, 1),
    ]
    return [
        Case(name, page, chunk, max(chunk, size // (LAYERS * page) // chunk * chunk)) for name, page, chunk in layouts
    ]


class Memory:
    """The device's pages, the slab and two plain buffers beside them, all touched."""

    def __init__(self, case: Case, directory: Path) -> None:
        rng = np.random.default_rng(1)
        # As vLLM allocates it, aligned to 64 bytes: numpy's 16 would make loads four times slower on some processors,
        # whose string copies suffer when the target lies a few bytes above the source, modulo 4096.
        self.device = torch.empty((LAYERS, 2 * case.blocks, case.page_bytes), dtype=torch.uint8).numpy()
        self.device[:] = rng.integers(0, 256, case.page_bytes, np.uint8)
        layout = SlabLayout(case.blocks // case.blocks_per_chunk, 1, case.blocks_per_chunk, LAYERS * case.page_bytes)
        self.slab = Slab.open(f"bench-{case.page_bytes}-{case.blocks_per_chunk}", layout, {}, directory=directory)
        self.slab.remove_name()
        self.blocks = rng.permutation(2 * case.blocks)[: case.blocks].tolist()
        self.slots = list(range(layout.slots))
        self.source = self.device.reshape(-1)[: case.total_bytes]
        self.target = self.slab._bytes[layout.rows_offset :][: case.total_bytes]


def memcpy(memory: Memory, piece: int, pool: ThreadPoolExecutor | None) -> Callable[[], None]:
    """Return a plain copy of as many bytes, in pieces of ``piece``, by one thread or by two."""
    source, target, total = memory.source.ctypes.data, memory.target.ctypes.data, memory.source.size

    def part(start: int, end: int) -> None:
        for at in range(start, end, piece):
            ctypes.memmove(target + at, source + at, min(piece, end - at))

    if pool is None:
        return lambda: part(0, total)
    half = total // 2 // piece * piece or total // 2

    def both() -> None:
        for future in [pool.submit(part, 0, half), pool.submit(part, half, total)]:
            future.result()

    return both


class Transfers:
    """Stores and loads through the product's worker."""

    def __init__(self, memory: Memory, threads: int, check_every: int) -> None:
        stacks = stack_pages(list(memory.device), range(LAYERS))
        self._memory = memory
        self._worker = HostCopyWorker(
            BlockCopier([stacks], memory.slab, 0, check_every), memory.slab, 0, threads=threads
        )
        self._job = 0

    def store(self) -> None:
        self._run(self._worker.submit_store, self._device(), HostSlots(self._memory.slots))

    def load(self) -> None:
        self._run(self._worker.submit_load, HostSlots(self._memory.slots), self._device())

    def close(self) -> None:
        self._worker._pool.close()

    def _device(self) -> GPULoadStoreSpec:
        return GPULoadStoreSpec(self._memory.blocks, [len(self._memory.blocks)], [0])

    def _run(self, submit: Callable[..., bool], source: object, target: object) -> None:
        self._job += 1
        submit(self._job, source, target)
        self._worker.wait({self._job})
        if len(self._worker.get_finished()) != 1:
            raise RuntimeError("the transfer did not end")


def measure(works: dict[str, Callable[[], None]], total_bytes: int, rounds: int) -> dict[str, list[float]]:
    """Run all works in turn, ``rounds`` times, the first round unmeasured; return GB/s of each."""
    speeds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if number:
                speeds[name].append(total_bytes / (time.perf_counter() - started) / 1e9)
    return speeds


def ratio(speeds: Sequence[float], reference: Sequence[float]) -> float:
    return statistics.median(mine / theirs for mine, theirs in zip(speeds, reference, strict=True))


def run(case: Case, threads: int, rounds: int, directory: Path) -> list[Row]:
    memory = Memory(case, directory)
    plain, checked = Transfers(memory, threads, 0), Transfers(memory, threads, 1)
    with ThreadPoolExecutor(2) as pool:
        helper = pool if threads > 1 else None
        checked.store()
        speeds = measure(
            {
                "memcpy": memcpy(memory, memory.source.size if threads == 1 else memory.source.size // 2, helper),
                "memcpy by page": memcpy(memory, case.page_bytes, helper),
                "store": plain.store,
                "load": plain.load,
                "store, digests": checked.store,
                "load, digests": checked.load,
            },
            case.total_bytes,
            rounds,
        )
    plain.close()
    checked.close()
    return [
        {
            "layout": case.name,
            "page_bytes": case.page_bytes,
            "blocks_per_chunk": case.blocks_per_chunk,
            "threads": threads,
            "what": name,
            "gb_per_s": round(statistics.median(values), 2),
            "to_memcpy": round(ratio(values, speeds["memcpy"]), 3),
            "to_memcpy_by_page": round(ratio(values, speeds["memcpy by page"]), 3),
        }
        for name, values in speeds.items()
    ]


def aims(rows: Sequence[Row]) -> list[Aim]:
    """Return the worst ratio of each direction and thread count."""
    found = []
    for reference in ("to_memcpy", "to_memcpy_by_page"):
        for threads in (1, 2):
            for what in ("store", "load"):
                worst = min(
                    float(row[reference] or 0) for row in rows if (row["what"], row["threads"]) == (what, threads)
                )
                found.append(aim(f"{what}, {threads} threads, {reference}", worst, AIM, "higher"))
    return found


def main() -> None:
    options = parser(__doc__).parse_args()
    about = machine()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        for case in cases(quick=options.quick):
            for threads in (1, 2):
                rows += run(case, threads, 3 if options.quick else 9, Path(directory))
    emit("host_copy", rows, aims(rows), format=options.format, about=about)


if __name__ == "__main__":
    main()
