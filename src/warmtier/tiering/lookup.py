"""The read path: how much of a request's path can be loaded, and the pins of what is being loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from warmtier.core.types import Key, MissReason, TierKind, TierMode
from warmtier.tiering.request import Pin, Request
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_miss
from warmtier.tiering.types import Lookup


class ReadPath:
    """Answers lookups and keeps the device's loads pinned. Never blocks; each call costs O(chunks named)."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def lookup(self, request: Request, path: Sequence[Key], start: int, now: float) -> Lookup:
        """See ``TieredCache.lookup``."""
        self._note_path(request, path, start)
        at = (self._state.index.version, len(path), start)
        memo = request.memo
        if memo is not None and request.memo_at == at and not (memo.pending and self._waited(request, now)):
            self._state.index.hold(request.hold_slots)
            return memo
        answer = self._answer(request, start, now)
        request.memo, request.memo_at = answer, at
        if not answer.pending:
            self._count(request, answer, start)
        return answer

    def pin(self, request: Request, keys: Sequence[Key], now: float) -> list[int]:
        """See ``TieredCache.pin_for_load``."""
        state = self._state
        slots = state.index.slots_of(keys)
        array = np.array(slots, dtype=np.intp)
        state.index.ref(array)
        state.index.loads += len(slots)
        request.pins.append(Pin(keys, array, now))
        request.memo, request.counted, request.waiting_since_s = None, False, None
        state.host.policy.touch(request, keys, now)
        request.touched = max(request.touched, request.lookup_start + len(keys))
        return slots

    def load_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool) -> None:
        """See ``TieredCache.load_done``."""
        for pin in self._take_pins(request, keys):
            self._state.index.loads -= len(pin.slots)
            self._state.index.unref(pin.slots)
            self._state.index.version += 1
        if not ok:
            self._load_failed(request, keys, now)
        self._state.fit_policy()

    def _note_path(self, request: Request, path: Sequence[Key], start: int) -> None:
        request.lookup_start = start
        if len(path) > len(request.path):
            request.path.extend(path[len(request.path) :])
        if request.epoch != self._state.epoch:
            # The device cache was reset too: what this request computes from here on belongs to the new epoch.
            request.epoch, request.load_limit = self._state.epoch, None

    def _answer(self, request: Request, start: int, now: float) -> Lookup:
        config, index = self._state.config, self._state.index
        refused = self._refused(request)
        if refused is not None:
            request.hold_slots = []
            return Lookup(0, pending=False, reason=refused, by_tier={})
        path = request.path
        end = len(path) if request.load_limit is None else min(len(path), request.load_limit)
        slots = index.ready_prefix(path[start:end])
        reason = self._stop_reason(request, start + len(slots), end)
        del slots[len(slots) - (start + len(slots)) % config.parts_per_chunk :]
        pending = reason is MissReason.WRITING and not self._wait(request, now)
        if reason is MissReason.WRITING and not pending:
            reason = MissReason.PENDING_DEADLINE
        if not pending and len(slots) // config.parts_per_chunk * config.tokens_per_chunk < config.host_min_tokens:
            slots, reason = [], reason or MissReason.BELOW_MINIMUM
        request.hold_slots = slots
        index.hold(slots)
        return Lookup(len(slots), pending, reason, {TierKind.HOST: len(slots)} if slots else {})

    def _refused(self, request: Request) -> MissReason | None:
        if request.hints.no_load:
            return MissReason.HINT
        return MissReason.TIER_OFF if self._state.host_mode is TierMode.OFF else None

    def _stop_reason(self, request: Request, stop: int, end: int) -> MissReason | None:
        if stop < end:
            return MissReason.WRITING if request.path[stop] in self._state.index.busy else MissReason.ABSENT
        return MissReason.LOAD_FAILED if end < len(request.path) else None

    def _wait(self, request: Request, now: float) -> bool:
        """Start or continue waiting; return whether the request has waited long enough."""
        if request.waiting_since_s is None:
            request.waiting_since_s = now
        return self._waited(request, now)

    def _waited(self, request: Request, now: float) -> bool:
        since = request.waiting_since_s
        return since is not None and now - since >= self._state.config.pending_deadline_s

    def _count(self, request: Request, answer: Lookup, start: int) -> None:
        if request.counted:
            return
        request.counted = True
        self._state.host_counters.hits += answer.usable
        if answer.reason is not None:
            count_miss(self._state.host_counters, answer.reason, len(request.path) - start - answer.usable)

    def _take_pins(self, request: Request, keys: Collection[Key]) -> list[Pin]:
        """Remove and return the pins that ``keys`` complete; a pin completed in part is split."""
        taken: list[Pin] = []
        wanted = keys if isinstance(keys, (set, frozenset)) else set(keys)
        left = len(wanted)
        for pin in list(request.pins):
            if not left:
                break
            inside = [i for i, key in enumerate(pin.keys) if key in wanted]
            if not inside:
                continue
            left -= len(inside)
            request.pins.remove(pin)
            if len(inside) == len(pin.keys):
                taken.append(pin)
                continue
            chosen = set(inside)
            outside = [i for i in range(len(pin.keys)) if i not in chosen]
            taken.append(Pin([pin.keys[i] for i in inside], pin.slots[inside], pin.since_s))
            request.pins.append(Pin([pin.keys[i] for i in outside], pin.slots[outside], pin.since_s))
        self._state.late_completions += max(left, 0)
        return taken

    def _load_failed(self, request: Request, keys: Collection[Key], now: float) -> None:
        """The bytes in the host tier are suspect: forget them, and serve this request nothing from there on."""
        state = self._state
        failed = set(keys)
        first = next((i for i, key in enumerate(request.path) if key in failed), len(request.path))
        limit = first if request.load_limit is None else min(first, request.load_limit)
        request.load_limit = limit - limit % state.config.parts_per_chunk
        gone = state.index.drop(keys)
        state.host.policy.remove(gone, now)
        state.emit(state.host.name, TierKind.HOST, gone, removed=True)
        count_miss(state.host_counters, MissReason.LOAD_FAILED, len(failed))
