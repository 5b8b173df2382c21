"""Writing traces: Mooncake's form (what vLLM's ``timed_trace`` and other tools read), plain or gzip."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec

from warmtier.trace.schema import TraceRequest


class Line(msgspec.Struct, omit_defaults=True):
    """One line as written: Mooncake's four fields, and who asked where the trace knows it."""

    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: str | None = None
    tenant: str | None = None


_ENCODER: Final = msgspec.json.Encoder()


class Renumber:
    """Gives keys small consecutive ids in order of appearance, as Mooncake's traces have. Memory: one int per key."""

    def __init__(self) -> None:
        self._ids: dict[int, int] = {}

    def ids(self, keys: Iterable[int]) -> list[int]:
        """Return the ids of ``keys``."""
        ids = self._ids
        return [ids.setdefault(key, len(ids)) for key in keys]


def encode(request: TraceRequest, renumber: Renumber | None = None) -> bytes:
    """Return one line, newline included. Times in milliseconds."""
    keys = request.keys if renumber is None else renumber.ids(request.keys)
    milliseconds = round(request.arrival_s * 1000.0, 3)
    timestamp = int(milliseconds) if milliseconds.is_integer() else milliseconds
    line = Line(timestamp, request.prompt_tokens, request.output_tokens, keys, request.session, request.tenant)
    return _ENCODER.encode(line) + b"\n"


def write_trace(requests: Iterable[TraceRequest], path: Path, *, renumber: bool = True) -> int:
    """Write all requests to ``path`` (gzip if it ends in .gz), in one step: a reader sees the old file or the new one.

    Returns their number. Same requests, same bytes. Blocks.
    """
    numbers = Renumber() if renumber else None
    count = 0
    with replaced(path) as stream:
        for request in requests:
            stream.write(encode(request, numbers))
            count += 1
    return count


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary neighbour of ``path`` for writing; it takes the name when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
