"""Tenants in the host tier: who owns which slot, who holds how much, whom nobody may push below its share.

Accounting only. A tenant is a hint; isolation is by namespace and cache salt.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from warmtier.core.types import Key
from warmtier.policy.base import Pinned
from warmtier.tiering.settings import TenantQuota

_OTHERS: Final = "other"


class Ledger:
    """Two bytes per slot and one count per tenant. Tenants beyond the bound are counted together as ``other``."""

    def __init__(self, quotas: Mapping[str, TenantQuota], slots: int, part_bytes: int, max_tenants: int) -> None:
        self._max_tenants = max(max_tenants, len(quotas) + 1)
        self._ids: dict[str, int] = {_OTHERS: 0}
        self._owner = array("H", bytes(2 * slots))
        self._owner_np = np.frombuffer(self._owner, dtype=np.uint16)
        self.used: list[int] = [0]
        self._share: list[int] = [0]
        self.maximum: list[int | None] = [None]
        for name, quota in quotas.items():
            tenant = self._new(name)
            self._share[tenant] = int(quota.share * slots)
            self.maximum[tenant] = None if quota.max_bytes is None else quota.max_bytes // part_bytes
        self.active = bool(quotas)

    def __len__(self) -> int:
        return len(self._ids)

    def usage(self) -> dict[str, int]:
        """Return the parts each tenant holds."""
        return {name: self.used[tenant] for name, tenant in self._ids.items()}

    def owner(self, slot: int) -> int:
        """Return the tenant that was charged for a slot last."""
        return self._owner[slot]

    def tenant(self, name: str | None) -> int:
        """Return the number of a tenant, ``other`` for no name or one too many."""
        if name is None:
            return 0
        found = self._ids.get(name)
        if found is None:
            found = self._new(name) if len(self._ids) < self._max_tenants else 0
        return found

    def room(self, tenant: int) -> int | None:
        """Return how many more parts the tenant may hold; None: no bound of its own."""
        maximum = self.maximum[tenant]
        return None if maximum is None else max(0, maximum - self.used[tenant])

    def charge(self, slots: Sequence[int], tenant: int) -> None:
        """These slots are the tenant's now."""
        if slots:
            self._owner_np[slots] = tenant
            self.used[tenant] += len(slots)

    def release(self, slots: Sequence[int]) -> None:
        """Nobody owns these slots any more."""
        if slots:
            owners = self._owner_np[slots]
            for tenant, count in enumerate(np.bincount(owners)):
                self.used[tenant] -= int(count)

    def clear(self) -> None:
        """Nobody owns anything."""
        self.used = [0] * len(self.used)

    def only(self, tenant: int, pinned: Pinned[Key], slot_of: Callable[[Key], int | None]) -> Pinned[Key]:
        """Let a policy see all but this tenant's chunks as pinned."""
        owner = self._owner
        return lambda key: pinned(key) or owner[slot_of(key) or 0] != tenant

    def sheltered(self, tenant: int, pinned: Pinned[Key], slot_of: Callable[[Key], int | None]) -> Pinned[Key]:
        """Let a policy see as pinned what another tenant holds within its share."""
        if not any(self._share):
            return pinned
        owner = self._owner
        spare = [used - share for used, share in zip(self.used, self._share, strict=True)]
        spare[tenant] = len(owner)
        granted: set[Key] = set()

        def kept(key: Key) -> bool:
            if key in granted:
                return pinned(key)
            if pinned(key):
                return True
            holder = owner[slot_of(key) or 0]
            if holder != tenant and self._share[holder] and spare[holder] <= 0:
                return True
            spare[holder] -= 1
            granted.add(key)
            return False

        return kept

    def _new(self, name: str) -> int:
        tenant = self._ids[name] = len(self.used)
        self.used.append(0)
        self._share.append(0)
        self.maximum.append(None)
        return tenant
