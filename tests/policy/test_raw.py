"""Raw algorithms on streams small enough to follow by hand, and their bounds."""

from __future__ import annotations

import random

import pytest

from warmtier.policy.raw import RawArc, RawTwoTouch
from warmtier.policy.raw_queues import RawS3Fifo, RawSieve, RawWTinyLfu
from warmtier.policy.registry import create_raw

RAW = ("lru", "fifo", "2touch", "arc", "s3fifo", "sieve", "wtinylfu")


@pytest.mark.parametrize("name", RAW)
def test_size_never_passes_capacity_and_hits_mean_presence(name: str) -> None:
    rng = random.Random(4)
    cache = create_raw(name, 20)
    for _ in range(3_000):
        key = int(rng.paretovariate(0.8)) % 300
        present = key in cache
        assert cache.access(key) == present
        assert len(cache) <= 20
    assert len(cache) == sum(key in cache for key in range(300))


def test_lru_and_fifo_differ_in_what_a_hit_does() -> None:
    for name, kept in (("lru", {1, 3}), ("fifo", {2, 3})):
        cache = create_raw(name, 2)
        for key in (1, 2, 1, 3):
            cache.access(key)
        assert {key for key in (1, 2, 3) if key in cache} == kept, name


def test_two_touch_admits_at_the_second_use_once_full() -> None:
    cache: RawTwoTouch[int] = RawTwoTouch(2)
    for key in (1, 2, 3):
        cache.access(key)
    assert 3 not in cache
    cache.access(3)
    assert (3 in cache, 1 in cache, len(cache)) == (True, False, 2)
    cache.access(1)
    assert 1 in cache, "evicted blocks are remembered"
    for key in range(10, 100):
        cache.access(key)
    assert len(cache._ghosts) == 8


def test_arc_moves_its_target_by_ghost_hits_and_bounds_its_lists() -> None:
    cache: RawArc[int] = RawArc(4)
    for key in (1, 2, 1, 2, 3, 4, 5, 6):
        cache.access(key)
    assert cache._target == 0.0
    cache.access(next(iter(cache._once_ghosts)))
    assert cache._target >= 1.0
    rng = random.Random(1)
    for _ in range(2_000):
        cache.access(rng.randrange(20))
        assert len(cache) + len(cache._once_ghosts) + len(cache._often_ghosts) <= 8


def test_sieve_spares_what_was_visited() -> None:
    cache: RawSieve[int] = RawSieve(3)
    for key in (1, 2, 3, 1, 4):
        cache.access(key)
    assert {key for key in range(5) if key in cache} == {1, 3, 4}
    cache.access(5)
    assert 3 not in cache


def test_s3fifo_drops_what_was_used_once_and_keeps_a_ghost() -> None:
    cache: RawS3Fifo[int] = RawS3Fifo(20)
    for key in range(40):
        cache.access(key)
    assert len(cache) == 20
    ghost = next(iter(cache._ghosts))
    cache.access(ghost)
    assert ghost in cache._main
    assert len(cache._ghosts) <= 18


def test_wtinylfu_prefers_the_frequent() -> None:
    cache: RawWTinyLfu[int] = RawWTinyLfu(10)
    for _ in range(5):
        for key in range(9):
            cache.access(key)
    for key in range(100, 200):
        cache.access(key)
    assert sum(key in cache for key in range(9)) >= 8
