"""One segment file: its state in memory and the few operations on its header."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.types import Key, Namespace
from warmtier.store.file.format import FORMAT_VERSION, PAGE, SegmentHeader, pack_segment
from warmtier.store.file.io import Directory, aligned

_NAME: Final = re.compile(r"segment-([0-9a-f]{8})\.kv")


def segment_name(number: int) -> str:
    """Return the file name of segment ``number``."""
    return f"segment-{number:08x}.kv"


def segment_number(name: str) -> int | None:
    """Return the number in a segment's file name, or None for another file."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


@dataclass(slots=True, eq=False)
class Segment:
    """What the store knows of one segment file. Guarded by the store's lock.

    ``own`` means that its namespace and format are ours: only then it has records here. ``used_bytes`` is where the
    next record goes; ``keys`` are those written since its last use began, dead ones included.
    """

    number: int
    sequence: int
    size_bytes: int
    blocks_bytes: int
    own: bool
    used_bytes: int = PAGE
    live_bytes: int = 0
    sealed: bool = False
    failed: bool = False  # the medium gave an error: take it out of use first
    stuck: bool = False  # it could be neither reused nor removed: leave it alone, but count it
    fd: int = -1  # open while it is being written
    writers: int = 0
    keys: list[Key] = field(default_factory=list)
    hot: set[Key] = field(default_factory=set)  # read since they were written here

    @property
    def name(self) -> str:
        """The file name."""
        return segment_name(self.number)

    @property
    def room_bytes(self) -> int:
        """What still fits behind the last record."""
        return 0 if self.failed else self.size_bytes - self.used_bytes

    def write_header(self, directory: Directory, namespace: Namespace, *, sealed: bool) -> None:
        """Write the first page through ``fd``. Raises OSError."""
        header = SegmentHeader(
            version=FORMAT_VERSION,
            sequence=self.sequence,
            size_bytes=self.size_bytes,
            namespace=namespace,
            sealed=sealed,
            used_bytes=self.used_bytes if sealed else 0,
            records=len(self.keys),
        )
        page = aligned(PAGE)
        pack_segment(header, page)
        directory.writev(self.fd, [page], 0)

    def close_file(self) -> None:
        """Close the writing descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
