"""Bounded memories of absent keys: a count-min sketch with aging and a ghost list.

The sketch follows Cormode and Muthukrishnan (2005) with conservative update; aging by halving is TinyLFU's (2017).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic

import xxhash

from warmtier.policy.base import K

_ROWS: Final = 4
_COUNT_MAX: Final = 255
_MULTIPLIERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_MASK: Final = (1 << 64) - 1


def stable_hash(key: Hashable) -> int:
    """Return 64 well mixed bits of ``key``, the same in every process (``hash`` of bytes is salted per process)."""
    if isinstance(key, int):
        data = (key & _MASK).to_bytes(8, "little")
    else:
        data = key if isinstance(key, bytes) else repr(key).encode()
    return xxhash.xxh3_64_intdigest(data)


class CountMinSketch:
    """Approximate counts of hashables in ``4 * width`` bytes; never below the true count since the last halving.

    All counts are halved every ``10 * expected`` additions, so that old popularity fades.
    """

    def __init__(self, expected: int) -> None:
        if expected < 1:
            raise ValueError(f"expected must be at least 1, got {expected}")
        self._bits = max(6, (2 * expected - 1).bit_length())
        self._rows = [array("B", bytes(1 << self._bits)) for _ in range(_ROWS)]
        self._period = 10 * expected
        self._added = 0

    def add(self, key: Hashable) -> None:
        """Count ``key`` once; only its smallest counters grow."""
        slots = self._slots(key)
        low = min(row[slot] for row, slot in zip(self._rows, slots, strict=True))
        if low < _COUNT_MAX:
            for row, slot in zip(self._rows, slots, strict=True):
                if row[slot] == low:
                    row[slot] = low + 1
        self._added += 1
        if self._added >= self._period:
            self._halve()

    def estimate(self, key: Hashable) -> int:
        """Return the approximate count, at most 255."""
        return min(row[slot] for row, slot in zip(self._rows, self._slots(key), strict=True))

    def _slots(self, key: Hashable) -> list[int]:
        value = stable_hash(key)
        shift = 64 - self._bits
        return [(value * factor & _MASK) >> shift for factor in _MULTIPLIERS]

    def _halve(self) -> None:
        table = bytes(value >> 1 for value in range(256))
        self._rows = [array("B", row.tobytes().translate(table)) for row in self._rows]
        self._added //= 2


class GhostList(Generic[K]):
    """The most recent ``limit`` keys with a small number each, oldest out first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._items: OrderedDict[K, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def get(self, key: K) -> int | None:
        """Return the number kept with ``key``, or None."""
        return self._items.get(key)

    def put(self, key: K, value: int = 0) -> K | None:
        """Remember ``key`` as the newest; return the key that fell out, if one did."""
        items = self._items
        items[key] = value
        items.move_to_end(key)
        if len(items) > self.limit:
            return items.popitem(last=False)[0]
        return None

    def pop(self, key: K) -> int | None:
        """Forget ``key`` and return its number, or None."""
        return self._items.pop(key, None)

    def clear(self) -> None:
        """Forget all."""
        self._items.clear()
