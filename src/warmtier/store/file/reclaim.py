"""Where the next record goes: growing while the budget allows, reusing segments when it does not.

Victims, in this order: segments of other namespaces, unknown formats and failed ones, oldest first; then our own with
the least live bytes (to an eighth of a segment), oldest first. A victim's records that were read since they were
written are carried over, up to a quarter of a segment: so at most a third more is written than was asked for. Eviction
happens on demand, inside the call that needs room; a segment that can be neither reused nor removed is set aside.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from warmtier.core.types import Key
from warmtier.store.base import WriteOutcome
from warmtier.store.file.budget import Budget
from warmtier.store.file.carry import Carrier
from warmtier.store.file.format import PAGE
from warmtier.store.file.segment import Segment, segment_name
from warmtier.store.file.shared import Shared

_STEPS: Final = 8  # live bytes are compared to an eighth of a segment, so that age decides among near equals


class Span(NamedTuple):
    """Room for the next ``records``, reserved in one segment. ``written`` must be called for it."""

    segment: Segment
    sequence: int
    offset: int
    records: int


@dataclass(slots=True)
class Batch:
    """One call of ``put``: the keys that it cost others, and the segments that it wrote to and may not evict."""

    evicted: list[Key]
    touched: set[int] = field(default_factory=set)


class Segments:
    """The segments of one directory. Thread-safe; ``reserve`` may block on the medium."""

    def __init__(self, shared: Shared, budget: Budget, *, segment_bytes: int, sync: bool) -> None:
        self._shared = shared
        self._budget = budget
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._rotation = threading.Lock()
        self._active: Segment | None = None
        self._next_sequence = 1
        self._carrier = Carrier(shared, segment_bytes // 4)
        self.sealed_bytes = 0  # since the last snapshot

    @property
    def longest_record_bytes(self) -> int:
        """The largest record that a segment can hold."""
        return self._segment_bytes - PAGE

    def adopt(self, next_sequence: int) -> None:
        """Take over the recovered segments: shrink to the budget, resume the newest of ours."""
        self._next_sequence = next_sequence
        dropped = Batch([])
        while self._budget.exceeded():
            victim = self._victim(dropped)
            if victim is None:
                break
            self._remove(victim, dropped)
        mine = [s for s in self._shared.index.segments.values() if s.own and not s.failed and not s.stuck]
        newest = max(mine, key=lambda segment: segment.sequence, default=None)
        if newest is not None and newest.size_bytes == self._segment_bytes and newest.room_bytes > PAGE:
            self._resume(newest)
        for segment in mine:  # of a killed writer: sealed now, they need not be read whole at every start
            if not segment.sealed and segment is not self._active:
                self._seal_late(segment)

    def _seal_late(self, segment: Segment) -> None:
        try:
            segment.fd = self._shared.directory.open(segment.name, write=True)
        except OSError as error:
            self._shared.say_once("resume", "cannot seal %s (%s)", segment.name, error)
            return
        segment.writers = 1
        self._seal(segment)

    def _resume(self, segment: Segment) -> None:
        try:
            segment.fd = self._shared.directory.open(segment.name, write=True)
            if segment.sealed:
                segment.write_header(self._shared.directory, self._shared.namespace, sealed=False)
                segment.sealed = False
            self._active = segment
        except OSError as error:
            segment.close_file()
            self._shared.say_once("resume", "cannot continue %s (%s)", segment.name, error)

    def reserve(self, sizes: Sequence[int], batch: Batch) -> Span | WriteOutcome:
        """Reserve room for the longest leading part of ``sizes`` (bytes of records) that fits one segment."""
        while True:
            with self._shared.lock:
                segment = self._active
                span = _take(segment, sizes) if segment is not None else None
                if span is not None:
                    batch.touched.add(span.segment.number)
                    return span
            refusal = self._rotate(segment, batch)
            if refusal is not None:
                return refusal

    def written(self, segment: Segment) -> None:
        """End the use of a span."""
        with self._shared.lock:
            last = segment.writers == 1 and segment is not self._active
            if not last:
                segment.writers -= 1
        if last:  # sealing counts as writing: nobody may reuse the segment meanwhile
            self._seal(segment)

    def close(self) -> None:
        """Seal the active segment."""
        with self._rotation:
            self._retire(self._active)

    def _rotate(self, full: Segment | None, batch: Batch) -> WriteOutcome | None:
        with self._rotation:
            if self._active is not full:
                return None  # another thread was faster
            self._retire(full)
            try:
                segment = self._next(batch)
            except OSError as error:  # a broken medium: the directory itself cannot be read any more
                self._shared.say_once("medium", "the medium fails (%s)", error)
                return WriteOutcome.ERROR
            with self._shared.lock:
                self._active = segment
            if segment is None:
                self._shared.say_once("room", "no room: nothing that could go is left; chunks are dropped")
                return WriteOutcome.NO_ROOM
            return None

    def _retire(self, segment: Segment | None) -> None:
        with self._shared.lock:
            self._active = None
            idle = segment is not None and segment.writers == 0
            if segment is not None and idle:
                segment.writers = 1
        if segment is not None and idle:
            self._seal(segment)

    def _seal(self, segment: Segment) -> None:
        """Note in the header where the records end. A failure only makes recovery slower."""
        directory = self._shared.directory
        try:
            if self._sync:
                directory.fsync(segment.fd)
            segment.write_header(directory, self._shared.namespace, sealed=True)
            if self._sync:
                directory.fsync(segment.fd)
            segment.sealed = True
        except OSError as error:
            self._shared.say_once("write", "cannot seal %s (%s)", segment.name, error)
        segment.close_file()
        with self._shared.lock:
            segment.writers -= 1
            self.sealed_bytes += segment.used_bytes

    def _next(self, batch: Batch) -> Segment | None:
        """Return a segment to write to, new or reused; None when nothing may grow and nothing can go."""
        for _ in range(len(self._shared.index.segments) + 2):
            if self._budget.may_grow(self._segment_bytes):
                created = self._create()
                if created is not None:
                    return created
            victim = self._victim(batch)
            if victim is None:
                return None
            if self._reusable(victim) and not self._budget.exceeded():
                if self._reuse(victim, batch):
                    return victim
            else:
                self._remove(victim, batch)
        return None

    def _create(self) -> Segment | None:
        directory = self._shared.directory
        number = max(self._shared.index.segments, default=-1) + 1
        segment = Segment(number, self._take_sequence(), self._segment_bytes, self._segment_bytes, own=True)
        try:
            segment.fd = directory.create(segment.name, self._segment_bytes)
            segment.blocks_bytes = directory.size_on_disk(segment.name)[1]
            segment.write_header(directory, self._shared.namespace, sealed=False)
            if self._sync:
                directory.fsync_names()
        except OSError as error:
            self._abandon(segment)
            self._shared.say_once("room", "cannot make a segment (%s); going on with those there are", error)
            return None
        with self._shared.lock:
            self._shared.index.segments[number] = segment
        return segment

    def _abandon(self, segment: Segment) -> None:
        if segment.fd >= 0:
            segment.close_file()
            with contextlib.suppress(OSError):
                self._shared.directory.unlink(segment.name)

    def _victim(self, batch: Batch) -> Segment | None:
        with self._shared.lock:
            candidates = [
                segment
                for segment in self._shared.index.segments.values()
                if not segment.stuck
                and segment.writers == 0
                and segment is not self._active
                and segment.number not in batch.touched
            ]
            return min(candidates, key=self._worth, default=None)

    def _worth(self, segment: Segment) -> tuple[int, int, int]:
        if not segment.own or segment.failed:
            return (0, 0, segment.sequence)
        return (1, segment.live_bytes * _STEPS // max(1, segment.size_bytes), segment.sequence)

    def _reusable(self, segment: Segment) -> bool:
        return segment.size_bytes == self._segment_bytes and not segment.failed

    def _reuse(self, victim: Segment, batch: Batch) -> bool:
        """Start ``victim`` anew with its hot records; False when the medium refuses: then it is set aside or gone."""
        directory = self._shared.directory
        hot = self._carrier.choose(victim)
        with self._shared.lock:
            batch.evicted += self._shared.index.drop(victim, keep=(key for key, _ in hot))
            victim.sealed = False
            victim.own = True
            victim.sequence = self._take_sequence()
            victim.used_bytes = PAGE
            victim.keys = []
        try:
            victim.fd = directory.open(victim.name, write=True)
            victim.write_header(directory, self._shared.namespace, sealed=False)
        except OSError as error:
            self._shared.say_once("reuse", "cannot reuse %s (%s)", victim.name, error)
            victim.failed = True
        self._carrier.carry(victim, hot, batch.evicted)
        if victim.failed:
            victim.close_file()
        return not victim.failed

    def _remove(self, victim: Segment, batch: Batch) -> None:
        with self._shared.lock:
            batch.evicted += self._shared.index.drop(victim)
        try:
            self._shared.directory.unlink(segment_name(victim.number))
        except FileNotFoundError:
            pass
        except OSError as error:
            victim.stuck = True
            self._shared.say_once("remove", "cannot remove %s (%s); it stays and counts", victim.name, error)
            return
        with self._shared.lock:
            del self._shared.index.segments[victim.number]

    def _take_sequence(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        return sequence


def _take(segment: Segment | None, sizes: Sequence[int]) -> Span | None:
    if segment is None:
        return None
    room, count, total = segment.room_bytes, 0, 0
    for size_bytes in sizes:
        if total + size_bytes > room:
            break
        total += size_bytes
        count += 1
    if count == 0:
        return None
    span = Span(segment, segment.sequence, segment.used_bytes, count)
    segment.used_bytes += total
    segment.writers += 1
    return span
