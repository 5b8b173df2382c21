"""Mooncake's traces, and all in their form: vLLM's ``timed_trace``, LMCache's agent traces.

One request a line: ``timestamp`` in milliseconds, ``input_length``, ``output_length``, ``hash_ids`` (one per block, the
prefix chained in), optionally ``session_id`` and ``tenant``. The size of a block is not in the file: 512 tokens in
Mooncake's own, 16 in LMCache's, so it is inferred from the first requests unless given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from warmtier.trace.lines import BadLine, Problems, TraceError, read_lines
from warmtier.trace.schema import KEY_BITS, TraceRequest

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
    """Return the block size that explains (prompt tokens, blocks) of all requests, or None if none does.

    A file either keeps a key for the partial last block or drops it. Where several sizes fit, the largest is taken.
    """
    pairs = [(tokens, blocks) for tokens, blocks in lengths if blocks]
    for size in reversed(_BLOCK_SIZES):
        kept = all(-(-tokens // size) == blocks for tokens, blocks in pairs)
        if pairs and (kept or all(tokens // size == blocks for tokens, blocks in pairs)):
            return size
    return None


def to_request(record: Record, block_tokens: int, start_ms: float) -> TraceRequest:
    """Return the request of one record. Raises BadLine."""
    covered = len(record.hash_ids) * block_tokens
    if covered - record.input_length >= block_tokens or record.input_length < 0:
        raise BadLine(f"{len(record.hash_ids)} blocks of {block_tokens} tokens for {record.input_length} tokens")
    if record.output_length < 0:
        raise BadLine(f"output_length {record.output_length} is negative")
    if record.hash_ids and (min(record.hash_ids) < 0 or max(record.hash_ids) >> KEY_BITS):
        raise BadLine(f"hash_ids must be 0 to 2**{KEY_BITS} - 1")
    return TraceRequest(
        (record.timestamp - start_ms) / 1000.0,
        record.input_length,
        record.output_length,
        record.hash_ids,
        block_tokens,
        covered > record.input_length,
        None if record.session_id is None else str(record.session_id),
        record.tenant,
    )


class MooncakeTrace:
    """Reads one file, as often as iterated. ``problems`` counts what was skipped in the latest reading."""

    def __init__(self, path: Path, *, chunk_tokens: int | None = None, skip_bad: bool = False) -> None:
        self.path = path
        self.problems = Problems(skip=skip_bad)
        self._decoder = msgspec.json.Decoder(Record)
        self.chunk_tokens = chunk_tokens or self._infer()

    def _infer(self) -> int:
        pairs: list[tuple[int, int]] = []
        for _, record in self._records(Problems(skip=True)):
            pairs.append((record.input_length, len(record.hash_ids)))
            if len(pairs) >= INFER_REQUESTS:
                break
        size = infer_block_tokens(pairs)
        if size is None:
            why = f"no block size explains lengths and hash_ids of the first {len(pairs)} requests"
            raise TraceError(f"{self.path}: the block size is unknown", why=why, fix="pass --block-tokens")
        return size

    def _records(self, problems: Problems) -> Iterator[tuple[int, Record]]:
        for number, line in read_lines(self.path, problems):
            try:
                record = self._decoder.decode(line)
            except msgspec.DecodeError as error:
                problems.add(str(self.path), number, str(error))
                continue
            yield number, record

    def __iter__(self) -> Iterator[TraceRequest]:
        problems = self.problems = Problems(skip=self.problems.skip)
        start_ms: float | None = None
        latest = 0.0
        for number, record in self._records(problems):
            start_ms = record.timestamp if start_ms is None else start_ms
            try:
                request = to_request(record, self.chunk_tokens, start_ms)
                if request.arrival_s < latest:
                    raise BadLine(f"arrives {latest - request.arrival_s:.3f}s before the line above")
            except BadLine as error:
                problems.add(str(self.path), number, str(error))
                continue
            latest = request.arrival_s
            yield request
