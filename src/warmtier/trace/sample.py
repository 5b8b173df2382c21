"""Smaller traces that still tell the truth: whole sessions, or a spatial sample of keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from warmtier.core.errors import UsageError
from warmtier.trace.schema import TraceRequest

MAX_KEYS: Final = 2_000_000
_MASK64: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


def infer_sessions(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """Give requests without a session one: that of the prompt they go on from, else a new one.

    A request goes on from another if its deepest known chunk was the last full one, or the last but one, of the prompt
    that brought it first (``reuse.continued`` answers the same for a whole trace). Memory is bounded: MAX_KEYS keys
    are remembered, the longest unused forgotten.
    """
    ended: OrderedDict[int, str | None] = OrderedDict()
    started = 0
    for request in requests:
        if request.session is None:
            keys = request.full_keys
            known = len(keys)
            while known and keys[known - 1] not in ended:
                known -= 1
            session = ended[keys[known - 1]] if known else None
            if session is None:
                session = f"s{started}"
                started += 1
            request.session = session
            for key in keys[:known]:
                ended.move_to_end(key)
            ended.update(dict.fromkeys(keys[known:]))
            for depth in range(max(known, len(keys) - 2), len(keys)):
                if depth >= 2 or depth == len(keys) - 1:
                    ended[keys[depth]] = session
            while len(ended) > MAX_KEYS:
                ended.popitem(last=False)
        yield request


def sample_sessions(requests: Iterable[TraceRequest], rate: float, seed: int = 0) -> Iterator[TraceRequest]:
    """Keep each session with probability ``rate``, all of it or nothing. Same seed, same sessions.

    Prefix hits within sessions stay as they were; cache sizes scale with ``rate`` where sessions share little.
    """
    limit = hash_limit(rate)
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
    limit = hash_limit(rate)
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
    """Return the 64-bit hash by which keys are sampled (the finalizer of SplitMix64)."""
    x = (key + _GAMMA * (seed + 1)) & _MASK64
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK64
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK64
    return x ^ (x >> 31)


def key_hashes(keys: NDArray[np.int64], seed: int = 0) -> NDArray[np.uint64]:
    """Return ``key_hash`` of many keys."""
    x = keys.astype(np.uint64) + np.uint64((_GAMMA * (seed + 1)) & _MASK64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    return x ^ (x >> np.uint64(31))


def hash_limit(rate: float) -> int:
    """Return the bound below which the hashes of a share ``rate`` of all keys are. Raises UsageError."""
    if not 0.0 < rate <= 1.0:
        raise UsageError(f"the rate must be above 0 and at most 1, got {rate}")
    return min(_MASK64, int(rate * (_MASK64 + 1)))
