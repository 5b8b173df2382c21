"""One request as the tiered cache sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from warmtier.core.types import Key, RequestId
from warmtier.policy.base import Access
from warmtier.tiering.types import NO_HINTS, Lookup, RequestHints

_NO_ID: Final = RequestId("")

Slots = npt.NDArray[np.intp]


@dataclass(slots=True)
class Pin:
    """Host chunks that the device is loading for one request."""

    keys: Sequence[Key]
    slots: Slots
    since_s: float


@dataclass(slots=True, eq=False)
class Request(Access[Key]):
    """A request between ``begin_request`` and the last of its completions. Drivers hold it, only the cache writes it.

    ``path`` holds part keys: index i belongs to chunk ``i // parts_per_chunk``. ``load_limit`` is the path index from
    which nothing is loaded any more (a load failed there); ``store_limit`` the one from which nothing is stored.
    """

    request_id: RequestId = _NO_ID
    hints: RequestHints = NO_HINTS
    epoch: int = 0
    ended: bool = False
    load_limit: int | None = None
    store_limit: int | None = None
    lookup_start: int = 0
    touched: int = 0
    memo: Lookup | None = None
    memo_at: tuple[int, int, int] = (-1, -1, -1)
    counted: bool = False
    waiting_since_s: float | None = None
    hold_slots: Sequence[int] = ()
    pins: list[Pin] = field(default_factory=list)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other
