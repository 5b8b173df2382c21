"""A whole trace as columns, for questions that need all of it: about 40 bytes per key occurrence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from warmtier.trace.lines import TraceError
from warmtier.trace.sample import hash_limit, key_hashes
from warmtier.trace.schema import TraceRequest

MAX_ACCESSES: Final = 20_000_000
GROUPS: Final = 8
_BATCH: Final = 1 << 20

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(slots=True)
class Columns:
    """Requests in order, and their accesses (key occurrences) in one row each, root first.

    Per request: ``first`` (index of its first access; one more entry than requests), ``arrival_s``, ``prompt_tokens``,
    ``output_tokens``, ``tail`` (0 or 1: its last access is a partial tail), ``session`` and ``tenant`` (indices into
    their names, -1: none). Per access: ``key`` (dense, from 0), ``request``, ``previous`` (the request before that
    had the key, -1: none), ``uses`` (how many requests had it before).
    """

    chunk_tokens: int
    first: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    tail: NDArray[np.bool_]
    session: Ints
    session_names: list[str]
    tenant: Ints
    tenant_names: list[str]
    key: NDArray[np.int32]
    request: NDArray[np.int32]
    previous: NDArray[np.int32]
    uses: NDArray[np.int32]
    group: NDArray[np.uint8]
    """Of each key: which of GROUPS disjoint parts it belongs to."""
    total: int
    """Key occurrences before sampling."""
    rate: float
    """The share of keys kept, 1.0: all."""

    @property
    def keys(self) -> int:
        """The number of distinct keys."""
        return len(self.group)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return len(self.arrival_s)

    @property
    def accesses(self) -> int:
        """The number of key occurrences."""
        return len(self.key)

    @property
    def depth(self) -> Ints:
        """Position of each access in its request, in chunks."""
        return np.arange(self.accesses) - np.repeat(self.first[:-1], np.diff(self.first))

    @property
    def known(self) -> Ints:
        """Per request, how many leading chunks an earlier request had: its hits in an infinite cache."""
        seen = np.append(np.cumsum(self.previous >= 0), 0)
        before = np.where(self.first > 0, seen[self.first - 1], 0)
        return np.diff(before)


class _Names:
    """Indices of names in order of appearance."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.column = array("q")

    def add(self, name: str | None) -> None:
        self.column.append(-1 if name is None else self.names.setdefault(name, len(self.names)))


class _Reader:
    """Columns under construction. Thins the keys out as they come where a sample is wanted or they become too many."""

    def __init__(self, rate: float, max_accesses: int, seed: int) -> None:
        self.rate = rate
        self.total = 0
        self._max_accesses = max_accesses
        self._seed = seed
        self._keys: list[Ints] = []
        self._lengths: list[Ints] = []
        self._kept = 0
        self._fresh_keys, self._fresh_lengths = array("q"), array("q")
        self.tail = array("b")

    def add(self, request: TraceRequest) -> None:
        self._fresh_keys.extend(request.keys)
        self._fresh_lengths.append(len(request.keys))
        self.tail.append(request.partial_tail)
        self.total += len(request.keys)
        if len(self._fresh_keys) >= _BATCH:
            self._seal()

    def _seal(self) -> None:
        if not self._fresh_lengths:
            return
        keys, lengths = _view(self._fresh_keys, np.int64), _view(self._fresh_lengths, np.int64)
        self._fresh_keys, self._fresh_lengths = array("q"), array("q")
        keys, lengths = self._thin(keys, lengths, len(self.tail) - len(lengths))
        self._keys.append(keys)
        self._lengths.append(lengths)
        self._kept += len(keys)
        while self._kept > self._max_accesses:
            self.rate /= 2
            first = 0
            for index, (some, their) in enumerate(zip(self._keys, self._lengths, strict=True)):
                self._keys[index], self._lengths[index] = self._thin(some, their, first)
                first += len(their)
            self._kept = sum(map(len, self._keys))

    def _thin(self, keys: Ints, lengths: Ints, first: int) -> tuple[Ints, Ints]:
        """Keep the sampled ones of some requests' keys; ``first`` is the number of the first of these requests."""
        if self.rate >= 1.0:
            return keys, lengths
        keep = key_hashes(keys, self._seed) < np.uint64(hash_limit(self.rate))
        ends = np.cumsum(lengths)
        flags = np.frombuffer(self.tail, dtype=np.int8)[first : first + len(lengths)].copy()
        nonempty = np.flatnonzero(lengths)
        lost = nonempty[~keep[ends[nonempty] - 1]]
        for index in lost[flags[lost] != 0].tolist():
            self.tail[first + index] = 0
        kept = np.concatenate([[0], np.cumsum(keep)])
        return keys[keep], np.diff(kept[np.concatenate([[0], ends])])

    def finish(self) -> tuple[Ints, Ints]:
        """Return all keys and the number of each request's."""
        self._seal()
        if not self._lengths:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        keys, lengths = np.concatenate(self._keys), np.concatenate(self._lengths)
        self._keys.clear()
        return keys, lengths


