"""Reading: neighbours in one call, calls spread over threads, every byte checked before the outcome is OK.

Nothing pins a segment while it is read. A segment may be reused underneath; then header or checksum do not match, and
the index says whether that was eviction (ABSENT) or damage (CORRUPT).
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import xxhash

from warmtier.core.types import Key
from warmtier.store.base import Read, ReadOutcome
from warmtier.store.file.format import PAGE, RecordHeader, checksum, padded, record_bytes, unpack_record
from warmtier.store.file.frame import ReadFrame, frame_for_read
from warmtier.store.file.index import Location
from warmtier.store.file.segment import segment_name
from warmtier.store.file.shared import PIECE_RECORDS, Shared, piece_limit

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Errors that say nothing about the segment."""


@dataclass(slots=True)
class _Item:
    """One chunk on its way in."""

    position: int
    key: Key
    into: memoryview
    place: Location
    header: RecordHeader | None = None
    hasher: xxhash.xxh3_128 | None = None
    outcome: ReadOutcome = ReadOutcome.OK
    error: OSError | None = None


@dataclass(slots=True)
class _Part:
    """A chunk, or a range of a large one, within a piece. The first part of a chunk has the header page."""

    item: _Item
    header_page: memoryview | None
    view: memoryview
    frame: ReadFrame
    last: bool


@dataclass(slots=True)
class _Piece:
    """Neighbouring bytes of one segment, read by one call."""

    segment: int
    offset: int
    scratch: memoryview
    size_bytes: int = 0
    parts: list[_Part] = field(default_factory=list)


