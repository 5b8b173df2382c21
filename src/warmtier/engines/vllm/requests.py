"""What the manager remembers of one request: its path, the answer given this step, its transfers.

A position is the token after a chunk's end, as vLLM registers it for every key of a request. The keys of several KV
groups are brought into one path, ordered by position and then by group, as the tiered cache wants them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from warmtier.core.errors import InternalError
from warmtier.core.types import Key, TierKind
from warmtier.tiering.request import Request

if TYPE_CHECKING:
    from warmtier.engines.vllm.tracking import Track

_NOWHERE: Final = -1
_GROUP_BYTES: Final = 4


@dataclass(slots=True, eq=False)
class RequestState:
    """One request between ``on_new_request`` and its last completion.

    ``positions`` is vLLM's own dictionary, which grows as the request does. ``hit_from`` and ``hit_to`` bound the
    positions that are hits in step ``asked_step``. ``origins``: path indices [from, to) that were promoted, and whence.
    """

    request: Request
    positions: Mapping[Key, int]
    track: Track
    groups: int = 1
    asked_step: int = _NOWHERE
    hit_from: int = 0
    hit_to: int = _NOWHERE
    pending: bool = False
    pending_to: int = _NOWHERE
    finished: bool = False
    stores: int = 0
    loading: Sequence[Key] = ()
    loading_slots: Sequence[int] = ()
    origins: Sequence[tuple[int, int, TierKind]] = ()
    path: list[Key] = field(default_factory=list)

    @property
    def in_flight(self) -> bool:
        """Whether transfers of this request have not ended."""
        return bool(self.stores or self.loading)

    def whole_path(self) -> list[Key]:
        """Return the keys known so far, root first."""
        if len(self.path) != len(self.positions):
            if self.groups == 1:
                self.path.extend(islice(self.positions, len(self.path), None))
            else:
                self.path = sorted(self.positions, key=self._rank)
        return self.path

    def path_from(self, key: Key) -> tuple[list[Key], int]:
        """Return the path and the index at which the chunk of ``key`` begins."""
        path = self.whole_path()
        if self.groups == 1:
            return path, self.positions[key] // self.request.tokens_per_chunk - 1
        return path, self._first_at(self.positions[key])

    def note_answer(self, step: int, start: int, usable: int, *, pending: bool) -> None:
        """Remember that ``usable`` keys from index ``start`` are hits in ``step``."""
        first = self.positions[self.path[start]]
        self.asked_step = step
        self.hit_from = first
        self.hit_to = self.positions[self.path[start + usable - 1]] if usable else _NOWHERE
        self.pending = pending
        self.pending_to = first if pending else _NOWHERE

    def origin(self, key: Key) -> TierKind:
        """Return the tier that a hit came from: promoted chunks keep theirs."""
        _, index = self.path_from(key)
        return next((kind for first, last, kind in self.origins if first <= index < last), TierKind.HOST)

    def root_first(self, keys: Collection[Key]) -> Sequence[Key]:
        """Return ``keys`` ordered along the path; the same object if they are already."""
        if self.groups == 1 and isinstance(keys, Sequence):
            return keys
        return sorted(keys, key=self._rank)

    def consecutive(self, keys: Collection[Key]) -> tuple[Sequence[Key], int]:
        """Return the keys offered, root first, cut where they leave the path, and the index of the first."""
        ordered = self.root_first(keys)
        path, start = self.path_from(ordered[0])
        there = path[start : start + len(ordered)]
        if there == ordered:
            return ordered, start
        same = 0
        while same < len(there) and there[same] == ordered[same]:
            same += 1
        return ordered[:same], start

    def engine_order(self, keys: Sequence[Key], slots: Sequence[int]) -> tuple[list[Key], list[int]]:
        """Return keys and slots as vLLM lists a job's blocks: group by group, each along the path."""
        if self.groups == 1:
            return list(keys), list(slots)
        pairs = sorted(zip(keys, slots, strict=True), key=lambda pair: (group_of(pair[0]), self.positions[pair[0]]))
        return [key for key, _ in pairs], [slot for _, slot in pairs]

    def start_load(self, keys: Sequence[Key], slots: Sequence[int]) -> None:
        """Remember the load in flight. vLLM has at most one per request."""
        if self.loading:
            raise InternalError(f"request {self.request.request_id} loads twice at once")
        self.loading, self.loading_slots = keys, slots

    def end_load(self) -> tuple[Sequence[Key], Sequence[int]]:
        """Return the keys and slots of the load in flight, which is over."""
        ended = self.loading, self.loading_slots
        self.loading, self.loading_slots = (), ()
        return ended

    def _rank(self, key: Key) -> tuple[int, int]:
        return self.positions[key], group_of(key)

    def _first_at(self, position: int) -> int:
        path, positions = self.path, self.positions
        low, high = 0, len(path)
        while low < high:
            middle = (low + high) // 2
            if positions[path[middle]] < position:
                low = middle + 1
            else:
                high = middle
        return low


def group_of(key: Key) -> int:
    """Return the KV group that vLLM appended to the key."""
    return int.from_bytes(key[-_GROUP_BYTES:], "big")
