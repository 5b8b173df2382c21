"""The index on disk, for a fast start. Only a hint: what it says is used where the segment's own header agrees.

Written to a temporary name and put in place by rename; a checksum covers it all. Only sealed segments are in it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

import msgspec
import xxhash

from warmtier.core.types import Key
from warmtier.store.file.format import FORMAT_VERSION
from warmtier.store.file.io import Directory
from warmtier.store.file.segment import Segment
from warmtier.store.file.shared import Shared

SNAPSHOT_NAME: Final = "snapshot"
_TEMPORARY: Final = "snapshot.new"
_MAGIC: Final = b"WARMTIDX"
_DIGEST_BYTES: Final = 16


class SegmentIndex(msgspec.Struct, array_like=True, frozen=True):
    """The live records of one segment up to ``used_bytes``; valid for this ``sequence`` only."""

    number: int
    sequence: int
    used_bytes: int
    keys: list[Key]
    offsets: list[int]
    lengths: list[int]


class _Head(msgspec.Struct, array_like=True, frozen=True):
    version: int
    namespace: bytes


def write_snapshot(shared: Shared, *, sync: bool) -> int:
    """Write the index of all sealed segments; return the bytes written. Raises OSError; then no snapshot may remain."""
    body = _encode(shared)
    directory = shared.directory
    with contextlib.suppress(FileNotFoundError):
        directory.unlink(_TEMPORARY)
    fd = directory.open_plain(_TEMPORARY, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        directory.writev(fd, [memoryview(part) for part in body], 0)
        if sync:
            directory.fsync(fd)
    except OSError:
        directory.unlink(_TEMPORARY)
        raise
    finally:
        os.close(fd)
    directory.rename(_TEMPORARY, SNAPSHOT_NAME)
    if sync:
        directory.fsync_names()
    return sum(len(part) for part in body)


def _encode(shared: Shared) -> list[bytes]:
    encoder = msgspec.msgpack.Encoder()
    with shared.lock:
        segments = [segment for segment in shared.index.segments.values() if segment.own]
    parts = [_MAGIC, encoder.encode(_Head(FORMAT_VERSION, shared.namespace))]
    for segment in segments:  # one short hold of the lock for each: puts and gets go on between
        with shared.lock:
            entry = _entry(shared, segment)
        if entry is not None:
            parts.append(encoder.encode(entry))
    framed = [_MAGIC]
    for part in parts[1:]:
        framed += [len(part).to_bytes(4, "little"), part]
    digest = xxhash.xxh3_128()
    for part in framed:
        digest.update(part)
    joined = b"".join(framed)
    return [joined, digest.digest()]


def _entry(shared: Shared, segment: Segment) -> SegmentIndex | None:
    if not segment.sealed or segment.writers or segment.failed:
        return None
    live = list(shared.index.live(segment))
    return SegmentIndex(
        number=segment.number,
        sequence=segment.sequence,
        used_bytes=segment.used_bytes,
        keys=[key for key, _ in live],
        offsets=[place[1] for _, place in live],
        lengths=[place[2] for _, place in live],
    )


def read_snapshot(directory: Directory, namespace: bytes) -> dict[int, SegmentIndex]:
    """Return the snapshot by segment number; empty when there is none that is whole and ours."""
    try:
        data = _read_all(directory)
        body = memoryview(data)[:-_DIGEST_BYTES]
        if data[:8] != _MAGIC or xxhash.xxh3_128_digest(body) != data[-_DIGEST_BYTES:]:
            return {}
        frames = _frames(body[8:])
        head = msgspec.msgpack.decode(frames[0], type=_Head)
        if head.version != FORMAT_VERSION or head.namespace != namespace:
            return {}
        decoder = msgspec.msgpack.Decoder(SegmentIndex)
        entries = [decoder.decode(frame) for frame in frames[1:]]
    except (OSError, msgspec.MsgspecError, IndexError):
        return {}
    return {entry.number: entry for entry in entries}


def _read_all(directory: Directory) -> bytes:
    fd = directory.open_plain(SNAPSHOT_NAME, os.O_RDONLY)
    with open(fd, "rb") as file:
        return file.read()


def _frames(body: memoryview) -> list[memoryview]:
    frames = []
    while len(body):
        end = 4 + int.from_bytes(body[:4], "little")
        frames.append(body[4:end])
        body = body[end:]
    return frames


def remove_snapshot(directory: Directory) -> None:
    """Remove the snapshot, if any: recovery then scans."""
    for name in (SNAPSHOT_NAME, _TEMPORARY):
        with contextlib.suppress(OSError):
            directory.unlink(name)
