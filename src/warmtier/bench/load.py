"""A streaming client for OpenAI-compatible servers that times tokens. It uses aiohttp, as ``vllm bench`` does.

Times are measured on the monotonic clock of this process, from just before the request is written.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

from warmtier.core.errors import TargetError
from warmtier.core.extras import require

_CHUNK_PREFIX: Final = b"data: "
_DONE: Final = b"[DONE]"


@dataclass(slots=True)
class Reply:
    """One finished completion: its text and when its tokens came, in seconds from the request."""

    text: str = ""
    token_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    logprobs: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None when no token came."""
        return self.token_times_s[0] if self.token_times_s else None

    @property
    def itls_s(self) -> list[float]:
        """Times between consecutive tokens."""
        return [b - a for a, b in zip(self.token_times_s, self.token_times_s[1:], strict=False)]


class Client:
    """Talks to one server. Use as an async context manager, from one event loop."""

    def __init__(self, base_url: str, *, timeout_s: float = 600.0) -> None:
        self.base_url = base_url
        self._timeout_s = timeout_s
        self._session: Any = None

    async def __aenter__(self) -> Self:
        """Open the connection pool."""
        aiohttp = require("aiohttp", extra="bench", purpose="the load generator")
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        connector = aiohttp.TCPConnector(limit=0)
        # trust_env off: a proxy between client and server would be what is measured.
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the pool."""
        await self._session.close()

    async def tokenize(self, text: str) -> list[int]:
        """Return the server's token ids of ``text``."""
        async with self._post("/tokenize", {"prompt": text, "add_special_tokens": False}) as response:
            return [int(token) for token in (await response.json(content_type=None))["tokens"]]

    async def complete(
        self, prompt: str | Sequence[int], *, max_tokens: int, extra: Mapping[str, object] | None = None
    ) -> Reply:
        """Stream one greedy completion. Raises TargetError when the server refuses or breaks off."""
        payload: dict[str, object] = {
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(extra or {}),
        }
        reply = Reply()
        start_s = time.perf_counter()
        async with self._post("/v1/completions", payload) as response:
            async for line in response.content:
                if not line.startswith(_CHUNK_PREFIX) or line.startswith(_CHUNK_PREFIX + _DONE):
                    continue
                _take(reply, json.loads(line.removeprefix(_CHUNK_PREFIX)), time.perf_counter() - start_s)
        reply.end_s = time.perf_counter() - start_s
        if reply.finish_reason is None:
            raise TargetError(f"{self.base_url} broke the stream off", why="no finish reason came")
        return reply

    @asynccontextmanager
    async def _post(self, path: str, payload: Mapping[str, object]) -> AsyncIterator[Any]:
        aiohttp = require("aiohttp", extra="bench", purpose="the load generator")
        try:
            async with self._session.post(self.base_url + path, json=payload) as response:
                if response.status != 200:
                    body = (await response.text())[:500]
                    raise TargetError(f"{self.base_url}{path} answered {response.status}", why=body)
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TargetError(f"{self.base_url}{path} failed", why=f"{type(error).__name__}: {error}") from error


def _take(reply: Reply, chunk: Mapping[str, Any], at_s: float) -> None:
    if "error" in chunk:
        raise TargetError("the server reported an error in its stream", why=str(chunk["error"])[:500])
    usage = chunk.get("usage")
    if usage:
        reply.prompt_tokens, reply.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    for choice in chunk.get("choices", ()):
        reply.text += choice.get("text") or ""
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        logprobs = choice.get("logprobs")
        if logprobs:
            reply.logprobs += logprobs["token_logprobs"]
        if choice.get("text") or logprobs:
            reply.token_times_s.append(at_s)
