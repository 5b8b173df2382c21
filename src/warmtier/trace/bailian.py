"""Qwen-Bailian traces: as Mooncake's, but seconds, blocks of 16 tokens, and ids that name a block's content only.

Read as they are, such ids overstate hits: equal content behind different prefixes is not reusable. So they are chained.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.chain import chain_keys
from warmtier.trace.lines import Problems, decode_lines
from warmtier.trace.schema import TraceRequest

BLOCK_TOKENS: Final = 16
MAX_CHATS: Final = 1_000_000
"""Chats whose conversation is remembered; a follow-up of an older one starts a session of its own."""


class Record(msgspec.Struct, gc=False):
    """One line as it is written. ``parent_chat_id`` below 0: the first turn."""

    chat_id: int
    parent_chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    type: str | None = None
    turn: int | None = None


class BailianTrace(FileTrace):
    """Reads one file. The session is the chat that began the conversation, the tenant the kind of request."""

    format_name = "bailian"

    def __init__(self, path: Path, *, chunk_tokens: int | None = None, skip_bad: bool = False) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self._block_tokens = chunk_tokens or BLOCK_TOKENS
        self.notes.append("block ids name content only: chained with their prefix")

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._block_tokens

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        roots: OrderedDict[int, int] = OrderedDict()
        for number, record in decode_lines(self.path, msgspec.json.Decoder(Record), problems):
            root = roots.get(record.parent_chat_id, record.chat_id)
            roots[record.chat_id] = root
            if len(roots) > MAX_CHATS:
                roots.popitem(last=False)
            yield number, self._to_request(record, root)

    def _to_request(self, record: Record, root: int) -> TraceRequest:
        return TraceRequest(
            record.timestamp,
            record.input_length,
            record.output_length,
            chain_keys(record.hash_ids),
            self._block_tokens,
            len(record.hash_ids) * self._block_tokens > record.input_length,
            str(root),
            record.type,
        )
