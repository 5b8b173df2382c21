"""Writing down: chunks on their way from the host tier, or a cold tier, to a colder one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from warmtier.core.types import Key, StoreOutcome
from warmtier.policy.admission import Candidates, TierState
from warmtier.policy.base import Access
from warmtier.tiering.chains import Chain, chains_above
from warmtier.tiering.cold import READY, WRITING, ColdState, lower
from warmtier.tiering.jobs import Job, JobKind
from warmtier.tiering.promote import NO_SLOTS
from warmtier.tiering.request import Request, Slots
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_store
from warmtier.tiering.types import Delete, Demote, JobResult, Migrate, Placement

_GIVEN_UP = -1


class Demoter:
    """Starts and ends writes to cold tiers. Heads before tails; when a queue is full, writes are dropped."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    # --- when ---

    def stored(self, request: Request, now: float) -> None:
        """Chunks of the request became ready in the host tier: write them through."""
        for tier in self._state.cold:
            if tier.spec.placement is Placement.THROUGH:
                self._write_path(tier, request, len(request.path), now)

    def used(self, request: Request, now: float) -> None:
        """The request has ended: count its use of its path, write down what was used often enough."""
        state = self._state
        uses = state.index.touch(request.path)
        for tier in state.cold:
            if tier.spec.admit is not None:
                tier.spec.admit.on_used(request.path, now)
            if tier.spec.placement is Placement.SELECTIVE:
                due = next((i for i, count in enumerate(uses) if count < tier.spec.touches), len(uses))
                self._write_path(tier, request, due, now, uses)
            tier.policy.finish(tier.view(request), now)

    def back(self, victims: Sequence[Key], now: float) -> None:
        """The host gives ``victims`` (tails first) up: write them down with their prefix, if the reserve allows."""
        state = self._state
        if not state.cold or state.cold[0].spec.placement is not Placement.BACK:
            return
        parents, ready = state.index.parents or {}, state.index.ready
        self._back(None, state.cold[0], victims, parents, ready.__contains__, now)

    # --- what ---

    def _write_path(
        self, tier: ColdState, request: Request, end: int, now: float, uses: Sequence[int] | None = None
    ) -> None:
        """Write the ready chunks of the path before ``end`` that the tier lacks, run by run from the head."""
        at = request.down.get(tier.name, 0)
        if at == _GIVEN_UP:
            return
        path, ready, parts = request.path, self._state.index.ready, self._state.config.parts_per_chunk
        while True:
            while at < end and tier.holds(path[at]):
                at += 1
            stop = at
            while stop < end and path[stop] in ready and not tier.holds(path[stop]):
                stop += 1
            if stop < end and not tier.holds(path[stop]):
                stop = max(at, stop - stop % parts)  # the rest of the last chunk is not ready
            if stop == at:
                break
            chain = Chain(path[at:stop], path[at - 1] if at else None, at, uses[at:stop] if uses else None)
            if not self._send(tier, None, tier.view(request), chain, now, request):
                at = _GIVEN_UP
                break
            at = stop
        request.down[tier.name] = at

    def _back(
        self,
        source: ColdState | None,
        tier: ColdState,
        victims: Sequence[Key],
        parents: Mapping[Key, Key | None],
        available: Callable[[Key], bool],
        now: float,
    ) -> None:
        state = self._state
        left = state.reserve - state.unavailable if source is None else len(victims)
        left -= left % state.config.parts_per_chunk
        wanted = list(victims[len(victims) - left :]) if 0 < left < len(victims) else list(victims) if left > 0 else []
        count_store(tier.counters, StoreOutcome.QUEUE_FULL, len(victims) - len(wanted))
        for chain in chains_above(wanted, parents, tier.holds, available):
            access = Access(chain.path, state.config.tokens_per_chunk, 0, now)
            self._send(tier, source, access, chain, now, None)

    def _send(
        self,
        tier: ColdState,
        source: ColdState | None,
        access: Access[Key],
        chain: Chain,
        now: float,
        request: Request | None,
    ) -> bool:
        """Start writing leading chunks of ``chain``; return whether all of it was accepted."""
        keys, refused = self._admissible(tier, access, chain, now, request)
        if keys:
            admission = tier.policy.admit(access, keys, chain.parent, now, tier.pinned)
            admitted = self._state.whole_chunks(admission.admitted, len(keys), chain.start)
            tier.policy.remove(keys[admitted : admission.admitted], now)
            self._lose(tier, admission.victims, now)
            if admitted < len(keys):
                refused = StoreOutcome.REFUSED_POLICY if admission.refused_by_value else StoreOutcome.NO_ROOM
                keys = keys[:admitted]
        if keys:
            self._start(tier, source, keys, chain, now)
        if refused is not None:
            count_store(tier.counters, refused, len(chain.keys) - len(keys))
        return len(keys) == len(chain.keys)

    def _admissible(
        self, tier: ColdState, access: Access[Key], chain: Chain, now: float, request: Request | None
    ) -> tuple[list[Key], StoreOutcome | None]:
        """Apply guards, budgets and filters; return the keys that pass and why the next does not."""
        refused = tier.refuses(now)
        if refused is None and chain.parent is not None and chain.parent not in tier.index:
            refused = StoreOutcome.REFUSED_ORPHAN
        if refused is not None:
            return [], refused
        keys, part_bytes = list(chain.keys), self._state.config.part_bytes
        for room, reason in (
            (tier.writes.room_bytes(), StoreOutcome.QUEUE_FULL),
            (tier.bucket.available(now), StoreOutcome.WRITE_BUDGET),
        ):
            fit = int(min(len(keys), room // part_bytes))
            if fit < len(keys):
                keys, refused = keys[: self._state.whole_chunks(fit, len(keys), chain.start)], reason
        if tier.spec.admit is not None and keys:
            uses = chain.uses or [0] * len(keys)
            priorities = self._state.wishes.priorities(request, chain.start, len(keys)) if request else None
            candidates = Candidates(keys, uses[: len(keys)], chain.start, priorities)
            fullness = TierState(tier.policy.capacity, len(tier.policy))
            verdict = tier.spec.admit.judge(access, candidates, fullness, now)
            if verdict.admitted < len(keys):
                keys, refused = (
                    keys[: self._state.whole_chunks(verdict.admitted, len(keys), chain.start)],
                    verdict.reason,
                )
        return keys, refused

    def _start(self, tier: ColdState, source: ColdState | None, keys: list[Key], chain: Chain, now: float) -> None:
        state = self._state
        size_bytes = len(keys) * state.config.part_bytes
        tier.index.update(dict.fromkeys(keys, WRITING))
        if tier.parents is not None:
            tier.parents.update(zip(keys, (chain.parent, *keys[:-1]), strict=True))
        tier.writes.add(size_bytes)
        tier.bucket.take(size_bytes, now)
        tier.breaker.started(now)
        job_id, slots = state.jobs.new_id(), NO_SLOTS
        if source is None:
            slots = self._reference(keys)
            state.actions.append(Demote(job_id, tier.name, keys, slots.tolist()))
        else:
            source.leaving.update(key for key in keys if key not in source.index)
            source.start_reading(keys)
            state.actions.append(Migrate(job_id, source.name, tier.name, keys))
        kind = JobKind.DEMOTE if source is None else JobKind.MIGRATE
        deadline_s = now + tier.spec.write_deadline_s
        name = None if source is None else source.name
        state.jobs.add(Job(job_id, kind, tier.name, keys, size_bytes, deadline_s, state.epoch, slots, 0, name))

    def _reference(self, keys: Sequence[Key]) -> Slots:
        slots = np.array(self._state.index.slots_of(keys), dtype=np.intp)
        self._state.index.ref(slots)
        return slots

    # --- victims of a cold tier ---

    def _lose(self, tier: ColdState, victims: list[Key], now: float) -> None:
        """A cold tier's policy gave ``victims`` up: write them further down if the next tier wants that, or delete."""
        if not victims:
            return
        for key in victims:
            del tier.index[key]
        self._count_gone(tier, victims, now)
        position = self._state.cold.index(tier) + 1
        if tier.parents is not None and position < len(self._state.cold):
            below = self._state.cold[position]
            gone = set(victims)
            self._back(tier, below, victims, tier.parents, lambda key: key in gone or tier.readable(key), now)
        self._delete(tier, [key for key in victims if key not in tier.leaving])

    def _count_gone(self, tier: ColdState, keys: Sequence[Key], now: float) -> None:
        tier.counters.evictions += len(keys)
        if tier.spec.admit is not None:
            tier.spec.admit.on_evicted(keys, now)
        self._state.emit(tier.name, tier.spec.kind, keys, removed=True)

    def _delete(self, tier: ColdState, keys: Sequence[Key]) -> None:
        if keys:
            self._state.actions.append(Delete(tier.name, keys))
        if tier.parents is not None:
            for key in keys:
                tier.parents.pop(key, None)

    # --- ends ---

    def done(self, job: Job, tier: ColdState, result: JobResult, now: float) -> None:
        """A write has ended. Late or of an earlier epoch: what it wrote is deleted."""
        state = self._state
        tier.writes.remove(job.size_bytes)
        state.index.unref(job.slots)
        current = job.epoch == state.epoch
        self._release_source(job, current=current)
        good = [key for key, ok in zip(job.keys, result.ok, strict=False) if ok]
        if result.timed_out or len(good) < len(job.keys):
            tier.breaker.failed(now)
        else:
            tier.breaker.succeeded(now)
        if job.late or not current:
            lower(tier.stale, job.keys)
            tier.counters.late += 1
            self._delete(tier, [key for key in good if key not in tier.index])
        else:
            self._settle(job, tier, good, now)
        self._evicted_by_store(tier, result.evicted, now)

    def overdue(self, job: Job, tier: ColdState, now: float) -> None:
        """A write's deadline passed: its chunks count as absent, and are not written again before it is dead."""
        if job.epoch == self._state.epoch:
            tier.forget([key for key in job.keys if tier.index.get(key) == WRITING], now)
            tier.stale.update(job.keys)
            count_store(tier.counters, StoreOutcome.FAILED, len(job.keys))
            tier.breaker.failed(now)

    def _release_source(self, job: Job, *, current: bool) -> None:
        if job.source is None or not current:
            return
        source = self._state.tiers[job.source]
        source.end_reading(job.keys)
        gone = [key for key in job.keys if key in source.leaving and key not in source.reading]
        source.leaving.difference_update(gone)
        self._delete(source, gone)

    def _settle(self, job: Job, tier: ColdState, good: Sequence[Key], now: float) -> None:
        written = [key for key in good if tier.index.get(key) == WRITING]
        tier.index.update(dict.fromkeys(written, READY))
        lost = tier.forget([key for key in job.keys if tier.index.get(key) == WRITING], now)
        count_store(tier.counters, StoreOutcome.STORED, len(written))
        count_store(tier.counters, StoreOutcome.FAILED, len(lost))
        if tier.spec.admit is not None:
            tier.spec.admit.on_written(written, now)
        self._state.emit(tier.name, tier.spec.kind, written, removed=False)

    def _evicted_by_store(self, tier: ColdState, evicted: Sequence[Key], now: float) -> None:
        """The store itself gave chunks up for room. A write under way replaces what it lost."""
        gone = tier.forget([key for key in evicted if tier.index.get(key) == READY], now)
        if gone:
            self._count_gone(tier, gone, now)

    def reset(self) -> None:
        """A new epoch: what is being written belongs to the old one."""
        for job in self._state.jobs:
            if job.kind is not JobKind.PROMOTE and job.epoch == self._state.epoch and not job.late:
                self._state.tiers[job.tier].stale.update(job.keys)
