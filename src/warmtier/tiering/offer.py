"""The write path into the host tier: which freshly computed chunks are stored, in which slots, at whose cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from warmtier.core.types import DEFAULT_PRIORITY, Key, StoreOutcome, TierKind
from warmtier.policy.admission import Candidates, TierState
from warmtier.tiering.evict import HostEviction
from warmtier.tiering.hints import asks
from warmtier.tiering.request import Request
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_store
from warmtier.tiering.threshold import OfferTracker
from warmtier.tiering.types import Offer


class WritePath:
    """Answers offers. Never blocks; each call costs O(chunks named) plus the policy's cost of its victims."""

    def __init__(self, state: CacheState, eviction: HostEviction) -> None:
        self._state = state
        self._eviction = eviction
        config = state.config
        self.tracker: OfferTracker | None = None
        if config.store_threshold > 1:
            self.tracker = OfferTracker(config.store_threshold, config.max_tracker_size)

    def offer(self, request: Request, keys: Sequence[Key], start: int, now: float) -> Offer:
        """See ``TieredCache.offer``."""
        offer = Offer([], [], [], {})
        extend_path(request.path, keys, start)
        if self.tracker is not None:
            self.tracker.record(keys)
        allowed = self._allowed(request, keys, start, offer)
        absent = self._state.index.absent(allowed)
        self._note_present(request, allowed, absent, start, offer, now)
        if absent:
            self._store(request, allowed, absent, start, offer, now)
        for outcome, count in offer.outcomes.items():
            count_store(self._state.host_counters, outcome, count)
        return offer

    def store_done(self, keys: Collection[Key], now: float, *, ok: bool) -> None:
        """See ``TieredCache.store_done``."""
        state = self._state
        counters = state.host_counters
        if ok:
            done = state.index.finish(keys)
            state.emit(state.host.name, TierKind.HOST, done, removed=False)
        else:
            done = state.index.fail(keys)
            state.policy.remove(done, now)
            count_store(counters, StoreOutcome.FAILED, len(done))
        state.late_completions += len(keys) - len(done)

    def _allowed(self, request: Request, keys: Sequence[Key], start: int, offer: Offer) -> Sequence[Key]:
        """Return the leading keys that settings and hints let in; count the others."""
        refused = self._refused(request)
        if refused is not None:
            _count(offer, refused, len(keys))
            return []
        self._find_limit(request, start + len(keys))
        limit = request.store_limit
        if limit is None or start + len(keys) <= limit:
            return keys
        allowed = keys[: max(0, limit - start)]
        _count(offer, request.store_reason or StoreOutcome.REFUSED_HINT, len(keys) - len(allowed))
        return allowed

    def _refused(self, request: Request) -> StoreOutcome | None:
        if not self._state.host_mode.on:
            return StoreOutcome.TIER_OFF
        if request.hints.no_store:
            return StoreOutcome.REFUSED_HINT
        # Computed before a reset: these bytes belong to the old epoch.
        return StoreOutcome.REFUSED_EPOCH if request.epoch != self._state.epoch else None

    def _find_limit(self, request: Request, end: int) -> None:
        """Find where the request's stores stop: after the prompt, or at the first chunk of too low a priority."""
        config, parts = self._state.config, self._state.config.parts_per_chunk
        if request.checked == 0 and config.offload_prompt_only and request.prompt_tokens:
            request.store_limit = request.prompt_tokens // config.tokens_per_chunk * parts
            request.store_reason = StoreOutcome.REFUSED_DECODE
        stop = end if request.store_limit is None else min(end, request.store_limit)
        if config.offload_min_priority > 0 and not self._all_default(request):
            for index in range(request.checked, stop, parts):
                if self._state.wishes.priority(request, index) < config.offload_min_priority:
                    request.store_limit, request.store_reason = index, StoreOutcome.REFUSED_PRIORITY
                    break
        request.checked = max(request.checked, end)

    def _all_default(self, request: Request) -> bool:
        default_passes = self._state.config.offload_min_priority <= DEFAULT_PRIORITY
        return default_passes and not asks(request.hints)

    def _note_present(
        self, request: Request, keys: Sequence[Key], absent: Sequence[Key], start: int, offer: Offer, now: float
    ) -> None:
        """Count what is there already and tell the policy of its use, once per request."""
        if len(absent) == len(keys):
            return
        _count(offer, StoreOutcome.PRESENT, len(keys) - len(absent))
        skip = max(0, request.touched - start)
        if skip < len(keys):
            request.key_index = start + skip
            self._state.policy.touch(request, keys[skip:], now)
            request.touched = start + len(keys)

    def _store(
        self, request: Request, keys: Sequence[Key], absent: list[Key], start: int, offer: Offer, now: float
    ) -> None:
        left = len(absent)
        for at, run in _runs(keys, absent, start):
            stored, reason = self._store_run(request, run, at, offer, now)
            _count(offer, StoreOutcome.STORED, stored)
            left -= stored
            if reason is not None:
                _count(offer, reason, len(run) - stored)
                _count(offer, StoreOutcome.REFUSED_ORPHAN, left - (len(run) - stored))
                return

    def _store_run(
        self, request: Request, run: list[Key], at: int, offer: Offer, now: float
    ) -> tuple[int, StoreOutcome | None]:
        """Store a run of absent chunks; return how many, and why the next was not (None: all were)."""
        parent = request.path[at - 1] if at else None
        if parent is not None and parent not in self._state.index:
            return 0, StoreOutcome.REFUSED_ORPHAN
        candidates, reason = self._filter(request, run, at, now)
        if not candidates:
            return 0, reason
        room = self._eviction.make_room(request, candidates, at, now)
        offer.keys += candidates[: len(room.slots)]
        offer.slots += room.slots
        offer.evicted += room.evicted
        return len(room.slots), room.reason or reason

    def _filter(self, request: Request, run: list[Key], at: int, now: float) -> tuple[list[Key], StoreOutcome | None]:
        """Apply the threshold of offers and the tier's admission filter."""
        state = self._state
        reason: StoreOutcome | None = None
        if self.tracker is not None:
            ripe = self.tracker.ripe(run)
            if ripe < len(run):
                run, reason = run[: state.whole_chunks(ripe, len(run), at)], StoreOutcome.REFUSED_TOUCH
        if state.host.admit is None or not run:
            return run, reason
        candidates = Candidates(run, [0] * len(run), at, state.wishes.priorities(request, at, len(run)))
        fullness = TierState(state.policy.capacity, len(state.policy))
        verdict = state.host.admit.judge(request, candidates, fullness, now)
        if verdict.admitted < len(run):
            return run[: state.whole_chunks(verdict.admitted, len(run), at)], verdict.reason
        return run, reason


def extend_path(path: list[Key], keys: Sequence[Key], start: int) -> None:
    """Append what ``keys`` (from index ``start``) tell beyond the known path."""
    known = len(path)
    if start <= known < start + len(keys):
        path.extend(keys[known - start :])


def _runs(keys: Sequence[Key], absent: list[Key], start: int) -> list[tuple[int, list[Key]]]:
    """Split ``absent``, a subsequence of ``keys``, into runs that are consecutive on the path, with their index."""
    if len(absent) == len(keys):
        return [(start, absent)]
    runs: list[tuple[int, list[Key]]] = []
    wanted = set(absent)
    open_run: list[Key] | None = None
    for index, key in enumerate(keys, start):
        if key not in wanted:
            open_run = None
        elif open_run is None:
            open_run = [key]
            runs.append((index, open_run))
        else:
            open_run.append(key)
    return runs


def _count(offer: Offer, outcome: StoreOutcome, count: int) -> None:
    if count > 0:
        offer.outcomes[outcome] = offer.outcomes.get(outcome, 0) + count
