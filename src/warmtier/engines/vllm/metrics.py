"""What warmtier shows on vLLM's own ``/metrics``. Base units, bounded labels, every series present from the start.

vLLM adds the labels ``model_name`` and ``engine`` and the suffix ``_total`` to counters. Bytes and seconds of the
device's own transfers are vLLM's ``vllm:kv_offload_{load,store}_{bytes,time}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from warmtier.core.types import MissReason, StoreOutcome, TierMode
from warmtier.tiering.stats import CacheStats, TierStats

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata

HITS: Final = "warmtier_hit_chunks"
MISSES: Final = "warmtier_miss_chunks"
STORES: Final = "warmtier_store_chunks"
EVICTIONS: Final = "warmtier_evicted_chunks"
CORRUPT: Final = "warmtier_corrupt_chunks"
CAPACITY: Final = "warmtier_tier_capacity_bytes"
USED: Final = "warmtier_tier_used_bytes"
MODE: Final = "warmtier_tier_mode"
REQUESTS: Final = "warmtier_tracked_requests"
UP: Final = "warmtier_up"

_MODES: Final = tuple(TierMode)
_COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    HITS: ("Chunks that lookups found in this tier, once per request.", ("tier",)),
    MISSES: ("Chunks that lookups did not find, once per request, by the reason of the first.", ("tier", "reason")),
    STORES: ("Chunks offered to this tier, by what became of them.", ("tier", "outcome")),
    EVICTIONS: ("Chunks that lost their place in this tier to others.", ("tier",)),
    CORRUPT: ("Chunks whose digest did not match when they were loaded; none of them was served.", ()),
}
_GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    CAPACITY: ("Bytes this tier may hold.", ("tier",)),
    USED: ("Bytes this tier holds, chunks being written included.", ("tier",)),
    MODE: ("0 off, 1 observe, 2 canary, 3 on.", ("tier",)),
    REQUESTS: ("Requests that warmtier keeps state for.", ()),
    UP: ("1 while warmtier serves, 0 when the engine runs without it (on_unsupported: off).", ()),
}

Series = tuple[str, tuple[str, ...]]


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Return vLLM's declarations of all metrics. Runs in the API server too."""
    from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata

    counters = {name: OffloadingCounterMetadata(text, labels) for name, (text, labels) in _COUNTERS.items()}
    gauges = {name: OffloadingGaugeMetadata(text, labels) for name, (text, labels) in _GAUGES.items()}
    return {**counters, **gauges}


class MetricsFeed:
    """Turns snapshots of the cache into the increments that vLLM wants."""

    def __init__(self, tiers: Iterable[str], chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._last: dict[Series, float] = dict.fromkeys(_all_counters(tiers), 0.0)
        self._gauges: dict[Series, float] = {}
        self._fresh = True

    def take(self, stats: CacheStats, corrupt: int) -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
        """Return vLLM's stats object with what changed since the last call, or None. The first has every series."""
        counters, gauges = _counters(stats, corrupt), _gauge_values(stats, self._chunk_bytes)
        changed = {series: value for series, value in counters.items() if value != self._last.get(series)}
        moved = {series: value for series, value in gauges.items() if value != self._gauges.get(series)}
        if self._fresh:
            changed = {**self._last, **changed}
        if not changed and not moved:
            return None
        payload = _new_stats()
        for (name, labels), value in changed.items():
            payload.increase_counter(name, value - self._last.get((name, labels), 0.0), labels)
        for (name, labels), value in moved.items():
            payload.set_gauge(name, value, labels)
        self._last.update(counters)
        self._gauges = gauges
        self._fresh = False
        return payload


def down_stats() -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
    """Return the stats of an engine that runs without warmtier."""
    payload = _new_stats()
    payload.set_gauge(UP, 0)
    return payload


def _new_stats() -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

    return OffloadingConnectorStats()


def _all_counters(tiers: Iterable[str]) -> Iterable[Series]:
    yield CORRUPT, ()
    for tier in tiers:
        yield HITS, (tier,)
        yield EVICTIONS, (tier,)
        for reason in MissReason:
            yield MISSES, (tier, reason.value)
        for outcome in StoreOutcome:
            yield STORES, (tier, outcome.value)


def _counters(stats: CacheStats, corrupt: int) -> dict[Series, float]:
    values: dict[Series, float] = {(CORRUPT, ()): corrupt}
    for tier, facts in stats.tiers.items():
        values[HITS, (tier,)] = facts.counters.hits
        values[EVICTIONS, (tier,)] = facts.counters.evictions
        for reason, count in facts.counters.misses.items():
            values[MISSES, (tier, reason.value)] = count
        for outcome, count in facts.counters.stores.items():
            values[STORES, (tier, outcome.value)] = count
    return values


def _gauge_values(stats: CacheStats, chunk_bytes: int) -> dict[Series, float]:
    values: dict[Series, float] = {(UP, ()): 1, (REQUESTS, ()): stats.requests}
    for tier, facts in stats.tiers.items():
        values[CAPACITY, (tier,)] = facts.capacity * chunk_bytes
        values[USED, (tier,)] = _held(facts) * chunk_bytes
        values[MODE, (tier,)] = _MODES.index(facts.mode)
    return values


def _held(facts: TierStats) -> int:
    return facts.resident + facts.writing
