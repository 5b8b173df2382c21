"""Sizes and times with units, the form of errors, optional packages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import RequirementError, UsageError, WarmtierError
from warmtier.core.extras import require
from warmtier.core.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0B", 0), ("16GiB", 16 * 2**30), ("1.5 GiB", 3 * 2**29), ("500MB", 500_000_000), ("7kB", 7000), ("2TiB", 2**41)],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "16", "GiB", "-1GiB", "1GiB x", "16gib", "1e3MB", "٣GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert repr(text) in caught.value.message
    assert caught.value.fix


@pytest.mark.parametrize(("text", "expected"), [("250ms", 0.25), ("2h", 7200.0), ("1.5s", 1.5), ("3d", 259_200.0)])
def test_durations(text: str, expected: float) -> None:
    assert parse_duration(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["5", "5m", "s", "-1s", "1 s s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_duration(text)


@given(st.integers(min_value=0, max_value=2**50))
def test_formatted_sizes_parse_again_within_a_twentieth(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == pytest.approx(size_bytes, rel=0.05)


def test_formatted_durations_read_well() -> None:
    assert [format_duration(s) for s in (2e-6, 0.0123, 1.5, 600.0, 90_000.0)] == [
        "2us",
        "12.3ms",
        "1.5s",
        "10min",
        "25h",
    ]


def test_errors_say_what_why_and_how_to_fix() -> None:
    error = WarmtierError("the disk is full", why="200GiB of 200GiB used", fix="raise file.capacity")
    assert str(error) == "the disk is full\n  why: 200GiB of 200GiB used\n  fix: raise file.capacity"
    assert str(WarmtierError("x")) == "x"


def test_a_missing_optional_package_names_its_extra() -> None:
    with pytest.raises(RequirementError) as caught:
        require("warmtier_absent_package", extra="bench", purpose="the load generator")
    assert caught.value.fix == "pip install 'warmtier[bench]'"
    assert require("json", extra="bench", purpose="x").dumps([1]) == "[1]"
