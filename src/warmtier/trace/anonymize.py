"""A trace that others may see: keyed hashes instead of keys and names, lengths and times rounded on request.

Hits of any cache are the same before and after: equal keys stay equal, different ones different.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from warmtier.trace.schema import KEY_BITS, TraceRequest

_MASK = (1 << KEY_BITS) - 1


@dataclass(frozen=True, slots=True)
class Anonymizer:
    """How to disguise. Without ``secret`` a random one is drawn and forgotten: two runs cannot be linked.

    ``round_tokens``: output lengths to the nearest multiple, prompt lengths down to one (never below their full
    chunks; a partial tail that vanishes loses its key). ``round_seconds``: arrivals down to a multiple.
    """

    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    round_tokens: int = 1
    round_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 16 <= len(self.secret) <= 64:
            raise ValueError(f"the secret must be 16 to 64 bytes, got {len(self.secret)}")
        if self.round_tokens < 1 or self.round_seconds < 0:
            raise ValueError("round_tokens must be at least 1, round_seconds not negative")

    def apply(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """Yield the requests disguised."""
        for request in requests:
            yield self._disguise(request)

    def _disguise(self, request: TraceRequest) -> TraceRequest:
        arrival_s = request.arrival_s
        if self.round_seconds:
            arrival_s = arrival_s // self.round_seconds * self.round_seconds
        step, full = self.round_tokens, len(request.full_keys)
        prompt = max(full * request.chunk_tokens, request.prompt_tokens // step * step)
        partial = request.partial_tail and prompt > full * request.chunk_tokens
        keys = request.keys if partial else request.full_keys
        return TraceRequest(
            arrival_s,
            prompt,
            round(request.output_tokens / step) * step,
            [self._key(key) for key in keys],
            request.chunk_tokens,
            partial,
            self._name(request.session),
            self._name(request.tenant),
        )

    def _key(self, key: int) -> int:
        digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=8, key=self.secret).digest()
        return int.from_bytes(digest, "little") & _MASK

    def _name(self, name: str | None) -> str | None:
        if name is None:
            return None
        return hashlib.blake2b(name.encode(), digest_size=8, key=self.secret).hexdigest()
