"""The file store passes the suite, agrees with the model, and keeps its bounds over restarts."""

from __future__ import annotations

import random
import stat
import time
from pathlib import Path

import pytest

from warmtier.core.errors import InternalError, UsageError
from warmtier.core.types import Key, Namespace
from warmtier.store.base import ReadOutcome, Store, WriteOutcome
from warmtier.store.file import Durability, FileStore, engine_directory
from warmtier.store.file.store import pick_segment_bytes
from warmtier.testing.store_suite import CHUNK_BYTES, StoreSuite, chunk_key, get_chunks, put_chunks, store_machine

MINE = Namespace(b"mine".ljust(16, b"."))
SEGMENT = 128 << 10


def make(directory: Path, capacity_bytes: int = 4 << 20, namespace: Namespace = MINE) -> FileStore:
    return FileStore(directory, namespace, capacity_bytes=capacity_bytes, segment_bytes=SEGMENT)


def blocks(directory: Path) -> int:
    """Return the bytes of all blocks in the directory, the directory itself included."""
    return sum(path.stat(follow_symlinks=False).st_blocks * 512 for path in [directory, *directory.iterdir()])


class TestFileStore(StoreSuite):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make(directory, capacity_bytes)


class TestFileStoreDurable(StoreSuite):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return FileStore(
            directory,
            MINE,
            capacity_bytes=capacity_bytes,
            segment_bytes=SEGMENT,
            durability=Durability.SEGMENT,
            io_threads=1,
        )


