"""Mooncake's calls: batched, from and to our own registered memory, each with a deadline."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np

from warmtier.core.extras import require
from warmtier.core.types import Key, Namespace
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.record import encode_header, header_bytes, proves
from warmtier.store.shared.lanes import Lane, Lanes
from warmtier.store.shared.mooncake_options import MooncakeOptions

T = TypeVar("T")
R = TypeVar("R")
MAX_BATCH: Final = 512
"""Larger batches overflow Mooncake's TCP queues and fail as a whole."""

_LOCAL_BUFFER_BYTES: Final = 16 << 20
_ABSENT: Final = frozenset({-704, -703})  # not found; still being written by somebody
_BUFFER_TOO_SMALL: Final = -600
_NO_SPACE: Final = -200


class _Client(Protocol):
    """What we use of ``MooncakeDistributedStore``. Results are 0, 1 or a size, and negative codes."""

    def setup(
        self, host: str, metadata: str, segment_bytes: int, buffer_bytes: int, protocol: str, devices: str, master: str
    ) -> int: ...
    def register_buffer(self, address: int, size_bytes: int) -> int: ...
    def batch_put_from(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]: ...
    def batch_get_into(self, keys: list[str], addresses: list[int], sizes: list[int]) -> list[int]: ...
    def batch_is_exist(self, keys: list[str]) -> list[int]: ...
    def batch_remove(self, keys: list[str], force: bool) -> list[int]: ...
    def close(self) -> int: ...


@dataclass(slots=True)
class Requests:
    """Objects asked for so far. Approximate when several threads ask at once."""

    puts: int = 0
    gets: int = 0
    deletes: int = 0
    failures: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


def record_bytes(key: Key, data: memoryview) -> int:
    """Return what a chunk takes in a lane and in the cluster."""
    return header_bytes(key) + data.nbytes


def batches(numbers: Iterable[int], size: Callable[[int], int], limit_bytes: int) -> Iterator[list[int]]:
    """Group ``numbers`` so that each group fits into a lane and into Mooncake's queues."""
    batch: list[int] = []
    held_bytes = 0
    for number in numbers:
        size_bytes = size(number)
        if batch and (held_bytes + size_bytes > limit_bytes or len(batch) >= MAX_BATCH):
            yield batch
            batch, held_bytes = [], 0
        batch.append(number)
        held_bytes += size_bytes
    if batch:
        yield batch


