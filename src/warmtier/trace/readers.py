"""Which reader a file needs, by its first line or by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from warmtier.core.errors import UsageError
from warmtier.trace.access_log import AccessLogTrace
from warmtier.trace.bailian import BailianTrace
from warmtier.trace.base import FileTrace
from warmtier.trace.claude_code import ClaudeCodeTrace, SessionStarts
from warmtier.trace.kv_events import KvEventTrace
from warmtier.trace.lines import Problems, TraceError, decode_lines
from warmtier.trace.mooncake import MooncakeTrace
from warmtier.trace.openai_log import BLOCK_TOKENS, OpenAILogTrace, load_tokenizer
from warmtier.trace.schema import Trace, TraceRequest, coarsen


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a file does not say. ``chunk_tokens``: join neighbouring blocks to chunks of this size."""

    format: str | None = None
    block_tokens: int | None = None
    chunk_tokens: int | None = None
    skip_bad: bool = False
    starts: SessionStarts = field(default_factory=SessionStarts)
    merge_gap_s: float = 2.0
    tokenizer: Path | None = None


def _openai(path: Path, options: ReadOptions) -> FileTrace:
    if options.tokenizer is None:
        raise UsageError(f"{path}: a request log with texts needs a tokenizer", fix="pass --tokenizer tokenizer.json")
    tokenize, render, note = load_tokenizer(options.tokenizer)
    block = options.block_tokens or BLOCK_TOKENS
    return OpenAILogTrace(path, tokenize, render=render, note=note, block_tokens=block, skip_bad=options.skip_bad)


READERS: Final[dict[str, Callable[[Path, ReadOptions], FileTrace]]] = {
    "mooncake": lambda path, o: MooncakeTrace(path, chunk_tokens=o.block_tokens, skip_bad=o.skip_bad),
    "lmcache-agent": lambda path, o: MooncakeTrace(path, chunk_tokens=o.block_tokens, skip_bad=o.skip_bad),
    "timed-trace": lambda path, o: MooncakeTrace(path, chunk_tokens=o.block_tokens, skip_bad=o.skip_bad),
    "bailian": lambda path, o: BailianTrace(path, chunk_tokens=o.block_tokens, skip_bad=o.skip_bad),
    "claude-code": lambda path, o: ClaudeCodeTrace(path, starts=o.starts, skip_bad=o.skip_bad),
    "kv-events": lambda path, o: KvEventTrace(path, merge_gap_s=o.merge_gap_s, skip_bad=o.skip_bad),
    "access-log": lambda path, o: AccessLogTrace(path, skip_bad=o.skip_bad),
    "openai-log": _openai,
}
"""Format: how its file is opened."""


def sniff(path: Path) -> str:
    """Return the format of a file by its first readable line. Raises UsageError or TraceError."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    problems = Problems(skip=True)
    first = next(decode_lines(path, decoder, problems), None)
    if first is None:
        fix = "traces are JSON lines, plain or gzip"
        raise TraceError(f"{path}: no line is a JSON object", why=problems.first, fix=fix)
    fields = set(first[1])
    signs: list[tuple[str, set[str]]] = [
        ("bailian", {"hash_ids", "chat_id", "parent_chat_id"}),
        ("mooncake", {"hash_ids", "timestamp", "input_length"}),
        ("claude-code", {"requests", "block_size", "id"}),
        ("access-log", {"keys", "arrival_s", "chunk_tokens"}),
        ("kv-events", {"kind", "ts", "v"}),
    ]
    for name, needed in signs:
        if needed <= fields:
            return name
    bodies = [first[1], *(first[1].get(name) for name in ("body", "request", "request_body"))]
    if any(isinstance(body, dict) and ({"messages", "prompt"} & set(body)) for body in bodies):
        return "openai-log"
    why = f"line {first[0]} has the fields {', '.join(sorted(fields)[:12])}"
    raise TraceError(f"{path}: the format is not known", why=why, fix=f"pass --format: {', '.join(READERS)}")


class CoarseTrace:
    """Another trace in larger chunks."""

    def __init__(self, trace: Trace, chunk_tokens: int) -> None:
        if chunk_tokens % trace.chunk_tokens:
            fix = f"take a multiple of {trace.chunk_tokens}, the trace's own"
            raise UsageError(f"chunks of {chunk_tokens} tokens cannot be made", fix=fix)
        self._trace = trace
        self._chunk_tokens = chunk_tokens

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._chunk_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        return (coarsen(request, self._chunk_tokens) for request in self._trace)


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A trace ready to read, and the file's reader, for notes and problems."""

    trace: Trace
    file: FileTrace

    @property
    def notes(self) -> list[str]:
        """What was assumed, for people."""
        return self.file.notes


def open_trace(path: Path, options: ReadOptions | None = None) -> OpenTrace:
    """Open a trace file of any known format. Raises UsageError (TraceError) with file, line and reason."""
    options = options or ReadOptions()
    name = options.format or sniff(path)
    if name not in READERS:
        near = difflib.get_close_matches(name, READERS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown trace format {name!r}", fix=f"{hint}formats: {', '.join(READERS)}")
    file = READERS[name](path, options)
    trace: Trace = file if options.chunk_tokens is None else CoarseTrace(file, options.chunk_tokens)
    return OpenTrace(trace, file)
