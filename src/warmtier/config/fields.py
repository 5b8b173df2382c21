"""Field types of the configuration: sizes and times with units, and how they are written back exactly."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from warmtier.core.errors import UsageError
from warmtier.core.units import parse_duration, parse_size

_SIZE_UNITS: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_TIME_UNITS: Final = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6))


class ExactSize(int):
    """Bytes that came through ``parse_size`` already; lets defaults and re-validation pass without a unit."""


class ExactDuration(float):
    """Seconds that came through ``parse_duration`` already."""


def write_size(size_bytes: int) -> str:
    """Return ``size_bytes`` in the largest unit that divides it, so that nothing is rounded."""
    for unit, scale in _SIZE_UNITS:
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return f"{size_bytes}B"


def write_duration(seconds: float) -> str:
    """Return ``seconds`` in the largest unit that makes it a whole number; exact to the nanosecond."""
    for unit, scale in _TIME_UNITS:
        value = round(seconds / scale, 6)
        if value >= 1 and value == int(value):
            return f"{int(value)}{unit}"
    digits = f"{seconds * 1e6:.3f}".rstrip("0").rstrip(".")
    return f"{digits}us"


def _size(value: object) -> ExactSize:
    if isinstance(value, ExactSize):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write a number and a unit, such as 16GiB")  # noqa: TRY004 - pydantic's way to report
    try:
        return ExactSize(parse_size(value))
    except UsageError as error:
        raise ValueError(_one_line(error)) from error


def _duration(value: object) -> ExactDuration:
    if isinstance(value, ExactDuration):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit; write a number and a unit, such as 250ms")  # noqa: TRY004 - pydantic's way to report
    try:
        return ExactDuration(parse_duration(value))
    except UsageError as error:
        raise ValueError(_one_line(error)) from error


def _one_line(error: UsageError) -> str:
    return "; ".join(part for part in (error.message, error.why, error.fix) if part)


Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(write_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKMGT]?B|[KMGT]iB)\s*$"}),
]
"""Bytes, written with a unit: ``16GiB``."""

Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(write_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(us|ms|s|min|h|d)\s*$"}),
]
"""Seconds, written with a unit: ``250ms``."""

Priority = Annotated[int, Field(ge=0, le=100)]
"""Retention priority: 0 is the first to go, 100 the last."""

Count = Annotated[int, Field(ge=1)]
"""A number of things, at least one."""


def size(text: str) -> ExactSize:
    """A size default, written as people write it."""
    return ExactSize(parse_size(text))


def duration(text: str) -> ExactDuration:
    """A time default, written as people write it."""
    return ExactDuration(parse_duration(text))
