"""The mode of one tier and why it has it. Pure: time is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from warmtier.core.errors import UsageError
from warmtier.core.types import TierMode

_REMEMBERED: Final = 32
AVAILABLE: Final = (TierMode.OFF, TierMode.ON)
"""Modes that can be set today; ``observe`` and ``canary`` need a comparison that does not exist yet."""


@dataclass(frozen=True, slots=True)
class ModeChange:
    """One entry of the journal."""

    at_s: float
    before: TierMode
    after: TierMode
    why: str


class ModeSwitch:
    """A tier's mode with a bounded journal of its changes."""

    def __init__(self, mode: TierMode = TierMode.ON) -> None:
        self.mode = mode
        self.journal: deque[ModeChange] = deque(maxlen=_REMEMBERED)

    @property
    def on(self) -> bool:
        """Whether the tier serves and stores."""
        return self.mode is TierMode.ON

    def set(self, mode: TierMode, now: float, why: str) -> bool:
        """Change the mode; return whether it was another. Raises UsageError for a mode that cannot be set."""
        if mode not in AVAILABLE:
            known = " or ".join(m.value for m in AVAILABLE)
            raise UsageError(f"mode {mode.value!r} is not available", fix=f"use {known}")
        if mode is self.mode:
            return False
        self.journal.append(ModeChange(now, self.mode, mode, why))
        self.mode = mode
        return True
