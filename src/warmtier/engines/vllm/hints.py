"""What a client says about its request, in ``kv_transfer_params["warmtier"]`` of the OpenAI API::

    {"ranges": [{"start": 0, "end": 2048, "priority": 80, "duration": "10min"}],
     "ttl": "1h", "tenant": "team-a", "session": "chat-17", "no_store": false, "no_load": false,
     "decode_priority": 35, "decode_duration": "5min"}

All are optional. ``ttl`` keeps the whole prompt above the default for that long (it is one open range of TTL_PRIORITY).
Hints are wishes: what is wrong is ignored as a whole and counted, and never an error of the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from warmtier.core.errors import UsageError
from warmtier.core.types import DEFAULT_PRIORITY, TierKind
from warmtier.core.units import parse_duration
from warmtier.policy.ranges import RetentionRange, check_priority, normalize_ranges
from warmtier.tiering.types import NO_HINTS, RequestHints

PARAMETER: Final = "warmtier"
TTL_PRIORITY: Final = 60
_MAX_RANGES: Final = 256


class _Range(msgspec.Struct, forbid_unknown_fields=True):
    priority: int
    start: int = 0
    end: int | None = None
    duration: str | None = None


class _Hints(msgspec.Struct, forbid_unknown_fields=True):
    ranges: list[_Range] = []
    ttl: str | None = None
    tenant: str | None = None
    session: str | None = None
    no_store: bool = False
    no_load: bool = False
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration: str | None = None


def parse_hints(parameters: Mapping[str, Any] | None, kinds: frozenset[TierKind] | None = None) -> RequestHints:
    """Return the hints of a request's ``kv_transfer_params``; ``kinds``: see ``RequestHints.load_kinds``.

    Raises UsageError when they cannot be used.
    """
    given = parameters.get(PARAMETER) if isinstance(parameters, Mapping) else None
    if given is None:
        return NO_HINTS if kinds is None else RequestHints(load_kinds=kinds)
    try:
        hints = msgspec.convert(given, _Hints)
    except msgspec.ValidationError as error:
        raise UsageError(f"{PARAMETER}: {error}") from None
    ranges = _ranges(hints)
    check_priority(hints.decode_priority)
    return RequestHints(
        ranges=ranges,
        decode_priority=hints.decode_priority,
        decode_duration_s=_seconds(hints.decode_duration),
        tenant=hints.tenant or None,
        session=hints.session or None,
        no_store=hints.no_store,
        no_load=hints.no_load,
        load_kinds=kinds,
    )


def _ranges(hints: _Hints) -> tuple[RetentionRange, ...]:
    if len(hints.ranges) > _MAX_RANGES:
        raise UsageError(f"{len(hints.ranges)} ranges are too many", fix=f"give {_MAX_RANGES} at most")
    if hints.ttl is not None:
        if hints.ranges:
            raise UsageError("ttl and ranges exclude each other", fix="give each range its own duration")
        return (RetentionRange(0, None, TTL_PRIORITY, _seconds(hints.ttl)),)
    found = (RetentionRange(r.start, r.end, r.priority, _seconds(r.duration)) for r in hints.ranges)
    return normalize_ranges(found)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds <= 0:
        raise UsageError(f"a duration must be positive, got {text!r}")
    return seconds
