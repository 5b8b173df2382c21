"""Loads from host slots to the device: pins while they run, consequences when they fail."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from warmtier.core.types import Key, MissReason, TierKind
from warmtier.tiering.promote import Promoter
from warmtier.tiering.request import Pin, Request
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_miss


class Loads:
    """Pins what the device reads. O(chunks named)."""

    def __init__(self, state: CacheState, promoter: Promoter) -> None:
        self._state = state
        self._promoter = promoter

    def pin(self, request: Request, keys: Sequence[Key], now: float) -> list[int]:
        """See ``TieredCache.pin_for_load``."""
        state = self._state
        slots = state.index.slots_of(keys)
        array = np.array(slots, dtype=np.intp)
        state.index.start_load(array)
        request.pins.append(Pin(keys, array, now))
        state.loading.add(request)
        request.new_wait()
        request.conflict_since_s = None
        self._promoter.release(request)
        request.key_index = request.lookup_start
        state.policy.touch(request, keys, now)
        request.touched = max(request.touched, request.lookup_start + len(keys))
        return slots

    def done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool) -> None:
        """See ``TieredCache.load_done``."""
        pins = self._take_pins(request, keys)
        for pin in pins:
            self._state.index.end_load(pin.slots)
        if not request.pins:
            self._state.loading.discard(request)
        if not ok and pins:
            self._failed(request, [key for pin in pins for key in pin.keys], now)

    def abandon(self) -> list[Pin]:
        """A new epoch: return the pins whose loads may still run; later completions of theirs are unknown."""
        pins = [pin for request in self._state.loading for pin in request.pins]
        for request in self._state.loading:
            request.pins.clear()
        self._state.loading.clear()
        return pins

    def _take_pins(self, request: Request, keys: Collection[Key]) -> list[Pin]:
        """Remove and return the pins that ``keys`` complete; a pin completed in part is split."""
        taken: list[Pin] = []
        wanted = keys if isinstance(keys, (set, frozenset)) else set(keys)
        left = len(wanted)
        for pin in list(request.pins):
            if not left:
                break
            if len(pin.keys) <= left and wanted.issuperset(pin.keys):
                inside = len(pin.keys)
                part = pin
            else:
                at = [i for i, key in enumerate(pin.keys) if key in wanted]
                if not at:
                    continue
                inside = len(at)
                chosen = set(at)
                out = [i for i in range(len(pin.keys)) if i not in chosen]
                part = Pin([pin.keys[i] for i in at], pin.slots[at], pin.since_s)
                request.pins.append(Pin([pin.keys[i] for i in out], pin.slots[out], pin.since_s))
            request.pins.remove(pin)
            taken.append(part)
            left -= inside
        self._state.late_completions += max(left, 0)
        return taken

    def _failed(self, request: Request, keys: Sequence[Key], now: float) -> None:
        """The bytes in the host tier are suspect: forget them, and serve this request nothing from there on."""
        state = self._state
        failed = set(keys)
        first = next((i for i, key in enumerate(request.path) if key in failed), len(request.path))
        request.limit(first - first % state.config.parts_per_chunk, MissReason.LOAD_FAILED)
        gone = state.index.drop(keys)
        state.policy.remove(gone, now)
        state.emit(state.host.name, TierKind.HOST, gone, removed=True)
        count_miss(state.host_counters, MissReason.LOAD_FAILED, len(failed))
