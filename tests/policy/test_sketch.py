"""The count-min sketch and the ghost list against exact counts."""

from __future__ import annotations

import random
from collections import Counter

from warmtier.policy.sketch import CountMinSketch, GhostList, stable_hash


def test_sketch_never_counts_too_little_and_seldom_too_much() -> None:
    rng = random.Random(7)
    sketch = CountMinSketch(1_000)
    truth: Counter[int] = Counter()
    for _ in range(3_000):
        key = int(rng.paretovariate(0.7))
        truth[key] += 1
        sketch.add(key)
    estimates = {key: sketch.estimate(key) for key in truth}
    assert all(estimates[key] >= min(count, 255) for key, count in truth.items())
    wrong = sum(estimates[key] != min(count, 255) for key, count in truth.items())
    assert wrong < len(truth) * 0.05, f"{wrong} of {len(truth)} overestimated"


def test_sketch_ages_by_halving() -> None:
    sketch = CountMinSketch(10)
    for _ in range(99):
        sketch.add(b"popular")
    assert sketch.estimate(b"popular") == 99
    sketch.add(b"popular")
    assert sketch.estimate(b"popular") == 50


def test_sketch_counter_saturates_at_its_bound() -> None:
    sketch = CountMinSketch(1_000)
    for _ in range(300):
        sketch.add("x")
    assert sketch.estimate("x") == 255


def test_ghost_list_drops_the_oldest_at_its_bound() -> None:
    ghosts: GhostList[str] = GhostList(2)
    assert ghosts.put("a", 1) is None
    assert ghosts.put("b", 2) is None
    assert ghosts.put("a", 3) is None
    assert ghosts.put("c", 4) == "b"
    assert (ghosts.get("a"), ghosts.get("b"), len(ghosts)) == (3, None, 2)
    assert ghosts.pop("a") == 3
    assert ghosts.pop("a") is None
    assert "c" in ghosts
    ghosts.clear()
    assert len(ghosts) == 0


def test_stable_hash_is_the_same_in_every_process() -> None:
    assert stable_hash(b"key") == 0xBBEA0D63A05165E3
    assert stable_hash(7) == 0x81671E58D6B596AF
    assert len({stable_hash(i) >> 44 for i in range(1_000)}) > 950
