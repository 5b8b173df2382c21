"""The write path into the host tier: which freshly computed chunks are stored, in which slots, at whose cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from warmtier.core.types import Key, StoreOutcome, TierKind, TierMode
from warmtier.policy.admission import Candidates, TierState
from warmtier.tiering.request import Request
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_store
from warmtier.tiering.types import Offer


class WritePath:
    """Answers offers. Never blocks; each call costs O(chunks named) plus the policy's cost of its victims."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def offer(self, request: Request, keys: Sequence[Key], start: int, now: float) -> Offer:
        """See ``TieredCache.offer``."""
        offer = Offer([], [], [], {})
        extend_path(request.path, keys, start)
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
            state.host.policy.remove(done, now)
            count_store(counters, StoreOutcome.FAILED, len(done))
        state.late_completions += len(keys) - len(done)

    def _allowed(self, request: Request, keys: Sequence[Key], start: int, offer: Offer) -> Sequence[Key]:
        """Return the leading keys that settings and hints let in; count the others."""
        refused = self._refused(request)
        if refused is not None:
            _count(offer, refused, len(keys))
            return []
        limit = self._prompt_limit(request)
        if limit is None or start + len(keys) <= limit:
            return keys
        allowed = keys[: max(0, limit - start)]
        _count(offer, StoreOutcome.REFUSED_DECODE, len(keys) - len(allowed))
        return allowed

    def _refused(self, request: Request) -> StoreOutcome | None:
        if self._state.host_mode is TierMode.OFF:
            return StoreOutcome.TIER_OFF
        if request.hints.no_store:
            return StoreOutcome.REFUSED_HINT
        # Computed before a reset: these bytes belong to the old epoch.
        return StoreOutcome.REFUSED_EPOCH if request.epoch != self._state.epoch else None

    def _prompt_limit(self, request: Request) -> int | None:
        config = self._state.config
        if not config.offload_prompt_only or not request.prompt_tokens:
            return None
        return request.prompt_tokens // config.tokens_per_chunk * config.parts_per_chunk

    def _note_present(
        self, request: Request, keys: Sequence[Key], absent: Sequence[Key], start: int, offer: Offer, now: float
    ) -> None:
        """Count what is there already and tell the policy of its use, once per request."""
        if len(absent) == len(keys):
            return
        _count(offer, StoreOutcome.PRESENT, len(keys) - len(absent))
        fresh = keys[max(0, request.touched - start) :]
        if fresh:
            self._state.host.policy.touch(request, fresh, now)
            request.touched = start + len(keys)

    def _store(
        self, request: Request, keys: Sequence[Key], absent: list[Key], start: int, offer: Offer, now: float
    ) -> None:
        left = len(absent)
        for at, run in _runs(keys, absent, start):
            stored, reason = self._store_run(request, run, at, offer, now)
            left -= stored
            _count(offer, StoreOutcome.STORED, stored)
            if reason is not None:
                _count(offer, reason, len(run) - stored)
                _count(offer, StoreOutcome.REFUSED_ORPHAN, left - (len(run) - stored))
                return

    def _store_run(
        self, request: Request, run: list[Key], at: int, offer: Offer, now: float
    ) -> tuple[int, StoreOutcome | None]:
        """Store a run of absent chunks; return how many, and why the next was not (None: all were)."""
        state = self._state
        parent = request.path[at - 1] if at else None
        if parent is not None and parent not in state.index:
            return 0, StoreOutcome.REFUSED_ORPHAN
        candidates, reason = self._filter(request, run, at, now)
        if not candidates:
            return 0, reason
        admission = state.host.policy.admit(request, candidates, parent, now, state.index.pinned())
        admitted = admission.admitted - (at + admission.admitted) % state.config.parts_per_chunk
        if admitted < admission.admitted:
            admitted = max(0, admitted)
            state.host.policy.remove(candidates[admitted : admission.admitted], now)
        reuse = self._evict(admission.victims, offer)
        stored = candidates[:admitted]
        offer.keys += stored
        offer.slots += state.index.start(stored, reuse)
        if admitted < len(candidates):
            by_value = admission.refused_by_value
            return admitted, StoreOutcome.REFUSED_POLICY if by_value else StoreOutcome.NO_ROOM
        return admitted, reason

    def _filter(self, request: Request, run: list[Key], at: int, now: float) -> tuple[list[Key], StoreOutcome | None]:
        state = self._state
        if state.host.admit is None:
            return run, None
        tier = TierState(state.host.policy.capacity, len(state.host.policy))
        verdict = state.host.admit.judge(request, Candidates(run, [0] * len(run), at), tier, now)
        admitted = verdict.admitted - (at + verdict.admitted) % state.config.parts_per_chunk
        return run[: max(0, admitted)], verdict.reason

    def _evict(self, victims: list[Key], offer: Offer) -> list[int]:
        if not victims:
            return []
        state = self._state
        slots = state.index.evict(victims)
        state.host_counters.evictions += len(victims)
        state.emit(state.host.name, TierKind.HOST, victims, removed=True)
        offer.evicted += victims
        return slots


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
