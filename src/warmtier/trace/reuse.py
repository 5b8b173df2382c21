"""How a trace reuses its chunks: gaps, use counts, positions, sessions, tenants, classes. All from columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from warmtier.trace.columns import Columns, Floats, Ints
from warmtier.trace.stack import Runs

QUANTILES: Final = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
POSITION_TOKENS: Final = (0, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
USE_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32)
MAX_TENANTS: Final = 10
KINDS: Final = ("new", "fork", "continuing")
TRUNK_USES: Final = 20


class Quantiles(msgspec.Struct, frozen=True):
    """A distribution: number of values, mean, and QUANTILES (all None without values)."""

    count: int
    mean: float | None
    p01: float | None
    p10: float | None
    p25: float | None
    p50: float | None
    p75: float | None
    p90: float | None
    p99: float | None
    max: float | None


def quantiles(values: NDArray[np.generic]) -> Quantiles:
    """Return the distribution of ``values``."""
    if not len(values):
        return Quantiles(0, None, None, None, None, None, None, None, None, None)
    numbers = values.astype(np.float64)
    p01, p10, p25, p50, p75, p90, p99 = np.quantile(numbers, QUANTILES).tolist()
    return Quantiles(len(values), float(numbers.mean()), p01, p10, p25, p50, p75, p90, p99, float(numbers.max()))


class UseCount(msgspec.Struct, frozen=True):
    """Of the chunks used ``uses`` times, the share used once more."""

    uses: int
    chunks: int
    used_again: float


class Position(msgspec.Struct, frozen=True):
    """Chunks that begin at ``from_tokens`` up to the next row's: how many, and the share known from before."""

    from_tokens: int
    chunks: int
    known: float


class Group(msgspec.Struct, frozen=True):
    """One tenant: its requests, prompt tokens, and the share of its chunks that were known."""

    name: str
    requests: int
    prompt_tokens: int
    known: float


class SessionFacts(msgspec.Struct, frozen=True):
    """Sessions: how many, their length and pauses, and whose chunks are reused: the own session's or another's."""

    sessions: int
    requests_per_session: Quantiles
    pause_s: Quantiles
    known_own: float
    known_other: float


class ChunkClass(msgspec.Struct, frozen=True):
    """Chunks created in like circumstances: how many, which share was ever reused, tokens saved per chunk."""

    request: str
    from_tokens: int
    chunks: int
    reused: float
    saved_tokens_per_chunk: float


def gaps_seconds(columns: Columns) -> Floats:
    """Return, for every reuse, the seconds since the use before."""
    reused = columns.previous >= 0
    gaps: Floats = columns.arrival_s[columns.request[reused]] - columns.arrival_s[columns.previous[reused]]
    return gaps


def gaps_chunks(runs: Runs, rate: float) -> Ints:
    """Return, for every reuse, the distinct chunks used since (LRU stack distance)."""
    reused = runs.distance >= 0
    count = runs.count[reused]
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    distances = np.repeat(runs.distance[reused], count) + within
    return distances if rate >= 1.0 else np.rint(distances / rate).astype(np.int64)


def total_uses(columns: Columns) -> Ints:
    """Return the number of requests that have each key."""
    return np.bincount(columns.key, minlength=columns.keys)


def by_use_count(columns: Columns) -> list[UseCount]:
    """Return the chance of another use after each number of uses."""
    uses = total_uses(columns)
    rows = []
    for count in USE_COUNTS:
        reached = int((uses >= count).sum())
        if reached:
            rows.append(UseCount(count, reached, float((uses > count).sum()) / reached))
    return rows


def by_position(columns: Columns) -> list[Position]:
    """Return the share of known chunks by position in the prompt."""
    bucket = _position_bucket(columns)
    chunks = np.bincount(bucket, minlength=len(POSITION_TOKENS))
    known = np.bincount(bucket, weights=columns.previous >= 0, minlength=len(POSITION_TOKENS))
    rows = zip(POSITION_TOKENS, chunks.tolist(), known.tolist(), strict=True)
    return [Position(start, count, hits / count) for start, count, hits in rows if count]


def _position_bucket(columns: Columns) -> Ints:
    # A sampled path is thinner by the rate: its positions are spread out again.
    tokens = columns.depth * (columns.chunk_tokens / columns.rate)
    bucket: Ints = np.searchsorted(np.array(POSITION_TOKENS), tokens, side="right") - 1
    return bucket


def by_tenant(columns: Columns) -> list[Group]:
    """Return the tenants with the most prompt tokens, at most MAX_TENANTS."""
    if not columns.tenant_names:
        return []
    some = columns.tenant >= 0
    size = len(columns.tenant_names)
    requests = np.bincount(columns.tenant[some], minlength=size)
    tokens = np.bincount(columns.tenant[some], weights=columns.prompt_tokens[some], minlength=size)
    owner = columns.tenant[columns.request]
    chunks = np.bincount(owner[owner >= 0], minlength=size)
    known = np.bincount(owner[owner >= 0], weights=columns.previous[owner >= 0] >= 0, minlength=size)
    order = np.argsort(-tokens, kind="stable")[:MAX_TENANTS]
    return [
        Group(columns.tenant_names[i], int(requests[i]), int(tokens[i]), float(known[i] / max(1, chunks[i])))
        for i in order.tolist()
    ]


