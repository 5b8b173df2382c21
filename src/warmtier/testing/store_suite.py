"""The conformance suite of byte stores. Subclass, give it a store, and pytest proves it:

    class TestMyStore(StoreSuite):
        def make_store(self, directory, capacity_bytes):
            return MyStore(directory, capacity_bytes)

    TestMyStoreMachine = store_machine(make_my_store).TestCase

The state machine keeps a ``MemoryStore`` beside the store and closes and opens the store again after every step.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from warmtier.core.types import Key
from warmtier.store.base import Read, ReadOutcome, Store, Write, WriteOutcome, WriteResult
from warmtier.store.memory import MemoryStore

CAPACITY_BYTES = 4 << 20
CHUNK_BYTES = 24 << 10


def chunk_key(number: int) -> Key:
    """Return a 32-byte key."""
    return Key(b"suite-key" + number.to_bytes(23, "big"))


def chunk_bytes(number: int, size_bytes: int = CHUNK_BYTES) -> bytes:
    """Return the one right content of chunk ``number``: equal keys mean equal bytes."""
    return random.Random(number).randbytes(size_bytes)


def put_chunks(store: Store, numbers: Sequence[int], size_bytes: int = CHUNK_BYTES) -> WriteResult:
    """Store chunks by number."""
    return store.put([Write(chunk_key(n), memoryview(chunk_bytes(n, size_bytes))) for n in numbers])


def get_chunks(store: Store, numbers: Sequence[int], size_bytes: int = CHUNK_BYTES) -> list[ReadOutcome]:
    """Load chunks by number and fail unless every OK one has the right bytes."""
    buffers = [bytearray(size_bytes) for _ in numbers]
    outcomes = store.get([Read(chunk_key(n), memoryview(b)) for n, b in zip(numbers, buffers, strict=True)])
    for number, buffer, outcome in zip(numbers, buffers, outcomes, strict=True):
        if outcome is ReadOutcome.OK and buffer != chunk_bytes(number, size_bytes):
            raise AssertionError(f"chunk {number} came back OK with other bytes")
    return outcomes


class StoreSuite:
    """What every store must do. All tests use the store only through its contract."""

    persistent = True
    """Whether chunks outlive ``close``."""

    @abstractmethod
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        """Return a new store object over ``directory``; the same directory means the same content."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Return the store's place."""
        return tmp_path / "store"

    @pytest.fixture
    def store(self, directory: Path) -> Iterator[Store]:
        """Return an open, empty store; it is closed afterwards."""
        store = self.make_store(directory, CAPACITY_BYTES)
        if list(store.open()):
            raise AssertionError("a new store is not empty")
        yield store
        store.close()

    def test_is_a_store(self, store: Store) -> None:
        """It has every member of the protocol."""
        assert isinstance(store, Store)
        assert store.capacity_bytes == CAPACITY_BYTES

    def test_returns_what_was_stored(self, store: Store) -> None:
        """Outcomes come in the order asked, bytes are right."""
        assert put_chunks(store, [3, 1, 2]).outcomes == [WriteOutcome.STORED] * 3
        assert get_chunks(store, [2, 9, 3, 1]) == [
            ReadOutcome.OK,
            ReadOutcome.ABSENT,
            ReadOutcome.OK,
            ReadOutcome.OK,
        ]

    @pytest.mark.parametrize("size_bytes", [0, 1, 511, 4095, 4096, 4097, 70_001])
    def test_takes_any_length(self, store: Store, size_bytes: int) -> None:
        """Payloads need not be a multiple of anything."""
        assert put_chunks(store, [1, 2], size_bytes).outcomes == [WriteOutcome.STORED] * 2
        assert get_chunks(store, [2, 1], size_bytes) == [ReadOutcome.OK] * 2

    def test_takes_unaligned_memory(self, store: Store) -> None:
        """Buffers may start anywhere."""
        data, into = bytearray(CHUNK_BYTES + 7), bytearray(CHUNK_BYTES + 3)
        data[7:] = chunk_bytes(5)
        assert store.put([Write(chunk_key(5), memoryview(data)[7:])]).outcomes == [WriteOutcome.STORED]
        assert store.get([Read(chunk_key(5), memoryview(into)[3:])]) == [ReadOutcome.OK]
        assert into[3:] == data[7:]

    def test_a_second_put_is_present(self, store: Store) -> None:
        """In one call and in another."""
        assert put_chunks(store, [1, 1]).outcomes == [WriteOutcome.STORED, WriteOutcome.PRESENT]
        assert put_chunks(store, [1]).outcomes == [WriteOutcome.PRESENT]
        assert store.stats().chunks == 1

    def test_deleted_is_absent_and_can_come_again(self, store: Store) -> None:
        """Deleting what is not there does nothing."""
        put_chunks(store, [1, 2])
        store.delete([chunk_key(1), chunk_key(7)])
        assert get_chunks(store, [1, 2]) == [ReadOutcome.ABSENT, ReadOutcome.OK]
        assert put_chunks(store, [1]).outcomes == [WriteOutcome.STORED]
        assert get_chunks(store, [1]) == [ReadOutcome.OK]

    def test_a_buffer_of_another_length_is_never_filled_as_ok(self, store: Store) -> None:
        """A chunk of another length than expected is of no use."""
        put_chunks(store, [1])
        assert store.get([Read(chunk_key(1), memoryview(bytearray(CHUNK_BYTES - 1)))]) == [ReadOutcome.CORRUPT]
        assert get_chunks(store, [1]) == [ReadOutcome.ABSENT]

    def test_never_exceeds_its_capacity_and_reports_every_eviction(self, store: Store) -> None:
        """Twice the capacity goes in: what is not reported evicted is there."""
        alive: set[Key] = set()
        total = 2 * CAPACITY_BYTES // CHUNK_BYTES // 8 * 8
        for first in range(0, total, 8):
            numbers = range(first, first + 8)
            result = put_chunks(store, numbers)
            assert result.outcomes == [WriteOutcome.STORED] * 8
            alive |= {chunk_key(n) for n in numbers}
            alive -= set(result.evicted)
            assert store.stats().used_bytes <= CAPACITY_BYTES
        outcomes = get_chunks(store, range(total))
        found = {chunk_key(n) for n, outcome in enumerate(outcomes) if outcome is ReadOutcome.OK}
        assert found == alive
        assert len(alive) * CHUNK_BYTES > CAPACITY_BYTES // 2

    def test_what_can_never_fit_is_refused(self, store: Store) -> None:
        """Refusing costs nobody its place."""
        put_chunks(store, [1])
        result = put_chunks(store, [2], CAPACITY_BYTES + 1)
        assert (result.outcomes, result.evicted) == ([WriteOutcome.NO_ROOM], [])
        assert get_chunks(store, [1]) == [ReadOutcome.OK]

    def test_opens_again_with_all_chunks(self, store: Store, directory: Path) -> None:
        """Keys and lengths are listed, deletions are remembered."""
        put_chunks(store, [1, 2, 3])
        store.delete([chunk_key(2)])
        store.close()
        again = self.make_store(directory, CAPACITY_BYTES)
        expected = {chunk_key(1): CHUNK_BYTES, chunk_key(3): CHUNK_BYTES} if self.persistent else {}
        assert dict(again.open()) == expected
        if self.persistent:
            assert get_chunks(again, [1, 2, 3]) == [ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.OK]
        again.close()

    def test_a_closed_store_refuses_quietly(self, store: Store) -> None:
        """Closing twice is fine."""
        put_chunks(store, [1])
        store.close()
        store.close()
        assert put_chunks(store, [2]).outcomes == [WriteOutcome.READ_ONLY]
        assert get_chunks(store, [1]) == [ReadOutcome.ABSENT]
        store.delete([chunk_key(1)])

    def test_counts_bytes(self, store: Store) -> None:
        """Payload bytes, both ways."""
        put_chunks(store, [1, 2])
        get_chunks(store, [1])
        stats = store.stats()
        assert (stats.bytes_written, stats.bytes_read, stats.chunks) == (2 * CHUNK_BYTES, CHUNK_BYTES, 2)

    def test_threads_read_right_bytes_while_others_evict(self, store: Store) -> None:
        """Readers and writers over twice the capacity: OK always means the right bytes."""
        total = 2 * CAPACITY_BYTES // CHUNK_BYTES
        stop = threading.Event()
        problems: list[BaseException] = []

        def guard(work: Callable[[random.Random], None], seed: int) -> None:
            rng = random.Random(seed)
            try:
                while not stop.is_set():
                    work(rng)
            except BaseException as error:  # noqa: BLE001 - reported below
                problems.append(error)

        def write(rng: random.Random) -> None:
            first = rng.randrange(total)
            put_chunks(store, range(first, first + 6))

        def read(rng: random.Random) -> None:
            outcomes = get_chunks(store, rng.sample(range(total), 5))
            if not set(outcomes) <= {ReadOutcome.OK, ReadOutcome.ABSENT}:
                raise AssertionError(f"an undamaged store answered {outcomes}")

        workers = [threading.Thread(target=guard, args=(w, n)) for n, w in enumerate((write, write, read, read))]
        for worker in workers:
            worker.start()
        stop.wait(1.0)
        stop.set()
        for worker in workers:
            worker.join()
        assert not problems
        assert store.stats().corrupt == 0


