"""A store that fails on purpose: seeded latency, errors, short and torn transfers, flipped bits, hangs.

Wraps any store. What it damages, it damages as a medium would: below the wrapped store's checksums where the outcome
must be a miss. So every fault but POISON ends in an outcome other than OK, or only in lost time.
"""

from __future__ import annotations

import enum
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from warmtier.core.types import Key, TierKind
from warmtier.store.base import Read, ReadOutcome, Store, StoreStats, Write, WriteOutcome, WriteResult


class Fault(enum.StrEnum):
    """What can go wrong with one chunk."""

    LATENCY = "latency"  # the call takes ``latency_s`` longer
    HANG = "hang"  # the call waits until ``release``
    EIO_READ = "eio_read"
    EIO_WRITE = "eio_write"
    ENOSPC = "enospc"
    READ_ONLY = "read_only"
    SHORT_READ = "short_read"  # only the first half arrives
    SHORT_WRITE = "short_write"  # only the first half is written, and the store notices
    TORN_WRITE = "torn_write"  # acknowledged, but the second half never reached the medium
    BIT_FLIP = "bit_flip"  # one bit of the stored chunk changes
    POISON = "poison"  # wrong bytes, handed out as OK: no store does this; proves that a test would see it


_ON_READ = frozenset({Fault.EIO_READ, Fault.SHORT_READ, Fault.BIT_FLIP, Fault.POISON})
_REFUSALS: Mapping[Fault | None, WriteOutcome] = {
    Fault.EIO_WRITE: WriteOutcome.ERROR,
    Fault.SHORT_WRITE: WriteOutcome.ERROR,
    Fault.ENOSPC: WriteOutcome.NO_ROOM,
    Fault.READ_ONLY: WriteOutcome.READ_ONLY,
}


@dataclass(slots=True)
class FaultPlan:
    """The chance of each fault: per call for LATENCY and HANG, else per chunk. May be changed while in use."""

    chances: dict[Fault, float] = field(default_factory=dict)
    latency_s: float = 1.0
    seed: int = 0


class FaultyStore:
    """Passes calls to ``inner`` and makes some fail. ``injected`` counts what was done. Thread-safe.

    ``sleep`` is replaced in tests that must not wait. A hang ends at ``release``; later hangs end at once.
    """

    def __init__(self, inner: Store, plan: FaultPlan, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._inner = inner
        self.kind: TierKind = inner.kind
        self.plan = plan
        self._sleep = sleep
        self._random = random.Random(plan.seed)
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._torn: set[Key] = set()
        self.injected: dict[Fault, int] = dict.fromkeys(Fault, 0)

    @property
    def capacity_bytes(self) -> int:
        """The bound of the wrapped store."""
        return self._inner.capacity_bytes

    def release(self) -> None:
        """Let all hanging calls go on."""
        self._released.set()

    def open(self) -> Iterable[tuple[Key, int]]:
        """Open the wrapped store."""
        self._wait()
        return self._inner.open()

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store those chunks that draw no fault; refuse or damage the others."""
        self._wait()
        fates = [self._write_fate() for _ in writes]
        passed = [write for write, fate in zip(writes, fates, strict=True) if fate not in _REFUSALS]
        inner = self._inner.put(passed)
        accepted = iter(inner.outcomes)
        outcomes = [_REFUSALS[fate] if fate in _REFUSALS else next(accepted) for fate in fates]
        with self._lock:
            for write, fate, outcome in zip(writes, fates, outcomes, strict=True):
                if outcome is WriteOutcome.STORED:
                    self._torn.discard(write.key)
                    if fate is Fault.TORN_WRITE:
                        self._torn.add(write.key)
        return WriteResult(outcomes, inner.evicted)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load; chunks that draw a fault, or were torn when written, are not OK and their buffers hold garbage."""
        self._wait()
        outcomes = self._inner.get(reads)
        for position, read in enumerate(reads):
            if outcomes[position] is ReadOutcome.OK:
                outcomes[position] = self._read_one(read)
        return outcomes

    def _read_one(self, read: Read) -> ReadOutcome:
        fault = self._draw(_ON_READ)
        with self._lock:
            torn = read.key in self._torn
        if fault is None and not torn:
            return ReadOutcome.OK
        self._spoil(read.into.cast("B"), fault)
        if fault is Fault.POISON:
            return ReadOutcome.OK
        if fault in (Fault.EIO_READ, Fault.SHORT_READ) and not torn:
            return ReadOutcome.ERROR
        self.delete([read.key])  # as every store does with what does not match
        return ReadOutcome.CORRUPT

    def _spoil(self, into: memoryview, fault: Fault | None) -> None:
        if not len(into):
            return
        if fault in (Fault.BIT_FLIP, Fault.POISON):
            with self._lock:
                at = self._random.randrange(len(into) * 8)
            into[at // 8] ^= 1 << (at % 8)
        else:
            half = len(into) // 2
            into[half:] = bytes(len(into) - half)

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys."""
        with self._lock:
            self._torn.difference_update(keys)
        self._inner.delete(keys)

    def stats(self) -> StoreStats:
        """Return the wrapped store's figures."""
        return self._inner.stats()

    def close(self) -> None:
        """Let hanging calls go and close the wrapped store."""
        self.release()
        self._inner.close()

    def _write_fate(self) -> Fault | None:
        return self._draw(frozenset({Fault.TORN_WRITE, *(fault for fault in _REFUSALS if fault is not None)}))

    def _draw(self, among: frozenset[Fault]) -> Fault | None:
        """Return the first fault of ``among`` whose chance comes up, and count it."""
        with self._lock:
            for fault, chance in self.plan.chances.items():
                if fault in among and self._random.random() < chance:
                    self.injected[fault] += 1
                    return fault
        return None

    def _wait(self) -> None:
        if self._draw(frozenset({Fault.LATENCY})) is not None:
            self._sleep(self.plan.latency_s)
        if self._draw(frozenset({Fault.HANG})) is not None:
            self._released.wait()