def session_facts(columns: Columns) -> SessionFacts | None:
    """Return what sessions do, or None if the trace has none."""
    if not columns.session_names:
        return None
    some = np.flatnonzero(columns.session >= 0)
    order = some[np.argsort(columns.session[some], kind="stable")]
    session, at_s = columns.session[order], columns.arrival_s[order]
    pause = np.diff(at_s)[session[1:] == session[:-1]]
    reused = columns.previous >= 0
    own = columns.session[columns.request[reused]] == columns.session[columns.previous[reused]]
    accesses = max(1, columns.accesses)
    return SessionFacts(
        len(columns.session_names),
        quantiles(np.bincount(columns.session[some])),
        quantiles(pause),
        float(own.sum()) / accesses,
        float((~own).sum()) / accesses,
    )


def first_reuse_seconds(columns: Columns) -> Floats:
    """Return, for every chunk that is reused at all, the seconds from its creation to its first reuse."""
    second = columns.uses == 1
    gaps: Floats = columns.arrival_s[columns.request[second]] - columns.arrival_s[columns.previous[second]]
    return gaps


def continued(columns: Columns) -> Ints:
    """Return per request the earlier one it goes on from (-1: none): the one that brought its deepest known chunk.

    Only if that chunk was the last full one there, or the last but one (a chat's closing tokens change): a shared
    beginning is no continuation.
    """
    full = np.diff(columns.first) - columns.tail
    creator = np.empty(columns.keys, dtype=np.int64)
    left = np.empty(columns.keys, dtype=np.int64)
    created = np.flatnonzero(columns.previous < 0)
    creator[columns.key[created]] = columns.request[created]
    depth = columns.depth[created]
    behind = full[columns.request[created]] - 1 - depth
    left[columns.key[created]] = np.where(depth >= 2, behind, 2 * behind)
    some, deepest = deepest_known(columns)
    earlier = np.full(columns.requests, -1, dtype=np.int64)
    earlier[some] = np.where((left[deepest] >= 0) & (left[deepest] <= 1), creator[deepest], -1)
    return earlier


def deepest_known(columns: Columns) -> tuple[Ints, Ints]:
    """Return the requests that know any full chunk, and the key of the deepest of each."""
    known = np.minimum(columns.known, np.diff(columns.first) - columns.tail)
    some = np.flatnonzero(known > 0)
    return some, columns.key[columns.first[:-1][some] + known[some] - 1].astype(np.int64)


def give_sessions(columns: Columns) -> None:
    """Let requests of a trace without sessions belong to that of the request they go on from."""
    session: list[int] = []
    for earlier in continued(columns).tolist():
        session.append(len(columns.session_names) if earlier < 0 else session[earlier])
        if earlier < 0:
            columns.session_names.append(f"s{len(columns.session_names)}")
    columns.session = np.array(session, dtype=np.int64)


def request_kinds(columns: Columns) -> NDArray[np.int8]:
    """Return per request an index into KINDS.

    0: nothing of it is known but what TRUNK_USES earlier requests had; 1: it leaves a path that few had; 2: it goes on
    where an earlier one ended.
    """
    kinds = np.zeros(columns.requests, dtype=np.int8)
    some, _ = deepest_known(columns)
    known = np.minimum(columns.known, np.diff(columns.first) - columns.tail)[some]
    kinds[some] = columns.uses[columns.first[:-1][some] + known - 1] < TRUNK_USES
    kinds[continued(columns) >= 0] = 2
    return kinds


def by_class(columns: Columns) -> list[ChunkClass]:
    """Return chunks by the kind of the request that created them and their position; partial tails apart."""
    created = columns.previous < 0
    tail = np.zeros(columns.accesses, dtype=np.bool_)
    tail[columns.first[1:][columns.tail] - 1] = True
    uses = total_uses(columns)[columns.key]
    kind = request_kinds(columns)[columns.request]
    bucket = _position_bucket(columns)
    rows = []
    for name, start, chosen in _classes(kind, bucket, tail):
        members = uses[created & chosen]
        if len(members):
            saved = float((members - 1).mean()) * columns.chunk_tokens
            rows.append(ChunkClass(name, start, len(members), float((members > 1).mean()), saved))
    return rows


def _classes(
    kind: NDArray[np.int8], bucket: Ints, tail: NDArray[np.bool_]
) -> Sequence[tuple[str, int, NDArray[np.bool_]]]:
    classes = [("partial tail", 0, tail)]
    for number, name in enumerate(KINDS):
        for index, start in enumerate(POSITION_TOKENS):
            classes.append((name, start, (kind == number) & (bucket == index) & ~tail))
    return classes
