"""Carrying hot records over when their segment is used anew. They move down in it: no spare is needed."""

from __future__ import annotations

from warmtier.core.types import Key
from warmtier.store.file.format import PAGE, RecordHeader, checksum, pack_record, record_bytes, unpack_record
from warmtier.store.file.index import Location
from warmtier.store.file.io import aligned
from warmtier.store.file.segment import Segment
from warmtier.store.file.shared import Shared


class Carrier:
    """Moves records towards the start of their segment. Used by one thread at a time."""

    def __init__(self, shared: Shared, most_bytes: int) -> None:
        self._shared = shared
        self._most_bytes = most_bytes

    def choose(self, victim: Segment) -> list[tuple[Key, Location]]:
        """Return the records worth keeping, in the order in which they lie: read since written, first written first."""
        if victim.failed or not victim.own:
            return []
        chosen: list[tuple[Key, Location]] = []
        total = 0
        with self._shared.lock:
            for key, place in self._shared.index.live(victim):
                size_bytes = record_bytes(place[2])
                if key in victim.hot and total + size_bytes <= self._most_bytes:
                    chosen.append((key, place))
                    total += size_bytes
        chosen.sort(key=lambda entry: entry[1][1])
        return chosen

    def carry(self, segment: Segment, hot: list[tuple[Key, Location]], evicted: list[Key]) -> None:
        """Rewrite ``hot`` at the start of ``segment``; what cannot be moved joins ``evicted``.

        Each stays readable at its old place until it is at its new one: writing never passes what is still to move.
        """
        for key, place in hot:
            moved = not segment.failed and self._move(segment, key, place)
            if not moved:
                with self._shared.lock:
                    if self._shared.index.discard_at(key, place):
                        evicted.append(key)

    def _move(self, segment: Segment, key: Key, place: Location) -> bool:
        size_bytes = record_bytes(place[2])
        buffer = aligned(size_bytes)
        directory = self._shared.directory
        try:
            whole = directory.readv(segment.fd, [buffer], place[1]) == size_bytes
            header = unpack_record(buffer[:PAGE])
            if not whole or header is None or header.key != key:
                return False
            if checksum(buffer[PAGE : PAGE + place[2]]) != header.checksum:
                return False
            renewed = RecordHeader(segment.sequence, header.length, self._shared.namespace, header.checksum, key)
            pack_record(renewed, buffer[:PAGE])
            directory.writev(segment.fd, [buffer], segment.used_bytes)
        except OSError as error:
            segment.failed = True
            self._shared.say_once("carry", "cannot carry chunks within %s (%s)", segment.name, error)
            return False
        return self._republish(segment, key, place, size_bytes)

    def _republish(self, segment: Segment, key: Key, place: Location, size_bytes: int) -> bool:
        index = self._shared.index
        with self._shared.lock:
            offset = segment.used_bytes
            segment.used_bytes += size_bytes
            if index.peek(key) == place:  # else it was deleted meanwhile: what we wrote is dead
                index.publish(key, segment, offset, place[2])
                self._shared.counters.carried_bytes += place[2]
        return True
