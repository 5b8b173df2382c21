"""The executor: performs the actions of a ``TieredCache`` against stores, in threads, and hands results back.

Threads per tier: one writer, which performs writes, clears and deletes in the order in which they were decided, and
``readers`` that promote. Reads never queue behind writes: within a tier they have threads of their own, and the writer
starts no write while promotions of its tier wait for a reader. One promotion is read by several readers side by side.

Ownership instead of locks on the scheduler's side: ``submit`` and ``take_results`` only put into ``SimpleQueue``s and
pop from a ``deque`` (both atomic, neither waits). Queues are bounded by the budgets of the cache, which counts each job
until its result is taken; a job above ``max_queue`` (a driver's mistake) is answered as failed.

A store whose ``delete`` fails while an epoch is being cleared may still hold chunks of the old one: from then on every
operation on it is answered as failed, so that its breaker opens.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from warmtier.core.clock import Clock
from warmtier.core.errors import InternalError, StoreError
from warmtier.core.types import JobId, Key
from warmtier.store.base import EpochStore, Read, ReadOutcome, Store, Write, WriteOutcome, WriteResult
from warmtier.tiering.types import Action, Clear, Delete, Demote, JobResult, Migrate, Promote

SlotView = Callable[[int], memoryview]
"""Returns the writable bytes of one host slot. Called from executor threads."""

_YIELD_S: Final = 0.05  # how long a writer lets waiting reads go first at most


@dataclass(slots=True)
class _Reading:
    """One promotion, cut in pieces. Readers write ``outcomes`` piece-wise and count ``left`` down under the lock."""

    action: Promote
    left: int
    started_s: float
    outcomes: list[ReadOutcome] = field(default_factory=list)


class _Tier:
    """The queues and threads of one tier. Each counter has one writer: the thread named beside it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pieces: SimpleQueue[tuple[_Reading, range] | None] = SimpleQueue()
        self.writes: SimpleQueue[Action | None] = SimpleQueue()
        self.queued = 0  # scheduler
        self.written = 0  # writer
        self.reads_queued = 0  # scheduler
        self.reads_done = 0  # readers, under the lock
        self.errors = 0  # any of the tier's threads; approximate
        self.lost = False
        self.lock = threading.Lock()  # between readers only
        self.threads: list[threading.Thread] = []


