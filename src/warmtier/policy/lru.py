"""Least recently used, tails before heads, never a parent before its child."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar

from warmtier.policy.base import Access, Admission, EvictionPolicy, K, Pinned


class LruPolicy(EvictionPolicy[K]):
    """Evicts the leaf that was used longest ago. Always admits.

    Recency of a request is committed tails first when it ends, so a parent is at least as recent as its children and
    the oldest entry is nearly always a leaf; the child count makes it certain.
    """

    name: ClassVar[str] = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._parent: OrderedDict[K, K | None] = OrderedDict()  # oldest first
        self._children: dict[K, int] = {}  # only keys with at least one resident child

    def __len__(self) -> int:
        return len(self._parent)

    def __contains__(self, key: object) -> bool:
        return key in self._parent

    def resident(self) -> Iterable[K]:
        """Iterate from the oldest to the newest."""
        return iter(self._parent)

    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """Move the keys to the recent end, the root last."""
        del access, now
        order = self._parent
        for key in reversed(keys):
            if key in order:
                order.move_to_end(key)

    def finish(self, access: Access[K], now: float) -> None:
        """Commit the whole path, tails first."""
        self.touch(access, access.path, now)

    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Admit all, as far as victims can be found."""
        own = set(access.path)
        need = len(self._parent) + len(keys) - self.capacity
        victims = self._take(need, pinned, own) if need > 0 else []
        admitted = min(len(keys), self.capacity - len(self._parent))
        for key in keys[:admitted]:
            self._insert(key, parent)
            parent = key
        del now
        return Admission(admitted, victims)

    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Take the oldest leaves."""
        del now
        return self._take(count, pinned, frozenset())

    def remove(self, keys: Iterable[K], now: float) -> None:
        """Forget the keys."""
        del now
        for key in keys:
            if key in self._parent:
                self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        self._parent.clear()
        self._children.clear()

    def _insert(self, key: K, parent: K | None) -> None:
        self._parent[key] = parent
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def _drop(self, key: K) -> None:
        parent = self._parent.pop(key)
        if parent is not None and parent in self._children:
            left = self._children[parent] - 1
            if left:
                self._children[parent] = left
            else:
                del self._children[parent]

    def _take(self, count: int, pinned: Pinned[K], own: frozenset[K] | set[K]) -> list[K]:
        """Remove and return up to ``count`` victims; scan again when a skipped parent may have become a leaf."""
        victims: list[K] = []
        while len(victims) < count:
            leaves = (key for key in self._parent if key not in self._children and key not in own and not pinned(key))
            found = list(islice(leaves, count - len(victims)))
            if not found:
                break
            for key in found:
                self._drop(key)
            victims += found
        return victims
