"""``TieredCache``: which chunk is where, what to load, what to store, what to give up. Sans-IO."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from warmtier.core.errors import UsageError
from warmtier.core.types import Key, RequestId, TierMode
from warmtier.tiering.lookup import ReadPath
from warmtier.tiering.offer import WritePath
from warmtier.tiering.request import Request
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import CacheStats, TierStats
from warmtier.tiering.types import NO_HINTS, Action, Event, JobResult, Lookup, Offer, RequestHints


class TieredCache:
    """The state machine that every driver shares: the vLLM manager, the transformers engine and the simulator.

    It reads no clock, touches no bytes, takes no lock and never blocks: every call takes ``now`` (seconds, never going
    back), answers at once and leaves *actions* for an executor. Single-threaded.

    Order per request: ``begin_request``, any number of ``lookup``, ``pin_for_load`` .. ``load_done``, ``offer`` ..
    ``store_done``, ``end_request``; completions may arrive after the end. ``tick`` ends a scheduling pass: what a
    ``lookup`` promised is protected from eviction until then. A path interleaves the parts of a chunk (KV groups) by
    position, and every count answered is a whole number of chunks.
    """

    def __init__(self, config: CacheConfig, host: HostTier, cold: Sequence[ColdTier] = ()) -> None:
        self._state = CacheState(config, host)
        if cold:
            raise UsageError("tiers below the host are not built yet")
        self._read = ReadPath(self._state)
        self._write = WritePath(self._state)
        self._resets: list[tuple[int, list[int]]] = []
        self._state.fit_policy()

    # --- requests ---

    def begin_request(
        self, request_id: RequestId, now: float, *, prompt_tokens: int | None = None, hints: RequestHints = NO_HINTS
    ) -> Request:
        """Announce a request; hand the returned object to all later calls."""
        config = self._state.config
        request = Request(
            path=[],
            tokens_per_chunk=config.tokens_per_chunk,
            prompt_tokens=prompt_tokens or 0,
            started_s=now,
            tenant=hints.tenant,
            session=hints.session,
            request_id=request_id,
            hints=hints,
            epoch=self._state.epoch,
        )
        self._state.requests[request_id] = request
        self._state.host.policy.begin(request, now)
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
        return self._read.pin(request, keys, now)

    def load_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        """A load of pinned ``keys`` (in any order) has ended. Not ``ok``: they are forgotten and never served again."""
        self._read.load_done(request, keys, now, ok=ok)

    def offer(self, request: Request, keys: Sequence[Key], start: int, now: float) -> Offer:
        """Decide on storing ``keys``: consecutive chunks of the request's path from index ``start``, on the device now.

        Device hits may be offered too. Extends the request's path.
        """
        return self._write.offer(request, keys, start, now)

    def store_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        """The stores of ``keys`` (in any order) into their slots have ended."""
        del request
        self._write.store_done(keys, now, ok=ok)
        self._state.fit_policy()

    def end_request(self, request: Request, now: float) -> None:
        """The request is over; its path counts as used now. Idempotent."""
        if request.ended:
            return
        request.ended = True
        request.memo = None
        self._state.requests.pop(request.request_id, None)
        self._state.host.policy.finish(request, now)

    # --- time, jobs, control ---

    def tick(self, now: float) -> None:
        """End a scheduling pass: promises of lookups end, deadlines are checked."""
        del now
        state = self._state
        state.ticks += 1
        state.index.release_holds()
        while self._resets and self._resets[0][0] <= state.ticks:
            state.index.release(self._resets.pop(0)[1])
            state.fit_policy()

    def job_done(self, result: JobResult, now: float) -> None:
        """An action's outcome. Unknown jobs are ignored and counted."""
        del result, now
        self._state.late_completions += 1

    def take_actions(self) -> list[Action]:
        """Return the actions decided since the last call, for the executor, oldest first."""
        actions = list(self._state.actions)
        self._state.actions.clear()
        return actions

    def take_events(self) -> list[Event]:
        """Return the events since the last call, oldest first."""
        events = list(self._state.events)
        self._state.events.clear()
        return events

    def reset(self, now: float) -> None:
        """Start a new epoch: nothing stored so far is ever served again. Device transfers in flight are quarantined."""
        del now
        state = self._state
        state.epoch += 1
        suspect = state.index.reset()
        state.host.policy.clear()
        self._resets.append((state.ticks + state.config.reset_quarantine_ticks, suspect))
        state.fit_policy()

    def set_mode(self, tier: str, mode: TierMode, now: float) -> None:
        """Switch a tier off or on. Raises UsageError for an unknown tier or a mode that is not available."""
        del now
        if tier != self._state.host.name:
            raise UsageError(f"there is no tier {tier!r}", fix=f"tiers: {self._state.host.name}")
        if mode not in (TierMode.OFF, TierMode.ON):
            raise UsageError(f"mode {mode.value!r} is not available", fix="use off or on")
        self._state.host_mode = mode
        self._state.index.version += 1

    def stats(self) -> CacheStats:
        """Return a snapshot of sizes and counters. O(tiers)."""
        state, allocator = self._state, self._state.index.allocator
        host = TierStats(
            mode=state.host_mode,
            capacity=state.host.slots,
            resident=len(state.index.ready),
            writing=len(state.index.busy),
            reading=state.index.loads,
            quarantined=allocator.quarantined_slots,
            counters=state.host_counters,
        )
        return CacheStats(
            epoch=state.epoch,
            requests=len(state.requests),
            late_completions=state.late_completions,
            dropped_events=state.dropped_events,
            tiers={state.host.name: host},
        )
