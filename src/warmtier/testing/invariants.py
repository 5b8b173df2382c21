"""What must hold in a ``TieredCache`` after every call, recomputed from scratch. For tests; O(everything)."""

from __future__ import annotations

from collections import Counter

from warmtier.core.types import Key
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.cold import WRITING, ColdState
from warmtier.tiering.jobs import JobKind
from warmtier.tiering.state import CacheState


class BrokenInvariantError(AssertionError):
    """An invariant of the tiered cache does not hold."""


def check(cache: TieredCache) -> None:
    """Raise BrokenInvariantError that names the first invariant that does not hold."""
    state = cache.state
    _check_slots(state)
    _check_references(state, cache)
    _check_host_policy(state)
    for tier in state.cold:
        _check_cold(state, tier)
    _check_tenants(state)
    _check_bounds(state, cache)


def check_quiet(cache: TieredCache) -> None:
    """Raise unless nothing is left over when every transfer and job has ended and every request is gone."""
    check(cache)
    state = cache.state
    index = state.index
    _require(not state.jobs and not len(state.jobs), f"{len(state.jobs)} jobs are left")
    _require(not index.busy, f"{len(index.busy)} chunks are still being written")
    _require(not index.refs.any(), "slots are still referenced")
    _require(state.unavailable == 0, f"{state.unavailable} slots are lost")
    _require(index.loads == 0, "loads are left")
    for tier in state.cold:
        left = (tier.reads.jobs, tier.writes.jobs, len(tier.reading), len(tier.leaving), len(tier.stale))
        _require(not any(left), f"{tier.name}: reads, writes, reading, leaving, stale are left: {left}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenInvariantError(what)


def _check_slots(state: CacheState) -> None:
    """Every slot is in exactly one state."""
    index = state.index
    named = [*index.ready.values(), *index.busy.values(), *index.doomed]
    _require(len(named) == len(set(named)), "a slot is used twice")
    _require(not index.ready.keys() & index.busy.keys(), "a chunk is ready and being written")
    allocator = index.allocator
    _require(len(named) == allocator.used_slots, f"{len(named)} slots are named, {allocator.used_slots} are handed out")


def _check_references(state: CacheState, cache: TieredCache) -> None:
    """References are those of loads, of promoted chunks waiting to be fetched, and of writes: no more, no fewer."""
    expected: Counter[int] = Counter()
    for request in {*state.requests.values(), *state.loading}:
        for pin in (*request.pins, *request.promoted):
            expected.update(pin.slots.tolist())
    for pin in cache.abandoned_pins():
        expected.update(pin.slots.tolist())
    for job in state.jobs:
        if job.kind is JobKind.DEMOTE:
            expected.update(job.slots.tolist())
    found = {slot: count for slot, count in enumerate(state.index.refs.tolist()) if count}
    _require(found == dict(expected), f"references {found} are not those of {dict(expected)}")
    orphans = [slot for slot in state.index.doomed if not found.get(slot)]
    _require(not orphans, f"slots {orphans} are withheld though nothing reads them")


def _check_host_policy(state: CacheState) -> None:
    index, policy = state.index, state.policy
    resident = set(policy.resident())
    held = index.ready.keys() | index.busy.keys()
    _require(resident == held, f"the host policy and the index differ in {resident ^ held}")
    _require(len(policy) == len(held), "the host policy miscounts")
    _require(len(policy) <= policy.capacity, f"{len(policy)} chunks, room for {policy.capacity}")


def _check_cold(state: CacheState, tier: ColdState) -> None:
    resident = set(tier.policy.resident())
    _require(resident == tier.index.keys(), f"{tier.name}: policy and index differ in {resident ^ tier.index.keys()}")
    _require(len(resident) <= tier.policy.capacity, f"{tier.name}: over its capacity")
    jobs = [job for job in state.jobs if job.tier == tier.name]
    reads = [job for job in jobs if job.kind is JobKind.PROMOTE]
    writes = [job for job in jobs if job.kind is not JobKind.PROMOTE]
    for what, budget, found in (("reads", tier.reads, reads), ("writes", tier.writes, writes)):
        size = sum(job.size_bytes for job in found)
        _require(budget.jobs == len(found), f"{tier.name}: {what} counts {budget.jobs} jobs of {len(found)}")
        _require(budget.size_bytes == size, f"{tier.name}: {what} counts {budget.size_bytes} bytes of {size}")
        _require(budget.jobs <= budget.max_jobs, f"{tier.name}: too many {what}")
        _require(budget.size_bytes <= budget.max_bytes, f"{tier.name}: too many bytes of {what}")
    current = Counter(k for job in writes if not job.late and job.epoch == state.epoch for k in job.keys)
    writing = {key for key, status in tier.index.items() if status == WRITING}
    _require(writing <= current.keys(), f"{tier.name}: nobody writes {writing - current.keys()}")
    stale = Counter(k for job in writes if job.late or job.epoch != state.epoch for k in job.keys)
    _require(tier.stale == stale, f"{tier.name}: stale writes are miscounted")
    _require(not tier.leaving & tier.index.keys(), f"{tier.name}: a chunk is held and on its way out")
    reading: Counter[Key] = Counter()
    for job in state.jobs:
        source = job.tier if job.kind is JobKind.PROMOTE else job.source
        if source == tier.name and job.epoch == state.epoch:
            reading.update(job.keys)
    _require(tier.reading == reading, f"{tier.name}: reads are miscounted")


def _check_tenants(state: CacheState) -> None:
    if not state.ledger.active:
        return
    held = Counter(state.ledger.owner(slot) for slot in (*state.index.ready.values(), *state.index.busy.values()))
    used = {tenant: count for tenant, count in enumerate(state.ledger.used) if count}
    _require(used == dict(held), f"tenants use {used}, held are {dict(held)}")
    for tenant, maximum in enumerate(state.ledger.maximum):
        over = maximum is not None and state.ledger.used[tenant] > maximum
        _require(not over, f"tenant {tenant} is above its quota")


def _check_bounds(state: CacheState, cache: TieredCache) -> None:
    _require(len(state.events) <= state.config.max_events, "too many events")
    _require(len(state.ledger) <= max(state.config.max_tenants, len(state.config.quotas) + 1), "too many tenants")
    tracked = cache.tracked_offers()
    _require(tracked <= state.config.max_tracker_size, "the tracker of offers is too long")
    most = sum(tier.spec.max_reads + tier.spec.max_writes for tier in state.cold)
    _require(len(state.jobs) <= most, "too many jobs")
