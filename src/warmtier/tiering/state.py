"""What the parts of a ``TieredCache`` share: settings, index, policies, counters, outgoing actions and events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from warmtier.core.types import Key, RequestId, TierKind, TierMode
from warmtier.tiering.index import HostIndex
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, HostTier
from warmtier.tiering.types import Action, Event, TierCounters


class CacheState:
    """Plain shared state; the logic is in the parts that hold it."""

    def __init__(self, config: CacheConfig, host: HostTier) -> None:
        self.config = config
        self.host = host
        self.index = HostIndex(host.slots)
        self.host_mode = TierMode.ON
        self.host_counters = TierCounters()
        self.epoch = 0
        self.ticks = 0
        self.late_completions = 0
        self.dropped_events = 0
        self.requests: dict[RequestId, Request] = {}
        self.actions: deque[Action] = deque()
        self.events: deque[Event] = deque()

    def fit_policy(self) -> None:
        """Tell the host policy how many slots can hold chunks now (quarantined and doomed ones cannot)."""
        index = self.index
        self.host.policy.resize(index.slots - index.allocator.quarantined_slots - index.doomed_slots)

    def emit(self, tier: str, kind: TierKind, keys: Sequence[Key], *, removed: bool) -> None:
        """Queue an event; when nobody takes them, the oldest is dropped and counted."""
        if not self.config.events or not keys:
            return
        if len(self.events) >= self.config.max_events:
            self.events.popleft()
            self.dropped_events += 1
        self.events.append(Event(tier, kind, tuple(keys), removed))
