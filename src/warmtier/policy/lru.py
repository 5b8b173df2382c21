"""Least recently used, tails before heads, never a parent before its child. Work is per run, not per chunk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Generic

from warmtier.policy.base import Access, Admission, EvictionPolicy, K, Pinned


class _Run(Generic[K]):
    """Consecutive resident chunks of one path, used last at one time. Other runs hang below its last key only.

    ``parent``: the key above the first one (it may not be resident any more). ``children``: runs that hang below.
    """

    __slots__ = ("children", "keys", "parent")

    def __init__(self, keys: list[K], parent: K | None, children: int = 0) -> None:
        self.keys = keys
        self.parent = parent
        self.children = children


class LruPolicy(EvictionPolicy[K]):
    """Evicts the leaf that was used longest ago. Always admits.

    A use of a path makes its tails older than its heads. A path is kept as runs of chunks that were last used together:
    a use of a run's head alone splits it, a use of neighbouring runs joins them. About 70 bytes per chunk.
    """

    name: ClassVar[str] = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._run_of: dict[K, _Run[K]] = {}
        self._order: OrderedDict[_Run[K], None] = OrderedDict()  # oldest first
        self._orphans: dict[K, int] = {}  # absent parent -> runs below it

    def __len__(self) -> int:
        return len(self._run_of)

    def __contains__(self, key: object) -> bool:
        return key in self._run_of

    def resident(self) -> Iterator[K]:
        """Iterate from the oldest run to the newest, each tails first."""
        for run in self._order:
            yield from reversed(run.keys)

    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """Move the keys to the recent end, the root last."""
        del access, now
        used = self._used_runs(list(keys))
        for run in reversed(used):
            self._order.move_to_end(run)
        for position in range(len(used) - 1, 0, -1):
            self._join(used[position - 1], used[position])

    def finish(self, access: Access[K], now: float) -> None:
        """Commit the whole path, tails first."""
        self.touch(access, access.path, now)

    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Admit all, as far as victims can be found."""
        del now
        need = len(self._run_of) + len(keys) - self.capacity
        victims = self._take(need, pinned, {parent, *access.path}) if need > 0 else []
        admitted = max(0, min(len(keys), self.capacity - len(self._run_of)))
        if admitted:
            self._insert(list(keys[:admitted]), parent)
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
            run = self._run_of.get(key)
            if run is not None and not run.children and run.keys[-1] == key and not pinned(key):
                victims.append(run.keys.pop())
                del self._run_of[key]
                if not run.keys:
                    del self._order[run]
                    self._hang(run.parent, -1)
        return victims

    def defer(self, keys: Sequence[K]) -> None:
        """Move the runs of these keys to the recent end."""
        for run in dict.fromkeys(self._run_of[key] for key in keys if key in self._run_of):
            self._order.move_to_end(run)

    def remove(self, keys: Iterable[K], now: float) -> None:
        """Forget the keys. What hung below them is the first to go from now on."""
        del now
        gone: dict[_Run[K], set[K]] = {}
        for key in keys:
            run = self._run_of.pop(key, None)
            if run is not None:
                gone.setdefault(run, set()).add(key)
        for run, lost in gone.items():
            self._break_up(run, lost)

    def clear(self) -> None:
        """Forget everything."""
        self._run_of.clear()
        self._order.clear()
        self._orphans.clear()

    # --- runs ---

    def _used_runs(self, keys: list[K]) -> list[_Run[K]]:
        """Return the runs that hold ``keys``, root first; one that is used only at its head is split."""
        used: list[_Run[K]] = []
        at = 0
        while at < len(keys):
            run = self._run_of.get(keys[at])
            if run is None:
                at += 1
                continue
            first = 0 if run.keys[0] == keys[at] else run.keys.index(keys[at])
            shared = _shared(run.keys, first, keys, at)
            if first + shared < len(run.keys):
                run = self._split(run, first + shared)
            used.append(run)
            at += shared
        return used

    def _split(self, run: _Run[K], count: int) -> _Run[K]:
        """Make the first ``count`` keys a run of their own, the most recent; the rest stays where it is."""
        head = _Run(run.keys[:count], run.parent, 1)
        run.keys = run.keys[count:]
        run.parent = head.keys[-1]
        self._run_of.update(dict.fromkeys(head.keys, head))
        self._order[head] = None
        return head

    def _join(self, head: _Run[K], tail: _Run[K]) -> None:
        """Append ``tail`` to ``head`` if it is all that hangs below it."""
        if head.children == 1 and tail.parent == head.keys[-1]:
            head.keys += tail.keys
            head.children = tail.children
            self._run_of.update(dict.fromkeys(tail.keys, head))
            del self._order[tail]

    def _insert(self, keys: list[K], parent: K | None) -> None:
        if self._orphans and not self._orphans.keys().isdisjoint(keys):
            for key in keys:  # each may have runs below it: one by one, so that each ends a run
                self._insert_run([key], parent)
                parent = key
        else:
            self._insert_run(keys, parent)

    def _insert_run(self, keys: list[K], parent: K | None) -> None:
        above = None if parent is None else self._run_of.get(parent)
        if above is not None and above.keys[-1] != parent:
            above = self._split(above, above.keys.index(parent) + 1)  # type: ignore[arg-type]
        below = self._orphans.pop(keys[-1], 0) if self._orphans else 0
        if above is not None and not above.children and next(reversed(self._order)) is above:
            above.keys += keys
            above.children = below
            self._run_of.update(dict.fromkeys(keys, above))
            return
        run = _Run(keys, parent, below)
        self._run_of.update(dict.fromkeys(keys, run))
        self._order[run] = None
        self._hang(parent, 1)

    def _hang(self, parent: K | None, change: int) -> _Run[K] | None:
        """Count one run more or less below ``parent``; return the parent's run."""
        if parent is None:
            return None
        run = self._run_of.get(parent)
        if run is not None:
            run.children += change
            return run
        left = self._orphans.get(parent, 0) + change
        if left > 0:
            self._orphans[parent] = left
        else:
            self._orphans.pop(parent, None)
        return None

    def _break_up(self, run: _Run[K], lost: set[K]) -> None:
        """Some keys of a run are gone: keep what is left as runs, those below a lost key oldest of all."""
        keys, parent, children = run.keys, run.parent, run.children
        last = keys[-1]
        pieces = list(_pieces(keys, lost, parent))
        if not pieces or pieces[0][0][0] != keys[0]:
            del self._order[run]
            self._hang(parent, -1)
        else:
            run.keys, run.children = pieces.pop(0)[0], 0
        for piece, above in pieces:
            part = _Run(piece, above)
            self._run_of.update(dict.fromkeys(piece, part))
            self._order[part] = None
            self._order.move_to_end(part, last=False)
            self._hang(above, 1)
        if children:
            self._hang(last, children)

    # --- victims ---

    def _take(self, count: int, pinned: Pinned[K], own: AbstractSet[K | None]) -> list[K]:
        """Remove and return up to ``count`` victims in one pass from the oldest run."""
        victims: list[K] = []
        empty: list[_Run[K]] = []
        skipped: set[_Run[K]] = set()
        for oldest in self._order:
            if len(victims) >= count:
                break
            run: _Run[K] | None = oldest
            while run is not None:
                if run.children:
                    skipped.add(run)
                    break
                run = self._strip(run, count, pinned, own, victims, empty)
                if run not in skipped:
                    break  # its own turn comes later
        for run in empty:
            del self._order[run]
        return victims

    def _strip(
        self,
        run: _Run[K],
        count: int,
        pinned: Pinned[K],
        own: AbstractSet[K | None],
        victims: list[K],
        empty: list[_Run[K]],
    ) -> _Run[K] | None:
        """Take victims from the tail of a leaf run; return the run above if nothing is left of this one."""
        keys = run.keys
        stop = len(keys)
        least = max(0, stop - (count - len(victims)))
        while stop > least and keys[stop - 1] not in own and not pinned(keys[stop - 1]):
            stop -= 1
        taken = keys[stop:]
        del keys[stop:]
        taken.reverse()
        victims += taken
        for key in taken:
            del self._run_of[key]
        if keys:
            return None
        empty.append(run)
        return self._hang(run.parent, -1)


def _shared(run: list[K], first: int, keys: list[K], at: int) -> int:
    """Return how many keys of ``run`` from ``first`` equal those of ``keys`` from ``at``; at least one does."""
    most = min(len(run) - first, len(keys) - at)
    if run[first : first + most] == keys[at : at + most]:
        return most
    return next(i for i in range(most) if run[first + i] != keys[at + i])


def _pieces(keys: list[K], lost: set[K], parent: K | None) -> Iterator[tuple[list[K], K | None]]:
    """Yield the stretches of ``keys`` without the lost ones, each with the key above it."""
    piece: list[K] = []
    for key in keys:
        if key not in lost:
            piece.append(key)
            continue
        if piece:
            yield piece, parent
        piece, parent = [], key
    if piece:
        yield piece, parent
