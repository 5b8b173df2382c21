"""What tiers are called in vLLM's words: the medium and locality of events, the source of a hit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm.v1.kv_offload.base import Locality, Medium, OffloadingEvent, TierFilter

from warmtier.core.types import TierKind
from warmtier.tiering.types import Event

_PLACES: Final[Mapping[TierKind, tuple[Medium, Locality | None]]] = {
    TierKind.HOST: (Medium.CPU, None),
    TierKind.FILE: (Medium.STORAGE, Locality.LOCAL),
    TierKind.OBJECT: (Medium.STORAGE, Locality.REMOTE),
    TierKind.SHARED: (Medium.CPU, Locality.REMOTE),
}
_SOURCES: Final[Mapping[TierKind, str]] = {TierKind.HOST: "host", TierKind.FILE: "disk"}
_OTHER_SOURCE: Final = "external_unspecified"


def event_of(event: Event) -> OffloadingEvent:
    """Return vLLM's form of an event. ``ownership`` names the cold tier, None is the host tier."""
    medium, locality = _PLACES[event.kind]
    owner = None if event.kind is TierKind.HOST else event.tier
    return OffloadingEvent(list(event.keys), medium, event.removed, locality=locality, ownership=owner)


def hit_source(kind: TierKind) -> str:
    """Return the value of vLLM's ``CacheHitSource`` for a tier."""
    return _SOURCES.get(kind, _OTHER_SOURCE)


def allowed_kinds(wanted: TierFilter) -> frozenset[TierKind] | None:
    """Return the cold tiers that a request's ``kv_load_tiers`` admits; None: all. The host is always asked."""
    if wanted is TierFilter.ALL:
        return None
    return frozenset(kind for kind, place in _PLACES.items() if kind is TierKind.HOST or wanted.allows(*place))
