"""Room in the host tier: quota, policy and victims, for offers from the device and promotions alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from warmtier.core.types import Key, StoreOutcome, TierKind
from warmtier.tiering.request import Request
from warmtier.tiering.state import CacheState


class Down(Protocol):
    """Writes victims to a colder tier, if a tier wants that."""

    def back(self, victims: Sequence[Key], now: float) -> None:
        """Start writing ready ``victims`` (tails first) down; those taken keep a reference to their slot."""
        ...


class Room(NamedTuple):
    """The first keys got ``slots``; ``reason`` says why the next did not (None: all did)."""

    slots: list[int]
    evicted: list[Key]
    reason: StoreOutcome | None


class HostEviction:
    """Makes room on demand. Costs what the policy costs for its victims; nothing runs in the background."""

    def __init__(self, state: CacheState) -> None:
        self._state = state
        self.down: Down | None = None

    def make_room(self, request: Request, keys: list[Key], at: int, now: float) -> Room:
        """Give slots to leading ones of absent ``keys``, consecutive on the path from index ``at``; mark them busy."""
        state, index, policy = self._state, self._state.index, self._state.policy
        tenant = state.ledger.tenant(request.tenant) if state.ledger.active else 0
        request.key_index = at
        allowed, evicted, reuse = self._within_quota(keys, tenant, now)
        pinned = index.pinned()
        if state.ledger.active:
            pinned = state.ledger.sheltered(tenant, pinned, index.ready.get)
        true_parent = request.path[at - 1] if at else None
        parent = true_parent if true_parent is not None and true_parent in index else None
        admission = policy.admit(request, keys[:allowed] if allowed < len(keys) else keys, parent, now, pinned)
        admitted = state.whole_chunks(admission.admitted, len(keys), at)
        if admitted < admission.admitted:
            policy.remove(keys[admitted : admission.admitted], now)
        reuse += self._give_up(admission.victims, now)
        evicted += admission.victims
        stored = keys[:admitted]
        slots = index.start(stored, reuse, tenant=tenant, parent=true_parent)
        if admitted == len(keys):
            return Room(slots, evicted, None)
        if admitted >= allowed:
            return Room(slots, evicted, StoreOutcome.REFUSED_QUOTA)
        by_value = admission.refused_by_value
        return Room(slots, evicted, StoreOutcome.REFUSED_POLICY if by_value else StoreOutcome.NO_ROOM)

    def _within_quota(self, keys: Sequence[Key], tenant: int, now: float) -> tuple[int, list[Key], list[int]]:
        """Return how many keys the tenant's own bound lets in; its own oldest chunks go first."""
        state, ledger = self._state, self._state.ledger
        room = ledger.room(tenant) if ledger.active else None
        if room is None or room >= len(keys):
            return len(keys), [], []
        own = ledger.only(tenant, state.index.pinned(), state.index.ready.get)
        on_path = set(keys)
        victims = state.policy.evict(len(keys) - room, now, lambda key: key in on_path or own(key))
        slots = self._give_up(victims, now)
        return min(len(keys), room + len(victims)), victims, slots

    def _give_up(self, victims: list[Key], now: float) -> list[int]:
        """Make the victims absent; return the slots that can be used again at once."""
        if not victims:
            return []
        state = self._state
        if self.down is not None:
            self.down.back(victims, now)
        slots = state.index.evict(victims)
        state.host_counters.evictions += len(victims)
        state.emit(state.host.name, TierKind.HOST, victims, removed=True)
        return slots
