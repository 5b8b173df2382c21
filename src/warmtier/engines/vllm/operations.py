"""What `warmtier ctl` can ask of one engine, carried out between two scheduling passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from warmtier.core.errors import UsageError
from warmtier.core.types import Key, TierMode
from warmtier.engines.vllm import control
from warmtier.engines.vllm.cold import ColdTiers
from warmtier.engines.vllm.decisions import DecisionRing
from warmtier.tiering.cache import TieredCache

MAX_TENANT_KEYS: Final = 262_144


class TenantKeys:
    """Which chunks the requests of which tenant stored first. Bounded; the oldest are forgotten and counted."""

    def __init__(self, max_keys: int = MAX_TENANT_KEYS) -> None:
        self._max_keys = max_keys
        self._owners: dict[Key, str] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._owners)

    def stored(self, tenant: str | None, keys: Sequence[Key]) -> None:
        """A request of ``tenant`` stores ``keys``. Whoever stored a chunk first owns it."""
        if tenant is None:
            return
        owners = self._owners
        for key in keys:
            owners.setdefault(key, tenant)
        while len(owners) > self._max_keys:
            del owners[next(iter(owners))]
            self.forgotten += 1

    def take(self, tenant: str) -> list[Key]:
        """Return and forget the tenant's chunks. O(all chunks known)."""
        keys = [key for key, owner in self._owners.items() if owner == tenant]
        for key in keys:
            del self._owners[key]
        return keys

    def clear(self) -> None:
        """A new epoch: nobody owns anything."""
        self._owners.clear()


class Operations:
    """Answers control requests. Everything runs on the scheduler's thread, or while that stands still."""

    def __init__(
        self,
        cache: TieredCache,
        cold: ColdTiers | None,
        tenants: TenantKeys,
        ring: DecisionRing,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._cold = cold
        self._tenants = tenants
        self._ring = ring
        self._clock = clock

    def answer(self, request: control.Request) -> control.Answer:
        """Carry out one request. Raises UsageError for what cannot be done."""
        match request:
            case control.Mode():
                return self._mode(request)
            case control.Stats():
                return self._stats()
            case control.Drain():
                return self._drain()
            case control.Evict():
                return self._evict(request.tenant)
            case control.Explain():
                return self._explain(request.request)

    def _mode(self, request: control.Mode) -> control.Answer:
        if request.mode is not None:
            if request.tier is None:
                raise UsageError("which tier?", fix=f"tiers: {', '.join(self._cache.stats().tiers)}")
            mode, now = _mode(request.mode), self._clock()
            if self._cold is None:
                self._cache.set_mode(request.tier, mode, now)
            else:
                self._cold.set_mode(request.tier, mode, now, why="operator")
        waiting = self._cold.waiting_for() if self._cold is not None else {}
        return {
            "tiers": {
                name: {"mode": tier.mode.value, "breaker": tier.breaker.value, "waiting_for": waiting.get(name)}
                for name, tier in self._cache.stats().tiers.items()
            }
        }

    def _stats(self) -> control.Answer:
        stats = self._cache.stats()
        return {
            "epoch": stats.epoch,
            "requests": stats.requests,
            "jobs": stats.jobs,
            "tenants": dict(list(stats.tenants.items())[:1024]),
            "tiers": {name: self._tier(name) for name in stats.tiers},
        }

    def _tier(self, name: str) -> dict[str, Any]:
        tier = self._cache.stats().tiers[name]
        figures: dict[str, Any] = {
            "kind": tier.kind.value,
            "mode": tier.mode.value,
            "breaker": tier.breaker.value,
            "capacity_chunks": tier.capacity,
            "resident_chunks": tier.resident,
            "hits": tier.counters.hits,
            "evictions": tier.counters.evictions,
            "promotions": tier.counters.promotions,
            "misses": {reason.value: count for reason, count in tier.counters.misses.items()},
            "stores": {outcome.value: count for outcome, count in tier.counters.stores.items()},
            "policy": dict(tier.facts),
        }
        if self._cold is not None and name in self._cold.flows():
            sample, flow = self._cold.samples()[name], self._cold.flows()[name]
            figures |= {
                "used_bytes": sample.used_bytes,
                "read_bytes": flow.read_bytes,
                "written_bytes": sample.bytes_written,
                "queued": self._cold.queued(name),
            }
        return figures

    def _drain(self) -> control.Answer:
        jobs = self._cache.stats().jobs
        return {"drained": jobs == 0, "jobs": jobs}

    def _evict(self, tenant: str) -> control.Answer:
        keys = self._tenants.take(tenant)
        evicted = self._cache.evict(keys, self._clock()) if keys else {}
        if self._cold is not None:
            self._cold.pump(self._clock())
        return {"evicted": evicted, "known": len(keys), "forgotten_owners": self._tenants.forgotten}

    def _explain(self, request: str) -> control.Answer:
        found = self._ring.find(request)
        if found is None:
            raise UsageError(
                f"no request {request!r} among the last {len(self._ring)}",
                fix="use the id of the response, as long as it is recent",
            )
        return {"explanation": found}


def _mode(name: str) -> TierMode:
    try:
        return TierMode(name)
    except ValueError:
        raise UsageError(f"{name!r} is no mode", fix="use on or off") from None
