"""Reading line files: plain or gzip, a malformed line named by file, line and reason, or counted and skipped."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar

import msgspec

from warmtier.core.errors import UsageError

MAX_LINE_BYTES: Final = 64 * 2**20
"""Longer lines are refused: memory stays bounded whatever the file is."""

T = TypeVar("T")

_GZIP_MAGIC: Final = b"\x1f\x8b"


class TraceError(UsageError):
    """A line that cannot be used; the message names file, line and reason."""


class BadLine(Exception):  # noqa: N818 - a reason on its way to TraceError or the count of skipped lines
    """Why one line cannot be used. Raised by parsers, never seen outside the readers."""


@dataclass(slots=True)
class Problems:
    """What happens to malformed lines of one reading: raise at the first, or skip and count all."""

    skip: bool = False
    skipped: int = 0
    first: str | None = field(default=None)

    def add(self, path: str, line: int, reason: str) -> None:
        """Note one malformed line. Raises TraceError unless lines may be skipped."""
        where = f"{path}:{line}: {reason}"
        if not self.skip:
            raise TraceError(where, fix="correct the line, or pass --skip-bad to leave such lines out and count them")
        self.skipped += 1
        self.first = self.first or where


@contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for reading, decompressing gzip; ``-`` is standard input. Raises UsageError if there is none."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    with path.open("rb") as raw:
        magic = raw.read(2)
        raw.seek(0)
        if magic == _GZIP_MAGIC:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield raw


def read_lines(path: Path, problems: Problems) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of every line that is not blank. A truncated gzip file is a problem too."""
    number = 0
    with open_binary(path) as stream:
        while True:
            number += 1
            try:
                line = stream.readline(MAX_LINE_BYTES)
            except (EOFError, OSError, zlib.error) as error:
                problems.add(str(path), number, f"cannot be decompressed: {error}")
                return
            if not line:
                return
            if len(line) >= MAX_LINE_BYTES:
                raise TraceError(f"{path}:{number}: longer than {MAX_LINE_BYTES} bytes")
            if not line.isspace():
                yield number, line


def decode_lines(path: Path, decoder: msgspec.json.Decoder[T], problems: Problems) -> Iterator[tuple[int, T]]:
    """Yield (line number, record) of every JSON line that has the form of ``decoder``; the others are problems."""
    for number, line in read_lines(path, problems):
        try:
            record = decoder.decode(line)
        except msgspec.DecodeError as error:
            problems.add(str(path), number, str(error))
            continue
        yield number, record
