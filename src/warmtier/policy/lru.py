"""Least recently used, tails before heads, never a parent before its child."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
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
        need = len(self._parent) + len(keys) - self.capacity
        victims = self._take(need, pinned, set(access.path)) if need > 0 else []
        admitted = min(len(keys), self.capacity - len(self._parent))
        self._insert(keys[:admitted], parent)
        del now
        return Admission(admitted, victims)

    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Take the oldest leaves."""
        del now
        return self._take(count, pinned, frozenset())

    def give_up(self, keys: Iterable[K], count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Take the leaves among ``keys``, in order."""
        del now
        victims: list[K] = []
        for key in keys:
            if len(victims) >= count:
                break
            if key in self._parent and key not in self._children and not pinned(key):
                self._drop(key)
                victims.append(key)
        return victims

    def defer(self, keys: Sequence[K]) -> None:
        """Move the keys to the recent end."""
        for key in keys:
            if key in self._parent:
                self._parent.move_to_end(key)

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

    def _insert(self, keys: Sequence[K], parent: K | None) -> None:
        """Append a chain below ``parent``, in bulk: this runs on the engine's scheduler thread."""
        if not keys:
            return
        children = self._children
        inner = keys[:-1]
        self._parent.update(zip(keys, (parent, *inner), strict=True))
        if children.keys().isdisjoint(inner):
            children.update(dict.fromkeys(inner, 1))
        else:  # children of an earlier life of these keys are still resident
            for key in inner:
                children[key] = children.get(key, 0) + 1
        if parent is not None:
            children[parent] = children.get(parent, 0) + 1

    def _drop(self, key: K) -> None:
        self._orphan(key, set())
        del self._parent[key]

    def _take(self, count: int, pinned: Pinned[K], own: frozenset[K] | set[K]) -> list[K]:
        """Remove and return up to ``count`` victims in one pass from the oldest.

        A parent older than its last child was skipped; it is taken at once when that child goes.
        """
        children, only_child = self._children, self._children.get
        victims: list[K] = []
        skipped: set[K] = set()
        for key, parent in self._parent.items():
            if len(victims) >= count:
                break
            if key in children:
                skipped.add(key)
            elif key not in own and not pinned(key):
                victims.append(key)
                if only_child(parent) == 1 and parent not in skipped:  # type: ignore[arg-type]
                    del children[parent]  # type: ignore[arg-type]
                else:
                    self._climb(key, victims, count, skipped, lambda k: k in own or pinned(k))
        for key in victims:
            del self._parent[key]
        return victims

    def _climb(self, key: K, victims: list[K], count: int, skipped: set[K], kept: Pinned[K]) -> None:
        """Take ``key`` from its parent; take skipped ancestors that have become leaves as well."""
        leaf = self._orphan(key, skipped)
        while leaf is not None and len(victims) < count and not kept(leaf):
            victims.append(leaf)
            leaf = self._orphan(leaf, skipped)

    def _orphan(self, key: K, skipped: set[K]) -> K | None:
        """Take ``key`` from its parent's children; return the parent if that makes a skipped one a leaf."""
        parent = self._parent[key]
        if parent is None or parent not in self._children:
            return None
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
            return None
        del self._children[parent]
        return parent if parent in skipped else None
