"""The shared prefixes worth most: stretches of the prefix tree that are used together, by the tokens they save."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from warmtier.trace.columns import Columns, Ints
from warmtier.trace.reuse import total_uses


class SharedPrefix(msgspec.Struct, frozen=True):
    """A stretch that always occurs as a whole: ``tokens`` of it, behind ``start_tokens`` of other stretches.

    ``saved_tokens``: what an infinite cache saves by it. ``sessions`` that use it (None without sessions);
    ``first_s`` and ``last_s`` of its use; ``median_gap_s`` between uses. ``request`` is the number (from 1) of the
    request that brings it first.
    """

    request: int
    start_tokens: int
    tokens: int
    uses: int
    sessions: int | None
    saved_tokens: int
    saved_share: float
    first_s: float
    last_s: float
    median_gap_s: float


def shared_prefixes(columns: Columns, limit: int = 10) -> list[SharedPrefix]:
    """Return the stretches that save most tokens, at most ``limit``, the best first."""
    uses = total_uses(columns)
    begins, length = _stretches(columns, uses)
    scale = columns.chunk_tokens / columns.rate
    saved = (uses[columns.key[begins]] - 1) * length * scale
    order = np.argsort(-saved, kind="stable")[:limit]
    order = order[saved[order] > 0]
    total = float(columns.prompt_tokens.sum()) or 1.0
    users = _users(columns, columns.key[begins[order]])
    depth = columns.depth
    found = []
    for index, requests in zip(order.tolist(), users, strict=True):
        access = int(begins[index])
        at_s = columns.arrival_s[requests]
        sessions = columns.session[requests]
        found.append(
            SharedPrefix(
                int(columns.request[access]) + 1,
                round(float(depth[access]) * scale),
                round(float(length[index]) * scale),
                int(uses[columns.key[access]]),
                len(np.unique(sessions[sessions >= 0])) if columns.session_names else None,
                round(float(saved[index])),
                float(saved[index]) / total,
                float(at_s[0]),
                float(at_s[-1]),
                float(np.median(np.diff(at_s))),
            )
        )
    return found


def cross_session_share(columns: Columns) -> float | None:
    """Return the share of all prompt chunks that are known from another session only; None without sessions."""
    if not columns.session_names:
        return None
    reused = columns.previous >= 0
    other = columns.session[columns.request[reused]] != columns.session[columns.previous[reused]]
    return float(other.sum()) / max(1, columns.accesses)


def _stretches(columns: Columns, uses: Ints) -> tuple[Ints, Ints]:
    """Return the first access of every stretch at its first occurrence, and its length in chunks.

    Equal use counts of a parent and its child mean that every request that has one has the other.
    """
    created = np.flatnonzero(columns.previous < 0)
    count, request = uses[columns.key[created]], columns.request[created]
    change = np.ones(len(created), dtype=np.bool_)
    change[1:] = (request[1:] != request[:-1]) | (count[1:] != count[:-1])
    at = np.flatnonzero(change)
    return created[at], np.diff(np.append(at, len(created)))


def _users(columns: Columns, keys: NDArray[np.int32]) -> list[Ints]:
    """Return the requests that have each of a few keys, in order."""
    wanted = np.isin(columns.key, keys)
    pairs_key, pairs_request = columns.key[wanted], columns.request[wanted]
    return [pairs_request[pairs_key == key].astype(np.int64) for key in keys.tolist()]
