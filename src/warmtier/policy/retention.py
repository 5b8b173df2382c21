"""Retention: priorities 0 to 100 with durations, around any inner policy.

Semantics: TensorRT-LLM's ``KvCacheRetentionConfig``. The lowest priority goes first, whatever its age; within one
priority the chunk released longest ago; only leaves. An expired chunk returns to the default, at the recent end. On
reuse a given priority replaces the old one, none keeps it. Two deliberate differences, both undone by ``exact``:

* the *later* expiry is kept on reuse, so a reuse without a duration never makes a limited priority permanent;
* a new chunk never displaces one of a higher priority: it is refused instead.

All chunks live in the inner policy, which knows the tree; here is only what is known of chunks of another than the
default priority.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from warmtier.core.types import DEFAULT_PRIORITY
from warmtier.policy.base import Access, Admission, EvictionPolicy, K, Pinned
from warmtier.policy.ranges import MAX_PRIORITY


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for one chunk. Priority None keeps what it has (a new chunk: the default)."""

    priority: int | None = None
    duration_s: float | None = None


Classify = Callable[[Access[K], Sequence[K]], Sequence[Wish] | None]
"""Returns one wish per key of a request, or None if it wishes nothing for any."""


@dataclass(slots=True)
class _Kept:
    """A resident chunk of another than the default priority."""

    priority: int
    duration_s: float | None = None
    expires_s: float | None = None


class RetentionPolicy(EvictionPolicy[K]):
    """Priority queues around ``inner``. Costs nothing per chunk while nobody asks for a priority.

    ``classify`` tells what a request wishes. ``max_high_share`` bounds the part of the capacity that priorities above
    the default may hold: beyond it a chunk enters with the default, so stale high priorities cannot starve the rest.
    """

    name: ClassVar[str] = "retention"

    def __init__(
        self, inner: EvictionPolicy[K], classify: Classify[K], *, max_high_share: float = 0.5, exact: bool = False
    ) -> None:
        super().__init__(inner.capacity)
        self.inner = inner
        self.classify = classify
        self.max_high_share = max_high_share
        self.exact = exact
        self.expired = 0
        self.capped = 0
        self._kept: dict[K, _Kept] = {}
        self._queues: dict[int, OrderedDict[K, None]] = {}  # released longest ago first
        self._timers: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._high = 0

    def __len__(self) -> int:
        return len(self.inner)

    def __contains__(self, key: object) -> bool:
        return key in self.inner

    def resident(self) -> Iterable[K]:
        """Iterate over the inner policy's chunks."""
        return self.inner.resident()

    def priority(self, key: K) -> int:
        """Return the priority of a resident chunk."""
        kept = self._kept.get(key)
        return DEFAULT_PRIORITY if kept is None else kept.priority

    def expiry(self, key: K) -> float | None:
        """Return when the chunk falls to the default priority, if it will."""
        kept = self._kept.get(key)
        return None if kept is None else kept.expires_s

    def begin(self, access: Access[K], now: float) -> None:
        """Pass on."""
        self.inner.begin(access, now)

    def touch(self, access: Access[K], keys: Sequence[K], now: float) -> None:
        """Pass on; apply the request's wishes to the resident chunks."""
        self._expire(now)
        self.inner.touch(access, keys, now)
        wishes = self.classify(access, keys)
        if wishes is not None:
            for key, wish in zip(keys, wishes, strict=True):
                self._reuse(key, wish, now)
        elif self.exact and self._kept:
            for key in keys:
                self._reuse(key, Wish(), now)
        self._recent(keys)

    def finish(self, access: Access[K], now: float) -> None:
        """Pass on; the release of the request's chunks starts their timers."""
        self._expire(now)
        self.inner.finish(access, now)
        if not self._kept:
            return
        wishes = self.classify(access, access.path)
        for index, key in enumerate(access.path):
            kept = self._kept.get(key)
            if kept is None:
                continue
            duration_s = kept.duration_s if self.exact else None if wishes is None else wishes[index].duration_s
            if duration_s is not None:
                self._expire_at(key, kept, now + duration_s)
        self._recent(access.path)

    def admit(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        """Admit runs of equal wishes one after another, each taking victims of the lowest priorities first."""
        self._expire(now)
        wishes = self.classify(access, keys)
        if wishes is None and not self._kept:
            return self.inner.admit(access, keys, parent, now, pinned)
        answer: Admission[K] = Admission(0)
        start = 0
        while start < len(keys):
            end = _run_end(wishes, start, len(keys))
            wish = Wish() if wishes is None else wishes[start]
            part = self._admit_run(access, keys[start:end], parent, wish, now, pinned)
            answer.admitted += part.admitted
            answer.victims += part.victims
            if part.admitted < end - start:
                answer.refused_by_value = part.refused_by_value
                break
            start, parent = end, keys[end - 1]
        return answer

    def evict(self, count: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Give chunks up, lowest priority first."""
        self._expire(now)
        victims = self._take_queued(count, 0, DEFAULT_PRIORITY - 1, now, pinned)
        victims += self._by_inner(pinned, lambda guarded: self.inner.evict(count - len(victims), now, guarded))
        return victims + self._take_queued(count - len(victims), DEFAULT_PRIORITY + 1, MAX_PRIORITY, now, pinned)

    def remove(self, keys: Iterable[K], now: float) -> None:
        """Forget the keys."""
        gone = list(keys)
        self._forget(gone)
        self.inner.remove(gone, now)

    def resize(self, capacity: int) -> None:
        """Set the capacity of both."""
        super().resize(capacity)
        self.inner.resize(capacity)

    def clear(self) -> None:
        """Forget everything."""
        self.inner.clear()
        self._high = 0
        self._kept.clear()
        self._queues.clear()
        self._timers.clear()

    def explain(self) -> dict[str, float | int | str]:
        """Return the inner policy's facts and how many chunks have a priority of their own."""
        own = {"retained": len(self._kept), "retention_expired": self.expired, "retention_capped": self.capped}
        return {**self.inner.explain(), **own}

    # --- admission and victims ---

    def _admit_run(
        self, access: Access[K], keys: Sequence[K], parent: K | None, wish: Wish, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        priority = self._cap(DEFAULT_PRIORITY if wish.priority is None else wish.priority, len(keys))
        ceiling = MAX_PRIORITY if self.exact else priority
        own = set(access.path)

        def kept(key: K) -> bool:
            return key in own or pinned(key)

        def admit(first: int, above: K | None) -> Admission[K]:
            if ceiling < DEFAULT_PRIORITY:  # only room counts: what is resident is worth more
                return self.inner.admit(access, keys[first:], above, now, lambda _: True)
            return self._admit_by_inner(access, keys[first:], above, now, pinned)

        need = len(self.inner) + len(keys) - self.capacity
        victims = self._take_queued(need, 0, min(ceiling, DEFAULT_PRIORITY - 1), now, kept)
        part = admit(0, parent)
        victims += part.victims
        admitted = part.admitted
        if admitted < len(keys) and ceiling > DEFAULT_PRIORITY:
            more = self._take_queued(len(keys) - admitted, DEFAULT_PRIORITY + 1, ceiling, now, kept)
            if more:
                victims += more
                part = admit(admitted, keys[admitted - 1] if admitted else parent)
                victims += part.victims
                admitted += part.admitted
        if priority != DEFAULT_PRIORITY:
            for key in keys[:admitted]:
                self._keep(key, priority, wish.duration_s, now)
        refused = part.refused_by_value or (admitted < len(keys) and ceiling < MAX_PRIORITY and bool(self._kept))
        return Admission(admitted, victims, refused_by_value=refused)

    def _admit_by_inner(
        self, access: Access[K], keys: Sequence[K], parent: K | None, now: float, pinned: Pinned[K]
    ) -> Admission[K]:
        answer: list[Admission[K]] = []

        def ask(guarded: Pinned[K]) -> list[K]:
            answer.append(self.inner.admit(access, keys, parent, now, guarded))
            return answer[0].victims

        self._by_inner(pinned, ask)
        return answer[0]

    def _by_inner(self, pinned: Pinned[K], ask: Callable[[Pinned[K]], list[K]]) -> list[K]:
        """Let the inner policy choose among the chunks of the default priority.

        Those it had to pass over are deferred, so that they do not stand in the way of every later choice.
        """
        kept = self._kept
        if not kept:
            return ask(pinned)
        passed: set[K] = set()

        def guarded(key: K) -> bool:
            if key in kept:
                passed.add(key)
                return True
            return pinned(key)

        victims = ask(guarded)
        self.inner.defer(list(passed))
        return victims

    def _take_queued(self, count: int, lowest: int, highest: int, now: float, pinned: Pinned[K]) -> list[K]:
        """Take up to ``count`` chunks whose priority is in the given bounds, lowest first."""
        victims: list[K] = []
        for priority in sorted(p for p in self._queues if lowest <= p <= highest):
            while len(victims) < count and priority in self._queues:
                found = self.inner.give_up(self._queues[priority], count - len(victims), now, pinned)
                if not found:
                    break
                self._forget(found)
                victims += found
        return victims

    def _cap(self, priority: int, count: int) -> int:
        bounded = self.max_high_share < 1.0 and not self.exact
        if bounded and priority > DEFAULT_PRIORITY and self._high + count > self.max_high_share * self.capacity:
            self.capped += count
            return DEFAULT_PRIORITY
        return priority

    # --- queues, reuse and time ---

    def _keep(self, key: K, priority: int, duration_s: float | None, now: float) -> None:
        kept = self._kept[key] = _Kept(priority, duration_s)
        self._enqueue(key, priority)
        if duration_s is not None:
            self._expire_at(key, kept, now + duration_s)

    def _forget(self, keys: Iterable[K]) -> None:
        for key in keys:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self._unqueue(key, kept.priority)

    def _enqueue(self, key: K, priority: int) -> None:
        self._queues.setdefault(priority, OrderedDict())[key] = None
        self._high += priority > DEFAULT_PRIORITY

    def _unqueue(self, key: K, priority: int) -> None:
        queue = self._queues[priority]
        del queue[key]
        self._high -= priority > DEFAULT_PRIORITY
        if not queue:
            del self._queues[priority]

    def _reuse(self, key: K, wish: Wish, now: float) -> None:
        kept = self._kept.get(key)
        priority = None if wish.priority is None else wish.priority
        if kept is None:
            if priority is not None and priority != DEFAULT_PRIORITY and key in self.inner:
                priority = self._cap(priority, 1)
                if priority != DEFAULT_PRIORITY:
                    self._keep(key, priority, wish.duration_s, now)
            return
        if priority == DEFAULT_PRIORITY:
            self._forget([key])
            return
        if priority is not None and priority != kept.priority:
            self._unqueue(key, kept.priority)
            kept.priority = priority
            self._enqueue(key, priority)
        if self.exact:  # claimed: the timer stops, and starts anew with the last duration when released
            kept.duration_s, kept.expires_s = wish.duration_s, None
        elif wish.duration_s is not None:
            self._expire_at(key, kept, now + wish.duration_s)

    def _expire_at(self, key: K, kept: _Kept, expires_s: float) -> None:
        """Set the timer; unless ``exact``, never to an earlier time."""
        if not self.exact and kept.expires_s is not None and kept.expires_s >= expires_s:
            return
        kept.expires_s = expires_s
        self._sequence += 1
        heapq.heappush(self._timers, (expires_s, self._sequence, key))
        if len(self._timers) > 2 * len(self._kept) + 64:
            live = [(kept.expires_s, key) for key, kept in self._kept.items() if kept.expires_s is not None]
            self._timers = [(at_s, order, key) for order, (at_s, key) in enumerate(live)]
            heapq.heapify(self._timers)

    def _expire(self, now: float) -> None:
        """Return expired chunks to the default priority, at the recent end."""
        while self._timers and self._timers[0][0] <= now:
            expires_s, _, key = heapq.heappop(self._timers)
            kept = self._kept.get(key)
            if kept is not None and kept.expires_s == expires_s:
                self.expired += 1
                self._forget([key])
                self.inner.defer([key])

    def _recent(self, keys: Sequence[K]) -> None:
        if self._kept:
            for key in reversed(keys):
                kept = self._kept.get(key)
                if kept is not None:
                    self._queues[kept.priority].move_to_end(key)


def _run_end(wishes: Sequence[Wish] | None, start: int, end: int) -> int:
    if wishes is None:
        return end
    stop = start + 1
    while stop < end and wishes[stop] == wishes[start]:
        stop += 1
    return stop