class Reader:
    """Serves ``FileStore.get``. Thread-safe."""

    def __init__(self, shared: Shared, threads: int) -> None:
        self._shared = shared
        self._threads = threads

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks; outcomes in the order asked."""
        started_s = time.perf_counter()
        outcomes = [ReadOutcome.ABSENT] * len(reads)
        moved = self._load(self._locate(reads, range(len(reads))), outcomes)
        if moved:  # carried elsewhere while we read: the new place is known now; a second move is a miss
            self._load(self._locate(reads, moved), outcomes)
        self._account(reads, outcomes, time.perf_counter() - started_s)
        return outcomes

    def _account(self, reads: Sequence[Read], outcomes: list[ReadOutcome], seconds: float) -> None:
        size_bytes = sum(r.into.nbytes for r, o in zip(reads, outcomes, strict=True) if o is ReadOutcome.OK)
        with self._shared.lock:
            self._shared.counters.bytes_read += size_bytes
            self._shared.counters.read_seconds += seconds

    def _locate(self, reads: Sequence[Read], positions: Iterable[int]) -> list[_Item]:
        items = []
        with self._shared.lock:
            for position in positions:
                read = reads[position]
                place = self._shared.index.find(read.key)
                if place is not None:
                    items.append(_Item(position, read.key, read.into.cast("B"), place))
        items.sort(key=lambda item: item.place)
        return items

    def _load(self, items: list[_Item], outcomes: list[ReadOutcome]) -> list[int]:
        """Read ``items``; note their outcomes; return the positions of those that moved meanwhile."""
        for item in items:
            if len(item.into) != item.place[2]:
                item.outcome = ReadOutcome.CORRUPT
        self._run([item for item in items if item.outcome is ReadOutcome.OK])
        moved = [item.position for item in items if item.outcome is not ReadOutcome.OK and self._judge(item)]
        for item in items:
            outcomes[item.position] = item.outcome
        return moved

    def _judge(self, item: _Item) -> bool:
        """Tell damage from a record that moved (True) or was evicted under us; forget what is damaged."""
        shared = self._shared
        with shared.lock:
            if not shared.index.discard_at(item.key, item.place):
                item.outcome = ReadOutcome.ABSENT
                return item.key in shared.index
            if item.error is None:
                shared.counters.corrupt += 1
            else:
                shared.counters.errors += 1
                segment = shared.index.segments[item.place[0]]
                segment.failed = segment.failed or item.error.errno not in _PASSING
        where = f"{segment_name(item.place[0])} at {item.place[1]}"
        why = item.error or "it does not match its checksum, key or length"
        shared.say_once(f"read {item.outcome}", "a chunk in %s is lost and a miss from now on (%s)", where, why)
        return False

    def _pieces(self, items: list[_Item], limit: int) -> Iterator[_Piece]:
        piece: _Piece | None = None
        for item in items:
            segment, offset, length = item.place
            size_bytes = record_bytes(length)
            if piece is not None and not _continues(piece, segment, offset, size_bytes, limit):
                yield piece
                piece = None
            if size_bytes > limit:
                yield from self._large(item, limit)
                continue
            if piece is None:
                piece = _Piece(segment, offset, self._shared.scratch.take())
            self._add(piece, item, item.into, first=True, last=True)
        if piece is not None:
            yield piece

    def _large(self, item: _Item, limit: int) -> Iterator[_Piece]:
        """Cut a chunk longer than a piece into several."""
        segment, offset, length = item.place
        item.hasher = xxhash.xxh3_128()
        for start in range(0, length, limit):
            end = min(length, start + limit)
            piece = _Piece(segment, offset + (PAGE + start if start else 0), self._shared.scratch.take())
            self._add(piece, item, item.into[start:end], first=start == 0, last=end == length)
            yield piece

    def _add(self, piece: _Piece, item: _Item, view: memoryview, *, first: bool, last: bool) -> None:
        frame = frame_for_read(view, direct=self._shared.directory.direct)
        page = piece.scratch[len(piece.parts) * PAGE :][:PAGE] if first else None
        piece.parts.append(_Part(item, page, view, frame, last))
        piece.size_bytes += padded(len(view)) + (PAGE if first else 0)

    def _run(self, items: list[_Item]) -> None:
        """Read pieces in other threads and check them here, in order; a single piece is read here."""
        total_bytes = sum(record_bytes(item.place[2]) for item in items)
        limit = piece_limit(total_bytes, self._threads)
        pieces = self._pieces(items, limit)
        if total_bytes <= limit:
            for piece in pieces:
                self._consume(piece, self._read(piece))
            return
        running = [(piece, self._shared.threads.submit(self._read, piece)) for piece in pieces]
        for piece, future in running:
            self._consume(piece, future.result())

    def _read(self, piece: _Piece) -> OSError | int:
        """Return the bytes read, or why not."""
        buffers: list[memoryview] = []
        for part in piece.parts:
            if part.header_page is not None:
                buffers.append(part.header_page)
            buffers.extend(part.frame.buffers)
        directory = self._shared.directory
        try:
            fd = directory.open(segment_name(piece.segment))
            try:
                return directory.readv(fd, buffers, piece.offset)
            finally:
                os.close(fd)
        except OSError as error:
            return error

    def _consume(self, piece: _Piece, result: OSError | int) -> None:
        if isinstance(result, OSError) and len(piece.parts) > 1:
            self._one_by_one(piece)
        else:
            end = result if isinstance(result, int) else 0
            reached = 0
            for part in piece.parts:
                reached += padded(len(part.view)) + (PAGE if part.header_page is not None else 0)
                if isinstance(result, OSError):
                    part.item.outcome = ReadOutcome.ERROR
                    part.item.error = result
                elif part.item.outcome is ReadOutcome.OK:
                    _check(part, self._shared.namespace, whole=reached <= end)
        self._shared.scratch.give(piece.scratch)

    def _one_by_one(self, piece: _Piece) -> None:
        """Read the chunks of a failed piece alone: one bad sector must not cost its neighbours."""
        for part in piece.parts:
            alone = _Piece(piece.segment, part.item.place[1], self._shared.scratch.take())
            self._add(alone, part.item, part.view, first=True, last=True)
            self._consume(alone, self._read(alone))


def _continues(piece: _Piece, segment: int, offset: int, size_bytes: int, limit: int) -> bool:
    if piece.segment != segment or piece.offset + piece.size_bytes != offset:
        return False
    return piece.size_bytes + size_bytes <= limit and len(piece.parts) < PIECE_RECORDS


def _check(part: _Part, namespace: bytes, *, whole: bool) -> None:
    """Verify what was read of a chunk, as far as it goes."""
    item = part.item
    if part.header_page is not None:
        item.header = unpack_record(part.header_page)
    header = item.header
    if not whole or header is None or header.key != item.key or header.namespace != namespace:
        item.outcome = ReadOutcome.CORRUPT
        return
    part.frame.finish()
    if item.hasher is not None:
        item.hasher.update(part.view)
    if part.last:
        digest = item.hasher.digest() if item.hasher is not None else checksum(part.view)
        if header.length != len(item.into) or digest != header.checksum:
            item.outcome = ReadOutcome.CORRUPT
