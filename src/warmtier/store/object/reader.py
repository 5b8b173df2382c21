"""Ranged reads, many in flight. Bytes arrive in memory of the client; the caller's thread copies them out and proves
them in place. Past its deadline a call returns: nothing writes into its buffers afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np

from warmtier.store.base import Read, ReadOutcome
from warmtier.store.object.client import Failure, RequestError
from warmtier.store.object.filling import record_bytes
from warmtier.store.object.index import Location
from warmtier.store.object.options import ObjectOptions
from warmtier.store.object.region import Region
from warmtier.store.object.state import State
from warmtier.store.record import header_bytes, proves


@dataclass(frozen=True, slots=True)
class Fetch:
    """One range of one pack, and which reads it serves (by number)."""

    pack: str
    start: int
    length: int
    wanted: tuple[tuple[int, Location], ...]


Answer = tuple[Fetch, memoryview | RequestError]


def plan(wanted: Sequence[tuple[int, Location]], options: ObjectOptions) -> list[Fetch]:
    """Join neighbouring records into ranges of at most ``range_bytes``, over gaps worth less than a request."""
    by_pack: defaultdict[str, list[tuple[int, Location]]] = defaultdict(list)
    for number, location in wanted:
        by_pack[location.pack.name].append((number, location))
    fetches: list[Fetch] = []
    for pack, items in by_pack.items():
        items.sort(key=lambda item: item[1].offset)
        fetches.extend(_ranges(pack, items, options))
    return fetches


def _ranges(pack: str, items: Sequence[tuple[int, Location]], options: ObjectOptions) -> Iterator[Fetch]:
    group: list[tuple[int, Location]] = []
    start = end = 0
    for number, location in items:
        stop = location.offset + record_bytes(location.key, location.length)
        joins = location.offset - end <= options.coalesce_gap_bytes and stop - start <= options.range_bytes
        if group and not joins:
            yield Fetch(pack, start, end - start, tuple(group))
            group = []
        if not group:
            start = location.offset
        group.append((number, location))
        end = max(stop, end) if len(group) > 1 else stop
    if group:
        yield Fetch(pack, start, end - start, tuple(group))


class Reader:
    """Loads chunks for any number of threads at once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._slots = asyncio.Semaphore(state.options.reads_in_flight)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks; blocks at most for the deadline of all their bytes."""
        started_s = time.perf_counter()
        outcomes = [ReadOutcome.ABSENT] * len(reads)
        remote: list[tuple[int, Location]] = []
        for number, location, region in self._locate(reads, outcomes):
            if region is None:
                remote.append((number, location))
                continue
            record = region.view[location.offset : location.offset + record_bytes(location.key, location.length)]
            outcomes[number] = self._take(reads[number], location, record)
            with self._state.lock:
                self._state.filler.release(region)
                self._state.lock.notify_all()
        if remote:
            self._fetch_all(reads, plan(remote, self._state.options), outcomes)
        loaded_bytes = sum(
            read.into.nbytes for read, outcome in zip(reads, outcomes, strict=True) if outcome is ReadOutcome.OK
        )
        with self._state.lock:
            self._state.counters.bytes_read += loaded_bytes
            self._state.counters.read_seconds += time.perf_counter() - started_s
        return outcomes

    def _locate(self, reads: Sequence[Read], outcomes: list[ReadOutcome]) -> list[tuple[int, Location, Region | None]]:
        state = self._state
        found: list[tuple[int, Location, Region | None]] = []
        with state.lock:
            for number, read in enumerate(reads):
                location = state.index.find(read.key)
                if location is None:
                    continue
                if location.length != read.into.nbytes:
                    outcomes[number] = ReadOutcome.CORRUPT
                    self._drop_damaged(location)
                    continue
                state.budget.touch(location.pack.name)
                region = location.pack.region
                if region is not None:
                    region.users += 1
                found.append((number, location, region))
        return found

    def _fetch_all(self, reads: Sequence[Read], fetches: Sequence[Fetch], outcomes: list[ReadOutcome]) -> None:
        state = self._state
        for fetch in fetches:
            for number, _ in fetch.wanted:
                outcomes[number] = ReadOutcome.TIMEOUT
        allowed_s = state.deadline_s(sum(fetch.length for fetch in fetches))
        deadline_s = time.perf_counter() + allowed_s
        answers: SimpleQueue[Answer] = SimpleQueue()
        running = [state.client.spawn(self._fetch(fetch, answers)) for fetch in fetches]
        try:
            for _ in fetches:
                fetch, data = answers.get(timeout=max(0.0, deadline_s - time.perf_counter()))
                self._deliver(reads, fetch, data, outcomes)
        except Empty:
            for future in running:
                future.cancel()

    async def _fetch(self, fetch: Fetch, answers: SimpleQueue[Answer]) -> None:
        state = self._state
        async with self._slots:
            try:
                timeout_s = state.deadline_s(fetch.length)
                path = state.pack_path(fetch.pack)
                answers.put((fetch, await state.client.get(path, fetch.start, fetch.length, timeout_s=timeout_s)))
            except RequestError as error:
                answers.put((fetch, error))

    def _deliver(
        self, reads: Sequence[Read], fetch: Fetch, data: memoryview | RequestError, outcomes: list[ReadOutcome]
    ) -> None:
        if isinstance(data, RequestError):
            outcome = self._failed(fetch, data)
            for number, _ in fetch.wanted:
                outcomes[number] = outcome
            return
        for number, location in fetch.wanted:
            start = location.offset - fetch.start
            record = data[start : start + record_bytes(location.key, location.length)]
            outcomes[number] = self._take(reads[number], location, record)

    def _take(self, read: Read, location: Location, record: memoryview) -> ReadOutcome:
        """Copy a record out and prove the copy, so that no later change of the source matters."""
        start = header_bytes(location.key)
        payload = record[start : start + location.length]
        if payload.nbytes == location.length:
            copy(read.into, payload)
            if proves(record[:start], self._state.namespace, read.key, read.into):
                return ReadOutcome.OK
        with self._state.lock:
            self._drop_damaged(location)
        return ReadOutcome.CORRUPT

    def _drop_damaged(self, location: Location) -> None:
        self._state.counters.corrupt += 1
        self._state.index.drop_chunk(location)

    def _failed(self, fetch: Fetch, error: RequestError) -> ReadOutcome:
        state = self._state
        with state.lock:
            if error.failure is Failure.ABSENT:
                state.index.drop_pack(fetch.pack)
                state.budget.release(fetch.pack)
                return ReadOutcome.ABSENT
            if error.failure is Failure.SHORT:
                for _, location in fetch.wanted:
                    self._drop_damaged(location)
                return ReadOutcome.CORRUPT
            state.counters.errors += 1
        return ReadOutcome.TIMEOUT if error.failure is Failure.TIMEOUT else ReadOutcome.ERROR


def copy(target: memoryview, source: memoryview | bytes) -> None:
    """Copy bytes of equal length without holding the interpreter lock."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
