"""vLLM's KV events: the live messages (ZMQ, msgpack), the log that ``warmtier trace record`` writes, and its reader.

Events tell what was stored on the device, not what was asked for: a request becomes visible by the blocks it had to
compute, its path reaches back over their parents, and one that hit completely is not seen at all. Hits and reuse
measured on such a trace are lower bounds; the access log has no such gap.

The log has one JSON line per event and no token ids: ``{"v":1,"ts":..,"rank":0,"kind":"stored","keys":[..],
"parent":..,"block_tokens":16,"session":..}``, ``"removed"`` or ``"cleared"``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.chain import key_of_hash
from warmtier.trace.lines import BadLine, Problems, TraceError, decode_lines
from warmtier.trace.schema import TraceRequest

VERSION: Final = 1
MAX_BLOCKS: Final = 4_000_000
"""Blocks whose parent is remembered; a path is cut where it was forgotten."""

MAX_OPEN: Final = 4096
BlockHash = bytes | int


class _Event(msgspec.Struct, tag_field="type"):
    """Base of the messages as vLLM sends them; fields that are not needed are left out."""


class BlockStored(_Event, tag="BlockStored"):
    """Blocks became resident; consecutive, below ``parent_block_hash``."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class BlockRemoved(_Event, tag="BlockRemoved"):
    """Blocks are gone."""

    block_hashes: list[BlockHash]
    medium: str | None = None


class AllBlocksCleared(_Event, tag="AllBlocksCleared"):
    """The cache was reset."""


class EventBatch(msgspec.Struct, array_like=True):
    """One message: its time and its events."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class LoggedEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """One line of the log."""

    v: int
    ts: float
    kind: Literal["stored", "removed", "cleared"]
    rank: int = 0
    keys: list[int] = []
    parent: int | None = None
    block_tokens: int = 0
    session: str | None = None


_BATCHES: Final = msgspec.msgpack.Decoder(EventBatch)


def log_batch(payload: bytes) -> list[LoggedEvent]:
    """Return the lines of one live message: device events only, hashes shortened, token ids dropped.

    Raises BadLine if the message has another form than vLLM 0.31 to 0.33 send.
    """
    try:
        batch = _BATCHES.decode(payload)
    except msgspec.DecodeError as error:
        raise BadLine(f"not a KV event message of vLLM: {error}") from None
    rank = batch.data_parallel_rank or 0
    lines = []
    for event in batch.events:
        if isinstance(event, AllBlocksCleared):
            lines.append(LoggedEvent(VERSION, batch.ts, "cleared", rank))
        elif event.medium not in (None, "GPU"):
            continue
        elif isinstance(event, BlockRemoved):
            lines.append(LoggedEvent(VERSION, batch.ts, "removed", rank, [key_of_hash(h) for h in event.block_hashes]))
        elif not event.group_idx:  # one group tells the whole path
            keys = [key_of_hash(h) for h in event.block_hashes]
            parent = None if event.parent_block_hash is None else key_of_hash(event.parent_block_hash)
            stored = LoggedEvent(VERSION, batch.ts, "stored", rank, keys, parent, event.block_size, event.session_id)
            lines.append(stored)
    return lines


@dataclass(slots=True)
class _Open:
    """A request under way: blocks that follow its last one soon are its own (chunked prefill, decode)."""

    line: int
    request: TraceRequest
    latest_s: float


class KvEventTrace(FileTrace):
    """Reads one log. ``merge_gap_s``: blocks below a request's last block within this time still belong to it."""

    format_name = "kv-events"
    unordered = True

    def __init__(self, path: Path, *, merge_gap_s: float = 2.0, skip_bad: bool = False) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self.merge_gap_s = merge_gap_s
        self._block_tokens = self._first_block_tokens()
        self.notes.append("KV events show computed blocks only: requests that hit completely are missing")

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._block_tokens

    def _first_block_tokens(self) -> int:
        for _, event in decode_lines(self.path, msgspec.json.Decoder(LoggedEvent), Problems(skip=True)):
            if event.kind == "stored" and event.block_tokens > 0:
                return event.block_tokens
        raise TraceError(f"{self.path}: holds no stored block")

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        parents: OrderedDict[int, int] = OrderedDict()
        open_by_end: OrderedDict[int, _Open] = OrderedDict()
        for number, event in decode_lines(self.path, msgspec.json.Decoder(LoggedEvent), problems):
            if event.v != VERSION:
                problems.add(str(self.path), number, f"version {event.v}; this warmtier reads {VERSION}")
                continue
            if event.kind != "stored" or not event.keys:
                continue
            if event.block_tokens != self._block_tokens:
                problems.add(str(self.path), number, f"block_tokens {event.block_tokens}, not {self._block_tokens}")
                continue
            yield from self._close(open_by_end, event.ts)
            self._remember(parents, event)
            yield from self._add(open_by_end, parents, number, event)
        yield from self._close(open_by_end, None)

    def _remember(self, parents: OrderedDict[int, int], event: LoggedEvent) -> None:
        parent = -1 if event.parent is None else event.parent
        for key in event.keys:
            parents[key] = parent
            parents.move_to_end(key)
            parent = key
        while len(parents) > MAX_BLOCKS:
            parents.popitem(last=False)

    def _add(
        self, open_by_end: OrderedDict[int, _Open], parents: OrderedDict[int, int], number: int, event: LoggedEvent
    ) -> Iterator[Numbered]:
        """Add blocks to the request whose last block is their parent, or begin one; yield a request that ends by it."""
        under_way = open_by_end.pop(event.parent, None) if event.parent is not None else None
        if under_way is None:
            path = _path(parents, event.keys[-1])
            tokens = len(path) * self._block_tokens
            request = TraceRequest(event.ts, tokens, 0, path, self._block_tokens, session=event.session)
            under_way = _Open(number, request, event.ts)
        else:
            under_way.request.keys += event.keys
            under_way.request.prompt_tokens += len(event.keys) * self._block_tokens
            under_way.latest_s = event.ts
        same = open_by_end.pop(event.keys[-1], None)
        open_by_end[event.keys[-1]] = under_way
        if same is not None:
            yield same.line, same.request

    def _close(self, open_by_end: OrderedDict[int, _Open], now_s: float | None) -> Iterator[Numbered]:
        """Yield the requests that nothing can be added to any more, the longest untouched first."""
        while open_by_end:
            end = next(iter(open_by_end))
            under_way = open_by_end[end]
            stale = now_s is None or now_s - under_way.latest_s > self.merge_gap_s
            if not stale and len(open_by_end) < MAX_OPEN:
                return
            del open_by_end[end]
            yield under_way.line, under_way.request


def _path(parents: OrderedDict[int, int], key: int) -> list[int]:
    path = []
    while key >= 0:
        path.append(key)
        key = parents.get(key, -1)
    path.reverse()
    return path
