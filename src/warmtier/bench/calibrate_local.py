"""Speeds of this machine: copies in host memory, a file tier in a directory. Buffers are touched before the clock."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from warmtier.bench.fit import fit, median
from warmtier.core.errors import StoreError
from warmtier.core.types import Key, Namespace
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.file.store import FileStore
from warmtier.tiering.calibration import LinkSpeed

Bytes = NDArray[np.uint8]
_NAMESPACE: Final = Namespace(b"warmtier-measure")
_COPY_COUNTS: Final = (1, 4, 16)
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """A link's speed and the (bytes, seconds) behind it."""

    speed: LinkSpeed
    points: list[tuple[int, float]]


def line(points: Sequence[tuple[int, float]]) -> LinkSpeed:
    """Return fixed cost and bandwidth of measured transfers."""
    fixed_s, per_byte = fit([[1.0, size] for size, _ in points], [seconds for _, seconds in points])
    if per_byte <= 0:
        per_byte = min(seconds / size for size, seconds in points)
    return LinkSpeed(1.0 / per_byte, fixed_s)


def measure_copy(chunk_bytes: int) -> Measured:
    """Measure copies of one thread between two regions of ordinary host memory, as the CPU platform's worker does."""
    most = max(_COPY_COUNTS) * chunk_bytes
    source, target = np.ones(most, dtype=np.uint8), np.zeros(most, dtype=np.uint8)
    points = []
    for count in _COPY_COUNTS:
        size = count * chunk_bytes
        times = [_timed(lambda size=size: np.copyto(target[:size], source[:size])) for _ in range(_REPEATS)]  # type: ignore[misc]
        points.append((size, median(times)))
    return Measured(line(points), points)


def measure_file(directory: Path, chunk_bytes: int, *, budget_bytes: int = 512 << 20) -> tuple[Measured, Measured]:
    """Measure reads and writes of a new file tier below ``directory``; it is removed again. Returns (read, write).

    Reads are of files that were written a moment ago: with O_DIRECT (the store's default where the file system takes
    it) they come from the medium, else the page cache helps. Raises StoreError if the tier cannot be made.
    """
    place = directory / f".warmtier-calibrate-{os.getpid()}"
    counts = [n for n in (1, 4, 16) if n * chunk_bytes * 3 <= budget_bytes] or [1]
    capacity = max(64 << 20, 8 * sum(counts) * chunk_bytes)
    store = FileStore(place, _NAMESPACE, capacity_bytes=capacity, chunk_bytes=chunk_bytes)
    buffer = np.random.default_rng(0).integers(0, 256, max(counts) * chunk_bytes, dtype=np.uint8)
    target = np.zeros_like(buffer)
    reads: list[tuple[int, float]] = []
    writes: list[tuple[int, float]] = []
    try:
        list(store.open())
        for count in counts:
            for repeat in range(3):
                keys = [Key(f"{count}-{repeat}-{i}".encode().ljust(32, b".")) for i in range(count)]
                writes.append((count * chunk_bytes, _timed(lambda k=keys: _put(store, k, buffer, chunk_bytes))))  # type: ignore[misc]
                reads.append((count * chunk_bytes, _timed(lambda k=keys: _get(store, k, target, chunk_bytes))))  # type: ignore[misc]
    finally:
        store.close()
        shutil.rmtree(place, ignore_errors=True)
    return Measured(line(reads), reads), Measured(line(writes), writes)


def _put(store: FileStore, keys: Sequence[Key], buffer: Bytes, chunk_bytes: int) -> None:
    parts = [_part(buffer, i, chunk_bytes) for i in range(len(keys))]
    result = store.put([Write(key, part) for key, part in zip(keys, parts, strict=True)])
    if any(outcome is not WriteOutcome.STORED for outcome in result.outcomes):
        raise StoreError(f"the file tier did not store: {result.outcomes}")


def _get(store: FileStore, keys: Sequence[Key], target: Bytes, chunk_bytes: int) -> None:
    parts = [_part(target, i, chunk_bytes) for i in range(len(keys))]
    outcomes = store.get([Read(key, part) for key, part in zip(keys, parts, strict=True)])
    if any(outcome is not ReadOutcome.OK for outcome in outcomes):
        raise StoreError(f"the file tier did not read: {outcomes}")


def _part(buffer: Bytes, index: int, chunk_bytes: int) -> memoryview:
    return memoryview(buffer)[index * chunk_bytes : (index + 1) * chunk_bytes]  # type: ignore[arg-type]


def _timed(work: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
