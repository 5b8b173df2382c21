"""What warmtier shows on vLLM's own ``/metrics``. Base units, bounded labels, every series present from the start.

vLLM adds the labels ``model_name`` and ``engine`` and the suffix ``_total`` to counters. Bytes and seconds of the
device's own transfers are vLLM's ``vllm:kv_offload_{load,store}_{bytes,time}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from warmtier.core.types import MissReason, StoreOutcome, TierMode
from warmtier.guard.breaker import BreakerState
from warmtier.tiering.stats import CacheStats, TierStats

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata

    from warmtier.engines.vllm.cold import ColdTiers
    from warmtier.engines.vllm.tracking import Figures

HITS: Final = "warmtier_hit_chunks"
MISSES: Final = "warmtier_miss_chunks"
STORES: Final = "warmtier_store_chunks"
EVICTIONS: Final = "warmtier_evicted_chunks"
CORRUPT: Final = "warmtier_corrupt_chunks"
PROMOTED: Final = "warmtier_promotion_chunks"
READ_BYTES: Final = "warmtier_load_bytes"
READ_SECONDS: Final = "warmtier_load_busy_seconds"
WRITTEN_BYTES: Final = "warmtier_store_bytes"
WRITE_SECONDS: Final = "warmtier_store_busy_seconds"
MEDIUM_BYTES: Final = "warmtier_medium_written_bytes"
UNREAD: Final = "warmtier_unread_bytes"
SAVED: Final = "warmtier_prefill_saved_seconds"
SPENT: Final = "warmtier_prefill_seconds"
TRIPS: Final = "warmtier_breaker_trips"
INVALID: Final = "warmtier_invalid_hints"
DROPPED: Final = "warmtier_access_log_dropped"
CAPACITY: Final = "warmtier_tier_capacity_bytes"
USED: Final = "warmtier_tier_used_bytes"
MODE: Final = "warmtier_tier_mode"
BREAKER: Final = "warmtier_breaker_state"
QUEUE: Final = "warmtier_queued_jobs"
REQUESTS: Final = "warmtier_tracked_requests"
UP: Final = "warmtier_up"
LOAD_LATENCY: Final = "warmtier_load_seconds"
PENDING: Final = "warmtier_pending_seconds"

_MODES: Final = tuple(TierMode)
_BREAKERS: Final = (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN)
_COUNTERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    HITS: ("Chunks that lookups found in this tier, once per request.", ("tier",)),
    MISSES: ("Chunks that lookups did not find, once per request, by the reason of the first.", ("tier", "reason")),
    STORES: ("Chunks offered to this tier, by what became of them.", ("tier", "outcome")),
    EVICTIONS: ("Chunks that lost their place in this tier to others.", ("tier",)),
    CORRUPT: ("Chunks whose digest did not match when they were loaded; none of them was served.", ("tier",)),
    PROMOTED: ("Chunks read from this tier into the host tier, by what became of them.", ("tier", "outcome")),
    READ_BYTES: ("Bytes loaded from this tier (host: to the device, others: to the host).", ("tier",)),
    READ_SECONDS: ("Seconds of these loads, added up; loads side by side count each.", ("tier",)),
    WRITTEN_BYTES: ("Bytes written to this tier.", ("tier",)),
    WRITE_SECONDS: ("Seconds of these writes, added up.", ("tier",)),
    MEDIUM_BYTES: ("Bytes written to the medium, headers and chunks carried over included: disk wear.", ("tier",)),
    UNREAD: ("Bytes that left this tier without ever having been loaded.", ("tier",)),
    SAVED: ("Estimated seconds of prefill that loads made needless.", ()),
    SPENT: ("Seconds of engine steps that computed prompts.", ()),
    TRIPS: ("Times this tier was paused because it failed or stalled.", ("tier",)),
    INVALID: ("Requests whose hints could not be used and were ignored.", ()),
    DROPPED: ("Requests that the access log could not take.", ()),
}
_GAUGES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    CAPACITY: ("Bytes this tier may hold.", ("tier",)),
    USED: ("Bytes this tier holds, chunks being written included.", ("tier",)),
    MODE: ("0 off, 1 observe, 2 canary, 3 on.", ("tier",)),
    BREAKER: ("0 closed (in use), 1 half open (one probe at a time), 2 open (paused).", ("tier",)),
    QUEUE: ("Jobs queued or under way.", ("tier", "direction")),
    REQUESTS: ("Requests that warmtier keeps state for.", ()),
    UP: ("1 while warmtier serves, 0 when the engine runs without it (on_unsupported: off).", ()),
}
_TIMES: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_HISTOGRAMS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    LOAD_LATENCY: ("From the start of a load to its end as the scheduler sees it.", ("tier",)),
    PENDING: ("How long requests waited for chunks on their way to the host tier.", ()),
}

Series = tuple[str, tuple[str, ...]]


def metric_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Return vLLM's declarations of all metrics. Runs in the API server too."""
    from vllm.v1.kv_offload.base import (
        OffloadingCounterMetadata,
        OffloadingGaugeMetadata,
        OffloadingHistogramMetadata,
    )

    counters = {name: OffloadingCounterMetadata(text, labels) for name, (text, labels) in _COUNTERS.items()}
    gauges = {name: OffloadingGaugeMetadata(text, labels) for name, (text, labels) in _GAUGES.items()}
    histograms = {
        name: OffloadingHistogramMetadata(text, labels, buckets=_TIMES) for name, (text, labels) in _HISTOGRAMS.items()
    }
    return {**counters, **gauges, **histograms}


