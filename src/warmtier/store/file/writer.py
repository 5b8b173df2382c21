"""Writing: one sequential run per call of ``put``, straight from the caller's memory, checksummed while it flows.

A record becomes findable only after all its bytes were taken by the kernel.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import xxhash

from warmtier.core.types import Key
from warmtier.store.base import Write, WriteOutcome, WriteResult
from warmtier.store.file.format import MAX_KEY_BYTES, PAGE, RecordHeader, checksum, pack_record, padded, record_bytes
from warmtier.store.file.frame import frame_for_write
from warmtier.store.file.io import NO_SPACE
from warmtier.store.file.reclaim import Batch, Segments, Span
from warmtier.store.file.segment import Segment
from warmtier.store.file.shared import PIECE_RECORDS, Shared, piece_limit


@dataclass(slots=True, eq=False)
class _Item:
    """One chunk on its way out."""

    position: int
    key: Key
    data: memoryview
    size_bytes: int
    offset: int = 0
    error: OSError | None = None


@dataclass(slots=True)
class _Piece:
    """Neighbouring bytes of one segment, written by one call."""

    offset: int
    scratch: memoryview
    size_bytes: int = 0
    buffers: list[memoryview] = field(default_factory=list)
    items: list[_Item] = field(default_factory=list)


class Writer:
    """Serves ``FileStore.put``. Thread-safe."""

    def __init__(self, shared: Shared, segments: Segments, threads: int) -> None:
        self._shared = shared
        self._threads = threads
        self._segments = segments

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks in order."""
        started_s = time.perf_counter()
        result = WriteResult([WriteOutcome.PRESENT] * len(writes))
        batch = Batch(result.evicted)
        items = self._admit(writes, result.outcomes)
        while items:
            span = self._segments.reserve([item.size_bytes for item in items], batch)
            if isinstance(span, WriteOutcome):
                for item in items:
                    result.outcomes[item.position] = span
                break
            self._write(span, items[: span.records], result.outcomes)
            del items[: span.records]
        with self._shared.lock:
            self._shared.counters.evicted += len(result.evicted)
            self._shared.counters.write_seconds += time.perf_counter() - started_s
        return result

    def _admit(self, writes: Sequence[Write], outcomes: list[WriteOutcome]) -> list[_Item]:
        """Return what is to be written: no chunk twice, none that can never fit."""
        items: list[_Item] = []
        seen: set[Key] = set()
        with self._shared.lock:
            known = [write.key in self._shared.index for write in writes]
        for position, write in enumerate(writes):
            if known[position] or write.key in seen:
                continue
            size_bytes = record_bytes(write.data.nbytes)
            if len(write.key) > MAX_KEY_BYTES or size_bytes > self._segments.longest_record_bytes:
                outcomes[position] = WriteOutcome.NO_ROOM
                self._shared.say_once("too long", "a chunk of %d bytes does not fit a segment", write.data.nbytes)
                continue
            seen.add(write.key)
            items.append(_Item(position, write.key, write.data.cast("B"), size_bytes))
        return items

    def _write(self, span: Span, items: list[_Item], outcomes: list[WriteOutcome]) -> None:
        offset = span.offset
        for item in items:
            item.offset = offset
            offset += item.size_bytes
        limit = piece_limit(offset - span.offset, self._threads)
        self._run(span.segment, self._pieces(span, items, limit), inline=offset - span.offset <= limit)
        self._publish(span.segment, items, outcomes)
        self._segments.written(span.segment)

    def _publish(self, segment: Segment, items: list[_Item], outcomes: list[WriteOutcome]) -> None:
        shared = self._shared
        with shared.lock:
            for item in items:
                if item.error is not None:
                    segment.failed = True
                    shared.counters.errors += 1
                    outcomes[item.position] = _outcome(item.error)
                elif item.key not in shared.index:  # else another call was faster; our copy is dead weight
                    shared.index.publish(item.key, segment, item.offset, len(item.data))
                    shared.counters.bytes_written += len(item.data)
                    outcomes[item.position] = WriteOutcome.STORED
        for item in items:
            if item.error is not None:
                shared.say_once("write", "cannot write (%s); chunks are dropped until it can", item.error)

    def _run(self, segment: Segment, pieces: Iterator[_Piece], *, inline: bool) -> None:
        """Write all pieces, the next one being checksummed meanwhile."""
        running: list[tuple[_Piece, Future[OSError | None]]] = []
        for piece in pieces:
            if inline:
                self._done(piece, self._write_piece(segment, piece))
            else:
                running.append((piece, self._shared.threads.submit(self._write_piece, segment, piece)))
        for piece, future in running:
            self._done(piece, future.result())

    def _write_piece(self, segment: Segment, piece: _Piece) -> OSError | None:
        try:
            self._shared.directory.writev(segment.fd, piece.buffers, piece.offset)
        except OSError as error:
            return error
        return None

    def _done(self, piece: _Piece, error: OSError | None) -> None:
        self._shared.scratch.give(piece.scratch)
        if error is not None:
            for item in piece.items:
                item.error = error

    def _pieces(self, span: Span, items: list[_Item], limit: int) -> Iterator[_Piece]:
        piece: _Piece | None = None
        for item in items:
            full = piece is not None and (
                piece.size_bytes + item.size_bytes > limit or len(piece.items) == PIECE_RECORDS
            )
            if piece is not None and full:
                yield piece
                piece = None
            if item.size_bytes > limit:
                yield from self._large(span, item, limit)
                continue
            if piece is None:
                piece = _Piece(item.offset, self._shared.scratch.take())
            self._add_header(span, piece, item, checksum(item.data))
            self._add_body(piece, item, item.data)
        if piece is not None:
            yield piece

    def _large(self, span: Span, item: _Item, limit: int) -> Iterator[_Piece]:
        """Cut a chunk longer than a piece into several; the one with the header goes last, with the checksum."""
        hasher = xxhash.xxh3_128()
        hasher.update(item.data[:limit])
        for start in range(limit, len(item.data), limit):
            view = item.data[start : start + limit]
            hasher.update(view)
            piece = _Piece(item.offset + PAGE + start, self._shared.scratch.take())
            self._add_body(piece, item, view)
            yield piece
        first = _Piece(item.offset, self._shared.scratch.take())
        self._add_header(span, first, item, hasher.digest())
        self._add_body(first, item, item.data[:limit])
        yield first

    def _add_header(self, span: Span, piece: _Piece, item: _Item, digest: bytes) -> None:
        page = piece.scratch[len(piece.items) * PAGE :][:PAGE]
        header = RecordHeader(span.sequence, len(item.data), self._shared.namespace, digest, item.key)
        pack_record(header, page)
        piece.buffers.append(page)
        piece.size_bytes += PAGE

    def _add_body(self, piece: _Piece, item: _Item, view: memoryview) -> None:
        piece.buffers.extend(frame_for_write(view, direct=self._shared.directory.direct))
        piece.size_bytes += padded(len(view))
        piece.items.append(item)


def _outcome(error: OSError) -> WriteOutcome:
    if error.errno in NO_SPACE:
        return WriteOutcome.NO_ROOM
    return WriteOutcome.READ_ONLY if error.errno == errno.EROFS else WriteOutcome.ERROR
