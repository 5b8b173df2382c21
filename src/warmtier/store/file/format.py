"""What lies on disk: one page of segment header, then records of one header page and a payload padded to pages.

All integers are little-endian. Every header ends with a checksum over itself, so a torn or flipped header is never
believed. The first 32 bytes of a segment (magic, version, sequence) keep their meaning in every future version, so
that an older warmtier can count and age what it cannot read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from warmtier.core.types import Key, Namespace

PAGE: Final = 4096
"""Alignment of everything on disk, in bytes: enough for O_DIRECT on every common device."""

FORMAT_VERSION: Final = 1
MAX_KEY_BYTES: Final = 512
NAMESPACE_BYTES: Final = 16

_SEGMENT_MAGIC: Final = b"WARMTSEG"
_RECORD_MAGIC: Final = b"WARMTREC"
_PREFIX: Final = struct.Struct("<8sHHIQQ")  # magic, version, flags, reserved, sequence, file size
_SEGMENT: Final = struct.Struct("<16sQQ")  # namespace, used bytes (0 while unsealed), records
_RECORD: Final = struct.Struct("<8sHHIQQ16s16s")  # magic, version, key bytes, 0, sequence, payload bytes, ns, checksum
_CHECK: Final = struct.Struct("<Q")
_SEALED: Final = 1


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first page of a segment. ``sequence`` is its age: it grows with each (re)use in one directory.

    ``used_bytes`` is where the records end, known once ``sealed``.
    """

    version: int
    sequence: int
    size_bytes: int
    namespace: Namespace
    sealed: bool
    used_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The page before a payload. ``sequence`` ties it to the present use of its segment."""

    sequence: int
    length: int
    namespace: Namespace
    checksum: bytes
    key: Key


def checksum(payload: memoryview) -> bytes:
    """Return the 16-byte xxh3 digest of ``payload``. Releases the GIL for large buffers."""
    return xxhash.xxh3_128_digest(payload)


def padded(length: int) -> int:
    """Return ``length`` rounded up to whole pages."""
    return -(-length // PAGE) * PAGE


def record_bytes(length: int) -> int:
    """Return the bytes that a payload of ``length`` takes on disk, its header page included."""
    return PAGE + padded(length)


def pack_segment(header: SegmentHeader, page: memoryview) -> None:
    """Write ``header`` into ``page``."""
    flags = _SEALED if header.sealed else 0
    prefix = _PREFIX.pack(_SEGMENT_MAGIC, header.version, flags, 0, header.sequence, header.size_bytes)
    _fill(page, prefix + _SEGMENT.pack(header.namespace, header.used_bytes, header.records))


def unpack_segment(page: memoryview) -> SegmentHeader | None:
    """Return the header in ``page``, or None when it is not one. Of other versions only the prefix is understood."""
    magic, version, flags, _, sequence, size_bytes = _PREFIX.unpack_from(page)
    if magic != _SEGMENT_MAGIC:
        return None
    if version != FORMAT_VERSION:
        return SegmentHeader(version, sequence, size_bytes, Namespace(b""), sealed=True, used_bytes=0, records=0)
    length = _PREFIX.size + _SEGMENT.size
    if not _intact(page, length):
        return None
    namespace, used_bytes, records = _SEGMENT.unpack_from(page, _PREFIX.size)
    sealed = bool(flags & _SEALED)
    return SegmentHeader(version, sequence, size_bytes, Namespace(namespace), sealed, used_bytes, records)


def pack_record(header: RecordHeader, page: memoryview) -> None:
    """Write ``header`` into ``page``."""
    fixed = _RECORD.pack(
        _RECORD_MAGIC,
        FORMAT_VERSION,
        len(header.key),
        0,
        header.sequence,
        header.length,
        header.namespace,
        header.checksum,
    )
    _fill(page, fixed + header.key)


def unpack_record(page: memoryview) -> RecordHeader | None:
    """Return the record header in ``page``, or None when it is not one."""
    magic, version, key_bytes, _, sequence, length, namespace, digest = _RECORD.unpack_from(page)
    if magic != _RECORD_MAGIC or version != FORMAT_VERSION or key_bytes > MAX_KEY_BYTES:
        return None
    end = _RECORD.size + key_bytes
    if not _intact(page, end):
        return None
    return RecordHeader(sequence, length, Namespace(namespace), digest, Key(bytes(page[_RECORD.size : end])))


def looks_like_record(page: memoryview) -> bool:
    """Return whether ``page`` starts as a record does. Cheap; ``unpack_record`` decides."""
    return bytes(page[:8]) == _RECORD_MAGIC


def _fill(page: memoryview, content: bytes) -> None:
    end = len(content)
    page[:end] = content
    _CHECK.pack_into(page, end, xxhash.xxh3_64_intdigest(content))


def _intact(page: memoryview, end: int) -> bool:
    (expected,) = _CHECK.unpack_from(page, end)
    return bool(expected == xxhash.xxh3_64_intdigest(page[:end]))
