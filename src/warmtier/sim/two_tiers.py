"""Memory over a slow tier, hits only: what admission to the slow tier costs and saves (policies.md, section 2).

T1 is an LRU of full blocks; its victims are offered to T2, an LRU of its own, by an admission filter. A block in T2
stays there when T1 takes it again, and is refreshed when used and when offered again. Requests are presented last
block first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from warmtier.policy.admission import Admitter, Candidates, TierState
from warmtier.sim.hits import HitCounts, LoadedTrace


class TwoTiers:
    """T1 over T2. ``admitter`` None: every victim is written."""

    def __init__(self, memory_chunks: int, slow_chunks: int, admitter: Admitter[int] | None = None) -> None:
        self._memory: OrderedDict[int, None] = OrderedDict()
        self._slow: OrderedDict[int, float] = OrderedDict()  # last use
        self._memory_chunks = memory_chunks
        self._slow_chunks = slow_chunks
        self._admitter = admitter
        self._uses: dict[int, int] = {}
        self._eviction_age_s: float | None = None
        self.writes = 0

    def request(self, path: Sequence[int], now: float) -> int:
        """Serve one request; return its leading blocks present in either tier."""
        hits = next((i for i, key in enumerate(path) if key not in self._memory and key not in self._slow), len(path))
        if self._admitter is not None:
            self._admitter.on_used(path, now)
        for key in reversed(path):
            self._uses[key] = self._uses.get(key, 0) + 1
            if key in self._slow:
                self._slow[key] = now
                self._slow.move_to_end(key)
            self._memory[key] = None
            self._memory.move_to_end(key)
            if len(self._memory) > self._memory_chunks:
                self._offer(self._memory.popitem(last=False)[0], now)
        return hits

    def _offer(self, key: int, now: float) -> None:
        if key in self._slow:
            self._slow.move_to_end(key)
            return
        if self._slow_chunks < 1:
            return
        if self._admitter is not None:
            tier = TierState(self._slow_chunks, len(self._slow), self._eviction_age_s)
            if not self._admitter.judge(None, Candidates([key], [self._uses[key]]), tier, now).admitted:
                return
            self._admitter.on_written([key], now)
        self.writes += 1
        self._slow[key] = now
        if len(self._slow) > self._slow_chunks:
            victim, used_s = self._slow.popitem(last=False)
            self._eviction_age_s = now - used_s
            if self._admitter is not None:
                self._admitter.on_evicted([victim], now)


def run_two_tiers(trace: LoadedTrace, tiers: TwoTiers) -> HitCounts:
    """Run a whole trace."""
    counts = HitCounts()
    for item in trace.requests:
        hits = tiers.request(item.full_keys, item.arrival_s)
        counts.blocks += len(item.keys)
        counts.hit_blocks += hits
        counts.tokens += item.prompt_tokens
        counts.hit_tokens += min(hits * trace.chunk_tokens, item.prompt_tokens)
    counts.writes = tiers.writes
    return counts
