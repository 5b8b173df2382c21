"""One request of any trace, as every reader yields it and every tool takes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

KEY_BITS: Final = 63
"""Keys are non-negative and below 2**63, so that they fit an int64 and any JSON reader that keeps 64 bits."""


class TraceRequest(msgspec.Struct, gc=False):
    """One request, without content.

    ``arrival_s`` counts from the start of the trace and never goes back within one. ``keys`` are prefix-chained, root
    first: equal keys mean equal tokens up to and including that chunk. Every key stands for ``chunk_tokens`` tokens,
    but for the last one if ``partial_tail``. ``keys`` may cover less than ``prompt_tokens`` (a tail without a key is
    never reused). ``session`` and ``tenant`` are opaque names, or None if the trace does not tell.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    keys: list[int]
    chunk_tokens: int
    partial_tail: bool = False
    session: str | None = None
    tenant: str | None = None

    @property
    def full_keys(self) -> list[int]:
        """The keys of full chunks."""
        return self.keys[:-1] if self.partial_tail else self.keys

    @property
    def tail_tokens(self) -> int:
        """Tokens of the last key: ``chunk_tokens`` unless it is partial; 0 without keys."""
        if not self.keys:
            return 0
        if not self.partial_tail:
            return self.chunk_tokens
        return self.prompt_tokens - (len(self.keys) - 1) * self.chunk_tokens


class Trace(Protocol):
    """A source of requests in order of arrival that can be read more than once."""

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk, equal for all requests."""
        ...

    def __iter__(self) -> Iterator[TraceRequest]:
        """Start over and yield every request."""
        ...


def check(request: TraceRequest) -> str | None:
    """Return why ``request`` breaks the schema, or None."""
    if request.prompt_tokens < 0 or request.output_tokens < 0:
        return "lengths must not be negative"
    if request.chunk_tokens < 1:
        return "chunk_tokens must be at least 1"
    keys = len(request.keys)
    full = keys - 1 if request.partial_tail else keys
    if full * request.chunk_tokens > request.prompt_tokens:
        return f"{full} full chunks of {request.chunk_tokens} tokens do not fit in {request.prompt_tokens} tokens"
    if request.partial_tail and not full * request.chunk_tokens < request.prompt_tokens:
        return "the partial last chunk holds no token"
    if keys and (min(request.keys) < 0 or max(request.keys) >> KEY_BITS):
        return f"keys must be 0 to 2**{KEY_BITS} - 1"
    return None


def coarsen(request: TraceRequest, chunk_tokens: int) -> TraceRequest:
    """Return ``request`` in chunks of ``chunk_tokens``, a multiple of its own. Exact, because keys are chained.

    The rest that fills no chunk becomes a partial tail.
    """
    if chunk_tokens == request.chunk_tokens:
        return request
    factor, remainder = divmod(chunk_tokens, request.chunk_tokens)
    if remainder or factor < 1:
        raise ValueError(f"{chunk_tokens} is not a multiple of {request.chunk_tokens}")
    full = request.full_keys
    keys = full[factor - 1 :: factor]
    partial = len(request.keys) > len(keys) * factor
    if partial:
        keys = [*keys, request.keys[-1]]
    return TraceRequest(
        request.arrival_s,
        request.prompt_tokens,
        request.output_tokens,
        keys,
        chunk_tokens,
        partial,
        request.session,
        request.tenant,
    )
