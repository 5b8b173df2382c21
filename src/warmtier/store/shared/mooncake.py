"""A shared tier in Mooncake Store: memory that the machines of a fleet lend each other.

Batches go from and to registered memory (Mooncake's zero-copy calls). That memory is ours, not the engine's slab:
Mooncake's calls cannot be cancelled, and block for seconds when its master is gone, so a call that missed its deadline
may write long after. The copy between is the pass that the checksum needs anyway.

Object keys are ``wt1/NAMESPACE/KEY`` in hexadecimal; values are a chunk header and the payload.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from warmtier.core.errors import StoreError
from warmtier.core.types import Key, Namespace, TierKind
from warmtier.store.base import Read, ReadOutcome, StoreStats, Traffic, Write, WriteOutcome, WriteResult
from warmtier.store.record import MAX_KEY_BYTES
from warmtier.store.shared.mooncake_calls import MooncakeCalls, batches, record_bytes
from warmtier.store.shared.mooncake_options import MooncakeOptions

_FAILED_READS = frozenset({ReadOutcome.ERROR, ReadOutcome.TIMEOUT})
_FAILED_WRITES = frozenset({WriteOutcome.ERROR, WriteOutcome.TIMEOUT})


@dataclass(slots=True)
class _Counters:
    bytes_written: int = 0
    bytes_read: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0
    corrupt: int = 0
    errors: int = 0
    chunks: int = 0


class MooncakeStore:
    """Chunks of one namespace in a cluster that bounds and evicts by itself. What it has is found out by asking."""

    kind = TierKind.SHARED

    def __init__(self, namespace: Namespace, options: MooncakeOptions) -> None:
        self._namespace = namespace
        self._options = options
        self._calls: MooncakeCalls | None = None
        self._counters = _Counters()
        self._lock = threading.Lock()

    @property
    def capacity_bytes(self) -> int:
        """What this process lends. The bound on all is the sum over the cluster, which its master keeps."""
        return self._options.segment_bytes

    def open(self) -> Iterable[tuple[Key, int]]:
        """Join the cluster. Lists nothing: the cluster has no such call. Raises StoreError."""
        if self._calls is not None:
            raise StoreError("this shared store is open already")
        calls = MooncakeCalls(self._namespace, self._options)
        try:
            code = calls.join(time.monotonic() + self._options.open_timeout_s)
            why = f"Mooncake's code {code}" if code else ""
        except TimeoutError:
            why = "its master does not answer"
        if why:
            calls.abandon()
            what = f"the Mooncake cluster of master {self._options.master} cannot be joined"
            raise StoreError(what, why=why, fix="check the address, and that its master runs")
        self._calls = calls
        return []

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks, in batches. STORED: the cluster has it."""
        calls = self._calls
        if calls is None:
            return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
        started_s = time.perf_counter()
        outcomes = [WriteOutcome.ERROR] * len(writes)
        deadline_s = self._deadline_s(sum(write.data.nbytes for write in writes))
        try:
            self._put_batches(calls, writes, outcomes, deadline_s)
        except TimeoutError:
            outcomes = [WriteOutcome.TIMEOUT if each is WriteOutcome.ERROR else each for each in outcomes]
        pairs = zip(writes, outcomes, strict=True)
        stored = [write.data.nbytes for write, outcome in pairs if outcome is WriteOutcome.STORED]
        with self._lock:
            self._counters.bytes_written += sum(stored)
            self._counters.chunks += len(stored)
            self._counters.write_seconds += time.perf_counter() - started_s
            self._counters.errors += any(each in _FAILED_WRITES for each in outcomes)
        return WriteResult(outcomes)

    def _put_batches(
        self, calls: MooncakeCalls, writes: Sequence[Write], outcomes: list[WriteOutcome], deadline_s: float
    ) -> None:
        present = calls.exist([write.key for write in writes], deadline_s)
        if present is None:
            return
        wanted: list[int] = []
        seen: set[Key] = set()
        for number, write in enumerate(writes):
            if present[number] or write.key in seen:
                outcomes[number] = WriteOutcome.PRESENT
            elif len(write.key) > MAX_KEY_BYTES or record_bytes(write.key, write.data) > self._options.lane_bytes:
                outcomes[number] = WriteOutcome.NO_ROOM
            else:
                wanted.append(number)
                seen.add(write.key)
        sizes = {number: record_bytes(writes[number].key, writes[number].data) for number in wanted}
        for batch in batches(wanted, sizes.__getitem__, self._options.lane_bytes):
            for number, outcome in zip(batch, calls.send([writes[n] for n in batch], deadline_s), strict=True):
                outcomes[number] = outcome
            if all(outcomes[number] is WriteOutcome.ERROR for number in batch):
                return  # the next batch would block for seconds as well

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks, in batches."""
        calls = self._calls
        if calls is None:
            return [ReadOutcome.ABSENT] * len(reads)
        started_s = time.perf_counter()
        outcomes = [ReadOutcome.ERROR] * len(reads)
        deadline_s = self._deadline_s(sum(read.into.nbytes for read in reads))
        try:
            self._get_batches(calls, reads, outcomes, deadline_s)
        except TimeoutError:
            outcomes = [ReadOutcome.TIMEOUT if each is ReadOutcome.ERROR else each for each in outcomes]
        damaged = [read.key for read, each in zip(reads, outcomes, strict=True) if each is ReadOutcome.CORRUPT]
        if damaged:
            self.delete(damaged)
        pairs = zip(reads, outcomes, strict=True)
        loaded_bytes = sum(read.into.nbytes for read, outcome in pairs if outcome is ReadOutcome.OK)
        with self._lock:
            self._counters.bytes_read += loaded_bytes
            self._counters.read_seconds += time.perf_counter() - started_s
            self._counters.corrupt += len(damaged)
            self._counters.errors += any(each in _FAILED_READS for each in outcomes)
        return outcomes

    def _get_batches(
        self, calls: MooncakeCalls, reads: Sequence[Read], outcomes: list[ReadOutcome], deadline_s: float
    ) -> None:
        sizes = {number: record_bytes(read.key, read.into) for number, read in enumerate(reads)}
        fitting = [number for number, size_bytes in sizes.items() if size_bytes <= self._options.lane_bytes]
        for number in sizes.keys() - set(fitting):
            outcomes[number] = ReadOutcome.ABSENT  # never stored: ``put`` refuses such chunks
        for batch in batches(fitting, sizes.__getitem__, self._options.lane_bytes):
            for number, outcome in zip(batch, calls.receive([reads[n] for n in batch], deadline_s), strict=True):
                outcomes[number] = outcome
            if all(outcomes[number] is ReadOutcome.ERROR for number in batch):
                return  # the next batch would block for seconds as well

    def probe(self, keys: Sequence[Key]) -> list[bool]:
        """Return which keys the cluster has now."""
        absent = [False] * len(keys)
        try:
            return (self._calls and self._calls.exist(keys, self._deadline_s(0))) or absent
        except TimeoutError:
            return absent

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys, for everybody, leases notwithstanding: readers prove what they read."""
        if self._calls is None:
            return
        try:
            removed = self._calls.remove(keys, self._deadline_s(0))
        except TimeoutError:
            return
        with self._lock:
            self._counters.chunks = max(0, self._counters.chunks - removed)

    def _deadline_s(self, size_bytes: int) -> float:
        return time.monotonic() + self._options.timeout_s + size_bytes / self._options.slowest_bytes_per_s

    def stats(self) -> StoreStats:
        """Return our figures. ``chunks`` are those that this process stored and did not delete, evicted or not."""
        with self._lock:
            counters = self._counters
            return StoreStats(
                capacity_bytes=self._options.segment_bytes,
                used_bytes=0,
                chunks=counters.chunks,
                bytes_written=counters.bytes_written,
                bytes_read=counters.bytes_read,
                write_seconds=counters.write_seconds,
                read_seconds=counters.read_seconds,
                corrupt=counters.corrupt,
                errors=counters.errors,
            )

    def traffic(self) -> Traffic:
        """Return what was asked of the cluster since ``open``."""
        if self._calls is None:
            return Traffic()
        requests = self._calls.requests
        return Traffic(
            puts=requests.puts,
            gets=requests.gets,
            deletes=requests.deletes,
            failures=requests.failures,
            sent_bytes=requests.sent_bytes,
            received_bytes=requests.received_bytes,
        )

    def close(self) -> None:
        """Leave the cluster, and take what this process lent out of it. Waits at most twice ``timeout_s``."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.leave(self._options.timeout_s)
