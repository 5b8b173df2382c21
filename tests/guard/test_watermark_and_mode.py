from __future__ import annotations

import pytest

from warmtier.core.errors import UsageError
from warmtier.core.types import TierMode
from warmtier.guard.mode import ModeSwitch
from warmtier.guard.watermark import Watermark


def test_a_watermark_holds_until_the_low_mark() -> None:
    mark = Watermark(high=0.9, low=0.5)
    seen = [mark.update(value) for value in (0.8, 0.9, 0.6, 0.51, 0.5, 0.8, 0.95)]
    assert seen == [False, True, True, True, False, False, True]
    assert mark.activations == 2


def test_marks_that_cannot_act_are_refused() -> None:
    with pytest.raises(ValueError, match="low < high"):
        Watermark(high=0.5, low=0.5)


def test_a_mode_change_is_journalled_once() -> None:
    switch = ModeSwitch()
    assert switch.set(TierMode.OFF, 3.0, "operator")
    assert not switch.set(TierMode.OFF, 4.0, "operator")
    assert [(c.at_s, c.before, c.after, c.why) for c in switch.journal] == [
        (3.0, TierMode.ON, TierMode.OFF, "operator")
    ]
    assert not switch.on


@pytest.mark.parametrize("mode", [TierMode.OBSERVE, TierMode.CANARY])
def test_modes_without_a_judge_are_refused(mode: TierMode) -> None:
    with pytest.raises(UsageError, match="not available"):
        ModeSwitch().set(mode, 0.0, "operator")


def test_the_journal_is_bounded() -> None:
    switch = ModeSwitch()
    for step in range(100):
        switch.set(TierMode.OFF if switch.on else TierMode.ON, float(step), "flap")
    assert len(switch.journal) == 32
    assert switch.journal[-1].at_s == 99.0
