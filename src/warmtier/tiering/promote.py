"""Promotion: chunks of a cold tier on their way into host slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from warmtier.core.types import Key, MissReason, TierKind
from warmtier.tiering.cold import ColdState
from warmtier.tiering.evict import HostEviction
from warmtier.tiering.jobs import Job, JobKind
from warmtier.tiering.request import Pin, Request, Slots
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_miss
from warmtier.tiering.types import Delete, JobResult, Promote

NO_SLOTS: Final[Slots] = np.empty(0, dtype=np.intp)


class Promoter:
    """Starts and ends promotions. Budgets and deadlines are hard; sharers of a chunk wait for one and the same job."""

    def __init__(self, state: CacheState, eviction: HostEviction) -> None:
        self._state = state
        self._eviction = eviction
        self._by_key: dict[Key, Job] = {}  # promotions in time, by key
        self._holds: deque[tuple[float, Request, Pin]] = deque()
        self._clients: set[Request] = set()  # have promotions under way or not yet fetched
        self._turn_wanted = False

    def job_of(self, key: Key) -> Job | None:
        """Return the promotion in flight that brings ``key``."""
        return self._by_key.get(key)

    def has_turn(self, request: Request, tiers: Iterable[ColdState]) -> bool:
        """Return whether the request may start promotions now.

        Requests ask in the order in which they will be admitted; so the first have their chunks brought, and the host
        tier is not emptied for those at the end of the queue.
        """
        config = self._state.config
        self._clients = {client for client in self._clients if client.promoting or client.promoted}
        if not self._clients or request in self._clients:
            return True
        slots = sum(client.promoting + sum(len(pin.slots) for pin in client.promoted) for client in self._clients)
        free = (
            len(self._clients) < config.promoting_requests
            and slots < config.promoting_share * self._state.index.slots
            and all(tier.reads.room_bytes() >= config.part_bytes * config.parts_per_chunk for tier in tiers)
        )
        self._turn_wanted = self._turn_wanted or not free
        return free

    def start(
        self, tier: ColdState, request: Request, keys: Sequence[Key], start: int, now: float, latest_s: float
    ) -> tuple[int, MissReason | None]:
        """Start promoting ``keys``, consecutive on the path from index ``start``. ``latest_s`` bounds its deadline.

        Return how many leading ones are on their way, and why not the others.
        """
        state, config = self._state, self._state.config
        fit = min(len(keys), tier.reads.room_bytes() // config.part_bytes)
        fit = state.whole_chunks(fit, len(keys), start)
        if fit <= 0:
            return 0, MissReason.PROMOTION_BUDGET
        wanted = list(keys[:fit])
        tier.start_reading(wanted)  # making room in the host tier may demote, and so evict here
        slots = self._eviction.make_room(request, wanted, start, now).slots
        stored = wanted[: len(slots)]
        tier.end_reading(wanted[len(stored) :])
        if not stored:
            return 0, MissReason.NO_ROOM
        size_bytes = len(stored) * config.part_bytes
        deadline_s = state.costs.deadline_s(
            tier.name,
            size_bytes,
            tier.reads.size_bytes,
            floor_s=tier.spec.deadline_floor_s,
            cap_s=tier.spec.deadline_cap_s,
        )
        job = Job(
            state.jobs.new_id(), JobKind.PROMOTE, tier.name, stored, size_bytes, min(now + deadline_s, latest_s),
            state.epoch, np.array(slots, dtype=np.intp), start, owner=request,
        )  # fmt: skip
        request.promoting += len(slots)
        self._clients.add(request)
        tier.breaker.started(now)
        tier.reads.add(size_bytes)
        state.jobs.add(job)
        self._by_key.update(dict.fromkeys(stored, job))
        state.actions.append(Promote(job.job_id, tier.name, request.request_id, stored, slots, job.deadline_s))
        if len(stored) < len(keys):
            return len(stored), MissReason.PROMOTION_BUDGET if len(stored) == fit else MissReason.NO_ROOM
        return len(stored), None

    def done(self, job: Job, tier: ColdState, result: JobResult, now: float) -> None:
        """A promotion has ended. Late or of an earlier epoch: only its slots are free now."""
        tier.reads.remove(job.size_bytes)
        if job.epoch == self._state.epoch:
            tier.end_reading(job.keys)
            self._drop_bad(job, tier, result, now)
        self._judge(job, tier, result, now)
        if job.owner is not None and not job.late and job.epoch == self._state.epoch:
            job.owner.promoting -= len(job.slots)
        if job.late or job.epoch != self._state.epoch:
            self._state.index.release(job.slots.tolist())
            tier.counters.late += 1
            return
        self._forget_keys(job)
        self._keep_prefix(job, tier, result, now)

    def overdue(self, job: Job, tier: ColdState, now: float) -> None:
        """A promotion's deadline passed: its chunks are absent, its slots quarantined until ``done``."""
        if job.epoch != self._state.epoch:
            return
        if job.owner is not None:
            job.owner.promoting -= len(job.slots)
        self._state.index.quarantine_busy(job.keys)
        self._state.policy.remove(job.keys, now)
        self._forget_keys(job)
        self._limit(job.waiters, job.start, MissReason.PENDING_DEADLINE)
        tier.breaker.failed(now)

    def release_holds(self, now: float) -> None:
        """End the protection of promoted chunks that no waiter came to fetch in time."""
        while self._holds and self._holds[0][0] <= now:
            _, request, pin = self._holds.popleft()
            self._release(request, [pin])

    def release(self, request: Request) -> None:
        """The request has fetched its promoted chunks, or ended."""
        self._release(request, list(request.promoted))

    def reset(self) -> None:
        """A new epoch: quarantine the slots of all promotions, end all holds."""
        for job in {id(job): job for job in self._by_key.values()}.values():
            self._state.index.quarantine_busy(job.keys)
        self._by_key.clear()
        for client in self._clients:
            client.promoting = 0
        while self._holds:
            _, request, pin = self._holds.popleft()
            self._release(request, [pin])

    @property
    def holds(self) -> int:
        """Promoted pieces that are protected for a waiter."""
        return len(self._holds)

    def _release(self, request: Request, pins: Sequence[Pin]) -> None:
        for pin in pins:
            if pin in request.promoted:
                request.promoted.remove(pin)
                self._state.index.unref(pin.slots)
        if pins and self._turn_wanted:  # somebody's answer has changed
            self._turn_wanted = False
            self._state.index.version += 1

    def _forget_keys(self, job: Job) -> None:
        for key in job.keys:
            if self._by_key.get(key) is job:
                del self._by_key[key]

    def _judge(self, job: Job, tier: ColdState, result: JobResult, now: float) -> None:
        """Feed the breaker and the estimate of the link. Corruption is of chunks, not of the tier."""
        if result.timed_out or not all(_fine(result, i) for i in range(len(job.keys))):
            tier.breaker.failed(now)
            return
        tier.breaker.succeeded(now)
        if not any(result.corrupt):
            self._state.costs.observe_load(tier.name, result.size_bytes, result.seconds)

    def _drop_bad(self, job: Job, tier: ColdState, result: JobResult, now: float) -> None:
        """Forget chunks that could not be read: the next store writes them anew. A timeout says nothing of them."""
        bad = [key for key, ok in zip(job.keys, result.ok, strict=False) if not ok]
        if bad and not result.timed_out:
            gone = tier.forget([key for key in bad if key not in tier.reading], now)
            if gone:
                self._state.actions.append(Delete(tier.name, gone))
                self._state.emit(tier.name, tier.spec.kind, gone, removed=True)
        count_miss(tier.counters, MissReason.CORRUPT, sum(map(bool, result.corrupt)))
        count_miss(tier.counters, MissReason.LOAD_FAILED, len(bad) - sum(map(bool, result.corrupt)))

    def _keep_prefix(self, job: Job, tier: ColdState, result: JobResult, now: float) -> None:
        state = self._state
        good = next((i for i, ok in enumerate(result.ok) if not ok), min(len(result.ok), len(job.keys)))
        good = state.whole_chunks(good, len(job.keys), job.start)
        kept = state.index.finish(job.keys[:good])
        lost = state.index.fail(job.keys[good:])
        state.policy.remove(lost, now)
        tier.counters.promotions += good
        state.emit(state.host.name, TierKind.HOST, kept, removed=False)
        if tier.spec.admit is not None:
            tier.spec.admit.on_hit(kept, now)
        if good < len(job.keys):
            self._limit(job.waiters, job.start + good, MissReason.LOAD_FAILED)
        if kept:
            self._hold(job, kept, job.slots[:good], now)
        for waiter in job.waiters:
            waiter.origins.append((job.start, job.start + good, tier.spec.kind))

    def _hold(self, job: Job, keys: Sequence[Key], slots: Slots, now: float) -> None:
        for waiter in job.waiters:
            if not waiter.ended:
                pin = Pin(keys, slots, now)
                self._state.index.ref(slots)
                waiter.promoted.append(pin)
                self._holds.append((now + self._state.config.hold_deadline_s, waiter, pin))

    def _limit(self, waiters: set[Request], at: int, reason: MissReason) -> None:
        """What these requests were promised from path index ``at`` on is void."""
        for waiter in waiters:
            waiter.limit(at - at % self._state.config.parts_per_chunk, reason)


def _fine(result: JobResult, index: int) -> bool:
    ok = index < len(result.ok) and result.ok[index]
    return bool(ok or (index < len(result.corrupt) and result.corrupt[index]))