def read_columns(
    requests: Iterable[TraceRequest],
    chunk_tokens: int,
    *,
    rate: float = 1.0,
    seed: int = 0,
    max_accesses: int = MAX_ACCESSES,
) -> Columns:
    """Read a trace to its end; with ``rate`` below 1 keep only a spatial sample of the keys (SHARDS).

    Above ``max_accesses`` the rate is halved until they fit, as often as needed. Raises TraceError if keys are not
    prefix-chained: then nothing below could be trusted.
    """
    reader = _Reader(rate, max_accesses, seed)
    arrival, prompt, output = array("d"), array("q"), array("q")
    sessions, tenants = _Names(), _Names()
    for request in requests:
        reader.add(request)
        arrival.append(request.arrival_s)
        prompt.append(request.prompt_tokens)
        output.append(request.output_tokens)
        sessions.add(request.session)
        tenants.add(request.tenant)
    keys, lengths = reader.finish()
    dense, groups = _dense(keys, seed)
    del keys
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    previous, uses = _history(dense, owner)
    columns = Columns(
        chunk_tokens=chunk_tokens,
        first=np.concatenate([[0], np.cumsum(lengths)]),
        arrival_s=_view(arrival, np.float64),
        prompt_tokens=_view(prompt, np.int64),
        output_tokens=_view(output, np.int64),
        tail=_view(reader.tail, np.int8).astype(np.bool_),
        session=_view(sessions.column, np.int64),
        session_names=list(sessions.names),
        tenant=_view(tenants.column, np.int64),
        tenant_names=list(tenants.names),
        key=dense,
        request=owner,
        previous=previous,
        uses=uses,
        group=groups,
        total=reader.total,
        rate=reader.rate,
    )
    _check_chained(columns)
    return columns


def _view(values: array[Any], dtype: type[Any]) -> NDArray[Any]:
    return np.frombuffer(values, dtype=dtype) if len(values) else np.empty(0, dtype=dtype)


def _dense(keys: Ints, seed: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Return dense numbers of the keys, and a hash of each distinct one for splitting them into GROUPS parts."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    is_new = np.empty(len(keys), dtype=np.bool_)
    is_new[:1] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    dense = np.empty(len(keys), dtype=np.int32)
    dense[order] = np.cumsum(is_new, dtype=np.int32) - 1
    groups = (key_hashes(ordered[is_new], seed) % np.uint64(GROUPS)).astype(np.uint8)
    return dense, groups


def _history(key: NDArray[np.int32], request: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, per access, the request before with the same key (-1: none) and the number of those."""
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    same = np.zeros(len(key), dtype=np.bool_)
    np.equal(ordered[1:], ordered[:-1], out=same[1:])
    before = np.full(len(key), -1, dtype=np.int32)
    before[1:] = request[order[:-1]]
    before[~same] = -1
    previous = np.empty(len(key), dtype=np.int32)
    previous[order] = before
    positions = np.arange(len(key), dtype=np.int32)
    starts = np.maximum.accumulate(np.where(same, 0, positions))
    uses = np.empty(len(key), dtype=np.int32)
    uses[order] = positions - starts
    return previous, uses


def _check_chained(columns: Columns) -> None:
    """Chained keys are always equally deep, new only below known ones, and never twice in one request."""
    seen = columns.previous >= 0
    inside = columns.request[1:] == columns.request[:-1] if columns.accesses else np.empty(0, dtype=np.bool_)
    broken = inside & seen[1:] & ~seen[:-1]
    repeated = columns.previous == columns.request
    newer = inside & (columns.previous[1:] > columns.previous[:-1])
    depth = columns.depth
    first_depth = np.empty(columns.keys, dtype=np.int64)
    created = np.flatnonzero(~seen)
    first_depth[columns.key[created]] = depth[created]
    moved = depth != first_depth[columns.key]
    wrong = repeated | moved
    wrong[1:] |= broken | newer
    if wrong.any():
        request = int(columns.request[int(np.argmax(wrong))])
        why = f"request {request + 1} has a key that an earlier one had behind another prefix"
        raise TraceError("the trace's keys are not prefix-chained", why=why, fix="pass --format bailian to chain them")


def part(columns: Columns, group: int) -> Columns:
    """Return the keys of one of the GROUPS parts alone, as a sample of its own."""
    keep = columns.group[columns.key] == group
    kept = np.concatenate([[0], np.cumsum(keep)])
    ends = columns.first[1:]
    tail = columns.tail.copy()
    tail[columns.tail] = keep[ends[columns.tail] - 1]
    return replace(
        columns,
        first=kept[columns.first],
        tail=tail,
        key=columns.key[keep],
        request=columns.request[keep],
        previous=columns.previous[keep],
        uses=columns.uses[keep],
        rate=columns.rate / GROUPS,
    )
