"""Raw hits equal those of libCacheSim on the same stream."""

from __future__ import annotations

import random

import pytest
from policy_traces import public_trace

from warmtier.policy.registry import create_raw

libcachesim = pytest.importorskip("libcachesim", reason="needs libcachesim (a development dependency)")

PAIRS = {"lru": "LRU", "arc": "ARC", "sieve": "Sieve", "s3fifo": "S3FIFO", "fifo": "FIFO"}


def hits_of_reference(name: str, capacity: int, stream: list[int]) -> int:
    cache = getattr(libcachesim, PAIRS[name])(capacity, hashpower=18)
    request = libcachesim.Request()
    request.obj_size = 1
    hits = 0
    for key in stream:
        request.obj_id = key + 1
        hits += cache.get(request)
    return hits


def hits_of_ours(name: str, capacity: int, stream: list[int]) -> int:
    cache = create_raw(name, capacity)
    return sum(cache.access(key) for key in stream)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    ("trace", "capacity"), [("magagent", 200), ("magagent", 1_000), ("synth", 500), ("synth", 4_000)]
)
def test_hits_equal_on_public_traces(name: str, trace: str, capacity: int) -> None:
    stream = [key for item in public_trace(trace).requests for key in reversed(item.keys)]
    ours, theirs = hits_of_ours(name, capacity, stream), hits_of_reference(name, capacity, stream)
    assert round(ours / len(stream), 4) == round(theirs / len(stream), 4), f"{ours} and {theirs} hits"


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(3))
def test_hits_equal_on_random_streams(name: str, seed: int) -> None:
    rng = random.Random(seed)
    stream = [int(rng.paretovariate(0.6)) % 5_000 + (i // 4_000) * 50 for i in range(12_000)]
    assert hits_of_ours(name, 120, stream) == hits_of_reference(name, 120, stream), f"seed {seed}"
