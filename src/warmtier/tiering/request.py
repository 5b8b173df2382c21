"""One request as the tiered cache sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from warmtier.core.types import Key, MissReason, RequestId, StoreOutcome, TierKind
from warmtier.policy.base import Access
from warmtier.tiering.types import NO_HINTS, Lookup, RequestHints

_NO_ID: Final = RequestId("")

Slots = npt.NDArray[np.intp]


@dataclass(slots=True, eq=False)
class Pin:
    """Host chunks that are kept for one request: its device loads them, or a promotion brought them for it."""

    keys: Sequence[Key]
    slots: Slots
    since_s: float


@dataclass(slots=True, eq=False)
class Request(Access[Key]):
    """A request between ``begin_request`` and the last of its completions. Drivers hold it, only the cache writes it.

    ``path`` holds part keys: index i belongs to chunk ``i // parts_per_chunk``.
    """

    request_id: RequestId = _NO_ID
    hints: RequestHints = NO_HINTS
    epoch: int = 0
    ended: bool = False
    key_index: int = 0  # path index of the first key that a policy is being asked about

    # lookups
    lookup_start: int = 0
    memo: Lookup | None = None
    memo_at: tuple[int, int, int] = (-1, -1, -1)
    hold_slots: Sequence[int] = ()
    counted: bool = False
    load_limit: int | None = None  # path index from which nothing is loaded any more, and why
    limit_reason: MissReason | None = None
    waiting_since_s: float | None = None
    wait_until_s: float = 0.0
    conflict_since_s: float | None = None
    round_end: int | None = None  # path index up to which this wait promotes, and why not further
    round_reason: MissReason | None = None
    origins: list[tuple[int, int, TierKind]] = field(default_factory=list)
    promoted: list[Pin] = field(default_factory=list)
    promoting: int = 0  # slots that promotions started for it are writing
    put_off_s: float | None = None  # since when its plans were too much for a pass
    turn: bool = True  # False while it waits for others' promotions to be fetched
    pins: list[Pin] = field(default_factory=list)

    # stores
    touched: int = 0  # path index up to which the policy knows of this use
    store_limit: int | None = None  # path index from which nothing is stored, and why
    store_reason: StoreOutcome | None = None
    checked: int = 0  # path index up to which priorities were compared
    down: dict[str, int] = field(default_factory=dict)  # per cold tier: path index dealt with; negative: given up
    views: dict[str, Access[Key]] = field(default_factory=dict)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def limit(self, at: int, reason: MissReason) -> None:
        """Serve nothing from path index ``at`` on: what a lookup promised there has failed."""
        if self.load_limit is None or at < self.load_limit:
            self.load_limit, self.limit_reason = at, reason
        self.memo = None

    def new_wait(self) -> None:
        """Forget the wait that led to a load: a later lookup starts afresh."""
        self.memo, self.counted, self.waiting_since_s, self.round_end = None, False, None, None
        self.turn = True
        self.origins.clear()