class MooncakeCalls:
    """One membership in a cluster. ``deadline_s`` is in ``time.monotonic()``; all raise TimeoutError past it."""

    def __init__(self, namespace: Namespace, options: MooncakeOptions) -> None:
        module = require("mooncake.store", extra="mooncake", purpose="the shared tier on Mooncake")
        self.requests = Requests()
        self._namespace = namespace
        self._options = options
        self._client: _Client = module.MooncakeDistributedStore()
        self._lanes = Lanes(options.lanes, options.lane_bytes)

    def join(self, deadline_s: float) -> int:
        """Become a member; return 0 or Mooncake's code."""
        options = self._options

        def work() -> int:
            code = self._client.setup(
                options.host, options.metadata, options.segment_bytes, _LOCAL_BUFFER_BYTES, options.protocol,
                options.devices, options.master,
            )  # fmt: skip
            return code or self._client.register_buffer(self._lanes.address, self._lanes.view.nbytes)

        return self._call(work, deadline_s)

    def leave(self, timeout_s: float) -> None:
        """End the membership, if all calls end in time. Otherwise client, threads and memory stay for good.

        Closing or freeing Mooncake's client under a call that is still running crashes the process.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            lanes = [self._lanes.acquire(deadline_s) for _ in range(self._options.lanes)]
            self._lanes.call(lanes[0], self._client.close, deadline_s)
        except TimeoutError:
            self.abandon()
            return
        self._lanes.close(timeout_s)

    def abandon(self) -> None:
        """Never touch or free the client again."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._client))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._lanes))

    def exist(self, keys: Sequence[Key], deadline_s: float) -> list[bool] | None:
        """Return which keys there are; None when the cluster fails."""
        found: list[bool] = []
        for start in range(0, len(keys), MAX_BATCH):
            names = [self._name(key) for key in keys[start : start + MAX_BATCH]]
            codes = self._call(lambda batch=names: self._client.batch_is_exist(batch), deadline_s)  # type: ignore[misc]
            if any(code < 0 for code in codes):
                return None
            found.extend(code == 1 for code in codes)
        return found

    def remove(self, keys: Sequence[Key], deadline_s: float) -> int:
        """Remove keys, leases notwithstanding; return how many there were."""
        removed = 0
        for start in range(0, len(keys), MAX_BATCH):
            names = [self._name(key) for key in keys[start : start + MAX_BATCH]]
            self.requests.deletes += 1
            codes = self._call(lambda batch=names: self._client.batch_remove(batch, True), deadline_s)  # type: ignore[misc] # noqa: FBT003
            removed += sum(code == 0 for code in codes)
        return removed

    def send(self, writes: Sequence[Write], deadline_s: float) -> list[WriteOutcome]:
        """Store one batch."""
        sizes = [record_bytes(write.key, write.data) for write in writes]
        offsets = list(itertools.accumulate(sizes, initial=0))[:-1]
        names = [self._name(write.key) for write in writes]

        def fill(lane: Lane) -> Callable[[], list[int]]:
            for write, offset in zip(writes, offsets, strict=True):
                start = offset + header_bytes(write.key)
                payload = lane.view[start : start + write.data.nbytes]
                _copy(payload, write.data)
                lane.view[offset:start] = encode_header(self._namespace, write.key, payload)
            addresses = [lane.address + offset for offset in offsets]
            return lambda: self._client.batch_put_from(names, addresses, sizes)

        self.requests.puts += len(writes)
        self.requests.sent_bytes += sum(sizes)
        codes = self._with_lane(fill, lambda _, result: result, deadline_s)
        return [_stored(code) for code in codes]

    def receive(self, reads: Sequence[Read], deadline_s: float) -> list[ReadOutcome]:
        """Load one batch into its buffers."""
        sizes = [record_bytes(read.key, read.into) for read in reads]
        offsets = list(itertools.accumulate(sizes, initial=0))[:-1]
        names = [self._name(read.key) for read in reads]

        def fetch(lane: Lane) -> Callable[[], list[int]]:
            addresses = [lane.address + offset for offset in offsets]
            return lambda: self._client.batch_get_into(names, addresses, sizes)

        def take(lane: Lane, codes: list[int]) -> list[ReadOutcome]:
            self.requests.received_bytes += sum(code for code in codes if code > 0)
            rows = zip(reads, offsets, sizes, codes, strict=True)
            return [
                self._take(lane, read, offset) if code == size else _not_taken(code)
                for read, offset, size, code in rows
            ]

        self.requests.gets += len(reads)
        return self._with_lane(fetch, take, deadline_s)

    def _take(self, lane: Lane, read: Read, offset: int) -> ReadOutcome:
        start = offset + header_bytes(read.key)
        _copy(read.into, lane.view[start : start + read.into.nbytes])
        right = proves(lane.view[offset:start], self._namespace, read.key, read.into)
        return ReadOutcome.OK if right else ReadOutcome.CORRUPT

    def _call(self, work: Callable[[], T], deadline_s: float) -> T:
        return self._with_lane(lambda _: work, lambda _, result: result, deadline_s)

    def _with_lane(
        self, prepare: Callable[[Lane], Callable[[], R]], finish: Callable[[Lane, R], T], deadline_s: float
    ) -> T:
        """Prepare a call in a lane's memory, make it, and use what it left there."""
        try:
            lane = self._lanes.acquire(deadline_s)
            result = self._lanes.call(lane, self._prepared(lane, prepare), deadline_s)
        except TimeoutError:
            self.requests.failures += 1
            raise
        try:
            return finish(lane, result)
        finally:
            self._lanes.release(lane)

    def _prepared(self, lane: Lane, prepare: Callable[[Lane], Callable[[], R]]) -> Callable[[], R]:
        try:
            return prepare(lane)
        except BaseException:
            self._lanes.release(lane)
            raise

    def _name(self, key: Key) -> str:
        return f"wt1/{self._namespace.hex()}/{key.hex()}"


def _stored(code: int) -> WriteOutcome:
    if code == 0:
        return WriteOutcome.STORED
    return WriteOutcome.NO_ROOM if code == _NO_SPACE else WriteOutcome.ERROR


def _not_taken(code: int) -> ReadOutcome:
    if code in _ABSENT:
        return ReadOutcome.ABSENT
    return ReadOutcome.CORRUPT if code > 0 or code == _BUFFER_TOO_SMALL else ReadOutcome.ERROR


def _copy(target: memoryview, source: memoryview) -> None:
    """Copy bytes of equal length without holding the interpreter lock."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
