"""Speeds: fitted online, read from a file, or none; and what is decided from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmtier.core.errors import ConfigError
from warmtier.core.types import MissReason, Source
from warmtier.tiering.calibration import (
    Calibration,
    LinkSpeed,
    PrefillSpeed,
    decode_calibration,
    encode_calibration,
    read_calibration,
)
from warmtier.tiering.recompute import Costs, Decision, Line, LinkEstimate, Segment

FILE = Calibration(
    1, PrefillSpeed(1e-4, 1e-8), {"host": LinkSpeed(1e10, 1e-3), "nvme": LinkSpeed(1e9, 2e-3)}, machine="test"
)
KV_BYTES = 10_000  # per token


def costs(calibration: Calibration | None = None) -> Costs:
    return Costs("host", calibration, margin=1.25, static_min_tokens=256)


def host(start: int, stop: int) -> Segment:
    return Segment("host", False, start, stop, (stop - start) * KV_BYTES)


def nvme(start: int, stop: int, queued: int = 0) -> Segment:
    return Segment("nvme", True, start, stop, (stop - start) * KV_BYTES, queued)


def test_prefill_grows_with_the_position() -> None:
    speed = PrefillSpeed(1e-4, 1e-6)
    assert speed.seconds(0, 100) == pytest.approx(100 * 1e-4 + 1e-6 * 5000)
    assert speed.seconds(0, 50) + speed.seconds(50, 100) == pytest.approx(speed.seconds(0, 100))
    assert speed.seconds(900, 1000) > speed.seconds(0, 100)


def test_a_line_is_recovered_from_its_points() -> None:
    line = Line()
    for n in range(1, 30):
        line.add(float(n), 1.0, 0.5 * n + 2.0)
    assert line.solve() == pytest.approx((0.5, 2.0))


@pytest.mark.parametrize("points", [[(1.0, 5.0)] * 10, [(float(n), 10.0 - n) for n in range(1, 9)]])
def test_a_line_never_has_negative_costs(points: list[tuple[float, float]]) -> None:
    line = Line()
    for n, seconds in points:
        line.add(n, 1.0, seconds)
    assert min(line.solve()) >= 0.0


def test_a_link_is_known_after_enough_loads() -> None:
    link = LinkEstimate()
    for n in range(1, 8):
        link.add(n << 20, 0.001 + n * 0.002)
    assert link.speed() is None
    link.add(8 << 20, 0.017)
    speed = link.speed()
    assert speed is not None
    assert speed.bytes_per_second == pytest.approx((1 << 20) / 0.002)
    assert speed.fixed_seconds == pytest.approx(0.001)
    link.add(0, 1.0)
    assert link.p95_ratio() is None


def test_the_tail_of_loads_sets_the_deadline() -> None:
    known = costs(FILE)
    for number in range(200):
        known.observe_load("nvme", 1 << 20, 0.05 if number % 10 == 0 else 0.01)
    deadline_s = known.deadline_s("nvme", 1 << 20, 0, floor_s=0.0, cap_s=10.0)
    assert 0.04 < deadline_s < 0.06
    assert known.deadline_s("nvme", 1 << 40, 0, floor_s=0.0, cap_s=10.0) == 10.0
    assert known.deadline_s("nvme", 1, 0, floor_s=0.5, cap_s=10.0) == 0.5
    assert known.deadline_s("other", 1, 0, floor_s=0.5, cap_s=10.0) == 10.0


def test_without_figures_the_static_minimum_decides() -> None:
    assert costs().decide([host(0, 16)]) == Decision(1, None, Source.STATIC)
    assert costs().decide([host(0, 64), nvme(64, 319)]) == Decision(1, MissReason.BELOW_MINIMUM, Source.STATIC)
    assert costs().decide([host(0, 64), nvme(64, 320)]) == Decision(2, None, Source.STATIC)


def test_a_queue_can_make_recomputing_cheaper() -> None:
    known = costs(FILE)
    assert known.decide([nvme(0, 1000)]) == Decision(1, None, Source.CALIBRATION)
    queued = known.decide([nvme(0, 1000, queued=10**9)])
    assert queued == Decision(0, MissReason.RECOMPUTE_CHEAPER, Source.CALIBRATION)


def test_a_short_load_is_not_worth_its_fixed_cost_and_a_long_one_is() -> None:
    known = costs(FILE)
    assert known.decide([nvme(0, 16)]).reason is MissReason.RECOMPUTE_CHEAPER
    assert known.decide([nvme(0, 1600)]).reason is None


def test_only_the_part_that_pays_is_loaded() -> None:
    slow = Calibration(1, PrefillSpeed(1e-4), {"host": LinkSpeed(1e10), "nvme": LinkSpeed(5e7)})
    assert costs(slow).decide([host(0, 500), nvme(500, 900)]) == Decision(
        1, MissReason.RECOMPUTE_CHEAPER, Source.CALIBRATION
    )


def test_online_figures_come_first_and_both_kinds_are_named() -> None:
    known = costs(FILE)
    for n in range(1, 20):
        known.observe_load("nvme", n << 20, n * 1.0)
        known.observe_load("host", n << 20, n * 1e-4)
    assert known.decide([nvme(0, 1000)]).source is Source.CALIBRATION, "prefill is still from the file"
    for n in range(1, 20):
        known.observe_prefill(0, n * 100, n * 0.01)
    assert known.decide([nvme(0, 1000)]) == Decision(0, MissReason.RECOMPUTE_CHEAPER, Source.ONLINE)


def test_a_calibration_file_round_trips(tmp_path: Path) -> None:
    place = tmp_path / "calibration.json"
    place.write_bytes(encode_calibration(FILE))
    assert read_calibration(place) == FILE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "not a calibration"),
        (b'{"version": 2, "prefill": {"seconds_per_token": 1}, "links": {}}', "not a calibration"),
        (b'{"version": 1, "prefill": {"seconds_per_tokn": 1}, "links": {}}', "seconds_per_tokn"),
        (b'{"version": 1, "prefill": {"seconds_per_token": 0}, "links": {}}', "positive"),
        (b'{"version": 1, "prefill": {"seconds_per_token": 1}, "links": {"a": {"bytes_per_second": -1}}}', "'a'"),
    ],
)
def test_a_wrong_calibration_names_its_place(text: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        decode_calibration(text, "here.json")
    assert "here.json" in str(caught.value)


def test_a_missing_calibration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_calibration(tmp_path / "none.json")


def test_now_and_then_a_refused_load_is_made_so_that_it_is_measured_again() -> None:
    known = costs(FILE)
    decisions = [known.decide([nvme(0, 16)]) for _ in range(96)]
    assert [at for at, decision in enumerate(decisions) if decision.reason is None] == [31, 63, 95]
