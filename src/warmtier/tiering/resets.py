"""Epochs: making everything unreachable at once, and knowing when the slots of old transfers are safe again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from warmtier.tiering.demote import Demoter
from warmtier.tiering.loads import Loads
from warmtier.tiering.promote import Promoter
from warmtier.tiering.request import Pin
from warmtier.tiering.state import CacheState
from warmtier.tiering.types import Clear


@dataclass(slots=True)
class _Old:
    """Device transfers of one earlier epoch, dead at a tick."""

    tick: int
    written: list[int]
    read: list[Pin]


class Resets:
    """Starts epochs. Slots of jobs wait for ``job_done``, those of device transfers for ticks or ``flushed``."""

    def __init__(self, state: CacheState, loads: Loads, promoter: Promoter, demoter: Demoter) -> None:
        self._state = state
        self._loads = loads
        self._promoter = promoter
        self._demoter = demoter
        self._old: deque[_Old] = deque()

    def reset(self, now: float) -> None:
        """Begin a new epoch."""
        state = self._state
        self._demoter.reset()
        self._promoter.reset()
        read = self._loads.abandon()
        written = state.index.reset()
        state.policy.clear()
        state.epoch += 1
        self._old.append(_Old(state.ticks + state.config.reset_quarantine_ticks, written, read))
        for tier in state.cold:
            keys, tier.index = tier.index.keys(), {}
            state.actions.append(Clear(tier.name, keys))
            tier.policy.clear()
            tier.reading.clear()
            tier.leaving.clear()
            if tier.parents is not None:
                tier.parents.clear()
        state.fit_policy()
        del now

    def pins(self) -> list[Pin]:
        """Return the loads of earlier epochs not yet known dead."""
        return [pin for old in self._old for pin in old.read]

    def tick(self) -> None:
        """Release what is known dead by now."""
        while self._old and self._old[0].tick <= self._state.ticks:
            self._release(self._old.popleft())

    def flushed(self) -> None:
        """All device transfers of earlier epochs are known dead."""
        while self._old:
            self._release(self._old.popleft())

    def _release(self, old: _Old) -> None:
        self._state.index.release(old.written)
        for pin in old.read:
            self._state.index.end_load(pin.slots)
        self._state.fit_policy()
