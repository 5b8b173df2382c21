"""Packs being filled. Callers copy chunks into places that are handed out under a lock; full or old packs are sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from warmtier.core.types import Key
from warmtier.store.base import WriteOutcome
from warmtier.store.object.format import MAX_RECORDS, entry_bytes, index_overhead_bytes
from warmtier.store.object.index import Pack
from warmtier.store.object.names import PackName
from warmtier.store.object.options import ObjectOptions
from warmtier.store.object.region import Region, Regions
from warmtier.store.record import aligned, header_bytes


@dataclass(slots=True, eq=False)
class Draft:
    """A pack that is not in the bucket yet. ``outcome`` is set once its upload has ended."""

    pack: Pack
    region: Region
    opened_s: float
    records_bytes: int = 0
    index_bytes: int = 0
    copying: int = 0
    sealed: bool = False
    outcome: WriteOutcome | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a caller copies one record: ``view`` takes the header and the payload."""

    draft: Draft
    key: Key
    offset: int
    length: int
    view: memoryview


def record_bytes(key: Key, length: int) -> int:
    """Return what a chunk takes among the records of a pack."""
    return header_bytes(key) + aligned(length)


def charge_bytes(key: Key, length: int) -> int:
    """Return what a chunk takes of the budget: its record, and its entries in the pack's index and in manifests."""
    return record_bytes(key, length) + 3 * entry_bytes(key)


INDEX_ROOM: Final = index_overhead_bytes()


class Filler:
    """Hands out places in packs. Not thread-safe: its owner holds a lock around every call."""

    def __init__(self, options: ObjectOptions, session: str) -> None:
        self._options = options
        self._session = session
        self._regions = Regions(options.pack_bytes, options.pack_buffers)
        self._number = 0
        self._current: Draft | None = None
        self._ready: deque[Draft] = deque()

    @property
    def current(self) -> Draft | None:
        """The pack that is being filled."""
        return self._current

    @property
    def buffers_in_use(self) -> int:
        """Packs in memory."""
        return self._regions.in_use

    def can_ever_hold(self, key: Key, length: int) -> bool:
        """Return whether a pack is large enough for this chunk."""
        return record_bytes(key, length) + entry_bytes(key) + INDEX_ROOM <= self._options.pack_bytes

    def draft_for(self, key: Key, length: int, now_s: float, wall_s: float) -> Draft | None:
        """Return the pack with room for this chunk, a new one if need be; None when all buffers are in use."""
        draft = self._current
        if draft is not None and not self._fits(draft, key, length):
            self.seal()
            draft = None
        return draft or self._open(now_s, wall_s)

    def _fits(self, draft: Draft, key: Key, length: int) -> bool:
        used = draft.records_bytes + draft.index_bytes + INDEX_ROOM
        more = record_bytes(key, length) + entry_bytes(key)
        return used + more <= self._options.pack_bytes and len(draft.pack.keys) < MAX_RECORDS

    def _open(self, now_s: float, wall_s: float) -> Draft | None:
        region = self._regions.take()
        if region is None:
            return None
        writer = self._options.writer
        expires_s = int(wall_s + self._options.ttl_s)
        name = PackName(writer, expires_s, self._session, self._number)
        self._number += 1
        pack = Pack(str(name), writer, expires_s, region=region)
        self._current = Draft(pack, region, opened_s=now_s)
        return self._current

    def place(self, draft: Draft, key: Key, length: int) -> Place:
        """Reserve the next record of ``draft``; the caller copies into it and then calls ``finish``."""
        offset = draft.records_bytes
        draft.records_bytes += record_bytes(key, length)
        draft.index_bytes += entry_bytes(key)
        draft.copying += 1
        return Place(draft, key, offset, length, draft.region.view[offset : draft.records_bytes])

    def finish(self, place: Place) -> int:
        """The record was copied: return its position in the pack."""
        draft = place.draft
        position = draft.pack.append(place.key, place.offset, place.length)
        draft.copying -= 1
        self._queue_if_complete(draft)
        return position

    def seal(self) -> None:
        """Take no more chunks into the current pack: it is sent once the last copy has ended."""
        draft, self._current = self._current, None
        if draft is not None:
            draft.sealed = True
            self._queue_if_complete(draft)

    def seal_if_due(self, now_s: float) -> float | None:
        """Seal the current pack when it has waited long enough; otherwise return the time left, in seconds."""
        draft = self._current
        if draft is None:
            return None
        left_s = draft.opened_s + self._options.pack_delay_s - now_s
        if left_s > 0:
            return left_s
        self.seal()
        return None

    def take_ready(self) -> list[Draft]:
        """Return the packs that can be sent."""
        ready = list(self._ready)
        self._ready.clear()
        return ready

    def release(self, region: Region, *, reuse: bool = True) -> None:
        """Take a user off a region."""
        self._regions.release(region, reuse=reuse)

    def _queue_if_complete(self, draft: Draft) -> None:
        if draft.sealed and draft.copying == 0:
            self._ready.append(draft)