class Executor:
    """Moves bytes between host slots and stores. Stores must be open; the executor closes none.

    ``part_bytes`` is the size of a slot. ``readers`` threads per tier; promotions are cut in pieces of ``piece`` parts.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        slot_view: SlotView,
        clock: Clock,
        *,
        part_bytes: int,
        readers: int = 4,
        piece: int = 8,
        max_queue: int = 1024,
    ) -> None:
        self._slot_view = slot_view
        self._clock = clock
        self._part_bytes = part_bytes
        self._piece = piece
        self._max_queue = max_queue
        self._results: deque[JobResult] = deque()
        self._stopping = False
        self._tiers = {name: _Tier(store) for name, store in stores.items()}
        for name, tier in self._tiers.items():
            work = [
                (self._write_loop, f"{name}-write"),
                *((self._read_loop, f"{name}-read-{i}") for i in range(readers)),
            ]
            for target, label in work:
                thread = threading.Thread(target=target, args=(tier,), name=f"warmtier-{label}", daemon=True)
                tier.threads.append(thread)
                thread.start()

    # --- the scheduler's side: never waits ---

    def submit(self, actions: Sequence[Action]) -> None:
        """Queue actions. Never blocks."""
        for action in actions:
            tier = self._tiers.get(action.tier)
            if tier is None:
                raise InternalError(f"an action names tier {action.tier!r}, which has no store")
            if isinstance(action, Promote):
                self._queue_read(tier, action)
            elif isinstance(action, Demote | Migrate) and tier.queued - tier.written >= self._max_queue:
                self._fail(action.job_id, len(action.keys))
            else:
                tier.queued += 1
                tier.writes.put(action)

    def take_results(self) -> list[JobResult]:
        """Return the results since the last call. Never blocks."""
        taken = []
        while True:
            try:
                taken.append(self._results.popleft())
            except IndexError:
                return taken

    def queued(self, tier: str) -> tuple[int, int]:
        """Return how many promotions and writes of a tier are queued or at hand."""
        queues = self._tiers[tier]
        return queues.reads_queued - queues.reads_done, queues.queued - queues.written

    def errors(self, tier: str) -> int:
        """Return how many operations raised instead of answering."""
        return self._tiers[tier].errors

    def close(self, timeout_s: float = 10.0) -> bool:
        """Stop the threads after the operation at hand; return whether all have ended. Blocks up to ``timeout_s``.

        Until it has returned True, slots may still be written.
        """
        self._stopping = True
        deadline_s = self._clock.now() + timeout_s
        threads = []
        for tier in self._tiers.values():
            tier.writes.put(None)
            for _ in tier.threads:
                tier.pieces.put(None)
            threads += tier.threads
        for thread in threads:
            thread.join(max(0.0, deadline_s - self._clock.now()))
        return not any(thread.is_alive() for thread in threads)

    def drain(self, timeout_s: float = 10.0) -> bool:
        """Wait until everything queued is done; return whether it is. For shutdown and tests; blocks."""
        deadline_s = self._clock.now() + timeout_s
        pause = threading.Event()
        while any(any(self.queued(name)) for name in self._tiers):
            if self._clock.now() >= deadline_s:
                return False
            pause.wait(0.002)
        return True

    def _queue_read(self, tier: _Tier, action: Promote) -> None:
        count = len(action.keys)
        if tier.reads_queued - tier.reads_done >= self._max_queue or not count:
            self._fail(action.job_id, count)
            return
        pieces = [range(i, min(i + self._piece, count)) for i in range(0, count, self._piece)]
        reading = _Reading(action, len(pieces), self._clock.now(), [ReadOutcome.ERROR] * count)
        tier.reads_queued += 1
        for piece in pieces:
            tier.pieces.put((reading, piece))

    def _fail(self, job_id: JobId, count: int, *, timed_out: bool = False) -> None:
        self._results.append(JobResult(job_id, [False] * count, timed_out=timed_out))

    # --- readers ---

    def _read_loop(self, tier: _Tier) -> None:
        while True:
            taken = tier.pieces.get()
            if taken is None or self._stopping:
                return
            self._read_piece(tier, *taken)

    def _read_piece(self, tier: _Tier, reading: _Reading, piece: range) -> None:
        action = reading.action
        if self._clock.now() >= action.deadline_s:
            found = [ReadOutcome.TIMEOUT] * len(piece)  # nobody waits any more: leave the medium to others
        else:
            keys, slots = action.keys[piece.start : piece.stop], action.slots[piece.start : piece.stop]
            found = self._get(tier, keys, lambda i: self._slot_view(slots[i]))
        reading.outcomes[piece.start : piece.stop] = found
        with tier.lock:
            reading.left -= 1
            if reading.left:
                return
            tier.reads_done += 1
        self._results.append(self._read_result(reading))

    def _get(self, tier: _Tier, keys: Sequence[Key], view: Callable[[int], memoryview]) -> list[ReadOutcome]:
        if tier.lost:
            return [ReadOutcome.ERROR] * len(keys)
        try:
            return tier.store.get([Read(key, view(i)) for i, key in enumerate(keys)])
        except Exception:  # noqa: BLE001 - a lost store is a failed load, never a dead thread
            tier.errors += 1
            return [ReadOutcome.ERROR] * len(keys)

    def _read_result(self, reading: _Reading) -> JobResult:
        outcomes = reading.outcomes
        ok = [outcome is ReadOutcome.OK for outcome in outcomes]
        return JobResult(
            reading.action.job_id,
            ok,
            [outcome is ReadOutcome.CORRUPT for outcome in outcomes],
            seconds=self._clock.now() - reading.started_s,
            size_bytes=sum(ok) * self._part_bytes,
            timed_out=ReadOutcome.TIMEOUT in outcomes,
        )

    # --- the writer ---

    def _write_loop(self, tier: _Tier) -> None:
        while True:
            action = tier.writes.get()
            if action is None or self._stopping:
                return
            self._let_reads_go(tier)
            self._perform(tier, action)
            tier.written += 1

    def _let_reads_go(self, tier: _Tier) -> None:
        """Reads before writes, but no read starves the writer."""
        deadline_s = self._clock.now() + _YIELD_S
        pause = threading.Event()
        while tier.pieces.qsize() and not self._stopping and self._clock.now() < deadline_s:
            pause.wait(0.001)

    def _perform(self, tier: _Tier, action: Action) -> None:
        try:
            if tier.lost:
                raise StoreError("the store may hold chunks of an earlier epoch")
            if isinstance(action, Demote):
                views = [Write(key, self._slot_view(slot)) for key, slot in zip(action.keys, action.slots, strict=True)]
                self._put(tier.store, action.job_id, views)
            elif isinstance(action, Migrate):
                self._migrate(tier.store, action)
            elif isinstance(action, Clear) and isinstance(tier.store, EpochStore):
                tier.store.begin_epoch()
            elif isinstance(action, Delete | Clear):
                tier.store.delete(list(action.keys))
        except Exception:  # noqa: BLE001 - a lost store is a failed write, never a dead thread
            tier.errors += 1
            tier.lost = tier.lost or isinstance(action, Clear)
            if isinstance(action, Demote | Migrate):
                self._fail(action.job_id, len(action.keys))

    def _put(self, store: Store, job_id: JobId, writes: list[Write]) -> None:
        started_s = self._clock.now()
        result = store.put(writes)
        self._results.append(self._write_result(job_id, result, self._clock.now() - started_s))

    def _write_result(self, job_id: JobId, result: WriteResult, seconds: float) -> JobResult:
        kept = (WriteOutcome.STORED, WriteOutcome.PRESENT)
        ok = [outcome in kept for outcome in result.outcomes]
        timed_out = WriteOutcome.TIMEOUT in result.outcomes
        size_bytes = sum(ok) * self._part_bytes
        return JobResult(job_id, ok, (), result.evicted, seconds, size_bytes, timed_out)

    def _migrate(self, target: Store, action: Migrate) -> None:
        """Copy through a buffer of one piece at a time; stop at the first chunk that cannot be read."""
        source = self._tiers[action.source]
        buffer = memoryview(bytearray(self._piece * self._part_bytes))
        ok: list[bool] = []
        evicted = []
        for start in range(0, len(action.keys), self._piece):
            keys = action.keys[start : start + self._piece]
            views = [buffer[i * self._part_bytes : (i + 1) * self._part_bytes] for i in range(len(keys))]
            read = self._get(source, keys, views.__getitem__)
            good = next((i for i, outcome in enumerate(read) if outcome is not ReadOutcome.OK), len(keys))
            result = target.put([Write(key, view) for key, view in zip(keys[:good], views[:good], strict=True)])
            ok += [outcome in (WriteOutcome.STORED, WriteOutcome.PRESENT) for outcome in result.outcomes]
            evicted += result.evicted
            if good < len(keys):
                break
        ok += [False] * (len(action.keys) - len(ok))
        self._results.append(JobResult(action.job_id, ok, (), evicted, size_bytes=sum(ok) * self._part_bytes))
