"""Where chunks are: which pack, at which offset. Pure bookkeeping; its owner holds a lock around every call.

One chunk costs about 200 bytes here: its key, a slot in one dict, and a place in its pack's arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.types import Key
from warmtier.store.object.format import MAX_RECORDS
from warmtier.store.object.region import Region

_SHIFT: Final = MAX_RECORDS.bit_length()
_MASK: Final = (1 << _SHIFT) - 1


@dataclass(slots=True, eq=False)
class Pack:
    """One pack: the chunk ``keys[i]`` has ``lengths[i]`` payload bytes in the record at ``offsets[i]``.

    ``region`` holds the bytes until they are in the bucket.
    """

    name: str
    writer: str
    expires_s: float
    size_bytes: int = 0
    keys: list[Key] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    lengths: array[int] = field(default_factory=lambda: array("Q"))
    region: Region | None = None

    def append(self, key: Key, offset: int, length: int) -> int:
        """Add a chunk and return its position."""
        self.keys.append(key)
        self.offsets.append(offset)
        self.lengths.append(length)
        return len(self.keys) - 1


@dataclass(frozen=True, slots=True)
class Location:
    """One chunk in one pack."""

    pack: Pack
    position: int

    @property
    def key(self) -> Key:
        """The chunk's key."""
        return self.pack.keys[self.position]

    @property
    def offset(self) -> int:
        """Where its record starts."""
        return self.pack.offsets[self.position]

    @property
    def length(self) -> int:
        """Its payload bytes."""
        return self.pack.lengths[self.position]


class ObjectIndex:
    """Chunks by key over the packs of all writers, at most ``maximum_chunks``.

    A key may lie in several packs; the one that was added last is used. Changes of what can be read are collected for
    ``take_changes``.
    """

    def __init__(self, maximum_chunks: int) -> None:
        self._maximum = maximum_chunks
        self._places: dict[Key, int] = {}
        self._others: dict[Key, list[int]] = {}
        self._packs: dict[int, Pack] = {}
        self._numbers: dict[str, int] = {}
        self._next_number = 0
        self._records = 0
        self._added: dict[Key, int] = {}
        self._removed: dict[Key, None] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: Key) -> bool:
        return key in self._places

    @property
    def packs(self) -> Iterable[Pack]:
        """All packs."""
        return self._packs.values()

    def pack(self, name: str) -> Pack | None:
        """Return the pack of that name."""
        number = self._numbers.get(name)
        return None if number is None else self._packs[number]

    def find(self, key: Key) -> Location | None:
        """Return where ``key`` is."""
        place = self._places.get(key)
        return None if place is None else Location(self._packs[place >> _SHIFT], place & _MASK)

    def has_room(self, chunks: int) -> bool:
        """Return whether so many more may be added."""
        return self._records + chunks <= self._maximum

    def add(self, pack: Pack) -> None:
        """Make ``pack`` known with the chunks it has. A pack of that name must not be known."""
        number = self._next_number
        self._next_number += 1
        self._packs[number] = pack
        self._numbers[pack.name] = number
        for position in range(len(pack.keys)):
            self._place(pack, number, position)

    def add_chunk(self, pack: Pack, position: int) -> None:
        """Make one more chunk of a known ``pack`` readable."""
        self._place(pack, self._numbers[pack.name], position)

    def _place(self, pack: Pack, number: int, position: int) -> None:
        key = pack.keys[position]
        previous = self._places.get(key)
        if previous is None:
            self._note_added(key, pack.lengths[position])
        else:
            self._others.setdefault(key, []).append(previous)
        self._places[key] = number << _SHIFT | position
        self._records += 1

    def drop_pack(self, name: str) -> list[Key]:
        """Forget a pack; return the keys that can no longer be read."""
        number = self._numbers.pop(name, None)
        if number is None:
            return []
        pack = self._packs.pop(number)
        lost = []
        for position, key in enumerate(pack.keys):
            if self._unplace(key, number << _SHIFT | position):
                lost.append(key)
        return lost

    def drop_chunk(self, location: Location) -> None:
        """Forget one chunk in one pack."""
        number = self._numbers.get(location.pack.name)
        if number is not None:
            self._unplace(location.key, number << _SHIFT | location.position)

    def drop_key(self, key: Key) -> None:
        """Forget a key in every pack."""
        place = self._places.pop(key, None)
        if place is not None:
            self._records -= 1 + len(self._others.pop(key, ()))
            self._note_removed(key)

    def _unplace(self, key: Key, place: int) -> bool:
        others = self._others.get(key)
        if self._places.get(key) == place:
            self._records -= 1
            if not others:
                del self._places[key]
                self._note_removed(key)
                return True
            self._places[key] = others.pop()
        elif others and place in others:
            self._records -= 1
            others.remove(place)
        if not others:
            self._others.pop(key, None)
        return False

    def expired(self, now_s: float) -> list[str]:
        """Return the names of packs whose time is over."""
        return [pack.name for pack in self._packs.values() if pack.expires_s <= now_s]

    def names_of(self, writer: str) -> list[str]:
        """Return the names of all packs of ``writer``."""
        return [pack.name for pack in self._packs.values() if pack.writer == writer]

    def take_changes(self) -> tuple[Sequence[tuple[Key, int]], Sequence[Key]]:
        """Return the keys that became readable (with their bytes) and that ceased to be, since the last call."""
        added, removed = list(self._added.items()), list(self._removed)
        self._added.clear()
        self._removed.clear()
        return added, removed

    def _note_added(self, key: Key, length: int) -> None:
        self._removed.pop(key, None)
        self._added[key] = length

    def _note_removed(self, key: Key) -> None:
        self._added.pop(key, None)
        if len(self._removed) >= self._maximum:
            # Nobody polls. The oldest removal is forgotten: reading that key will be a miss.
            del self._removed[next(iter(self._removed))]
        self._removed[key] = None
