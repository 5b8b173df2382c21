"""Smaller traces that still tell the truth: whole sessions, or a spatial sample of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import xxhash

from warmtier.core.errors import UsageError
from warmtier.trace.schema import TraceRequest

MAX_SESSIONS: Final = 1_000_000
_SPAN: Final = 1 << 64


def infer_sessions(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Give requests without a session one: the session whose latest full prompt is a prefix of theirs, else a new one.

    Memory is bounded: the ends of the latest MAX_SESSIONS prompts are remembered.
    """
    ends: OrderedDict[int, str] = OrderedDict()
    started = 0
    for request in requests:
        if request.session is None:
            keys = request.full_keys
            end = next((key for key in reversed(keys) if key in ends), None)
            if end is None:
                session = f"s{started}"
                started += 1
            else:
                session = ends.pop(end)
            if keys:
                ends[keys[-1]] = session
                if len(ends) > MAX_SESSIONS:
                    ends.popitem(last=False)
            request.session = session
        yield request


def sample_sessions(requests: Iterable[TraceRequest], rate: float, seed: int = 0) -> Iterator[TraceRequest]:
    """Keep each session with probability ``rate``, all of it or nothing. Same seed, same sessions.

    Prefix hits within sessions stay as they were; cache sizes scale with ``rate`` where sessions share little.
    """
    limit = _limit(rate)
    for request in requests:
        if request.session is None:
            fix = "sample by hash, or let sessions be inferred"
            raise UsageError("the trace does not tell sessions", fix=fix)
        if xxhash.xxh3_64_intdigest(request.session.encode(), seed=seed) < limit:
            yield request


def sample_keys(requests: Iterable[TraceRequest], rate: float, seed: int = 0) -> Iterator[TraceRequest]:
    """Keep each key with probability ``rate`` wherever it occurs (SHARDS); requests without any left are dropped.

    Reuse distances, and so cache sizes in chunks, shrink by ``rate``. Partial tails are dropped: nothing reuses them.
    """
    limit = _limit(rate)
    for request in requests:
        keys = [key for key in request.full_keys if key_hash(key, seed) < limit]
        if keys:
            yield TraceRequest(
                request.arrival_s,
                request.prompt_tokens,
                request.output_tokens,
                keys,
                request.chunk_tokens,
                session=request.session,
                tenant=request.tenant,
            )


def key_hash(key: int, seed: int = 0) -> int:
    """Return the 64-bit hash by which keys are sampled."""
    return xxhash.xxh3_64_intdigest(key.to_bytes(8, "little"), seed=seed)


def _limit(rate: float) -> int:
    if not 0.0 < rate <= 1.0:
        raise UsageError(f"the rate must be above 0 and at most 1, got {rate}")
    return int(rate * _SPAN)
