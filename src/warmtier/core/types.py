"""The words shared by every layer: keys, tiers, outcomes and reasons.

Reasons are closed vocabularies: each is a counter label, so their number is bounded.
"""

from __future__ import annotations

import enum
from typing import Final, NewType

Key = NewType("Key", bytes)
"""Content hash of a chunk and its KV group, as the engine makes it. Equal keys in one namespace mean equal KV."""

Namespace = NewType("Namespace", bytes)
"""16-byte digest of all that makes KV bytes incompatible: model, weights, dtype, layout, chunk size, hash, format."""

RequestId = NewType("RequestId", str)
JobId = NewType("JobId", int)

DEFAULT_PRIORITY: Final = 35
"""Retention priority of a chunk about which nothing was said (0 = first to go, 100 = last)."""


class TierKind(enum.StrEnum):
    """The kinds of tier below the device, warmest first."""

    HOST = "host"
    FILE = "file"
    OBJECT = "object"
    SHARED = "shared"


class TierMode(enum.StrEnum):
    """What a tier may do. ``observe`` and ``canary`` are decided by the guards."""

    OFF = "off"
    OBSERVE = "observe"
    CANARY = "canary"
    ON = "on"


class MissReason(enum.StrEnum):
    """Why a chunk was not served from any tier."""

    ABSENT = "absent"
    WRITING = "writing"  # the store of this chunk has not ended
    PENDING_DEADLINE = "pending_deadline"  # a promotion or a store did not end in time
    RECOMPUTE_CHEAPER = "recompute_cheaper"
    BELOW_MINIMUM = "below_minimum"  # shorter than the shortest load worth its fixed cost
    TIER_OFF = "tier_off"
    BREAKER_OPEN = "breaker_open"
    PROMOTION_BUDGET = "promotion_budget"  # bytes or jobs in flight at their bound
    NO_ROOM = "no_room"  # no slot could be freed for a promotion
    LOAD_FAILED = "load_failed"
    HOLD_OUT = "hold_out"
    HINT = "hint"  # the client asked for no load
    CORRUPT = "corrupt"


class StoreOutcome(enum.StrEnum):
    """What became of a chunk that the engine offered, or of a write to a colder tier."""

    STORED = "stored"
    PRESENT = "present"
    REFUSED_POLICY = "refused_policy"  # not worth a victim (bypass)
    REFUSED_PRIORITY = "refused_priority"
    REFUSED_TOUCH = "refused_touch"  # not seen often enough yet
    REFUSED_EVIDENCE = "refused_evidence"
    REFUSED_ORPHAN = "refused_orphan"  # its parent was refused or is absent
    REFUSED_HINT = "refused_hint"
    REFUSED_QUOTA = "refused_quota"
    REFUSED_DECODE = "refused_decode"  # generated tokens, and only prompts are stored
    REFUSED_EPOCH = "refused_epoch"  # computed before the last reset
    NO_ROOM = "no_room"  # everything that could go is pinned
    QUEUE_FULL = "queue_full"
    BREAKER_OPEN = "breaker_open"
    TIER_OFF = "tier_off"
    WRITE_BUDGET = "write_budget"
    FAILED = "failed"


class Source(enum.StrEnum):
    """Where the numbers behind a load-or-recompute decision came from."""

    ONLINE = "online"
    CALIBRATION = "calibration"
    STATIC = "static"
