"""Small traces for tests, and the slow, obvious way to count what they do."""

from __future__ import annotations

import gzip
import os
import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from warmtier.trace.schema import TraceRequest

ROOT = Path(__file__).resolve().parents[2]


def shared_trace(name: str) -> Path:
    """Return a public trace, or skip."""
    path = Path(os.environ.get("WARMTIER_SHARED", ROOT.parent / "shared")) / "traces" / name
    if not path.is_file():
        pytest.skip(f"{name} is not here (set WARMTIER_SHARED)")
    return path


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def random_requests(seed: int, requests: int, *, tails: bool = True, chunk_tokens: int = 4) -> list[TraceRequest]:
    """Return requests that walk a random tree: shared roots, forks, continued sessions."""
    rng = random.Random(seed)
    paths: list[list[int]] = [[]]
    fresh, now, made = 1, 0.0, []
    for _ in range(requests):
        base = rng.choice(paths[-12:])
        path = base[: rng.randint(0, len(base))] if rng.random() < 0.4 else list(base)
        grown = rng.randint(0, 4)
        path = [*path, *range(fresh, fresh + grown)]
        fresh += grown
        paths.append(path)
        partial = tails and rng.random() < 0.5
        keys = [*path, fresh] if partial else path
        fresh += 1
        tokens = len(path) * chunk_tokens + (rng.randint(1, chunk_tokens - 1) if partial else 0)
        made.append(TraceRequest(now, tokens, rng.randint(1, 9), list(keys), chunk_tokens, partial))
        now += rng.random()
    return made


def lru_prefix_hits(paths: Sequence[Sequence[int]], capacity: int) -> int:
    """Count leading chunks present in an LRU of ``capacity``; each request then uses its chunks last to first."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for path in paths:
        for key in path:
            if key not in cache:
                break
            hits += 1
        for key in reversed(path):
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits
