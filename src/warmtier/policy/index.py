"""The evidence index on segments of paths, and its two simpler relatives on the same structure.

Design and numbers: ``docs/evidence/policies.md``. One resident structure serves three rules, so a cache can change
its rule at any time without moving a chunk: ``index`` (lowest Gittins index goes, a newcomer worth less is refused),
``lru`` (oldest goes, all admitted), ``touch2`` (oldest goes, newcomers are admitted at their second use once full).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic

from warmtier.policy.base import Access, Admission, EvictionPolicy, K, Pinned
from warmtier.policy.hazard import USES_MAX, ReuseTable, class_of, fresh_bucket
from warmtier.policy.segments import Segment, SegmentTree
from warmtier.policy.victims import Ranking, Victims


class Rule(enum.StrEnum):
    """Who goes and who may come in."""

    INDEX = "index"
    LRU = "lru"
    TOUCH2 = "touch2"


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Settings of the evidence index.

    Ghosts: ``ghosts_per_chunk`` x capacity, at least ``ghosts_min``, at most capacity + ``ghosts_extra_max``. The table
    is rebuilt first at request ``rebuild_first``, then every ``rebuild_every`` requests at most (less often when the
    scan is long). ``leaf_weight``: share of the leaf in the value of a blocked parent.
    """

    ghosts_per_chunk: float = 4.0
    ghosts_min: int = 20_000
    ghosts_extra_max: int = 500_000
    rebuild_first: int = 20
    rebuild_every: int = 100
    shrinkage: float = 100.0
    leaf_weight: float = 0.7


class _Request(Generic[K]):
    """What the policy knows about one running request."""

    __slots__ = ("done", "fresh", "kind", "segments")

    def __init__(self) -> None:
        self.done = 0  # chunks of the path that have been entered
        self.kind = 0
        self.fresh = 0
        self.segments: list[Segment[K]] = []  # root first


NEW, CONTINUING, FORK = 0, 1, 2


class IndexPolicy(EvictionPolicy[K]):
    """Evicts the leaf with the lowest index; refuses what is worth less than its victim. Work is per segment."""

    name: ClassVar[str] = "index"

    def __init__(self, capacity: int, config: IndexConfig | None = None, rule: Rule = Rule.INDEX) -> None:
        super().__init__(capacity)
        self.config = config or IndexConfig()
        self.rule = rule
        self.clear()

    def clear(self) -> None:
        """Forget everything, evidence included."""
        self.tree: SegmentTree[K] = SegmentTree()
        self.table = ReuseTable(shrinkage=self.config.shrinkage)
        self._requests = 0
        self._rebuild_at = self.config.rebuild_first
        self._holed = False  # a chunk above a resident one has been removed

    def __len__(self) -> int:
        return len(self.tree.cached)

    def __contains__(self, key: object) -> bool:
        return key in self.tree.cached

    def resident(self) -> Iterable[K]:
        """Iterate over the resident chunks."""
        return iter(self.tree.cached)

    @property
    def ghost_limit(self) -> int:
        """The most absent chunks that are remembered."""
        config = self.config
        wanted = max(config.ghosts_min, int(config.ghosts_per_chunk * self.capacity))
        return min(wanted, max(config.ghosts_min, self.capacity + config.ghosts_extra_max))

    def begin(self, access: Access[K], now: float) -> None:
        """Enter the path as far as it is known."""
        self._enter(access, now)

    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """Enter the path as far as it is known; the keys are on it."""
        del keys
        self._enter(access, now)

    def finish(self, access: Access[K], now: float) -> None:
        """Count the segments that are still this request's as used now, and mark where it ended."""
        state = self._enter(access, now)
        tree = self.tree
        for segment in reversed(state.segments):
            if segment.owner is state:
                tree.refresh(segment, now)
        path = access.path
        if path and path[-1] in tree.where:
            tree.ends[path[-1]] = True
            if len(path) > 1 and path[-2] in tree.where:
                tree.ends.setdefault(path[-2], False)

    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Admit leading keys while each is worth its victim."""
        state = self._enter(access, now)
        own = set(access.path) if self._holed else ()
        answer: Admission[K] = Admission(0)
        victims: Victims[K] | None = None
        while answer.admitted < len(keys):
            segment, run = self._run(state, keys, answer.admitted, parent, now)
            asked = run
            free = self.capacity - len(self.tree.cached)
            if run > free:
                if victims is None:
                    victims = Victims(self.tree, self._ranking(now), pinned, state, own)
                victims.guard = parent
                answer.victims += victims.take(run - free, self._bound(segment))
                run = min(run, self.capacity - len(self.tree.cached))
                if run <= 0:
                    break
            self.tree.admit(segment, run)
            answer.admitted += run
            parent = keys[answer.admitted - 1]
            if run < asked:
                break
        answer.refused_by_value = victims is not None and victims.refused_by_value
        self._trim(now)
        return answer

    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up the leaves with the lowest values."""
        victims = Victims(self.tree, self._ranking(now), pinned).take(count, math.inf)
        self._trim(now)
        return victims

    def give_up(self, keys: Iterable[K], count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give up the leaves among ``keys``, in order."""
        tree = self.tree
        victims: list[K] = []
        for key in keys:
            if len(victims) >= count:
                break
            if key in tree.cached and key not in tree.below and not pinned(key):
                segment = tree.where[key]
                if segment.keys[-1] == key:
                    victims += tree.demote_tails(segment, [key])
        self._trim(now)
        return victims

    def defer(self, keys: Sequence[K]) -> None:
        """Move the segments of the keys to the end of their queues."""
        tree = self.tree
        for segment in dict.fromkeys(tree.where[key] for key in keys if key in tree.cached):
            tree.queues[segment.class_].move_to_end(segment)

    def remove(self, keys: Iterable[K], now: float) -> None:
        """Forget the keys; resident chunks below them become roots of their own."""
        del now
        tree = self.tree
        for key in keys:
            if key in tree.cached:
                tree.drop(key)
                self._holed = self._holed or key in tree.below

    def explain(self) -> dict[str, float | int | str]:
        """Return the rule in charge and the sizes of the bounded memories."""
        tree = self.tree
        return {"policy": self.name, "rule": self.rule.value, "ghosts": tree.ghost_count, "segments": len(tree.slab)}

    def _enter(self, access: Access[K], now: float) -> _Request[K]:
        """Enter what is new of the path: record reuse, move the chunks to segments of this request."""
        state = access.state
        if not isinstance(state, _Request):
            state = access.state = _Request()
            self._count_request(now)
        path = access.path
        start, end = state.done, len(path)
        if start >= end:
            return state
        state.done = end
        tree = self.tree
        if start == 0:
            self._classify(state, access, tree.known(path, 0))
        made: list[Segment[K]] = []
        position = start
        while position < end:
            known = tree.known(path, position)
            if known > position:
                position = self._retake(state, made, path, position, known, now)
            else:
                position = self._discover(state, made, path, position, now)
        for segment in reversed(made):
            segment.ghosts.reverse()
            tree.attach(segment)
        state.segments += made
        tree.clock += end - start
        self._trim(now)
        return state

    def _classify(self, state: _Request[K], access: Access[K], known: int) -> None:
        state.fresh = fresh_bucket(access.prompt_tokens - known * access.tokens_per_chunk)
        if known == 0:
            state.kind = NEW
            return
        deepest = access.path[known - 1]
        end = self.tree.ends.get(deepest)
        continues = end is True or (end is False and self.tree.children(deepest) <= 1)
        state.kind = CONTINUING if continues else FORK

    def _retake(
        self, state: _Request[K], made: list[Segment[K]], path: Sequence[K], position: int, known: int, now: float
    ) -> int:
        """Take ``path[position:known]`` from the segments of earlier requests."""
        tree = self.tree
        reach = 5 * self.capacity
        while position < known:
            old = tree.where.get(path[position])
            if old is None:
                break
            if old.first != path[position]:
                tree.cut(path[position])
                old = tree.where[path[position]]
            count = tree.shared(old, path, position, known)
            if old.owner is not state:
                self.table.reused(old.class_, now - old.time_s, count)
            uses = old.uses + 1 if old.uses < USES_MAX else USES_MAX
            near = tree.clock - old.clock <= reach
            parent = path[position - 1] if position else None
            position += count
            keys, ghosts = tree.take_head(old, count, path[position - 1])
            segment = made[-1] if made else None
            if segment is None or segment.uses != uses or segment.near != near or (segment.ghosts and keys):
                segment = Segment(class_of(state.kind, uses, state.fresh), uses, now, parent, state)
                segment.near = near
                made.append(segment)
            segment.keys += keys
            segment.ghosts += ghosts
        return position

    def _discover(
        self, state: _Request[K], made: list[Segment[K]], path: Sequence[K], position: int, now: float
    ) -> int:
        """Enter untracked chunks from ``position`` on as ghosts (they are absent until admitted)."""
        tree = self.tree
        end = len(path)
        keys = path[position:]
        if not tree.where.keys().isdisjoint(keys):
            end = next(index for index in range(position, end) if path[index] in tree.where)
            keys = path[position:end]
        tree.ghost_count += len(keys)
        last = state.segments[-1] if state.segments and not made else None
        if last is not None and last.owner is state and last.uses == 1 and last.last == path[position - 1]:
            tree.extend(last, keys)
            return end
        segment: Segment[K] = Segment(
            class_of(state.kind, 1, state.fresh), 1, now, path[position - 1] if position else None, state
        )
        segment.ghosts += keys
        made.append(segment)
        return end

    def _run(
        self, state: _Request[K], keys: Sequence[K], start: int, parent: K | None, now: float
    ) -> tuple[Segment[K], int]:
        """Return the segment whose first ghosts are ``keys[start:]`` and how many of them are."""
        tree = self.tree
        key = keys[start]
        segment = tree.where.get(key)
        if segment is None:
            segment = Segment(class_of(state.kind, 1, state.fresh), 1, now, parent, state)
            end = len(keys)
            if not tree.where.keys().isdisjoint(keys[start:]):
                end = next(index for index in range(start, end) if keys[index] in tree.where)
            segment.ghosts = list(keys[start:end][::-1])
            tree.ghost_count += len(segment.ghosts)
            tree.attach(segment)
            state.segments.append(segment)
        elif key in tree.cached:
            raise ValueError(f"admit: {key!r} is resident already")
        elif segment.ghosts[-1] != key:
            tree.cut(key)
            segment = tree.where[key]
        run = min(len(segment.ghosts), len(keys) - start)
        while segment.ghosts[-run] != keys[start + run - 1]:
            run -= 1
        return segment, run

    def _ranking(self, now: float) -> Ranking[K]:
        if self.rule is not Rule.INDEX:
            return Ranking(lambda segment: segment.order, lambda _parent, leaf: leaf)
        index_of = self.table.at(now)
        weight = self.config.leaf_weight
        return Ranking(
            lambda segment: index_of(segment.class_, segment.time_s),
            lambda parent, leaf: parent ** (1 - weight) * leaf**weight,
        )

    def _bound(self, segment: Segment[K]) -> float:
        """Return the highest value of a victim for which a chunk of ``segment`` may be admitted."""
        if self.rule is Rule.INDEX:
            return self.table.index[segment.class_][0]
        return math.inf if self.rule is Rule.LRU or segment.near else -math.inf

    def _trim(self, now: float) -> None:
        if self.tree.ghost_count > self.ghost_limit:
            for segment, count in self.tree.trim(self.ghost_limit):
                self.table.censored(segment.class_, now - segment.time_s, count)

    def _count_request(self, now: float) -> None:
        self._requests += 1
        if self._requests < self._rebuild_at:
            return
        classes, times_s, counts = self.tree.slab.columns()
        self.table.rebuild(classes, now - times_s, counts)
        every = max(4, min(self.config.rebuild_every, self._requests // 4), len(counts) // 200)
        self._rebuild_at = self._requests + every
