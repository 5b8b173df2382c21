"""Sizes and times as people write them: ``16GiB``, ``250ms``. A bare number without a unit is refused."""

from __future__ import annotations

import re
from typing import Final

from warmtier.core.errors import UsageError

_SIZE: Final = {
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_TIME: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _split(text: str, kind: str, units: dict[str, int] | dict[str, float], example: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a {kind}", fix=f"write a number and a unit, such as {example}")
    number, unit = match.groups()
    if unit not in units:
        known = ", ".join(units)
        why = f"unknown unit {unit!r}" if unit else "it has no unit"
        raise UsageError(f"{text!r} is not a {kind}", why=why, fix=f"use one of {known}, such as {example}")
    return number, unit


def parse_size(text: str) -> int:
    """Return the bytes named by ``text`` (``"16GiB"``, ``"500MB"``, ``"0B"``). Raises UsageError."""
    number, unit = _split(text, "size", _SIZE, "16GiB")
    size = float(number) * _SIZE[unit]
    if "." not in number:
        return int(number) * _SIZE[unit]
    return round(size)


def parse_duration(text: str) -> float:
    """Return the seconds named by ``text`` (``"250ms"``, ``"30s"``, ``"2h"``). Raises UsageError."""
    number, unit = _split(text, "duration", _TIME, "250ms")
    return float(number) * _TIME[unit]


def format_size(size_bytes: int) -> str:
    """Return ``size_bytes`` in the largest binary unit with at most one decimal: ``"1.5GiB"``; exact if it divides."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _SIZE[unit]
        if size_bytes >= scale:
            value = size_bytes / scale
            return f"{value:.0f}{unit}" if size_bytes % scale == 0 else f"{value:.1f}{unit}"
    return f"{size_bytes}B"


def format_duration(seconds: float) -> str:
    """Return ``seconds`` with three significant digits in us, ms, s, min or h."""
    for limit, scale, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"), (7200.0, 1 / 60, "min")):
        if abs(seconds) < limit:
            return f"{seconds * scale:.3g}{unit}"
    return f"{seconds / 3600:.3g}h"
