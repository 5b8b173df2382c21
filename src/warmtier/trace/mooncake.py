"""Mooncake's traces, and all in their form: vLLM's ``timed_trace``, LMCache's agent traces.

One request a line: ``timestamp`` in milliseconds, ``input_length``, ``output_length``, ``hash_ids`` (one per block, the
prefix chained in), optionally ``session_id`` and ``tenant``. The size of a block is not in the file: 512 tokens in
Mooncake's own, 16 in LMCache's, so it is inferred from the first requests unless given.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.lines import BadLine, Problems, TraceError, decode_lines
from warmtier.trace.schema import TraceRequest

INFER_REQUESTS: Final = 200
_BLOCK_SIZES: Final = tuple(1 << power for power in range(13))


class Record(msgspec.Struct, gc=False):
    """One line as it is written."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    session_id: str | int | None = None
    tenant: str | None = None


def infer_block_tokens(lengths: Iterable[tuple[int, int]]) -> int | None:
    """Return the block size that explains (prompt tokens, blocks) of most requests, or None if none does.

    A file either keeps a key for the partial last block or drops it. Where several sizes do as well, the largest wins.
    """
    pairs = [(tokens, blocks) for tokens, blocks in lengths if blocks > 0]
    best, explained = None, len(pairs) // 2 + 1
    for size in _BLOCK_SIZES:
        kept = sum(-(-tokens // size) == blocks for tokens, blocks in pairs)
        dropped = sum(tokens // size == blocks for tokens, blocks in pairs)
        if max(kept, dropped) >= explained:
            best, explained = size, max(kept, dropped)
    return best


def to_request(record: Record, block_tokens: int) -> TraceRequest:
    """Return the request of one record. Raises BadLine."""
    covered = len(record.hash_ids) * block_tokens
    if covered - record.input_length >= block_tokens or record.input_length < 0:
        raise BadLine(f"{len(record.hash_ids)} blocks of {block_tokens} tokens for {record.input_length} tokens")
    return TraceRequest(
        record.timestamp / 1000.0,
        record.input_length,
        record.output_length,
        record.hash_ids,
        block_tokens,
        covered > record.input_length,
        None if record.session_id is None else str(record.session_id),
        record.tenant,
    )


class MooncakeTrace(FileTrace):
    """Reads one file in Mooncake's form. ``chunk_tokens`` None: infer the block size."""

    format_name = "mooncake"

    def __init__(self, path: Path, *, chunk_tokens: int | None = None, skip_bad: bool = False) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self._decoder = msgspec.json.Decoder(Record)
        self._block_tokens = chunk_tokens or infer_from_file(path, self._decoder)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._block_tokens

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        for number, record in decode_lines(self.path, self._decoder, problems):
            try:
                request = to_request(record, self._block_tokens)
            except BadLine as error:
                problems.add(str(self.path), number, str(error))
                continue
            yield number, request


def infer_from_file(path: Path, decoder: msgspec.json.Decoder[Record]) -> int:
    """Return the block size of a file. Raises TraceError if none fits."""
    records = itertools.islice(decode_lines(path, decoder, Problems(skip=True)), INFER_REQUESTS)
    pairs = [(record.input_length, len(record.hash_ids)) for _, record in records]
    size = infer_block_tokens(pairs)
    if size is None:
        why = f"no block size explains lengths and hash_ids of the first {len(pairs)} requests"
        raise TraceError(f"{path}: the block size is unknown", why=why, fix="pass --block-tokens")
    return size