class TestFileStoreOnTmpfs(StoreSuite):
    """Another filesystem: other block accounting, O_DIRECT only on newer kernels."""

    @pytest.fixture
    def directory(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        shm = Path("/dev/shm")
        if not shm.is_dir():
            pytest.skip("no /dev/shm on this machine")
        import tempfile

        return Path(tempfile.mkdtemp(dir=shm, prefix="warmtier-test-")) / "store"

    @pytest.fixture(autouse=True)
    def tidy(self, directory: Path) -> object:
        import shutil

        yield None
        shutil.rmtree(directory.parent)

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make(directory, capacity_bytes)


TestFileStoreMachine = store_machine(lambda directory: make(directory, 1 << 20)).TestCase
TestRoomyFileStoreMachine = store_machine(lambda directory: make(directory, 8 << 20), examples=15).TestCase


def test_large_chunks_are_cut_and_joined(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s", MINE, capacity_bytes=100 << 20, segment_bytes=24 << 20, io_threads=3)
    store.open()
    size = (9 << 20) + 4097  # several pieces, with a tail
    assert put_chunks(store, [1, 2], size).outcomes == [WriteOutcome.STORED] * 2
    assert get_chunks(store, [2, 1], size) == [ReadOutcome.OK] * 2
    store.close()
    (tmp_path / "s" / "snapshot").unlink()
    store.open()
    assert get_chunks(store, [1, 2], size) == [ReadOutcome.OK] * 2
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_blocks_on_disk_never_exceed_capacity(tmp_path: Path, seed: int) -> None:
    """Random work with restarts, lost snapshots, changing capacities and namespaces; counted after every step."""
    rng = random.Random(seed)
    directory = tmp_path / "dp0"
    capacity = 2 << 20
    store = make(directory, capacity)
    store.open()
    for _ in range(120):
        step = rng.random()
        if step < 0.7:
            first = rng.randrange(400)
            put_chunks(store, range(first, first + rng.randrange(1, 9)), rng.choice([100, 9_000, 40_000]))
        elif step < 0.85:
            store.get([])
            store.delete([chunk_key(rng.randrange(400)) for _ in range(20)])
        else:
            store.close()
            if rng.random() < 0.3:
                (directory / "snapshot").unlink(missing_ok=True)
            capacity = rng.choice([600 << 10, 1 << 20, 2 << 20])
            store = make(directory, capacity, Namespace(rng.choice([b"a", b"b"]) * 16))
            store.open()
        assert blocks(directory) <= capacity, f"seed {seed}"
        assert store.stats().used_bytes == blocks(directory)
    store.close()
    assert blocks(directory) <= capacity


def test_an_engine_that_stops_uncleanly_leaves_nothing_uncounted(tmp_path: Path) -> None:
    """Restarts without close: what the former session wrote counts before anything is admitted."""
    directory = tmp_path / "dp0"
    for number in range(6):
        store = make(directory, 1 << 20)
        store.open()
        put_chunks(store, range(100 * number, 100 * number + 30))
        session = store._session
        assert session is not None
        session.abandon()
        assert blocks(directory) <= 1 << 20


def test_the_free_space_floor_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmtier.store.file.io import Directory

    disk_bytes = 3 << 20
    floor = 1 << 20
    monkeypatch.setattr(Directory, "free_bytes", lambda self: disk_bytes - blocks(self.path))
    store = FileStore(tmp_path / "s", MINE, capacity_bytes=8 << 20, segment_bytes=SEGMENT, least_free_bytes=floor)
    store.open()
    put_chunks(store, range(300))
    assert disk_bytes - blocks(tmp_path / "s") >= floor
    held = store.stats().chunks
    disk_bytes -= 1 << 20  # somebody else fills the disk
    put_chunks(store, range(300, 330))
    assert disk_bytes - blocks(tmp_path / "s") >= floor
    assert 0 < store.stats().chunks < held
    store.close()
    disk_bytes -= 256 << 10
    store.open()
    assert disk_bytes - blocks(tmp_path / "s") >= floor
    store.close()


def test_hot_records_outlive_their_segment_within_a_bound(tmp_path: Path) -> None:
    """What is read stays; what is not goes first in, first out; at most a third more is written."""
    store = make(tmp_path / "s", 1 << 20)
    store.open()
    put_chunks(store, [0, 1])
    for number in range(2, 400, 2):
        assert get_chunks(store, [0]) == [ReadOutcome.OK]
        put_chunks(store, [number, number + 1])
    assert get_chunks(store, [0, 1]) == [ReadOutcome.OK, ReadOutcome.ABSENT]
    stats = store.stats()
    assert 0 < stats.carried_bytes <= stats.bytes_written / 3
    store.close()


def test_even_if_all_is_hot_the_carried_bytes_are_bounded(tmp_path: Path) -> None:
    store = make(tmp_path / "s", 1 << 20)
    store.open()
    for number in range(0, 150, 3):
        put_chunks(store, range(number, number + 3))
        get_chunks(store, range(number + 3))
    stats = store.stats()
    assert stats.evicted > 0
    assert 0 < stats.carried_bytes <= stats.bytes_written / 3
    store.close()


def test_the_segment_with_the_least_live_bytes_goes_first(tmp_path: Path) -> None:
    store = make(tmp_path / "s", 1 << 20)
    store.open()
    per_segment = (SEGMENT - 4096) // (4096 + CHUNK_BYTES)
    full = 0
    while store.stats().evicted == 0:
        put_chunks(store, range(full, full + per_segment))
        full += per_segment
    dead = range(full - 3 * per_segment, full - 2 * per_segment)  # one of the younger segments
    store.delete([chunk_key(n) for n in dead])
    assert put_chunks(store, range(full, full + per_segment)).evicted == []
    oldest_left = range(per_segment, 2 * per_segment)
    assert get_chunks(store, oldest_left) == [ReadOutcome.OK] * per_segment
    store.close()


def test_other_namespaces_go_first_and_are_never_served(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    old = make(directory, 1 << 20, Namespace(b"o" * 16))
    old.open()
    put_chunks(old, range(20))
    old.close()
    new = make(directory, 1 << 20)
    assert list(new.open()) == []
    assert set(get_chunks(new, range(20))) == {ReadOutcome.ABSENT}
    put_chunks(new, range(100, 104))
    new.close()
    again = make(directory, 1 << 20, Namespace(b"o" * 16))  # a rolling upgrade goes back
    assert len(list(again.open())) == 20
    again.close()
    new = make(directory, 1 << 20)
    assert len(list(new.open())) == 4
    evicted: list[Key] = []
    for number in range(200, 212):
        evicted += put_chunks(new, [number]).evicted
    assert evicted == []  # the other namespace paid
    new.close()


def test_a_full_directory_evicts_no_chunk_of_the_call_itself(tmp_path: Path) -> None:
    """A call larger than the tier keeps its head."""
    store = make(tmp_path / "s", 1 << 20)
    store.open()
    result = put_chunks(store, range(60))
    assert result.outcomes[0] is WriteOutcome.STORED
    assert result.outcomes[-1] is WriteOutcome.NO_ROOM
    assert result.evicted == []
    stored = [n for n, o in enumerate(result.outcomes) if o is WriteOutcome.STORED]
    assert get_chunks(store, stored) == [ReadOutcome.OK] * len(stored)
    store.close()


def test_modes_and_names(tmp_path: Path) -> None:
    store = make(engine_directory(tmp_path / "kv", 3))
    store.open()
    put_chunks(store, [1])
    store.close()
    directory = tmp_path / "kv" / "dp3"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert files == {"lock": 0o600, "segment-00000000.kv": 0o600, "snapshot": 0o600}


def test_opens_from_the_snapshot_without_a_scan(tmp_path: Path) -> None:
    """How long that takes is the benchmark's business; here no record header may be read."""
    directory = tmp_path / "s"
    store = FileStore(directory, MINE, capacity_bytes=2 << 30, segment_bytes=64 << 20)
    store.open()
    for first in range(0, 6_000, 2_000):
        put_chunks(store, range(first, first + 2_000), 64)
    store.close()
    started_s = time.perf_counter()
    assert len(list(store.open())) == 6_000
    print(f"6,000 chunks in {time.perf_counter() - started_s:.3f} s")
    assert store.recovery is not None
    assert (store.recovery.scanned, store.recovery.torn) == (0, 0)
    assert get_chunks(store, [0, 5_999], 64) == [ReadOutcome.OK] * 2
    store.close()


def test_segment_sizes() -> None:
    assert pick_segment_bytes(1 << 40) == 256 << 20
    assert pick_segment_bytes(1 << 30) <= (1 << 30) // 32
    sized = pick_segment_bytes(1 << 40, 3 << 20)
    assert (sized - 4096) % ((3 << 20) + 4096) == 0
    with pytest.raises(UsageError, match="cannot have segments"):
        FileStore(Path("x"), MINE, capacity_bytes=4096)
    with pytest.raises(InternalError, match="16 bytes"):
        FileStore(Path("x"), Namespace(b"short"), capacity_bytes=1 << 20)
    with pytest.raises(UsageError, match="multiple of 4096"):
        FileStore(Path("x"), MINE, capacity_bytes=1 << 20, segment_bytes=5000)
