"""Names of policies, loaded on first use.

``production`` policies implement ``EvictionPolicy`` and may run in an engine. ``raw`` policies are algorithms
exactly as published, per block (``policy/raw.py``), for goldens and comparisons in the simulator.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from warmtier.core.errors import ConfigError
from warmtier.policy.base import EvictionPolicy
from warmtier.policy.raw import RawPolicy

DEFAULT_POLICY: Final = "evidence"


@dataclass(frozen=True, slots=True)
class _Place:
    module: str
    class_: str
    config: str | None = None


_PRODUCTION: Final[Mapping[str, _Place]] = {
    "evidence": _Place("warmtier.policy.evidence", "EvidencePolicy", "EvidenceConfig"),
    "index": _Place("warmtier.policy.index", "IndexPolicy", "IndexConfig"),
    "lru": _Place("warmtier.policy.lru", "LruPolicy"),
    "arc": _Place("warmtier.policy.arc", "ArcPolicy"),
}


_RAW: Final[Mapping[str, _Place]] = {
    "lru": _Place("warmtier.policy.raw", "RawLru"),
    "fifo": _Place("warmtier.policy.raw", "RawFifo"),
    "2touch": _Place("warmtier.policy.raw", "RawTwoTouch"),
    "arc": _Place("warmtier.policy.raw", "RawArc"),
    "s3fifo": _Place("warmtier.policy.raw_queues", "RawS3Fifo"),
    "sieve": _Place("warmtier.policy.raw_queues", "RawSieve"),
    "wtinylfu": _Place("warmtier.policy.raw_queues", "RawWTinyLfu"),
}
OPTIMUM: Final = "opt"
"""The offline optimum: needs the whole trace, so only a simulator can make it (``policy/belady.py``)."""


def modes_of(name: str) -> tuple[str, ...]:
    """Return the modes in which ``name`` can run, the preferred first. Raises ConfigError for an unknown name."""
    if name == OPTIMUM:
        return ("production", "raw")
    modes = tuple(mode for mode, names in (("production", _PRODUCTION), ("raw", _RAW)) if name in names)
    if not modes:
        raise unknown_name("policy", name, dict.fromkeys((*_PRODUCTION, *_RAW, OPTIMUM)))
    return modes


def create_raw(name: str, capacity: int) -> RawPolicy[Any]:
    """Return a new raw cache. Raises ConfigError for an unknown name."""
    place = _RAW.get(name)
    if place is None:
        raise unknown_name("raw policy", name, _RAW)
    cache: RawPolicy[Any] = getattr(importlib.import_module(place.module), place.class_)(capacity)
    return cache


def production_names() -> tuple[str, ...]:
    """Return the names that may run in an engine, the default first."""
    return tuple(_PRODUCTION)


def create_policy(name: str, capacity: int, settings: Mapping[str, object] | None = None) -> EvictionPolicy[Any]:
    """Return a new policy for a tier of ``capacity`` chunks.

    ``settings`` are fields of the policy's own config. Raises ConfigError for an unknown name or setting.
    """
    place = _PRODUCTION.get(name)
    if place is None:
        raise unknown_name("policy", name, _PRODUCTION)
    module = importlib.import_module(place.module)
    class_ = getattr(module, place.class_)
    if place.config is None:
        if settings:
            raise ConfigError(f"policy {name!r} has no settings, got {', '.join(settings)}")
        policy: EvictionPolicy[Any] = class_(capacity)
        return policy
    config = getattr(module, place.config)
    known = {field.name: field for field in fields(config)}
    for setting in settings or ():
        if setting not in known:
            raise unknown_name(f"setting of policy {name!r}", setting, known)
    chosen: EvictionPolicy[Any] = class_(capacity, config(**(settings or {})))
    return chosen


def unknown_name(what: str, name: str, known: Mapping[str, object]) -> ConfigError:
    """Return the error for a name that is not among ``known``, with the nearest one that is."""
    near = difflib.get_close_matches(name, known, 1)
    fix = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return ConfigError(f"unknown {what}: {name!r}", fix=fix)
