"""Hits only: a trace through one cache, without time or bytes. The first piece of the simulator.

Two modes. ``production``: the policy as an engine runs it (paths, leaf rule, no partial tail blocks). ``raw``: the
algorithm as published, per block, each request's blocks last to first, partial tails stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from warmtier.core.errors import UsageError
from warmtier.policy.base import Access, EvictionPolicy
from warmtier.policy.belady import BeladyCache
from warmtier.policy.raw import RawPolicy
from warmtier.policy.registry import create_policy, create_raw, modes_of
from warmtier.trace.schema import TraceRequest


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A whole trace in memory, in order of arrival."""

    name: str
    chunk_tokens: int
    requests: tuple[TraceRequest, ...]


@dataclass(slots=True)
class HitCounts:
    """What a run adds up to. Prefix hits: a block counts only if every block before it hits."""

    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    writes: int = 0

    @property
    def block_hit_ratio(self) -> float:
        """Hit blocks over all blocks."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_hit_ratio(self) -> float:
        """Tokens of hit blocks over all input tokens."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def writes_per_access(self) -> float:
        """Blocks written over all blocks."""
        return self.writes / self.blocks if self.blocks else 0.0


class ProductionCache:
    """Drives an ``EvictionPolicy`` as the tiered cache does: begin, touch, admit, finish."""

    def __init__(self, policy: EvictionPolicy[int], chunk_tokens: int) -> None:
        self.policy = policy
        self.writes = 0
        self._chunk_tokens = chunk_tokens

    def request(self, index: int, item: TraceRequest) -> int:
        """Serve one request."""
        del index
        policy, now = self.policy, item.arrival_s
        path = item.full_keys
        hits = _leading(policy, path)
        access = Access(path, self._chunk_tokens, item.prompt_tokens, now, session=item.session)
        policy.begin(access, now)
        policy.touch(access, path[:hits], now)
        if hits < len(path):
            answer = policy.admit(access, path[hits:], path[hits - 1] if hits else None, now, _never_pinned)
            self.writes += answer.admitted
        policy.finish(access, now)
        return hits


class RawCache:
    """Drives a ``RawPolicy`` by the protocol of the goldens."""

    def __init__(self, policy: RawPolicy[int]) -> None:
        self.policy = policy
        self.writes = 0

    def request(self, index: int, item: TraceRequest) -> int:
        """Serve one request, its last block first."""
        del index
        policy = self.policy
        hits = _leading(policy, item.keys)
        for key in reversed(item.keys):
            self.writes += not policy.access(key) and key in policy
        return hits


class OptimumCache:
    """Drives the offline optimum."""

    def __init__(self, capacity: int, paths: Sequence[Sequence[int]]) -> None:
        self._cache = BeladyCache(capacity, paths)
        self._paths = paths

    @property
    def writes(self) -> int:
        """Blocks admitted so far."""
        return self._cache.writes

    def request(self, index: int, item: TraceRequest) -> int:
        """Serve one request."""
        del item
        return self._cache.request(index, self._paths[index])


def make_cache(trace: LoadedTrace, policy: str, chunks: int, mode: str) -> ProductionCache | RawCache | OptimumCache:
    """Return the cache for one cell of a sweep. Raises UsageError where ``policy`` has no such mode."""
    modes = modes_of(policy)
    if mode not in modes:
        raise UsageError(f"policy {policy!r} has no {mode} mode", fix=f"it runs in: {', '.join(modes)}")
    if policy == "opt":
        full = mode == "production"
        return OptimumCache(chunks, [item.full_keys if full else item.keys for item in trace.requests])
    if mode == "raw":
        return RawCache(create_raw(policy, chunks))
    return ProductionCache(create_policy(policy, chunks), trace.chunk_tokens)


def run_hits(
    trace: LoadedTrace, cache: ProductionCache | RawCache | OptimumCache, score_from: float = 0.0
) -> HitCounts:
    """Run ``trace`` through ``cache``; count from the given share of its requests on."""
    counts = HitCounts()
    first = int(len(trace.requests) * score_from)
    for index, item in enumerate(trace.requests):
        before = cache.writes
        hits = cache.request(index, item)
        if index >= first:
            counts.blocks += len(item.keys)
            counts.hit_blocks += hits
            counts.tokens += item.prompt_tokens
            counts.hit_tokens += min(hits * trace.chunk_tokens, item.prompt_tokens)
            counts.writes += cache.writes - before
    return counts


def _leading(present: EvictionPolicy[int] | RawPolicy[int], path: Sequence[int]) -> int:
    for depth, key in enumerate(path):
        if key not in present:
            return depth
    return len(path)


def _never_pinned(key: int) -> bool:
    del key
    return False
