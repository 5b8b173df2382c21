"""Adaptive replacement for paths: ARC's two lists and two ghost lists, leaves first.

Source: Megiddo and Modha, FAST 2003. Differences: only leaves are given up; what cannot go now (a parent, a pin) moves
to the recent end of its list; a request's own end is recency, not a second use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from itertools import chain
from typing import ClassVar

from warmtier.policy.base import Access, Admission, EvictionPolicy, K, Pinned


class ArcPolicy(EvictionPolicy[K]):
    """Balances chunks used once against chunks used again by the hits in their ghosts. Always admits.

    Memory: at most as many ghosts as the capacity.
    """

    name: ClassVar[str] = "arc"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._once: OrderedDict[K, K | None] = OrderedDict()  # key -> parent, oldest first
        self._often: OrderedDict[K, K | None] = OrderedDict()
        self._once_ghosts: OrderedDict[K, None] = OrderedDict()
        self._often_ghosts: OrderedDict[K, None] = OrderedDict()
        self._children: dict[K, int] = {}  # resident children, of absent parents too
        self._target = 0.0  # wanted length of the first list

    def __len__(self) -> int:
        return len(self._once) + len(self._often)

    def __contains__(self, key: object) -> bool:
        return key in self._once or key in self._often

    def resident(self) -> Iterable[K]:
        """Iterate over both lists."""
        return chain(self._once, self._often)

    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """Count the keys as used again, the root as the most recent."""
        del access, now
        once, often = self._once, self._often
        for key in reversed(keys):
            if key in once:
                often[key] = once.pop(key)
            elif key in often:
                often.move_to_end(key)

    def finish(self, access: Access[K], now: float) -> None:
        """Make the whole path recent, tails first, each chunk in its own list."""
        del now
        for key in reversed(access.path):
            for queue in (self._once, self._often):
                if key in queue:
                    queue.move_to_end(key)

    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Admit as far as victims can be found."""
        del now
        own = set(access.path)
        answer: Admission[K] = Admission(0)
        for key in keys:
            was_often = key in self._often_ghosts
            again = was_often or key in self._once_ghosts
            while len(self) >= self.capacity:
                victim = self._replace(pinned, own, ghost_of_often=was_often)
                if victim is None:
                    self._trim()
                    return answer
                answer.victims.append(victim)
            if again:
                self._adapt(key, was_often=was_often)
            (self._often if again else self._once)[key] = parent
            if parent is not None:
                self._children[parent] = self._children.get(parent, 0) + 1
            parent = key
            answer.admitted += 1
        self._trim()
        return answer

    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up leaves, from the list that is too long first."""
        del now
        victims: list[K] = []
        while len(victims) < count:
            victim = self._replace(pinned, (), ghost_of_often=False)
            if victim is None:
                break
            victims.append(victim)
        self._trim()
        return victims

    def give_up(self, keys: Iterable[K], count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up the leaves among ``keys``, in order."""
        del now
        victims: list[K] = []
        for key in keys:
            if len(victims) >= count:
                break
            if key in self and key not in self._children and not pinned(key):
                self._leave(key)
                victims.append(key)
        self._trim()
        return victims

    def defer(self, keys: Sequence[K]) -> None:
        """Move the keys to the recent end of their lists."""
        for key in keys:
            for queue in (self._once, self._often):
                if key in queue:
                    queue.move_to_end(key)

    def remove(self, keys: Iterable[K], now: float) -> None:
        """Forget the keys, without a ghost."""
        del now
        for key in keys:
            if key in self:
                self._drop(key)

    def explain(self) -> dict[str, float | int | str]:
        """Return the lengths of the lists and the wanted length of the first."""
        ghosts = len(self._once_ghosts) + len(self._often_ghosts)
        return {"policy": self.name, "once": len(self._once), "target": round(self._target, 1), "ghosts": ghosts}

    def _adapt(self, key: K, *, was_often: bool) -> None:
        """Move the target by what the ghost that was hit says."""
        once, often = max(1, len(self._once_ghosts)), max(1, len(self._often_ghosts))
        if was_often:
            self._target = max(0.0, self._target - max(once / often, 1.0))
            del self._often_ghosts[key]
        else:
            self._target = min(float(self.capacity), self._target + max(often / once, 1.0))
            del self._once_ghosts[key]

    def _replace(self, pinned: Pinned[K], own: Container[K], *, ghost_of_often: bool) -> K | None:
        """Give up one leaf of the list that ARC names, or of the other if it has none to give."""
        once = len(self._once)
        first = once > 0 and (once > self._target or (once == self._target and ghost_of_often))
        queues = (self._once, self._often) if first or not self._often else (self._often, self._once)
        for queue in queues:
            for _ in range(len(queue)):
                key = next(iter(queue))
                if key not in self._children and key not in own and not pinned(key):
                    self._leave(key)
                    return key
                queue.move_to_end(key)
        return None

    def _leave(self, key: K) -> None:
        ghosts = self._once_ghosts if key in self._once else self._often_ghosts
        self._drop(key)
        ghosts[key] = None
        ghosts.move_to_end(key)

    def _drop(self, key: K) -> None:
        parent = self._once.pop(key) if key in self._once else self._often.pop(key)
        if parent is None:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
        else:
            del self._children[parent]

    def _trim(self) -> None:
        """Keep the first list and its ghosts within the capacity, all four within twice the capacity."""
        while self._once_ghosts and len(self._once) + len(self._once_ghosts) > self.capacity:
            self._once_ghosts.popitem(last=False)
        while self._often_ghosts and len(self) + len(self._once_ghosts) + len(self._often_ghosts) > 2 * self.capacity:
            self._often_ghosts.popitem(last=False)
