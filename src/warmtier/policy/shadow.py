"""Shadow caches: small copies of the cache that run every rule on a sample of the traffic, to see which is best here.

Sampling keeps whole prompts or sessions together (as SHARDS does for keys, Waldspurger 2015): a request is in the
sample by the hash of its session, or of its key at the depth where prompts begin to differ. A shadow has the sampled
share of the capacity. Nothing here is in the path of the cache itself but the scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, Generic

from warmtier.policy.base import Access, EvictionPolicy, K
from warmtier.policy.sketch import stable_hash

_DEPTHS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
_LOOK: Final = 128
_LOOK_EVERY: Final = 4096
_CROWD: Final = 0.05


class PathSampler(Generic[K]):
    """Chooses a share of the requests, whole prompts or sessions together. Bounded: a few hundred counters.

    The depth of the key that decides is looked for in the first 128 of every 4,096 requests: the first at which no key
    is shared by more than 5 % of them.
    """

    def __init__(self, share: float) -> None:
        self._limit = int(min(1.0, share) * (1 << 64))
        self._everything = share >= 1.0
        self._seen = 0
        self._counts: list[dict[K, int]] = [{} for _ in _DEPTHS]
        self.depth = 0

    def wants(self, access: Access[K]) -> bool:
        """Return whether this request is in the sample."""
        if self._everything:
            return True
        path = access.path
        if not path:
            return False
        self._look(path)
        anchor = access.session if access.session is not None else path[min(self.depth, len(path) - 1)]
        return stable_hash(anchor) < self._limit

    def _look(self, path: Sequence[K]) -> None:
        phase = self._seen % _LOOK_EVERY
        self._seen += 1
        if phase >= _LOOK:
            return
        for depth, counts in zip(_DEPTHS, self._counts, strict=True):
            key = path[min(depth, len(path) - 1)]
            counts[key] = counts.get(key, 0) + 1
        if phase == _LOOK - 1:
            crowded = [max(counts.values()) > _CROWD * _LOOK for counts in self._counts]
            self.depth = _DEPTHS[crowded.index(False)] if False in crowded else _DEPTHS[-1]
            self._counts = [{} for _ in _DEPTHS]


class Shadows(Generic[K]):
    """Runs the candidates side by side on the sample; keeps fading sums of hits and of squared differences.

    Sums begin when every candidate has had to choose: before that all are alike.
    """

    def __init__(self, candidates: Mapping[str, EvictionPolicy[K]], half_life: float) -> None:
        self.candidates = dict(candidates)
        self.hits = dict.fromkeys(candidates, 0.0)
        self._squares = dict.fromkeys(combinations(candidates, 2), 0.0)
        self.chunks = 0.0
        self.requests = 0
        self.counting = False
        self.counted = 0
        self._keep = 0.5 ** (1 / half_life)

    def run(self, access: Access[K], now: float) -> None:
        """Let every candidate serve a finished request."""
        path = access.path
        self.requests += 1
        if not self.counting:
            self.counting = all(len(policy) >= policy.capacity for policy in self.candidates.values())
            if not self.counting:
                for policy in self.candidates.values():
                    _serve(policy, Access(path, access.tokens_per_chunk, access.prompt_tokens, now), now)
                return
        self.counted += 1
        self.chunks = self.chunks * self._keep + len(path)
        served = {}
        for name, policy in self.candidates.items():
            own = Access(path, access.tokens_per_chunk, access.prompt_tokens, now)
            served[name] = _serve(policy, own, now)
            self.hits[name] = self.hits[name] * self._keep + served[name]
        for first, second in self._squares:
            difference = served[first] - served[second]
            self._squares[first, second] = self._squares[first, second] * self._keep + difference * difference

    def gain(self, name: str, over: str) -> float:
        """Return the hits of one candidate above those of another, as a share of all chunks."""
        return (self.hits[name] - self.hits[over]) / self.chunks if self.chunks else 0.0

    def doubt(self, name: str, over: str) -> float:
        """Return the standard error of ``gain`` (requests taken as independent)."""
        squares = self._squares.get((name, over), self._squares.get((over, name), 0.0))
        return math.sqrt(squares) / self.chunks if self.chunks else 0.0


def _serve(policy: EvictionPolicy[K], access: Access[K], now: float) -> int:
    path = access.path
    hits = 0
    if path and path[-1] in policy:
        hits = len(path)
    else:
        for key in path:
            if key not in policy:
                break
            hits += 1
    policy.begin(access, now)
    if hits < len(path):
        policy.admit(access, path[hits:], path[hits - 1] if hits else None, now, _free)
    policy.finish(access, now)
    return hits


def _free(key: object) -> bool:
    del key
    return False
