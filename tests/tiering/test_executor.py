"""The executor against the model store, with real threads: bytes, order, failures, shutdown. No timing decides."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from warmtier.core.clock import ManualClock, MonotonicClock
from warmtier.core.errors import InternalError
from warmtier.core.types import JobId, Key
from warmtier.store.base import Read, ReadOutcome, Write, WriteResult
from warmtier.store.memory import MemoryStore
from warmtier.tiering.executor import Executor
from warmtier.tiering.types import Action, Clear, Delete, Demote, JobResult, Migrate, Promote

PART = 64
FOREVER_S = 1e12


def key(i: int) -> Key:
    return Key(f"key{i}".encode())


class Rig:
    """A slab, two stores, and an executor over them."""

    def __init__(self, slots: int = 64, near: MemoryStore | None = None) -> None:
        self.slab = bytearray(slots * PART)
        self.stores = {"near": near or MemoryStore(1 << 20), "far": MemoryStore(1 << 20)}
        for store in self.stores.values():
            store.open()
        self.executor = Executor(self.stores, self.view, MonotonicClock(), part_bytes=PART, piece=4)

    def view(self, slot: int) -> memoryview:
        return memoryview(self.slab)[slot * PART : (slot + 1) * PART]

    def fill(self, slot: int, value: int) -> None:
        self.view(slot)[:] = bytes([value]) * PART

    def run(self, *actions: Action) -> dict[int, JobResult]:
        self.executor.submit(actions)
        assert self.executor.drain()
        return {result.job_id: result for result in self.executor.take_results()}


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    assert rig.executor.close()


def demote(job: int, keys: Sequence[int], slots: Sequence[int], tier: str = "near") -> Demote:
    return Demote(JobId(job), tier, [key(i) for i in keys], list(slots))


def promote(job: int, keys: Sequence[int], slots: Sequence[int], deadline_s: float = FOREVER_S) -> Promote:
    return Promote(JobId(job), "near", None, [key(i) for i in keys], list(slots), deadline_s)


def test_bytes_come_back_as_they_were_written(rig: Rig) -> None:
    for i in range(20):
        rig.fill(i, i + 1)
    assert all(rig.run(demote(1, range(20), range(20)))[1].ok)
    result = rig.run(promote(2, range(20), range(40, 60)))[2]
    assert list(result.ok) == [True] * 20
    assert result.size_bytes == 20 * PART
    assert [rig.view(40 + i)[0] for i in range(20)] == list(range(1, 21))


def test_an_absent_chunk_fails_alone(rig: Rig) -> None:
    rig.run(demote(1, [0, 2], [0, 1]))
    assert list(rig.run(promote(2, [0, 1, 2], [3, 4, 5]))[2].ok) == [True, False, True]


def test_writes_clears_and_deletes_keep_their_order(rig: Rig) -> None:
    rig.fill(0, 1)
    rig.fill(1, 2)
    rig.run(
        demote(1, [0], [0]), Delete("near", [key(0)]), demote(2, [0], [1]),
        demote(3, [5], [0]), Clear("near", [key(5)]), demote(4, [5], [1]),
    )  # fmt: skip
    rig.run(promote(5, [0, 5], [8, 9]))
    assert (rig.view(8)[0], rig.view(9)[0]) == (2, 2), "the older write survived its deletion"


def test_a_migration_copies_until_the_first_chunk_that_cannot_be_read(rig: Rig) -> None:
    for i in range(10):
        rig.fill(i, i + 1)
    rig.run(demote(1, [0, 1, 2, 3, 4, 6], range(6)))
    result = rig.run(Migrate(JobId(2), "near", "far", [key(i) for i in range(7)]))[2]
    assert list(result.ok) == [True] * 5 + [False] * 2
    into = memoryview(bytearray(PART))
    assert rig.stores["far"].get([Read(key(4), into)]) == [ReadOutcome.OK]
    assert into[0] == 5


def test_a_promotion_after_its_deadline_reads_nothing(rig: Rig) -> None:
    rig.run(demote(1, [0], [0]))
    result = rig.run(promote(2, [0], [1], deadline_s=-1.0))[2]
    assert result.timed_out
    assert list(result.ok) == [False]


def test_an_unknown_tier_is_a_bug_of_the_driver(rig: Rig) -> None:
    with pytest.raises(InternalError, match="nowhere"):
        rig.executor.submit([Delete("nowhere", [])])


class BrokenStore(MemoryStore):
    """Raises where the contract says that it never does."""

    broken = False

    def put(self, writes: Sequence[Write]) -> WriteResult:
        if self.broken:
            raise OSError("lost")
        return super().put(writes)

    def delete(self, keys: Sequence[Key]) -> None:
        if self.broken:
            raise OSError("lost")
        super().delete(keys)


def test_a_store_that_raises_fails_its_jobs_and_no_thread() -> None:
    store = BrokenStore(1 << 20)
    rig = Rig(near=store)
    store.broken = True
    assert list(rig.run(demote(1, [0, 1], [0, 1]))[1].ok) == [False, False]
    assert rig.executor.errors("near") == 1
    store.broken = False
    assert list(rig.run(demote(2, [0, 1], [0, 1]))[2].ok) == [True, True]
    assert rig.executor.close()


def test_a_store_that_cannot_be_cleared_serves_nothing_more() -> None:
    store = BrokenStore(1 << 20)
    rig = Rig(near=store)
    rig.run(demote(1, [0], [0]))
    store.broken = True
    rig.run(Clear("near", [key(0)]))
    store.broken = False
    assert list(rig.run(promote(2, [0], [1]))[2].ok) == [False], "a chunk of an earlier epoch was served"
    assert list(rig.run(demote(3, [1], [1]))[3].ok) == [False]
    assert rig.executor.close()


class SlowStore(MemoryStore):
    """Blocks in ``put`` until told to go on."""

    def __init__(self) -> None:
        super().__init__(1 << 20)
        self.gate = threading.Event()
        self.entered = threading.Event()

    def put(self, writes: Sequence[Write]) -> WriteResult:
        self.entered.set()
        assert self.gate.wait(30)
        return super().put(writes)


def test_submit_and_take_results_do_not_wait_for_a_hanging_store() -> None:
    store = SlowStore()
    rig = Rig(near=store)
    rig.executor.submit([demote(1, [0], [0])])
    assert store.entered.wait(30)
    for job in range(2, 40):
        rig.executor.submit([demote(job, [job], [0]), promote(100 + job, [job], [1])])
    while rig.executor.queued("near")[0]:
        threading.Event().wait(0.002)
    assert {result.job_id for result in rig.executor.take_results()} == {100 + job for job in range(2, 40)}
    assert not rig.executor.close(timeout_s=0.05), "a thread still inside the store may write slots"
    store.gate.set()
    assert rig.executor.close()


def test_the_queue_of_writes_is_bounded() -> None:
    store = SlowStore()
    rig = Rig(near=store)
    executor = Executor({"near": store}, rig.view, ManualClock(), part_bytes=PART, max_queue=3)
    executor.submit([demote(job, [job], [0]) for job in range(1, 6)])
    refused = [result.job_id for result in executor.take_results()]
    assert refused == [4, 5]
    store.gate.set()
    assert executor.close(timeout_s=1.0)
    assert rig.executor.close()
