"""Timed simulations by the dozen: cells in parallel processes, finished ones in a journal so that a sweep goes on."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import msgspec
import xxhash

from warmtier.core.errors import UsageError
from warmtier.sim.result import SimResult
from warmtier.sim.run import simulate
from warmtier.sim.specify import SimSpec
from warmtier.trace.readers import ReadOptions, open_trace
from warmtier.trace.schema import TraceRequest


@dataclass(frozen=True, slots=True)
class GridCell:
    """One simulation of one trace. ``trace_digest`` is of the file's content."""

    trace: Path
    trace_digest: str
    options: ReadOptions
    spec: SimSpec

    @property
    def digest(self) -> str:
        """Return the name of this cell in a journal."""
        reading = msgspec.json.encode(asdict(self.options), order="sorted", enc_hook=str)
        return self.spec.digest(f"{self.trace_digest} {reading.decode()}")


class JournalLine(msgspec.Struct):
    """One finished cell."""

    cell: str
    trace: str
    spec: dict[str, str | int | float | None]
    result: SimResult


def file_digest(path: Path) -> str:
    """Return a digest of a file's content. Blocks on the disk."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def make_cells(
    traces: Sequence[Path], options: ReadOptions, spec: SimSpec, axes: Mapping[str, Sequence[str | int]]
) -> list[GridCell]:
    """Return the product of all traces and axes; an axis is a field of SimSpec and its values."""
    cells = []
    for trace in traces:
        digest = file_digest(trace)
        for values in itertools.product(*axes.values()):
            changes = dict(zip(axes, values, strict=True))
            cells.append(GridCell(trace, digest, options, replace(spec, **changes)))  # type: ignore[arg-type]
    return cells


@lru_cache(maxsize=1)
def _load(trace: Path, options: ReadOptions) -> tuple[int, tuple[TraceRequest, ...]]:
    opened = open_trace(trace, options)
    return opened.trace.chunk_tokens, tuple(opened.trace)


def run_cell(cell: GridCell) -> SimResult:
    """Run one cell in this process."""
    block_tokens, requests = _load(cell.trace, cell.options)
    return simulate(cell.spec.settings(block_tokens), requests)


def run_grid(cells: Sequence[GridCell], workers: int, journal: Path | None) -> Iterator[tuple[int, SimResult]]:
    """Yield (index of the cell, result) as they come, those in the journal first. Blocks."""
    done = {} if journal is None else read_journal(journal)
    left = []
    for index, cell in enumerate(cells):
        if cell.digest in done:
            yield index, done[cell.digest]
        else:
            left.append(index)
    for index, result in _run(cells, left, workers):
        if journal is not None:
            append_journal(journal, cells[index], result)
        yield index, result


def _run(cells: Sequence[GridCell], indices: Sequence[int], workers: int) -> Iterator[tuple[int, SimResult]]:
    if workers <= 1 or len(indices) <= 1:
        for index in indices:
            yield index, run_cell(cells[index])
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(indices)), mp_context=context) as pool:
        futures = {pool.submit(run_cell, cells[index]): index for index in indices}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_journal(path: Path) -> dict[str, SimResult]:
    """Return the finished cells of a journal. A last line that was cut off is left out; others must be whole."""
    if not path.exists():
        return {}
    lines = path.read_bytes().split(b"\n")
    done = {}
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            entry = msgspec.json.decode(line, type=JournalLine)
        except msgspec.DecodeError as error:
            if number == len(lines):
                break
            fix = "it was written by another version, or is no journal: name another file"
            raise UsageError(f"{path}:{number}: not a line of a sweep: {error}", fix=fix) from None
        done[entry.cell] = entry.result
    return done


def append_journal(path: Path, cell: GridCell, result: SimResult) -> None:
    """Add one finished cell; a last line that was cut off makes room for it."""
    line = msgspec.json.encode(JournalLine(cell.digest, str(cell.trace), asdict(cell.spec), result)) + b"\n"
    with path.open("ab") as stream:
        stream.truncate(_whole_bytes(path))
        stream.write(line)


def _whole_bytes(path: Path) -> int:
    """Return the size of all whole lines. Looks back from the end only as far as needed."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        end = size
        while end:
            start = max(0, end - 65_536)
            stream.seek(start)
            at = stream.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
    return 0
