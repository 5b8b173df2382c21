"""Many cells (trace x policy x size) in parallel processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from warmtier.policy.registry import modes_of
from warmtier.sim.hits import LoadedTrace, make_cache, run_hits
from warmtier.trace.mooncake import MooncakeTrace


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep. ``mode`` None: production where the policy has it, else raw."""

    trace: Path
    policy: str
    host_chunks: int
    mode: str | None = None
    chunk_tokens: int | None = None
    score_from: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one cell. ``seconds`` is the time of the run itself, the trace already in memory."""

    trace: str
    policy: str
    mode: str
    host_chunks: int
    block_hit_ratio: float
    token_hit_ratio: float
    writes_per_access: float
    seconds: float


def load_trace(path: Path, chunk_tokens: int | None = None) -> LoadedTrace:
    """Read a Mooncake-format trace into memory. Raises TraceError naming file, line and reason. Blocking I/O."""
    trace = MooncakeTrace(path, chunk_tokens=chunk_tokens)
    return LoadedTrace(path.name.removesuffix(".gz").removesuffix(".jsonl"), trace.chunk_tokens, tuple(trace))


@lru_cache(maxsize=2)
def _load(path: Path, chunk_tokens: int | None) -> LoadedTrace:
    return load_trace(path, chunk_tokens)


def run_cell(cell: Cell) -> Row:
    """Run one cell in this process. Raises UsageError for a bad trace, policy or mode."""
    mode = cell.mode or modes_of(cell.policy)[0]
    trace = _load(cell.trace, cell.chunk_tokens)
    started = time.perf_counter()
    counts = run_hits(trace, make_cache(trace, cell.policy, cell.host_chunks, mode), cell.score_from)
    seconds = time.perf_counter() - started
    return Row(
        trace.name,
        cell.policy,
        mode,
        cell.host_chunks,
        round(counts.block_hit_ratio, 6),
        round(counts.token_hit_ratio, 6),
        round(counts.writes_per_access, 6),
        round(seconds, 3),
    )


def run_sweep(cells: Sequence[Cell], workers: int) -> Iterator[tuple[int, Row]]:
    """Yield (index of the cell, row) as cells end. One worker: in this process."""
    if workers <= 1 or len(cells) <= 1:
        for index, cell in enumerate(cells):
            yield index, run_cell(cell)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(cells)), mp_context=context) as pool:
        futures = {pool.submit(run_cell, cell): index for index, cell in enumerate(cells)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
