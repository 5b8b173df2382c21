"""Links and stores that take time: bandwidth, fixed cost, queueing. And the executor of the cache's actions on them."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from warmtier.core.types import Key
from warmtier.sim.loop import Loop
from warmtier.sim.settings import ColdModel
from warmtier.tiering.calibration import LinkSpeed
from warmtier.tiering.types import Action, Clear, Delete, Demote, JobResult, Migrate, Promote


class Link:
    """Moves bytes in order of request, ``parallel`` at a time in their fixed cost, one stream of bandwidth for all."""

    def __init__(self, speed: LinkSpeed, parallel: int = 1) -> None:
        self.speed = speed
        self.busy_until_s = 0.0
        self.bytes_moved = 0
        self.requests = 0
        self.busy_s = 0.0
        self._free_at = [0.0] * parallel

    def next_start_s(self, now: float) -> float:
        """Return when a transfer queued now would start."""
        return max(now, self._free_at[0])

    def submit(self, size_bytes: int, now: float) -> float:
        """Queue a transfer; return when it ends."""
        start_s = self.next_start_s(now)
        stream_s = size_bytes / self.speed.bytes_per_second
        # The fixed costs of several requests overlap, their bytes share the medium one after the other.
        moved_s = max(start_s + self.speed.fixed_seconds, self.busy_until_s) + stream_s
        self.busy_s += stream_s
        self.busy_until_s = moved_s
        heapq.heapreplace(self._free_at, moved_s)
        self.bytes_moved += size_bytes
        self.requests += 1
        return moved_s


@dataclass(slots=True)
class Medium:
    """What a cold tier's store would hold, and the two directions of its device."""

    model: ColdModel
    read: Link
    write: Link
    held: set[Key] = field(default_factory=set)
    deletes: int = 0
    most_held: int = 0


class Media:
    """Performs the actions of a ``TieredCache`` on simulated media and queues their results.

    Results are handed out by ``take_results``, as an engine asks for them once per step. As the executor of production
    has it: a read that cannot start before its deadline is not done at all; writes and deletions keep their order.
    """

    def __init__(self, loop: Loop, tiers: tuple[ColdModel, ...], chunk_bytes: int) -> None:
        self.tiers = {tier.name: Medium(tier, Link(tier.read, tier.parallel), Link(tier.write)) for tier in tiers}
        self.in_flight = 0
        self._loop = loop
        self._chunk_bytes = chunk_bytes
        self._results: list[JobResult] = []

    def perform(self, actions: list[Action]) -> None:
        """Start all ``actions`` now."""
        for action in actions:
            medium = self.tiers[action.tier]
            if isinstance(action, Promote):
                self._promote(medium, action)
            elif isinstance(action, Demote | Migrate):
                self._write(medium, action)
            elif isinstance(action, Delete | Clear):
                self._delete(medium, action)

    def take_results(self) -> list[JobResult]:
        """Return the results since the last call, in the order in which they came."""
        results, self._results = self._results, []
        return results

    def _promote(self, medium: Medium, action: Promote) -> None:
        now, job = self._loop.now, action.job_id
        start_s = medium.read.next_start_s(now)
        if start_s >= action.deadline_s:
            result = JobResult(job, [False] * len(action.keys), seconds=start_s - now, timed_out=True)
            self._later(start_s, result)
            return
        there = [key in medium.held for key in action.keys]
        size_bytes = self._chunk_bytes * sum(there)
        done_s = medium.read.submit(size_bytes, now)
        self._later(done_s, JobResult(job, there, seconds=done_s - now, size_bytes=size_bytes))

    def _delete(self, medium: Medium, action: Delete | Clear) -> None:
        keys = set(action.keys)
        medium.deletes += len(keys)

        def forget() -> None:
            medium.held.difference_update(keys)

        if medium.write.busy_until_s > self._loop.now:
            self._loop.at(medium.write.busy_until_s, forget)
        else:
            forget()

    def _write(self, medium: Medium, action: Demote | Migrate) -> None:
        now = self._loop.now
        size_bytes = self._chunk_bytes * len(action.keys)
        start_s = now
        if isinstance(action, Migrate):
            start_s = self.tiers[action.source].read.submit(size_bytes, now)
        start_s = medium.write.next_start_s(start_s)
        done_s = medium.write.submit(size_bytes, start_s)
        seconds = done_s - start_s
        result = JobResult(action.job_id, [True] * len(action.keys), seconds=seconds, size_bytes=size_bytes)

        def hold() -> None:
            medium.held.update(action.keys)
            medium.most_held = max(medium.most_held, len(medium.held))

        self._later(done_s, result, hold)

    def _later(self, at_s: float, result: JobResult, first: Callable[[], None] | None = None) -> None:
        self.in_flight += 1

        def arrive() -> None:
            if first is not None:
                first()
            self.in_flight -= 1
            self._results.append(result)

        self._loop.at(at_s, arrive)
