"""Slots of the host tier's slab. The bytes live in the engine's own slab; here is only who owns which slot.

Pure bookkeeping: no I/O, no locks. One owner (the tiered cache) calls it from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from warmtier.core.errors import InternalError

_FREE: Final = 0
_USED: Final = 1
_QUARANTINED: Final = 2


class SlotAllocator:
    """A free list over ``slots`` numbered places. Every call costs O(slots named), never O(slots).

    The slot freed last is handed out first: its memory is likely still in the processor's cache. A slot freed twice,
    or one that does not exist, raises InternalError and changes nothing.
    """

    def __init__(self, slots: int) -> None:
        if slots < 0:
            raise InternalError(f"a slab cannot have {slots} slots")
        self._state = bytearray(slots)
        self._free = list(range(slots - 1, -1, -1))
        self._quarantined = 0

    @property
    def slots(self) -> int:
        """All slots, whatever their state."""
        return len(self._state)

    @property
    def free_slots(self) -> int:
        """Slots that ``allocate`` can hand out now."""
        return len(self._free)

    @property
    def quarantined_slots(self) -> int:
        """Slots withheld because a transfer into them may still be running."""
        return self._quarantined

    @property
    def used_slots(self) -> int:
        """Slots handed out and neither freed nor quarantined."""
        return len(self._state) - len(self._free) - self._quarantined

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` slots, or all that are left if those are fewer."""
        free = self._free
        take = min(count, len(free))
        if take <= 0:
            return []
        taken = free[-take:]
        del free[-take:]
        taken.reverse()
        self._mark(taken, _USED)
        return taken

    def free(self, slots: Sequence[int]) -> None:
        """Take back slots that are in use."""
        self._move(slots, _USED, _FREE)
        self._free.extend(reversed(slots))

    def quarantine(self, slots: Sequence[int]) -> None:
        """Withhold slots in use whose transfer timed out, until ``release``."""
        self._move(slots, _USED, _QUARANTINED)
        self._quarantined += len(slots)

    def release(self, slots: Sequence[int]) -> None:
        """Free quarantined slots: their transfer is known to be dead."""
        self._move(slots, _QUARANTINED, _FREE)
        self._quarantined -= len(slots)
        self._free.extend(reversed(slots))

    def _move(self, slots: Sequence[int], before: int, after: int) -> None:
        state = self._state
        for position, slot in enumerate(slots):
            if not 0 <= slot < len(state) or state[slot] != before:
                self._mark(slots[:position], before)
                raise InternalError(f"slot {slot} of {len(state)}: expected {_name(before)}, {_found(state, slot)}")
            state[slot] = after

    def _mark(self, slots: Sequence[int], value: int) -> None:
        state = self._state
        for slot in slots:
            state[slot] = value


def _found(state: bytearray, slot: int) -> str:
    return f"found {_name(state[slot])}" if 0 <= slot < len(state) else "it does not exist"


def _name(state: int) -> str:
    return ("free", "used", "quarantined")[state]
