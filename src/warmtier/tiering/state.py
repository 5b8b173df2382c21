"""What the parts of a ``TieredCache`` share: settings, index, policies, counters, outgoing actions and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from warmtier.core.types import Key, RequestId, TierKind
from warmtier.guard.mode import ModeSwitch
from warmtier.policy.base import EvictionPolicy
from warmtier.policy.retention import RetentionPolicy
from warmtier.tiering.calibration import Calibration
from warmtier.tiering.cold import ColdState
from warmtier.tiering.hints import Wishes
from warmtier.tiering.index import HostIndex
from warmtier.tiering.jobs import JobTable
from warmtier.tiering.ledger import Ledger
from warmtier.tiering.recompute import Costs
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.tiering.types import Action, Event, Placement, TierCounters


class CacheState:
    """Plain shared state; the logic is in the parts that hold it."""

    def __init__(
        self, config: CacheConfig, host: HostTier, cold: Sequence[ColdTier], calibration: Calibration | None
    ) -> None:
        self.config = config
        self.host = host
        self.wishes = Wishes(config)
        self.policy: EvictionPolicy[Key] = host.policy
        if config.retention:
            self.policy = RetentionPolicy(
                host.policy, self.wishes, max_high_share=config.max_high_share, exact=config.exact_retention
            )
        self.ledger = Ledger(config.quotas, host.slots, config.part_bytes, config.max_tenants)
        below = [spec.placement is Placement.BACK for spec in cold[1:]]
        self.cold = [ColdState(spec, parents=back) for spec, back in zip(cold, [*below, False], strict=False)]
        self.tiers = {tier.name: tier for tier in self.cold}
        back = bool(cold) and cold[0].placement is Placement.BACK
        self.index = HostIndex(
            host.slots,
            self.ledger if self.ledger.active else None,
            parents=back,
            touches=bool(cold),
            conflicts=config.load_conflict_wait_s is not None,
        )
        self.reserve = max(config.parts_per_chunk, int(host.slots * host.demotion_reserve)) if back else 0
        self.costs = Costs(
            host.name, calibration, margin=config.load_margin, static_min_tokens=config.static_min_tokens
        )
        self.jobs = JobTable()
        self.host_mode = ModeSwitch()
        self.host_counters = TierCounters()
        self.epoch = 0
        self.ticks = 0
        self.late_completions = 0
        self.dropped_events = 0
        self.loading: set[Request] = set()  # requests with loads under way, ended ones included
        self.requests: dict[RequestId, Request] = {}
        self.actions: deque[Action] = deque()
        self.events: deque[Event] = deque()

    def whole_chunks(self, count: int, total: int, start: int) -> int:
        """Return how many of the first ``count`` of ``total`` parts from path index ``start`` make whole chunks.

        If nothing was left out, what follows is there already or is not the caller's.
        """
        return count if count >= total else max(0, count - (start + count) % self.config.parts_per_chunk)

    @property
    def unavailable(self) -> int:
        """Slots that cannot hold a chunk now: quarantined, or read by transfers without a key."""
        return self.index.allocator.quarantined_slots + self.index.doomed_slots

    def fit_policy(self) -> None:
        """Tell the host policy how many slots can hold chunks now."""
        capacity = self.index.slots - max(self.reserve, self.unavailable)
        if capacity != self.policy.capacity:
            self.policy.resize(max(0, capacity))

    def emit(self, tier: str, kind: TierKind, keys: Sequence[Key], *, removed: bool) -> None:
        """Queue an event; when nobody takes them, the oldest is dropped and counted."""
        if not self.config.events or not keys:
            return
        if len(self.events) >= self.config.max_events:
            self.events.popleft()
            self.dropped_events += 1
        self.events.append(Event(tier, kind, tuple(keys), removed))