@dataclass(slots=True)
class Snapshot:
    """All that the metrics are made of, at the end of one step. ``dropped``: records the access log could not take."""

    stats: CacheStats
    corrupt: int
    figures: Figures
    cold: ColdTiers | None = None
    dropped: int = 0


class MetricsFeed:
    """Turns snapshots of the cache into the increments that vLLM wants."""

    def __init__(self, tiers: Iterable[str], chunk_bytes: int, host: str = "host") -> None:
        self._chunk_bytes = chunk_bytes
        self._host = host
        self._tiers = tuple(tiers)
        self._last: dict[Series, float] = dict.fromkeys(_all_counters(self._tiers, host), 0.0)
        self._gauges: dict[Series, float] = {}
        self._fresh = True

    def take(self, now: Snapshot) -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
        """Return vLLM's stats object with what changed since the last call, or None. The first has every series."""
        counters, gauges = self._counters(now), self._gauge_values(now)
        changed = {series: value for series, value in counters.items() if value != self._last.get(series)}
        moved = {series: value for series, value in gauges.items() if value != self._gauges.get(series)}
        seen = self._observations(now)
        if self._fresh:
            changed = {**self._last, **changed}
            seen = {series: [] for series in self._histograms()} | seen
        if not changed and not moved and not seen:
            return None
        payload = _new_stats()
        for (name, labels), value in changed.items():
            payload.increase_counter(name, value - self._last.get((name, labels), 0.0), labels)
        for (name, labels), value in moved.items():
            payload.set_gauge(name, value, labels)
        for (name, labels), values in seen.items():
            payload.observe_histogram(name, 0.0, labels)  # a series without observations is shown, too
            payload.data["data"][name][labels][:] = values
        self._last.update(counters)
        self._gauges = gauges
        self._fresh = False
        return payload

    def _counters(self, now: Snapshot) -> dict[Series, float]:
        figures, host = now.figures, (self._host,)
        values: dict[Series, float] = {
            (CORRUPT, host): now.corrupt,
            (READ_BYTES, host): figures.load_bytes,
            (READ_SECONDS, host): figures.load_s,
            (UNREAD, host): figures.unread_chunks * self._chunk_bytes,
            (SAVED, ()): figures.prefill_saved_s,
            (SPENT, ()): figures.prefill_spent_s,
            (INVALID, ()): figures.invalid_hints,
            (DROPPED, ()): now.dropped,
        }
        for tier, facts in now.stats.tiers.items():
            values |= _tier_counters(tier, facts)
        stored = now.stats.tiers[self._host].counters.stores.get(StoreOutcome.STORED, 0)
        values[WRITTEN_BYTES, host] = stored * self._chunk_bytes
        if now.cold is not None:
            values |= _cold_counters(now.cold, now.stats)
        return values

    def _gauge_values(self, now: Snapshot) -> dict[Series, float]:
        values: dict[Series, float] = {(UP, ()): 1, (REQUESTS, ()): now.stats.requests}
        for tier, facts in now.stats.tiers.items():
            values[CAPACITY, (tier,)] = facts.capacity * self._chunk_bytes
            values[USED, (tier,)] = _held(facts) * self._chunk_bytes
            values[MODE, (tier,)] = _MODES.index(facts.mode)
            values[BREAKER, (tier,)] = _BREAKERS.index(facts.breaker)
        if now.cold is not None:
            for tier, sample in now.cold.samples().items():
                reads, writes = now.cold.queued(tier)
                values[CAPACITY, (tier,)] = sample.capacity_bytes
                values[USED, (tier,)] = sample.used_bytes
                values[QUEUE, (tier, "load")] = reads
                values[QUEUE, (tier, "store")] = writes
        return values

    def _histograms(self) -> Iterable[Series]:
        yield PENDING, ()
        for tier in self._tiers:
            yield LOAD_LATENCY, (tier,)

    def _observations(self, now: Snapshot) -> dict[Series, list[float]]:
        """Take what was observed since the last call."""
        figures = now.figures
        seen: dict[Series, list[float]] = {}
        if figures.load_latencies:
            seen[LOAD_LATENCY, (self._host,)], figures.load_latencies = figures.load_latencies, []
        if figures.pending_waits:
            seen[PENDING, ()], figures.pending_waits = figures.pending_waits, []
        for tier, flow in now.cold.flows().items() if now.cold is not None else ():
            if flow.latencies:
                seen[LOAD_LATENCY, (tier,)], flow.latencies = flow.latencies, []
        return seen


