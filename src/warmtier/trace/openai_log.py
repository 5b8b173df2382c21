"""OpenAI-style request logs, with a tokenizer: the only readers that ever see text. Keys and lengths leave, no text.

One request a line: the request body (``messages`` or ``prompt``) at the top, or under ``body`` or ``request``; the time
under ``timestamp``, ``time``, ``ts``, ``created_at`` or ``created`` (seconds, milliseconds or ISO 8601); the answer's
``usage.completion_tokens`` at the top or under ``response`` (``max_tokens`` else). ``session_id`` / ``conversation_id``
and ``user`` name session and tenant; they are hashed.

Chats are rendered by the tokenizer's own template where ``tokenizer_config.json`` lies beside ``tokenizer.json``
(jinja2 needed), in ChatML's form otherwise; the note of the trace says which. Keys chain token ids.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from warmtier.core.errors import UsageError
from warmtier.core.extras import require
from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.chain import key_of_text
from warmtier.trace.lines import BadLine, Problems, decode_lines
from warmtier.trace.schema import KEY_BITS, TraceRequest

BLOCK_TOKENS: Final = 16
_TIMES: Final = ("timestamp", "time", "ts", "created_at", "created", "start_time")
_SESSIONS: Final = ("session_id", "conversation_id", "session", "chat_id")
_MASK: Final = (1 << KEY_BITS) - 1

Tokenize = Callable[[str], Sequence[int]]
Render = Callable[[list[dict[str, Any]]], str]


def load_tokenizer(path: Path) -> tuple[Tokenize, Render, str]:
    """Return how to tokenize, how to render a chat, and a note; ``path`` is a ``tokenizer.json`` or its directory."""
    tokenizers = require("tokenizers", extra="trace", purpose="reading texts")
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"{file}: no such tokenizer", fix="pass the tokenizer.json of the model or its directory")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    template = _chat_template(file.with_name("tokenizer_config.json"))
    render = chatml if template is None else template
    name = "ChatML (no template beside the tokenizer)" if template is None else "the tokenizer's template"

    def tokenize(text: str) -> Sequence[int]:
        ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return tokenize, render, f"chats rendered with {name}"


def chatml(messages: list[dict[str, Any]]) -> str:
    """Return the chat in ChatML's form, ready for the answer."""
    turns = [f"<|im_start|>{m.get('role', 'user')}\n{_text(m.get('content'))}<|im_end|>\n" for m in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def _text(content: object) -> str:
    """Return the text of a message's content, whether a string or a list of parts; other parts as their JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            str(part["text"]) if isinstance(part, dict) and "text" in part else json.dumps(part) for part in content
        )
    return json.dumps(content)


def _chat_template(config: Path) -> Render | None:
    if not config.is_file():
        return None
    facts = json.loads(config.read_text())
    source = facts.get("chat_template")
    if not isinstance(source, str):
        return None
    sandbox = require("jinja2.sandbox", extra="trace", purpose="rendering chats")
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(message: str) -> None:
        raise BadLine(f"the chat template refuses the messages: {message}")

    environment.globals["raise_exception"] = refuse
    template = environment.from_string(source)
    special = {k: _special(facts.get(k)) for k in ("bos_token", "eos_token")}

    def render(messages: list[dict[str, Any]]) -> str:
        text: str = template.render(messages=messages, add_generation_prompt=True, **special)
        return text

    return render


def _special(token: object) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


class OpenAILogTrace(FileTrace):
    """Reads one log. ``tokenize`` and ``render`` come from ``load_tokenizer`` or from the caller."""

    format_name = "openai-log"
    unordered = True

    def __init__(
        self,
        path: Path,
        tokenize: Tokenize,
        *,
        render: Render = chatml,
        note: str = "",
        block_tokens: int = BLOCK_TOKENS,
        skip_bad: bool = False,
    ) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self._tokenize = tokenize
        self._render = render
        self._block_tokens = block_tokens
        if note:
            self.notes.append(note)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._block_tokens

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        for number, line in decode_lines(self.path, msgspec.json.Decoder(dict[str, Any]), problems):
            try:
                request = self._to_request(line)
            except BadLine as error:
                problems.add(str(self.path), number, str(error))
                continue
            yield number, request

    def _to_request(self, line: dict[str, Any]) -> TraceRequest:
        body = _body(line)
        ids = self._token_ids(body)
        keys = _token_keys(ids, self._block_tokens, str(body.get("cache_salt") or ""))
        session = next((line.get(n) or body.get(n) for n in _SESSIONS if line.get(n) or body.get(n)), None)
        user = body.get("user") or line.get("user")
        return TraceRequest(
            _time(line),
            len(ids),
            _output_tokens(line, body),
            keys,
            self._block_tokens,
            session=None if session is None else f"{key_of_text(str(session)):x}",
            tenant=None if user is None else f"{key_of_text(str(user)):x}",
        )

    def _token_ids(self, body: dict[str, Any]) -> Sequence[int]:
        if isinstance(messages := body.get("messages"), list):
            if not all(isinstance(message, dict) for message in messages):
                raise BadLine("messages must be objects")
            return self._tokenize(self._render(messages))
        prompt = body["prompt"]
        if isinstance(prompt, str):
            return self._tokenize(prompt)
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return prompt
        raise BadLine("prompt must be a text or a list of token ids")


def _body(line: dict[str, Any]) -> dict[str, Any]:
    for candidate in (line, line.get("body"), line.get("request"), line.get("request_body")):
        if isinstance(candidate, dict) and ("messages" in candidate or "prompt" in candidate):
            return candidate
    raise BadLine("neither messages nor prompt, at the top or under body or request")


def _time(line: dict[str, Any]) -> float:
    for name in _TIMES:
        value = line.get(name)
        if isinstance(value, int | float):
            return value / 1000.0 if value > 1e11 else float(value)
        if isinstance(value, str):
            try:
                return dt.datetime.fromisoformat(value).timestamp()
            except ValueError:
                raise BadLine(f"{name} {value!r} is no time") from None
    raise BadLine(f"no time under {', '.join(_TIMES)}")


def _output_tokens(line: dict[str, Any], body: dict[str, Any]) -> int:
    response = line.get("response")
    nested = response.get("body", response) if isinstance(response, dict) else {}
    for place in (line, response, nested):
        usage = place.get("usage") if isinstance(place, dict) else None
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            return int(usage["completion_tokens"])
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or 0
    return limit if isinstance(limit, int) else 0


def _token_keys(ids: Sequence[int], block_tokens: int, salt: str) -> list[int]:
    parent = key_of_text(salt) if salt else 0
    keys = []
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        block = msgspec.msgpack.encode(list(ids[start : start + block_tokens]))
        parent = xxhash.xxh3_64_intdigest(block, seed=parent) & _MASK
        keys.append(parent)
    return keys
