"""The scheduler's side: drives the ``TieredCache`` for vLLM's ``OffloadingConnector``.

Runs in the EngineCore process, on the scheduler's thread, inside its steps: nothing here may block. vLLM asks for one
chunk at a time, up to tens of thousands of times a step; the cache is asked once per request and step, and the single
questions are answered from that by comparing the chunk's position (the token after its end).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)

from warmtier.core.errors import UsageError
from warmtier.core.types import Key, RequestId
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.cold import ColdTiers
from warmtier.engines.vllm.control import ControlSocket
from warmtier.engines.vllm.hints import parse_hints
from warmtier.engines.vllm.media import allowed_kinds, event_of, hit_source
from warmtier.engines.vllm.metrics import MetricsFeed, Snapshot
from warmtier.engines.vllm.operations import Operations, TenantKeys
from warmtier.engines.vllm.requests import RequestState
from warmtier.engines.vllm.slab import EMPTY, Slab
from warmtier.engines.vllm.specs import HostSlots
from warmtier.engines.vllm.status import StatusLine
from warmtier.engines.vllm.tracking import Exact, Tracker
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.hints import clamp
from warmtier.tiering.request import Request
from warmtier.tiering.types import RequestHints

logger = init_logger("vllm.warmtier")

_RESET_STEPS: Final = 3
_COMPLAIN_EVERY_S: Final = 60.0
HIT, MISS, HIT_PENDING = LookupResult.HIT, LookupResult.MISS, LookupResult.HIT_PENDING


class WarmtierManager(OffloadingManager):  # type: ignore[misc]
    """Answers vLLM's scheduler. Single-threaded: only the scheduler's thread calls it.

    ``slab`` is None only where no worker exists (tests of the scheduler's side).
    """

    def __init__(
        self,
        cache: TieredCache,
        slab: Slab | None,
        feed: MetricsFeed,
        status: StatusLine,
        *,
        cold: ColdTiers | None = None,
        access_log: AccessLog | None = None,
        groups: int = 1,
        log_keys: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._slab = slab
        self._feed = feed
        self._status = status
        self._cold = cold
        self._groups = groups
        self._chunk_tokens = cache.state.config.tokens_per_chunk
        self._tenants = TenantKeys()
        part_bytes = cache.state.config.part_bytes
        self._tracker = Tracker(cache, cache.state.host.slots, chunk_bytes=part_bytes, log=access_log)
        self.operations = Operations(cache, cold, self._tenants, self._tracker.ring, clock)
        if cold is not None:
            cold.filled = self._tracker.filled
        self.control: ControlSocket | None = None
        self._complain_s = 0.0
        self._log_keys = log_keys
        self._clock = clock
        self._step = 0
        self._requests: dict[str, RequestState] = {}
        self._storing: dict[Key, int] = {}
        self._orphaned_loads: list[tuple[int, Request, Sequence[Key], Sequence[int]]] = []
        self._corrupt = 0
        self._announce = True

    # --- requests ---

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Start to keep state for a request."""
        request_id, now = req_context.req_id, self._clock()
        request = self._cache.begin_request(RequestId(request_id), now, hints=self._hints(req_context))
        positions = req_context._offload_key_positions  # noqa: SLF001 - the whole path; vLLM has no public way
        self._requests[request_id] = RequestState(request, positions, self._tracker.begin(now), self._groups)
        return RequestOffloadingContext()

    def _hints(self, context: ReqContext) -> RequestHints:
        """Return what the client asked for; what cannot be used is ignored, counted and logged once in a while."""
        kinds = allowed_kinds(context.load_tier_filter)
        try:
            return clamp(parse_hints(context.kv_transfer_params, kinds), self._cache.state.config)
        except UsageError as error:
            self._tracker.figures.invalid_hints += 1
            if self._clock() >= self._complain_s:
                self._complain_s = self._clock() + _COMPLAIN_EVERY_S
                logger.warning("Hints of request %s are ignored: %s", context.req_id, error.message)
            return parse_hints(None, kinds)

    def note_lengths(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Tell the true lengths of a request that ends; only a connector of our own knows them."""
        state = self._requests.get(request_id)
        if state is not None:
            state.track.exact = Exact(prompt_tokens, output_tokens)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more submissions for this request; completions of what is in flight may still come."""
        state = self._requests[req_context.req_id]
        state.finished = True
        now = self._clock()
        self._tracker.ended(state, now)
        self._cache.end_request(state.request, now)
        self._forget_if_done(req_context.req_id, state)

    def _forget_if_done(self, request_id: str, state: RequestState) -> None:
        if state.finished and not state.in_flight:
            self._requests.pop(request_id, None)

    # --- loading ---

    def lookup(self, key: Key, req_context: ReqContext) -> LookupResult:
        """Say whether a chunk can be loaded. HIT_PENDING defers the request to the next step."""
        state = self._requests[req_context.req_id]
        if state.asked_step != self._step:
            self._ask(state, key)
        position = state.positions[key]
        if state.hit_from <= position <= state.hit_to:
            return HIT
        if position < state.hit_from:
            self._ask(state, key)
            return HIT if position <= state.hit_to else self._not_hit(state, position)
        return self._not_hit(state, position)

    def _ask(self, state: RequestState, key: Key) -> None:
        path, start = state.path_from(key)
        now = self._clock()
        state.request.prompt_tokens = state.request.prompt_tokens or len(path) // self._groups * self._chunk_tokens
        answer = self._cache.lookup(state.request, path, start, now)
        state.note_answer(self._step, start, 0 if answer.pending else answer.usable, pending=answer.pending)
        state.origins = tuple(state.request.origins)
        self._tracker.answered(state, answer, start, now)

    def _not_hit(self, state: RequestState, position: int) -> LookupResult:
        """While the answer is pending the first chunk defers the request and the next ends vLLM's scan."""
        return HIT_PENDING if state.pending and position <= state.pending_to else MISS

    def get_load_source(self, key: Key, req_context: ReqContext) -> str:
        """Name the tier that a hit comes from, in the words of vLLM's ``CacheHitSource`` (0.32 and later ask)."""
        state = self._requests[req_context.req_id]
        return hit_source(state.origin(key)) if state.origins else "host"

    def prepare_load(self, keys: Collection[Key], req_context: ReqContext) -> HostSlots:
        """Pin chunks that ``lookup`` promised in this step and say where they are."""
        state = self._requests[req_context.req_id]
        ordered = state.root_first(keys)
        now = self._clock()
        slots = self._cache.pin_for_load(state.request, ordered, now)
        state.start_load(ordered, slots)
        self._tracker.load_began(state, ordered, slots, now)
        if ordered is not keys:
            by_key = dict(zip(ordered, slots, strict=True))
            slots = [by_key[key] for key in keys]
        return self._host_slots(slots, keys)

    def complete_load(self, keys: Collection[Key], req_context: ReqContext) -> None:
        """The load has ended, well or not: the slab says which. ``keys`` are those of the one load in flight."""
        del keys
        state = self._requests[req_context.req_id]
        loaded, slots = state.end_load()
        self._tracker.load_ended(state, len(loaded), self._clock())
        self._finish_load(state.request, loaded, slots)
        self._forget_if_done(req_context.req_id, state)

    def _finish_load(self, request: Request, keys: Sequence[Key], slots: Sequence[int]) -> None:
        now = self._clock()
        good, bad = self._split_by_status(keys, slots)
        if bad:
            self._corrupt += len(bad)
            self._cache.load_done(request, bad, now, ok=False)
        if good:
            self._cache.load_done(request, good, now)

    # --- storing ---

    def prepare_store(self, keys: Collection[Key], req_context: ReqContext) -> PrepareStoreOutput:
        """Decide which freshly computed chunks are stored, and where. Empty means none; None would be asked again."""
        state = self._requests[req_context.req_id]
        offered, start = state.consecutive(keys)
        offer = self._cache.offer(state.request, offered, start, self._clock())
        self._tracker.offered(state, offer, start, len(offered))
        self._tenants.stored(state.request.tenant, offer.keys)
        stored, slots = state.engine_order(offer.keys, offer.slots)
        if stored:
            self._storing.update(zip(stored, slots, strict=True))
            state.stores += 1
            if self._slab is not None:
                self._slab.mark(slots, EMPTY)
        return PrepareStoreOutput(stored, self._host_slots(slots, stored), offer.evicted)

    def complete_store(self, keys: Collection[Key], req_context: ReqContext, success: bool = True) -> None:
        """The store has ended; vLLM always says it succeeded, the slab says whether it did."""
        state = self._requests[req_context.req_id]
        now = self._clock()
        done = list(keys)
        slots = list(map(self._storing.pop, done))
        good, bad = self._split_by_status(done, slots) if success else ([], done)
        if bad:
            self._cache.store_done(state.request, bad, now, ok=False)
        if good:
            self._cache.store_done(state.request, good, now)
        state.stores -= 1
        self._forget_if_done(req_context.req_id, state)

    def _split_by_status(self, keys: Sequence[Key], slots: Sequence[int]) -> tuple[Sequence[Key], Sequence[Key]]:
        if self._slab is None:
            return keys, ()
        failed = self._slab.failed(slots)
        if not failed.any():
            return keys, ()
        flags = failed.tolist()
        good = [key for key, bad in zip(keys, flags, strict=True) if not bad]
        return good, [key for key, bad in zip(keys, flags, strict=True) if bad]

    def _host_slots(self, slots: Sequence[int], keys: Collection[Key]) -> HostSlots:
        return HostSlots(slots, tuple(keys) if self._log_keys else ())

    # --- the step ---

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """End the scheduling pass."""
        del context
        now = self._clock()
        self._step += 1
        if self._cold is not None:
            self._cold.pump(now)
        self._cache.tick(now)
        self._release_orphaned_loads()
        self._tracker.step_begins(now)
        if self.control is not None:
            self.control.serve()
        self._status.tick(self._cache, now)

    def has_pending_work(self) -> bool:
        """Ask for a step: at start, so that every metric is there, and while something ends soon. Called in every step.

        Without requests vLLM then makes an empty step and sleeps for a millisecond. Jobs of which none ends for
        seconds are not waited for; the next request's steps take their results.
        """
        if self.control is not None and self.control.serve():
            self._announce = True
        cold = self._cold
        if cold is not None:
            now = self._clock()
            cold.pump(now)
            if cold.changed or cold.pending(now):
                return True
        return self._announce or bool(self._orphaned_loads)

    def get_stats(self) -> Any:  # noqa: ANN401 - vLLM's OffloadingConnectorStats
        """Return what changed since the last step."""
        self._announce = False
        if self._cold is not None:
            self._cold.changed = False
        self._tracker.step_ended(self._clock())
        tracker = self._tracker
        return self._feed.take(
            Snapshot(self._cache.stats(), self._corrupt, tracker.figures, self._cold, tracker.dropped)
        )

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return what became readable or left the tiers, for KV-aware routers."""
        for event in self._cache.take_events():
            yield event_of(event)

    # --- control ---

    def reset_cache(self) -> None:
        """Forget everything. vLLM drops the completions of transfers in flight, so their pins end here, a little later.

        vLLM has the workers finish those transfers before they run the next step's; only then are their slots reused.
        """
        now = self._clock()
        self._cache.reset(now)
        if self._cold is not None:
            self._cold.reset(now)
        self._storing.clear()
        self._tenants.clear()
        for request_id, state in list(self._requests.items()):
            state.stores = 0
            if state.loading:
                self._orphaned_loads.append((self._step + _RESET_STEPS, state.request, *state.end_load()))
            self._forget_if_done(request_id, state)

    def _release_orphaned_loads(self) -> None:
        while self._orphaned_loads and self._orphaned_loads[0][0] <= self._step:
            _, request, keys, slots = self._orphaned_loads.pop(0)
            self._finish_load(request, keys, slots)

    def shutdown(self) -> None:
        """Seal the cold tiers (bounded) and let go of the slab."""
        if self.control is not None:
            self.control.close()
            self.control = None
        if self._cold is not None:
            self._cold.close()
            self._cold = None
        self._tracker.close()
        if self._slab is not None:
            self._slab.close()
            self._slab = None