def down_stats() -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
    """Return the stats of an engine that runs without warmtier."""
    payload = _new_stats()
    payload.set_gauge(UP, 0)
    return payload


def _new_stats() -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

    return OffloadingConnectorStats()


def _all_counters(tiers: Sequence[str], host: str) -> Iterable[Series]:
    for name in (SAVED, SPENT, INVALID, DROPPED):
        yield name, ()
    yield UNREAD, (host,)
    for tier in tiers:
        for name in (HITS, EVICTIONS, CORRUPT, READ_BYTES, READ_SECONDS, WRITTEN_BYTES):
            yield name, (tier,)
        for reason in MissReason:
            yield MISSES, (tier, reason.value)
        for outcome in StoreOutcome:
            yield STORES, (tier, outcome.value)
        if tier != host:
            for name in (WRITE_SECONDS, MEDIUM_BYTES, TRIPS):
                yield name, (tier,)
            for fate in ("arrived", "failed"):
                yield PROMOTED, (tier, fate)


def _tier_counters(tier: str, facts: TierStats) -> dict[Series, float]:
    values: dict[Series, float] = {(HITS, (tier,)): facts.counters.hits, (EVICTIONS, (tier,)): facts.counters.evictions}
    for reason, count in facts.counters.misses.items():
        values[MISSES, (tier, reason.value)] = count
    for outcome, count in facts.counters.stores.items():
        values[STORES, (tier, outcome.value)] = count
    return values


def _cold_counters(cold: ColdTiers, stats: CacheStats) -> dict[Series, float]:
    values: dict[Series, float] = {}
    samples = cold.samples()
    for tier, flow in cold.flows().items():
        values[READ_BYTES, (tier,)] = flow.read_bytes
        values[READ_SECONDS, (tier,)] = flow.read_seconds
        values[WRITTEN_BYTES, (tier,)] = flow.written_bytes
        values[WRITE_SECONDS, (tier,)] = flow.write_seconds
        values[PROMOTED, (tier, "arrived")] = flow.read_chunks
        values[PROMOTED, (tier, "failed")] = flow.read_failures
        values[MEDIUM_BYTES, (tier,)] = samples[tier].bytes_written
        values[TRIPS, (tier,)] = stats.tiers[tier].breaker_trips
        values[CORRUPT, (tier,)] = stats.tiers[tier].counters.misses.get(MissReason.CORRUPT, 0)
    return values


def _held(facts: TierStats) -> int:
    return facts.resident + facts.writing
