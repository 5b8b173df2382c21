"""What goes into and comes out of ``TieredCache``: settings, answers, actions, results. Data only."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from warmtier.core.types import DEFAULT_PRIORITY, JobId, Key, MissReason, RequestId, Source, StoreOutcome, TierKind
from warmtier.policy.ranges import RetentionRange

__all__ = [
    "NO_HINTS",
    "Action",
    "Clear",
    "Delete",
    "Demote",
    "Event",
    "JobResult",
    "Lookup",
    "Migrate",
    "Offer",
    "Placement",
    "Promote",
    "RequestHints",
    "RetentionRange",
    "TierCounters",
]


class Placement(enum.StrEnum):
    """When a chunk of the tier above is written to this one."""

    THROUGH = "through"  # as soon as it is stored above
    SELECTIVE = "selective"  # at its n-th touch
    BACK = "back"  # when the tier above evicts it


@dataclass(frozen=True, slots=True)
class RequestHints:
    """What a client said about its request, already validated.

    ``load_kinds``: the tiers it may be served from beside the host; None: all.
    """

    ranges: tuple[RetentionRange, ...] = ()
    decode_priority: int = DEFAULT_PRIORITY
    decode_duration_s: float | None = None
    tenant: str | None = None
    session: str | None = None
    no_store: bool = False
    no_load: bool = False
    load_kinds: frozenset[TierKind] | None = None


NO_HINTS = RequestHints()


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to one lookup of a path from ``start``.

    ``usable`` leading chunks can be had (from the host tier now if not ``pending``). ``pending``: ask again next
    step; the engine should defer the request. ``reason`` says why the chunk after the usable ones is not served
    (None: the path ended). ``by_tier`` counts where the usable chunks came from (promotions keep their origin).
    """

    usable: int
    pending: bool
    reason: MissReason | None
    by_tier: Mapping[TierKind, int]
    source: Source | None = None


@dataclass(slots=True)
class Offer:
    """The answer to an offer of freshly computed chunks.

    ``keys`` (a subsequence of those offered) go into host ``slots``, in the same order; ``evicted`` lost their host
    place; ``outcomes`` counts the fate of every key offered.
    """

    keys: list[Key]
    slots: list[int]
    evicted: list[Key]
    outcomes: dict[StoreOutcome, int]


@dataclass(frozen=True, slots=True)
class Promote:
    """Read ``keys`` of ``tier`` into host ``slots``. Root first; partial success is kept as a prefix.

    The executor must answer with ``job_done`` even after ``deadline_s`` (absolute, driver's clock): only then are the
    slots known to be safe.
    """

    job_id: JobId
    tier: str
    request_id: RequestId | None
    keys: Sequence[Key]
    slots: Sequence[int]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Demote:
    """Write host ``slots`` (pinned until ``job_done``) to ``tier``, root first.

    Writes, clears and deletes of one tier must be performed in the order in which they were decided.
    """

    job_id: JobId
    tier: str
    keys: Sequence[Key]
    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Delete:
    """Make ``tier`` forget ``keys``. No answer is needed."""

    tier: str
    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Migrate:
    """Copy ``keys`` from tier ``source`` to ``tier``, root first, through the executor's own buffer."""

    job_id: JobId
    source: str
    tier: str
    keys: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Clear:
    """Make ``tier`` forget everything: a new epoch began. ``keys`` are those known. No answer is needed."""

    tier: str
    keys: Collection[Key]


Action = Promote | Demote | Migrate | Delete | Clear


@dataclass(slots=True)
class JobResult:
    """How a Promote or Demote ended, reported by the executor.

    ``ok`` has one entry per key of the job. ``corrupt`` marks promotions whose bytes did not match. ``evicted`` lists
    keys the store gave up to make room. ``seconds`` and ``size_bytes`` feed the bandwidth estimate of the tier.
    """

    job_id: JobId
    ok: Sequence[bool]
    corrupt: Sequence[bool] = ()
    evicted: Sequence[Key] = ()
    seconds: float = 0.0
    size_bytes: int = 0
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Event:
    """A chunk became readable in a tier, or left it. For the engine's event channel."""

    tier: str
    kind: TierKind
    keys: tuple[Key, ...]
    removed: bool


@dataclass(slots=True)
class TierCounters:
    """Counters of one tier since start. Every decision increments one by reason."""

    hits: int = 0
    misses: dict[MissReason, int] = field(default_factory=dict)
    stores: dict[StoreOutcome, int] = field(default_factory=dict)
    evictions: int = 0
    promotions: int = 0  # parts that arrived in the host tier
    late: int = 0  # jobs that ended after their deadline
