"""Every fault is injected by its chance, by seed, and ends as its kind should."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from warmtier.core.types import TierKind
from warmtier.store.base import Read, ReadOutcome, Store, WriteOutcome
from warmtier.store.faulty import Fault, FaultPlan, FaultyStore
from warmtier.store.memory import MemoryStore
from warmtier.testing.store_suite import CHUNK_BYTES, StoreSuite, chunk_bytes, chunk_key, get_chunks, put_chunks


def make(chances: dict[Fault, float], seed: int = 0) -> FaultyStore:
    store = FaultyStore(MemoryStore(1 << 30), FaultPlan(chances, seed=seed), sleep=lambda _: None)
    store.open()
    return store


class TestFaultlessFaultyStore(StoreSuite):
    """Without chances it is the wrapped store."""

    persistent = False

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return FaultyStore(MemoryStore(capacity_bytes), FaultPlan())


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (Fault.EIO_WRITE, WriteOutcome.ERROR),
        (Fault.SHORT_WRITE, WriteOutcome.ERROR),
        (Fault.ENOSPC, WriteOutcome.NO_ROOM),
        (Fault.READ_ONLY, WriteOutcome.READ_ONLY),
    ],
)
def test_refused_writes_leave_nothing(fault: Fault, outcome: WriteOutcome) -> None:
    store = make({fault: 0.5})
    outcomes = put_chunks(store, range(100), 50).outcomes
    assert set(outcomes) == {WriteOutcome.STORED, outcome}
    assert 30 < outcomes.count(outcome) == store.injected[fault] < 70
    expected = [ReadOutcome.OK if o is WriteOutcome.STORED else ReadOutcome.ABSENT for o in outcomes]
    assert get_chunks(store, range(100), 50) == expected


@pytest.mark.parametrize(
    ("fault", "outcome", "after"),
    [
        (Fault.EIO_READ, ReadOutcome.ERROR, ReadOutcome.OK),
        (Fault.SHORT_READ, ReadOutcome.ERROR, ReadOutcome.OK),
        (Fault.BIT_FLIP, ReadOutcome.CORRUPT, ReadOutcome.ABSENT),
    ],
)
def test_failing_reads_spoil_the_buffer(fault: Fault, outcome: ReadOutcome, after: ReadOutcome) -> None:
    store = make({fault: 1.0})
    put_chunks(store, [1])
    buffer = bytearray(CHUNK_BYTES)
    assert store.get([Read(chunk_key(1), memoryview(buffer))]) == [outcome]
    assert buffer != chunk_bytes(1)
    store.plan.chances.clear()
    assert get_chunks(store, [1]) == [after]


def test_a_torn_write_is_found_at_the_read() -> None:
    store = make({Fault.TORN_WRITE: 1.0})
    assert put_chunks(store, [1, 2]).outcomes == [WriteOutcome.STORED] * 2
    store.plan.chances.clear()
    assert get_chunks(store, [1]) == [ReadOutcome.CORRUPT]
    store.delete([chunk_key(2)])
    assert put_chunks(store, [1, 2]).outcomes == [WriteOutcome.STORED] * 2
    assert get_chunks(store, [1, 2]) == [ReadOutcome.OK] * 2


def test_poison_is_handed_out_as_ok_so_that_controls_can_fail() -> None:
    store = make({Fault.POISON: 1.0})
    put_chunks(store, [1])
    with pytest.raises(AssertionError, match="other bytes"):
        get_chunks(store, [1])
    assert store.injected[Fault.POISON] == 1


def test_the_same_seed_fails_the_same_way() -> None:
    runs = [put_chunks(make({Fault.ENOSPC: 0.3}, seed), range(50), 10).outcomes for seed in (7, 7, 8)]
    assert runs[0] == runs[1] != runs[2]


def test_latency_and_hang() -> None:
    slept: list[float] = []
    store = FaultyStore(MemoryStore(1 << 20), FaultPlan({Fault.LATENCY: 1.0}, latency_s=1.0), sleep=slept.append)
    store.open()
    put_chunks(store, [1])
    get_chunks(store, [1])
    assert slept == [1.0] * 3
    store.plan.chances = {Fault.HANG: 1.0}
    done = threading.Event()

    def read() -> None:
        get_chunks(store, [1])
        done.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert not done.wait(0.05)
    store.release()
    assert done.wait(5)
    reader.join()
    assert store.kind is TierKind.FILE
    store.close()