def store_machine(make_store: Callable[[Path], Store], *, examples: int = 20) -> type[RuleBasedStateMachine]:
    """Return a state machine that compares the store with a model and opens it again after every step.

    The store's own evictions are applied to the model; beyond them nothing may be lost and nothing may appear.
    WARMTIER_FUZZ_EXAMPLES in the environment overrides ``examples``.
    """
    numbers = st.lists(st.integers(0, 60), min_size=1, max_size=12)

    class Machine(RuleBasedStateMachine):
        """One store, one model."""

        def __init__(self) -> None:
            super().__init__()
            self.directory = Path(tempfile.mkdtemp(prefix="warmtier-suite-"))
            self.model = MemoryStore(1 << 40)
            self.model.open()
            self.store = make_store(self.directory / "store")
            self.store.open()

        @rule(numbers=numbers)
        def put(self, numbers: list[int]) -> None:
            """Outcomes agree, save for refusals of the store."""
            result = put_chunks(self.store, numbers, 9_000)
            stored = [n for n, o in zip(numbers, result.outcomes, strict=True) if o is WriteOutcome.STORED]
            known = {key for key, _ in self.model.open()}
            for number, outcome in zip(numbers, result.outcomes, strict=True):
                if outcome is WriteOutcome.PRESENT:
                    assert chunk_key(number) in known or number in stored
                else:
                    assert outcome is WriteOutcome.STORED
            put_chunks(self.model, stored, 9_000)
            self.model.delete(result.evicted)

        @rule(numbers=numbers)
        def get(self, numbers: list[int]) -> None:
            """Outcomes and bytes agree."""
            assert get_chunks(self.store, numbers, 9_000) == get_chunks(self.model, numbers, 9_000)

        @rule(numbers=numbers)
        def delete(self, numbers: list[int]) -> None:
            """Both forget."""
            keys = [chunk_key(n) for n in numbers]
            self.store.delete(keys)
            self.model.delete(keys)

        @invariant()
        def holds_the_same_after_opening_again(self) -> None:
            """Exactly the model's keys."""
            self.store.close()
            self.store = make_store(self.directory / "store")
            assert sorted(self.store.open()) == sorted(self.model.open())
            assert self.store.stats().used_bytes <= self.store.capacity_bytes

        def teardown(self) -> None:
            """Leave nothing behind."""
            self.store.close()
            shutil.rmtree(self.directory)

    examples = int(os.environ.get("WARMTIER_FUZZ_EXAMPLES", examples))
    Machine.TestCase.settings = settings(max_examples=examples, stateful_step_count=20, deadline=None)
    return Machine
