"""warmtier's own access log: one JSON line per request that has ended. Keys are keyed hashes; no token, no text.

It answers "why no hit?", and it is a trace for every tool here. The engine writes ``AccessRecord`` with
``encode_record``; ``KeyHasher`` makes the keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.lines import BadLine, Problems, TraceError, decode_lines
from warmtier.trace.schema import KEY_BITS, TraceRequest

VERSION: Final = 1
KEY_BYTES: Final = 8
_MASK: Final = (1 << KEY_BITS) - 1


class AccessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request. Times are seconds, ``arrival_s`` Unix time; ``keys`` is KEY_BYTES per full prompt chunk, in hex.

    ``hits``: tokens by where they came from: ``device`` and the tiers' names; what is missing was computed.
    ``decision``: ``load``, ``recompute`` (a tier had it, loading was not worth it) or ``miss``. ``reason``: the
    MissReason of the first chunk not served (absent: the whole path was). ``source``: where the numbers behind the
    decision came from. ``stores``: chunks offered, by StoreOutcome. ``queue_s``: arrival to first lookup;
    ``pending_s``: waiting for promotions or stores of others; ``load_s``: host to device. ``group``: ``treated`` or
    ``hold_out`` where a guard compares. Absent measurements are left out, never 0.
    """

    v: int = VERSION
    request: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    chunk_tokens: int
    keys: str
    session: str | None = None
    tenant: str | None = None
    hits: dict[str, int] = {}
    decision: str = "miss"
    reason: str | None = None
    source: str | None = None
    stores: dict[str, int] = {}
    queue_s: float | None = None
    pending_s: float | None = None
    load_s: float | None = None
    ttft_s: float | None = None
    duration_s: float | None = None
    group: str | None = None


class KeyHasher:
    """Keyed BLAKE2b: keys of one secret can be compared with each other and with nothing else. Thread-safe."""

    def __init__(self, secret: bytes) -> None:
        if not 16 <= len(secret) <= 64:
            raise ValueError(f"the secret must be 16 to 64 bytes, got {len(secret)}")
        self._secret = secret

    def pack(self, keys: Iterable[bytes]) -> str:
        """Return the ``keys`` field of a record."""
        secret = self._secret
        return "".join(hashlib.blake2b(key, digest_size=KEY_BYTES, key=secret).hexdigest() for key in keys)

    def name(self, text: str) -> str:
        """Return an opaque name for a session or tenant."""
        return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES, key=self._secret).hexdigest()


_ENCODER: Final = msgspec.json.Encoder()


def encode_record(record: AccessRecord) -> bytes:
    """Return one line, newline included."""
    return _ENCODER.encode(record) + b"\n"


def unpack_keys(packed: str) -> list[int]:
    """Return the keys of a record. Raises BadLine."""
    try:
        raw = bytes.fromhex(packed)
    except ValueError as error:
        raise BadLine(f"keys: {error}") from None
    if len(raw) % KEY_BYTES:
        raise BadLine(f"keys: {len(packed)} hex digits are no multiple of {2 * KEY_BYTES}")
    keys: list[int] = (np.frombuffer(raw, ">u8") & np.uint64(_MASK)).tolist()
    return keys


class AccessLogTrace(FileTrace):
    """Reads one access log. Requests are written as they end, so they are sorted by arrival first."""

    format_name = "access-log"
    unordered = True

    def __init__(self, path: Path, *, skip_bad: bool = False) -> None:
        super().__init__(path, skip_bad=skip_bad)
        first = next(decode_lines(path, msgspec.json.Decoder(AccessRecord), Problems(skip=True)), None)
        if first is None:
            raise TraceError(f"{path}: holds no request")
        self._chunk_tokens = first[1].chunk_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._chunk_tokens

    def records(self, problems: Problems) -> Iterator[tuple[int, AccessRecord]]:
        """Yield the records as they were written, with their line number."""
        for number, record in decode_lines(self.path, msgspec.json.Decoder(AccessRecord), problems):
            if record.v != VERSION:
                problems.add(str(self.path), number, f"version {record.v}; this warmtier reads {VERSION}")
            elif record.chunk_tokens != self._chunk_tokens:
                began = f"the file began with {self._chunk_tokens}"
                problems.add(str(self.path), number, f"chunk_tokens {record.chunk_tokens}; {began}")
            else:
                yield number, record

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        for number, record in self.records(problems):
            try:
                keys = unpack_keys(record.keys)
            except BadLine as error:
                problems.add(str(self.path), number, str(error))
                continue
            yield (
                number,
                TraceRequest(
                    record.arrival_s,
                    record.prompt_tokens,
                    record.output_tokens,
                    keys,
                    record.chunk_tokens,
                    session=record.session,
                    tenant=record.tenant,
                ),
            )
