"""The result of a simulation: plain data, the same for the same settings and trace, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from warmtier.sim.connector import Connector
from warmtier.sim.measure import Measures
from warmtier.sim.media import Link
from warmtier.sim.settings import SimSettings

if TYPE_CHECKING:
    from warmtier.sim.engine import Engine

_MONTH_S = 30 * 86_400.0
_GIB = 2**30


class Moved(msgspec.Struct, frozen=True):
    """One direction of a tier's link: bytes, transfers, and the share of the run in which it moved bytes."""

    size_bytes: int
    transfers: int
    utilization: float


class TierResult(msgspec.Struct, frozen=True):
    """One tier. Ratios are over all prompt chunks, tokens and FLOPs; ``flop`` needs a model.

    ``writes``: chunks written; ``written_per_hit``: of them, per chunk hit (None without hits).
    """

    tier: str
    capacity_chunks: int
    resident_chunks: int
    block_hit_ratio: float
    token_hit_ratio: float
    flop_hit_ratio: float | None
    hit_tokens: int
    writes: int
    written_per_hit: float | None
    evictions: int
    loaded: Moved | None
    stored: Moved | None
    misses: dict[str, int]
    stores: dict[str, int]


class Cost(msgspec.Struct, frozen=True):
    """What it takes: engine time, the part of it that is prefill, prefill saved; money where prices were given."""

    engine_busy_s: float
    prefill_s: float
    prefill_saved_s: float
    stalled_s: float
    engine_money: float | None
    tier_money: float | None


class SimResult(msgspec.Struct, frozen=True):
    """Everything that was measured. Times in seconds of the simulated clock."""

    requests: int
    refused: int
    preemptions: int
    steps: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    token_hit_ratio: float
    flop_hit_ratio: float | None
    request_throughput: float
    output_throughput: float
    ttft: dict[str, float | int | None]
    itl: dict[str, float | int | None]
    e2e: dict[str, float | int | None]
    pending: dict[str, float | int | None]
    first_miss_reasons: dict[str, int]
    tiers: list[TierResult]
    cost: Cost


def make_result(
    settings: SimSettings, measures: Measures, engine: Engine, connector: Connector | None, now: float
) -> SimResult:
    """Return the result of a run that has ended."""
    duration_s = measures.end_s or now
    flops = measures.prompt_flops or None
    tiers = [_device(settings, measures, engine)]
    if connector is not None:
        tiers += _tiers(settings, measures, connector, duration_s)
    hit_flops = None if flops is None else sum(measures.hit_flops.values()) / flops
    return SimResult(
        requests=measures.requests,
        refused=measures.refused,
        preemptions=measures.preemptions,
        steps=engine.steps,
        duration_s=duration_s,
        prompt_tokens=measures.prompt_tokens,
        output_tokens=measures.output_tokens,
        token_hit_ratio=_share(sum(measures.hit_tokens.values()), measures.prompt_tokens),
        flop_hit_ratio=hit_flops,
        request_throughput=_share(measures.requests, duration_s),
        output_throughput=_share(measures.output_tokens, duration_s),
        ttft=measures.ttft.summary(),
        itl=measures.itl.summary(),
        e2e=measures.e2e.summary(),
        pending=measures.pending.summary(),
        first_miss_reasons=dict(sorted(measures.reasons.items())),
        tiers=tiers,
        cost=_cost(settings, measures, connector, duration_s),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _ratios(measures: Measures, tier: str) -> tuple[float, float, float | None]:
    flop = None
    if measures.prompt_flops:
        flop = measures.hit_flops.get(tier, 0.0) / measures.prompt_flops
    block = _share(measures.hit_blocks.get(tier, 0), measures.blocks)
    return block, _share(measures.hit_tokens.get(tier, 0), measures.prompt_tokens), flop


def _device(settings: SimSettings, measures: Measures, engine: Engine) -> TierResult:
    block, token, flop = _ratios(measures, "device")
    pool = engine.pool
    return TierResult(
        tier="device",
        capacity_chunks=settings.engine.device_blocks // settings.blocks_per_chunk,
        resident_chunks=pool.cached_blocks // settings.blocks_per_chunk,
        block_hit_ratio=block,
        token_hit_ratio=token,
        flop_hit_ratio=flop,
        hit_tokens=measures.hit_tokens.get("device", 0),
        writes=0,
        written_per_hit=None,
        evictions=pool.evictions,
        loaded=None,
        stored=None,
        misses={},
        stores={},
    )


def _tiers(settings: SimSettings, measures: Measures, connector: Connector, duration_s: float) -> list[TierResult]:
    stats = connector.cache.stats()
    found = []
    kinds = {tier.name: tier.kind.value for tier in settings.cold}
    for name, tier in stats.tiers.items():
        kind = kinds.get(name, "host")
        block, token, flop = _ratios(measures, kind)
        if name in kinds:
            loaded, stored = connector.media.tiers[name].read, connector.media.tiers[name].write
        else:
            loaded, stored = connector.load_link, connector.store_link
        shared = loaded is stored
        written = sum(count for outcome, count in tier.counters.stores.items() if outcome.value == "stored")
        hits = measures.hit_tokens.get(kind, 0) // settings.chunk_tokens
        found.append(
            TierResult(
                tier=name,
                capacity_chunks=tier.capacity,
                resident_chunks=tier.resident,
                block_hit_ratio=block,
                token_hit_ratio=token,
                flop_hit_ratio=flop,
                hit_tokens=measures.hit_tokens.get(kind, 0),
                writes=written,
                written_per_hit=written / hits if hits else None,
                evictions=tier.counters.evictions,
                loaded=_moved(loaded, duration_s),
                stored=None if shared else _moved(stored, duration_s),
                misses={reason.value: count for reason, count in sorted(tier.counters.misses.items())},
                stores={outcome.value: count for outcome, count in sorted(tier.counters.stores.items())},
            )
        )
    return found


def _moved(link: Link, duration_s: float) -> Moved:
    return Moved(link.bytes_moved, link.requests, _share(link.busy_s, duration_s))


def _cost(settings: SimSettings, measures: Measures, connector: Connector | None, duration_s: float) -> Cost:
    price = settings.engine_price_per_hour
    return Cost(
        engine_busy_s=measures.busy_s,
        prefill_s=measures.prefill_s,
        prefill_saved_s=measures.prefill_saved_s,
        stalled_s=measures.stalled_s,
        engine_money=price * duration_s / 3600 if price else None,
        tier_money=_tier_money(settings, connector, duration_s),
    )


def _tier_money(settings: SimSettings, connector: Connector | None, duration_s: float) -> float | None:
    priced = [t for t in settings.cold if t.price_per_gib_month or t.price_per_1000_reads or t.price_per_1000_writes]
    if connector is None or not priced:
        return None
    money = 0.0
    for tier in priced:
        medium = connector.media.tiers[tier.name]
        held_gib = medium.most_held * settings.chunk_bytes / _GIB
        money += held_gib * tier.price_per_gib_month * duration_s / _MONTH_S
        money += medium.read.requests / 1000 * tier.price_per_1000_reads
        money += medium.write.requests / 1000 * tier.price_per_1000_writes
    return money
