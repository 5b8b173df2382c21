"""What clients ask for: cut to the operator's limits, and turned into wishes per chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from warmtier.core.types import DEFAULT_PRIORITY, Key
from warmtier.policy.base import Access
from warmtier.policy.ranges import RetentionRange, check_priority, normalize_ranges, range_of
from warmtier.policy.retention import Wish
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, HintLimits
from warmtier.tiering.types import NO_HINTS, RequestHints

_DEFAULT = Wish()


def clamp(hints: RequestHints, config: CacheConfig) -> RequestHints:
    """Return the hints checked and, unless clients are trusted, cut to the limits. Raises UsageError."""
    if hints is NO_HINTS:
        return hints
    ranges = normalize_ranges(hints.ranges)
    check_priority(hints.decode_priority)
    if config.trust_client_hints:
        return replace(hints, ranges=ranges)
    limits = config.hint_limits
    return replace(
        hints,
        ranges=tuple(_clamp_range(entry, limits) for entry in ranges[: limits.max_ranges]),
        decode_priority=min(hints.decode_priority, limits.max_priority),
        decode_duration_s=_clamp_duration(hints.decode_priority, hints.decode_duration_s, limits),
        tenant=None if hints.tenant is None else hints.tenant[: limits.max_name_length],
        session=None if hints.session is None else hints.session[: limits.max_name_length],
    )


def _clamp_range(entry: RetentionRange, limits: HintLimits) -> RetentionRange:
    duration_s = _clamp_duration(entry.priority, entry.duration_s, limits)
    return replace(entry, priority=min(entry.priority, limits.max_priority), duration_s=duration_s)


def _clamp_duration(priority: int, duration_s: float | None, limits: HintLimits) -> float | None:
    """A priority above the default never lasts longer than the limit; without a duration it would last for ever."""
    if duration_s is None:
        return limits.max_duration_s if priority > DEFAULT_PRIORITY else None
    return min(duration_s, limits.max_duration_s)


class Wishes:
    """Turns a request's hints into one wish per part key."""

    def __init__(self, config: CacheConfig) -> None:
        self._tokens = config.tokens_per_chunk
        self._parts = config.parts_per_chunk

    def __call__(self, access: Access[Key], keys: Sequence[Key]) -> Sequence[Wish] | None:
        """Return a wish for each of ``keys``, the first of which is at ``access.key_index`` of the path."""
        if not isinstance(access, Request) or not asks(access.hints):
            return None
        first = 0 if keys is access.path else access.key_index
        return [self.of(access, first + i) for i in range(len(keys))]

    def of(self, request: Request, index: int) -> Wish:
        """Return the wish for the chunk that the part at path ``index`` belongs to."""
        first_token = index // self._parts * self._tokens
        hints = request.hints
        if request.prompt_tokens and first_token >= request.prompt_tokens:
            if hints.decode_priority == DEFAULT_PRIORITY and hints.decode_duration_s is None:
                return _DEFAULT
            return Wish(hints.decode_priority, hints.decode_duration_s)
        found = range_of(hints.ranges, first_token)
        return _DEFAULT if found is None else Wish(found.priority, found.duration_s)

    def priority(self, request: Request, index: int) -> int:
        """Return the priority that a new chunk gets."""
        wish = self.of(request, index).priority
        return DEFAULT_PRIORITY if wish is None else wish

    def priorities(self, request: Request, start: int, count: int) -> list[int] | None:
        """Return the priorities of ``count`` parts from path index ``start``; None: all default."""
        if not asks(request.hints):
            return None
        return [self.priority(request, start + i) for i in range(count)]


def asks(hints: RequestHints) -> bool:
    """Return whether the hints wish anything for any chunk."""
    return hints is not NO_HINTS and (
        bool(hints.ranges) or hints.decode_priority != DEFAULT_PRIORITY or hints.decode_duration_s is not None
    )
