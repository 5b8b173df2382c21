"""What a ``TieredCache`` is built from: the settings of the whole, the host tier and each cold tier. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from warmtier.core.errors import ConfigError
from warmtier.core.types import DEFAULT_PRIORITY, Key, TierKind
from warmtier.guard.breaker import BreakerSettings
from warmtier.policy.admission import Admitter
from warmtier.policy.base import EvictionPolicy
from warmtier.tiering.types import Placement


@dataclass(frozen=True, slots=True)
class HintLimits:
    """What a client may ask for unless it is trusted; more is cut to this. Applies to every request alike."""

    max_priority: int = 100
    max_duration_s: float = 3600.0
    max_ranges: int = 16
    max_name_length: int = 64


@dataclass(frozen=True, slots=True)
class TenantQuota:
    """Bounds of one tenant in the host tier.

    ``max_bytes``: it never holds more. ``share``: the fraction of the host tier below which no other tenant pushes it.
    """

    max_bytes: int | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Settings of the whole cache. A chunk has ``parts_per_chunk`` parts of ``part_bytes`` each (one per KV group).

    Deadlines are seconds from the moment a request first waits. ``load_conflict_wait_s`` is for engines that defer a
    request while another loads the same chunk (vLLM): after it the request recomputes; None: no such engine.
    ``promoting_requests``: how many requests may have promotions under way or not yet fetched, in the order in which
    they ask; ``promoting_share`` of the host's slots bounds them together. Others wait for their turn, for half of
    ``pending_deadline_s`` at most. ``max_scanned_parts``: how much of requests' paths is looked at between two ticks.
    ``reset_quarantine_ticks``: ticks after ``reset`` until device transfers begun before it are known dead.
    """

    part_bytes: int
    tokens_per_chunk: int
    parts_per_chunk: int = 1
    offload_prompt_only: bool = True
    offload_min_priority: int = DEFAULT_PRIORITY
    store_threshold: int = 1
    max_tracker_size: int = 64_000
    pending_deadline_s: float = 2.0
    hold_deadline_s: float = 5.0
    load_conflict_wait_s: float | None = None
    promoting_requests: int = 8
    promoting_share: float = 0.5
    max_scanned_parts: int = 4096
    reset_quarantine_ticks: int = 2
    events: bool = True
    max_events: int = 65_536
    trust_client_hints: bool = False
    hint_limits: HintLimits = field(default_factory=HintLimits)
    quotas: Mapping[str, TenantQuota] = field(default_factory=dict)
    max_tenants: int = 1024
    static_min_tokens: int = 256
    host_min_tokens: int = 0
    load_margin: float = 1.25
    retention: bool = True
    exact_retention: bool = False
    max_high_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("part_bytes", "tokens_per_chunk", "parts_per_chunk", "store_threshold", "max_tracker_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.offload_min_priority <= 100:
            raise ConfigError(f"offload_min_priority must be 0 to 100, got {self.offload_min_priority}")
        shares = sum(quota.share for quota in self.quotas.values())
        if shares > 1.0:
            raise ConfigError(f"the tenants' shares add up to {shares:.2f}", fix="let them add up to 1.0 at most")


@dataclass(slots=True)
class HostTier:
    """The host tier: ``slots`` places of one part each, what stays in them (``policy``) and what may enter.

    ``demotion_reserve``: the fraction of the slots kept for victims that are still being written down (only with a
    tier placed ``back``); when it is used up, victims are dropped.
    """

    policy: EvictionPolicy[Key]
    slots: int
    admit: Admitter[Key] | None = None
    name: str = "host"
    demotion_reserve: float = 1 / 16


@dataclass(slots=True)
class ColdTier:
    """A tier below the host. Its bytes are in a ``Store`` of the same ``name`` that the executor drives.

    ``policy.capacity`` bounds it in parts. Budgets: ``max_reads`` and ``max_writes`` jobs, ``max_read_bytes`` and
    ``max_write_bytes`` in flight; ``write_bytes_per_s`` on average (None: free). ``deadline_cap_s`` is the hard cap of
    a promotion whatever was measured; ``write_deadline_s`` the time after which a write counts as a stall. When writes
    in flight fill ``high_water`` of their budget, further ones are dropped until ``low_water``.
    """

    name: str
    kind: TierKind
    policy: EvictionPolicy[Key]
    placement: Placement = Placement.THROUGH
    touches: int = 2
    admit: Admitter[Key] | None = None
    max_reads: int = 8
    max_writes: int = 8
    max_read_bytes: int = 1 << 30
    max_write_bytes: int = 1 << 30
    write_bytes_per_s: float | None = None
    deadline_floor_s: float = 0.05
    deadline_cap_s: float = 2.0
    write_deadline_s: float = 10.0
    high_water: float = 1.0
    low_water: float = 0.75
    write_burst_bytes: int = 256 << 20
    breaker: BreakerSettings = BreakerSettings()  # noqa: RUF009 - frozen
