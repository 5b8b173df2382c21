"""Opening a directory: count everything found, believe the snapshot where it fits, scan the rest.

A sealed segment needs only its record headers: all its writes had ended. One that was being written when the process
died is read whole, and a record counts only if its checksum matches; a hole left by an unfinished write is skipped page
by page, since a neighbour behind it may have been acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from warmtier.core.types import Namespace
from warmtier.store.file.format import (
    FORMAT_VERSION,
    PAGE,
    RecordHeader,
    SegmentHeader,
    checksum,
    looks_like_record,
    padded,
    record_bytes,
    unpack_record,
    unpack_segment,
)
from warmtier.store.file.io import Directory, aligned
from warmtier.store.file.segment import Segment, segment_number
from warmtier.store.file.shared import Shared
from warmtier.store.file.snapshot import SegmentIndex, read_snapshot

_WINDOW_BYTES: Final = 1 << 20


class Found(NamedTuple):
    """A record met by a scan. ``intact`` is None where the payload was not read."""

    offset: int
    header: RecordHeader
    intact: bool | None


@dataclass(slots=True)
class Recovery:
    """What opening found, for the log and the next sequence number."""

    next_sequence: int = 1
    foreign: int = 0
    scanned: int = 0
    torn: int = 0


def recover(shared: Shared) -> Recovery:
    """Fill the index from the directory. Raises OSError only if the directory itself cannot be listed."""
    directory = shared.directory
    result = Recovery()
    snapshot = read_snapshot(directory, shared.namespace)
    own: list[tuple[Segment, SegmentHeader]] = []
    for name in directory.names():
        number = segment_number(name)
        if number is None:
            continue
        segment, header = _inspect(directory, number, shared.namespace)
        shared.index.segments[number] = segment
        result.next_sequence = max(result.next_sequence, segment.sequence + 1)
        if header is not None and segment.own:
            own.append((segment, header))
        else:
            result.foreign += 1
    own.sort(key=lambda pair: pair[0].sequence)  # the newest of equal keys comes last
    known = [snapshot.get(segment.number) for segment, _ in own]
    scans = [
        shared.threads.submit(_scan_rest, directory, segment, header, entry)
        for (segment, header), entry in zip(own, known, strict=True)
    ]
    for (segment, header), entry, scanned in zip(own, known, scans, strict=True):
        _restore(shared, segment, header, entry, scanned.result(), result)
    return result


def _inspect(directory: Directory, number: int, namespace: Namespace) -> tuple[Segment, SegmentHeader | None]:
    segment = Segment(number, 0, 0, 0, own=False)
    try:
        segment.size_bytes, segment.blocks_bytes = directory.size_on_disk(segment.name)
        header = read_header(directory, segment.name)
    except OSError:
        header = None
    if header is None:
        segment.failed = True
        return segment, None
    segment.sequence = header.sequence
    segment.own = header.version == FORMAT_VERSION and header.namespace == namespace
    segment.sealed = header.sealed
    return segment, header


def read_header(directory: Directory, name: str) -> SegmentHeader | None:
    """Return a segment's header, or None when it has none. Raises OSError."""
    fd = directory.open(name)
    try:
        page = aligned(PAGE)
        return unpack_segment(page) if directory.readv(fd, [page], 0) == PAGE else None
    finally:
        os.close(fd)


class _Scanned(NamedTuple):
    """What lies behind the part of a segment that the snapshot knows, and the error that ended the scan, if any."""

    start: int
    found: list[Found]
    error: OSError | None


def _scan_rest(directory: Directory, segment: Segment, header: SegmentHeader, known: SegmentIndex | None) -> _Scanned:
    start = known.used_bytes if known is not None and _agrees(known, segment) else PAGE
    end = min(header.used_bytes, segment.size_bytes) if header.sealed else segment.size_bytes
    found: list[Found] = []
    try:
        found.extend(scan(directory, segment.name, header, start, end, verify=not header.sealed))
    except OSError as error:
        return _Scanned(start, found, error)
    return _Scanned(start, found, None)


def _agrees(known: SegmentIndex, segment: Segment) -> bool:
    return known.sequence == segment.sequence and known.used_bytes <= segment.size_bytes


def _restore(
    shared: Shared,
    segment: Segment,
    header: SegmentHeader,
    known: SegmentIndex | None,
    scanned: _Scanned,
    result: Recovery,
) -> None:
    if known is not None and _agrees(known, segment):
        shared.index.load(segment, known.keys, known.offsets, known.lengths)
    segment.used_bytes = scanned.start
    for found in scanned.found:
        result.scanned += 1
        if found.intact is False:
            result.torn += 1
            continue
        shared.index.publish(found.header.key, segment, found.offset, found.header.length)
        segment.used_bytes = found.offset + record_bytes(found.header.length)
    if scanned.error is not None:
        segment.failed = True
        shared.say_once("scan", "cannot read all of %s (%s)", segment.name, scanned.error)
    if header.sealed:
        segment.used_bytes = max(segment.used_bytes, min(header.used_bytes, segment.size_bytes))


def scan(
    directory: Directory, name: str, header: SegmentHeader, start: int, end: int, *, verify: bool
) -> Iterator[Found]:
    """Yield the records of a segment's present use between ``start`` and ``end``. Raises OSError."""
    fd = directory.open(name)
    try:
        yield from _Scan(directory, fd, header, end).run(start, verify=verify)
    finally:
        os.close(fd)


class _Scan:
    """Steps from header to header; over holes from page to page."""

    def __init__(self, directory: Directory, fd: int, segment: SegmentHeader, end: int) -> None:
        self._directory = directory
        self._fd = fd
        self._segment = segment
        self._end = end
        self._page = aligned(PAGE)
        self._buffer = aligned(_WINDOW_BYTES)

    def run(self, start: int, *, verify: bool) -> Iterator[Found]:
        offset: int | None = start
        while offset is not None and offset < self._end:
            header = self._header_at(offset)
            if header is None:
                offset = self._next_candidate(offset + PAGE)
                continue
            intact = self._intact(offset, header) if verify else None
            yield Found(offset, header, intact)
            offset += PAGE if intact is False else record_bytes(header.length)

    def _header_at(self, offset: int) -> RecordHeader | None:
        if self._directory.readv(self._fd, [self._page], offset) != PAGE:
            return None
        header = unpack_record(self._page)
        if header is None or header.sequence != self._segment.sequence:
            return None
        if header.namespace != self._segment.namespace or offset + record_bytes(header.length) > self._end:
            return None
        return header

    def _intact(self, offset: int, header: RecordHeader) -> bool:
        size_bytes = padded(header.length)
        if size_bytes > len(self._buffer):
            self._buffer = aligned(size_bytes)
        read = self._directory.readv(self._fd, [self._buffer[:size_bytes]], offset + PAGE) if size_bytes else 0
        return read == size_bytes and checksum(self._buffer[: header.length]) == header.checksum

    def _next_candidate(self, offset: int) -> int | None:
        """Return the next page at or after ``offset`` that starts like a record."""
        while offset < self._end:
            window = self._buffer[: min(_WINDOW_BYTES, self._end - offset)]
            read = self._directory.readv(self._fd, [window], offset)
            for at in range(0, read - read % PAGE, PAGE):
                if looks_like_record(window[at : at + 8]):
                    return offset + at
            if read < len(window):
                return None
            offset += read
        return None
