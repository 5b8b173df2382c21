"""The calibration file: speeds measured once on this machine, used until enough was measured online.

A JSON object, every field in base units::

    {"version": 1,
     "namespace": "9f..",                 hex of the namespace it was measured for, or "" for any
     "measured_at": "2026-01-31T12:00Z",  for people
     "machine": "H200, 2x NVMe",          for people
     "prefill": {"seconds_per_token": 2.0e-5, "seconds_per_token_per_position": 1.0e-9},
     "links": {"host": {"bytes_per_second": 5.0e10, "fixed_seconds": 0.002},
               "nvme": {"bytes_per_second": 6.0e9, "fixed_seconds": 0.001}}}

``engine`` (optional, see EngineSpeed) serves the simulator. ``links`` is keyed by tier name; ``host`` is host memory
to the device. A link's time for n bytes is ``fixed_seconds + n / bytes_per_second``; prefill of tokens [i, j) takes
``a (j - i) + c (j^2 - i^2) / 2``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from warmtier.core.errors import ConfigError


class PrefillSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long computing tokens takes: a constant per token and a part that grows with the position."""

    seconds_per_token: float
    seconds_per_token_per_position: float = 0.0

    def seconds(self, start: int, stop: int) -> float:
        """Return the time to compute tokens [start, stop)."""
        quadratic = (stop * stop - start * start) / 2
        return self.seconds_per_token * (stop - start) + self.seconds_per_token_per_position * quadratic


class LinkSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long moving bytes takes: a fixed cost per load and a bandwidth."""

    bytes_per_second: float
    fixed_seconds: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """Return the time of one load of ``size_bytes``."""
        return self.fixed_seconds + size_bytes / self.bytes_per_second


class EngineSpeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long an engine's steps take beside prefill; only the simulator asks.

    A step: ``step_seconds``, ``seconds_per_sequence`` that decodes, ``seconds_per_context_token`` of these. A step
    without work: ``idle_step_seconds``. ``front_seconds``: from the client to the scheduler and back. ``steal``: the
    share of a concurrent copy's time that is added to a step.
    """

    step_seconds: float
    seconds_per_sequence: float = 0.0
    seconds_per_context_token: float = 0.0
    idle_step_seconds: float = 0.001
    front_seconds: float = 0.0
    steal: float = 0.0


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a calibration file."""

    version: Literal[1]
    prefill: PrefillSpeed
    links: Mapping[str, LinkSpeed]
    engine: EngineSpeed | None = None
    namespace: str = ""
    measured_at: str = ""
    machine: str = ""


def decode_calibration(data: bytes | str, place: str = "calibration") -> Calibration:
    """Parse and check a calibration. Raises ConfigError that names ``place`` and the field."""
    try:
        found = msgspec.json.decode(data, type=Calibration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{place} is not a calibration", why=str(error), fix="write it with `warmtier calibrate`"
        ) from None
    _check(found, place)
    return found


def encode_calibration(calibration: Calibration) -> bytes:
    """Return the file's content."""
    return msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n"


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file. Blocks on the disk. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"calibration {path} cannot be read", why=str(error)) from None
    return decode_calibration(data, str(path))


def _check(found: Calibration, place: str) -> None:
    prefill = found.prefill
    if prefill.seconds_per_token <= 0 or prefill.seconds_per_token_per_position < 0:
        raise ConfigError(f"{place}: prefill times must be positive, got {prefill}")
    engine = found.engine
    if engine is not None and min(msgspec.structs.astuple(engine)) < 0:
        raise ConfigError(f"{place}: engine times must not be negative, got {engine}")
    for name, link in found.links.items():
        if link.bytes_per_second <= 0 or link.fixed_seconds < 0:
            raise ConfigError(f"{place}: link {name!r} needs a positive bandwidth and no negative time, got {link}")
