"""Retention ranges: which tokens of a request keep which priority, for how long. Validation and lookup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from warmtier.core.errors import UsageError
from warmtier.core.types import DEFAULT_PRIORITY

MAX_PRIORITY: Final = 100


@dataclass(frozen=True, slots=True)
class RetentionRange:
    """Tokens [start, end) keep ``priority``; ``end`` None means open. After ``duration_s`` it falls to the default.

    A chunk takes the range that holds its first token (TensorRT-LLM's rule).
    """

    start: int
    end: int | None
    priority: int = DEFAULT_PRIORITY
    duration_s: float | None = None


def normalize_ranges(ranges: Iterable[RetentionRange]) -> tuple[RetentionRange, ...]:
    """Return the ranges sorted by start. Raises UsageError if one is malformed, overlaps, or is open but not last."""
    ordered = sorted(ranges, key=lambda r: r.start)
    for position, entry in enumerate(ordered):
        _check_range(entry)
        if position + 1 == len(ordered):
            break
        following = ordered[position + 1]
        if entry.end is None:
            raise UsageError(f"range {entry.start}- is open but not the last", fix="give it an end")
        if entry.end > following.start:
            raise UsageError(f"ranges {entry.start}-{entry.end} and {following.start}- overlap")
    return tuple(ordered)


def _check_range(entry: RetentionRange) -> None:
    if entry.start < 0:
        raise UsageError(f"a range cannot start at token {entry.start}")
    if entry.end is not None and entry.end <= entry.start:
        raise UsageError(f"range {entry.start}-{entry.end} is empty", fix="let the end be above the start")
    check_priority(entry.priority)
    if entry.duration_s is not None and not entry.duration_s > 0:
        raise UsageError(f"a duration must be positive, got {entry.duration_s} s")


def check_priority(priority: int) -> None:
    """Raise UsageError unless ``priority`` is 0 to 100."""
    if not 0 <= priority <= MAX_PRIORITY:
        raise UsageError(f"priority {priority} is not in 0 to {MAX_PRIORITY}")


def range_of(ranges: Sequence[RetentionRange], first_token: int) -> RetentionRange | None:
    """Return the range that holds ``first_token``, if any."""
    for entry in ranges:
        if entry.start <= first_token and (entry.end is None or first_token < entry.end):
            return entry
    return None
