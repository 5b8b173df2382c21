"""Which record holds which key. In memory only; recovery rebuilds it. Not thread-safe: the store's lock guards it.

Plain dicts of plain tuples: a million records must not burden the garbage collector of the engine's process.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from warmtier.core.types import Key
from warmtier.store.file.format import record_bytes
from warmtier.store.file.segment import Segment

Location = tuple[int, int, int]
"""Segment number, offset of the record's header page in it, payload bytes."""


class Index:
    """Keys to locations, and the live bytes of every segment."""

    def __init__(self) -> None:
        self._places: dict[Key, Location] = {}
        self.segments: dict[int, Segment] = {}
        self.key_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    def sizes(self) -> list[tuple[Key, int]]:
        """Return every key with its payload bytes."""
        return [(key, place[2]) for key, place in self._places.items()]

    def find(self, key: Key) -> Location | None:
        """Return where ``key`` is, and note that it was wanted."""
        place = self._places.get(key)
        if place is not None:
            self.segments[place[0]].hot.add(key)
        return place

    def peek(self, key: Key) -> Location | None:
        """Return where ``key`` is."""
        return self._places.get(key)

    def publish(self, key: Key, segment: Segment, offset: int, length: int) -> None:
        """Make the record findable, in place of an older one of the same key."""
        self.discard(key)
        self._places[key] = (segment.number, offset, length)
        segment.keys.append(key)
        segment.live_bytes += record_bytes(length)
        self.key_bytes += len(key)

    def load(self, segment: Segment, keys: Sequence[Key], offsets: Sequence[int], lengths: Sequence[int]) -> None:
        """Publish many records of one segment: a start with a million of them must not take seconds."""
        fresh = dict(zip(keys, zip(itertools.repeat(segment.number), offsets, lengths), strict=False))
        if len(fresh) != len(keys) or not self._places.keys().isdisjoint(fresh):
            for key, offset, length in zip(keys, offsets, lengths, strict=True):
                self.publish(key, segment, offset, length)
            return
        self._places.update(fresh)
        segment.keys.extend(keys)
        segment.live_bytes += sum(record_bytes(length) * count for length, count in Counter(lengths).items())
        self.key_bytes += sum(map(len, keys))

    def discard(self, key: Key) -> bool:
        """Forget ``key``; return whether it was known."""
        place = self._places.pop(key, None)
        if place is None:
            return False
        segment = self.segments[place[0]]
        segment.live_bytes -= record_bytes(place[2])
        segment.hot.discard(key)
        self.key_bytes -= len(key)
        return True

    def discard_at(self, key: Key, place: Location) -> bool:
        """Forget ``key`` only if it is still at ``place``: a newer record of the key stays."""
        return self._places.get(key) == place and self.discard(key)

    def live(self, segment: Segment) -> Iterator[tuple[Key, Location]]:
        """Yield the live records of ``segment``, in the order written."""
        seen: set[Key] = set()
        for key in segment.keys:
            place = self._places.get(key)
            if place is not None and place[0] == segment.number and key not in seen:
                seen.add(key)
                yield key, place

    def drop(self, segment: Segment, keep: Iterable[Key] = ()) -> list[Key]:
        """Forget all live keys of ``segment`` but ``keep``; return those forgotten."""
        kept = set(keep)
        gone = [key for key, _ in self.live(segment) if key not in kept]
        for key in gone:
            self.discard(key)
        return gone
