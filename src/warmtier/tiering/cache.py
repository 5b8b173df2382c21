"""``TieredCache``: which chunk is where, what to load, what to store, what to give up. Sans-IO."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from warmtier.core.errors import ConfigError, UsageError
from warmtier.core.types import Key, RequestId, TierKind, TierMode
from warmtier.policy.base import Access
from warmtier.tiering.calibration import Calibration
from warmtier.tiering.cold import READY, ColdState
from warmtier.tiering.demote import Demoter
from warmtier.tiering.evict import HostEviction
from warmtier.tiering.hints import clamp
from warmtier.tiering.jobs import JobKind
from warmtier.tiering.loads import Loads
from warmtier.tiering.lookup import ReadPath
from warmtier.tiering.offer import WritePath
from warmtier.tiering.promote import Promoter
from warmtier.tiering.request import Pin, Request
from warmtier.tiering.resets import Resets
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import CacheStats, snapshot
from warmtier.tiering.types import NO_HINTS, Action, Delete, Event, JobResult, Lookup, Offer, RequestHints


class TieredCache:
    """The state machine that every driver shares: the vLLM manager, the transformers engine and the simulator.

    It reads no clock, touches no bytes, takes no lock and never blocks: every call takes ``now`` (seconds, never going
    back), answers at once and leaves *actions* for an executor, which answers each job with ``job_done``.
    Single-threaded.

    Order per request: ``begin_request``, any number of ``lookup``, ``pin_for_load`` .. ``load_done``, ``offer`` ..
    ``store_done``, ``end_request``; completions may arrive after the end. ``tick`` ends a scheduling pass: what a
    ``lookup`` promised is protected from eviction until then. A path interleaves the parts of a chunk (KV groups) by
    position, and every count answered is a whole number of chunks.

    ``cold`` lists the tiers below the host, warmest first. ``state`` is for tests and the parts of this package.
    """

    def __init__(
        self,
        config: CacheConfig,
        host: HostTier,
        cold: Sequence[ColdTier] = (),
        *,
        calibration: Calibration | None = None,
    ) -> None:
        _check_names([host.name, *(tier.name for tier in cold)])
        state = self.state = CacheState(config, host, cold, calibration)
        eviction = HostEviction(state)
        self._promoter = Promoter(state, eviction)
        self._demoter = Demoter(state)
        eviction.down = self._demoter if state.reserve else None
        self._loads = Loads(state, self._promoter)
        self._read = ReadPath(state, self._promoter)
        self._write = WritePath(state, eviction)
        self._resets = Resets(state, self._loads, self._promoter, self._demoter)
        state.fit_policy()

    # --- requests ---

    def begin_request(
        self, request_id: RequestId, now: float, *, prompt_tokens: int | None = None, hints: RequestHints = NO_HINTS
    ) -> Request:
        """Announce a request; hand the returned object to all later calls. Raises UsageError for malformed hints."""
        config = self.state.config
        hints = clamp(hints, config)
        request = Request(
            path=[],
            tokens_per_chunk=config.tokens_per_chunk,
            prompt_tokens=prompt_tokens or 0,
            started_s=now,
            tenant=hints.tenant,
            session=hints.session,
            request_id=request_id,
            hints=hints,
            epoch=self.state.epoch,
        )
        self.state.requests[request_id] = request
        self.state.policy.begin(request, now)
        for tier in self.state.cold:
            tier.policy.begin(tier.view(request), now)
        return request

    def lookup(self, request: Request, path: Sequence[Key], start: int, now: float) -> Lookup:
        """Return how many chunks of ``path`` from ``start`` can be loaded.

        ``path`` holds all known keys, root first; those before ``start`` are on the device. Idempotent: may be called
        every step until the answer is not pending. A usable chunk stays until the next ``tick``.
        """
        return self._read.lookup(request, path, start, now)

    def pin_for_load(self, request: Request, keys: Sequence[Key], now: float) -> list[int]:
        """Pin usable ``keys`` for a load to the device; return their host slots in the order given.

        Raises InternalError if a key is not ready (it was not part of a lookup since the last ``tick``).
        """
        return self._loads.pin(request, keys, now)

    def load_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        """A load of pinned ``keys`` (in any order) has ended. Not ``ok``: they are forgotten and never served again."""
        self._loads.done(request, keys, now, ok=ok)
        self.state.fit_policy()

    def offer(self, request: Request, keys: Sequence[Key], start: int, now: float) -> Offer:
        """Decide on storing ``keys``: consecutive chunks of the request's path from index ``start``, on the device now.

        Device hits may be offered too. Extends the request's path.
        """
        return self._write.offer(request, keys, start, now)

    def store_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        """The stores of ``keys`` (in any order) into their slots have ended."""
        self._write.store_done(keys, now, ok=ok)
        if ok and self.state.cold and request.epoch == self.state.epoch:
            self._demoter.stored(request, now)
        self.state.fit_policy()

    def end_request(self, request: Request, now: float) -> None:
        """The request is over; its path counts as used now. Idempotent."""
        if request.ended:
            return
        state = self.state
        request.ended, request.memo = True, None
        if state.requests.get(request.request_id) is request:
            del state.requests[request.request_id]
        self._promoter.release(request)
        state.policy.finish(request, now)
        if state.cold and request.epoch == state.epoch:
            self._demoter.used(request, now)

    # --- time, jobs, control ---

    def tick(self, now: float) -> None:
        """End a scheduling pass: promises of lookups end, deadlines are checked."""
        state = self.state
        state.ticks += 1
        state.index.release_holds()
        self._read.tick()
        self._resets.tick()
        if not state.cold:
            return
        for job in state.jobs.overdue(now):
            part = self._promoter if job.kind is JobKind.PROMOTE else self._demoter
            part.overdue(job, state.tiers[job.tier], now)
        for tier in state.cold:
            if tier.breaker.tick(now):
                state.index.version += 1
        self._promoter.release_holds(now)
        state.fit_policy()

    def job_done(self, result: JobResult, now: float) -> None:
        """How a job ended. Must come for every Promote, Demote and Migrate; unknown jobs are ignored and counted."""
        job = self.state.jobs.pop(result.job_id)
        if job is None:
            self.state.late_completions += 1
            return
        part = self._promoter if job.kind is JobKind.PROMOTE else self._demoter
        part.done(job, self.state.tiers[job.tier], result, now)
        self.state.index.version += 1
        self.state.fit_policy()

    def take_actions(self) -> list[Action]:
        """Return the actions decided since the last call, for the executor, oldest first."""
        actions = list(self.state.actions)
        self.state.actions.clear()
        return actions

    def take_events(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        events = list(self.state.events)
        self.state.events.clear()
        return events

    def restore(self, tier: str, keys: Iterable[Key], now: float) -> int:
        """Tell what a cold tier's store held when it was opened; return how many chunks fit. Before any request.

        Their paths are not known, so each counts as a root until it goes.
        """
        state, cold = self.state, self._cold(tier)
        nobody: Access[Key] = Access([], state.config.tokens_per_chunk, 0, now)
        surplus = []
        for key in keys:
            admission = cold.policy.admit(nobody, [key], None, now, cold.pinned)
            for victim in admission.victims:
                del cold.index[victim]
            surplus += admission.victims if admission.admitted else [key, *admission.victims]
            if admission.admitted:
                cold.index[key] = READY
        if surplus:
            state.actions.append(Delete(tier, surplus))
        state.index.version += 1
        return len(cold.index)

    def reset(self, now: float) -> None:
        """Start a new epoch: nothing stored so far is ever served again, in any tier.

        Slots of device transfers under way are quarantined for ``reset_quarantine_ticks`` ticks, or until ``flushed``;
        their completions must not be reported. Requests begun before store nothing until they are looked up again.
        """
        self._resets.reset(now)
        if self._write.tracker is not None:
            self._write.tracker.clear()

    def flushed(self, now: float) -> None:
        """All device transfers begun before the last ``reset`` are known to be dead."""
        del now
        self._resets.flushed()

    def evict(self, keys: Collection[Key], now: float) -> dict[str, int]:
        """Give ``keys`` up in every tier; return how many each tier gave up. What is being read goes when it was read.

        Not between a ``lookup`` and the ``tick`` after it. What is being written right now stays.
        """
        state = self.state
        gone = state.index.drop(keys)
        state.policy.remove(gone, now)
        state.emit(state.host.name, TierKind.HOST, gone, removed=True)
        counts = {state.host.name: len(gone)}
        for tier in state.cold:
            left = tier.forget([key for key in keys if tier.readable(key) and key not in tier.reading], now)
            if left:
                state.actions.append(Delete(tier.name, left))
                state.emit(tier.name, tier.spec.kind, left, removed=True)
            counts[tier.name] = len(left)
        state.fit_policy()
        return counts

    def set_mode(self, tier: str, mode: TierMode, now: float, *, why: str = "operator") -> None:
        """Switch a tier off or on. Raises UsageError for an unknown tier or a mode that is not available."""
        state = self.state
        switch = state.host_mode if tier == state.host.name else self._cold(tier).mode
        if switch.set(mode, now, why):
            state.index.version += 1

    def observe_load(self, tier: str, size_bytes: int, seconds: float) -> None:
        """Tell a measured load (the host tier's: to the device). Promotions are measured by their results."""
        self.state.costs.observe_load(tier, size_bytes, seconds)

    def observe_prefill(self, start: int, stop: int, seconds: float) -> None:
        """Tell that the engine computed tokens [start, stop) of one request in ``seconds``."""
        self.state.costs.observe_prefill(start, stop, seconds)

    def stats(self) -> CacheStats:
        """Return a snapshot of sizes and counters. O(tiers)."""
        return snapshot(self.state)

    def tracked_offers(self) -> int:
        """Return how many chunks the tracker of ``store_threshold`` knows."""
        return 0 if self._write.tracker is None else len(self._write.tracker)

    def abandoned_pins(self) -> list[Pin]:
        """Return the loads begun before a reset that may still run."""
        return self._resets.pins()

    def _cold(self, name: str) -> ColdState:
        tier = self.state.tiers.get(name)
        if tier is None:
            known = ", ".join([self.state.host.name, *self.state.tiers])
            raise UsageError(f"there is no tier {name!r} of that kind", fix=f"tiers: {known}")
        return tier


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"tiers need different names, got {', '.join(twice)} more than once")
