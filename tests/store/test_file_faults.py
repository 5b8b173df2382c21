"""Every way the medium fails ends in misses, counters and one log line; never in wrong bytes or a wedged store."""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from warmtier.core.errors import StoreError, StoreLockedError
from warmtier.core.types import Namespace
from warmtier.store.base import ReadOutcome, Write, WriteOutcome
from warmtier.store.file import FileStore
from warmtier.store.file.format import PAGE, SegmentHeader, pack_segment
from warmtier.store.file.io import Directory, aligned
from warmtier.testing.store_suite import CHUNK_BYTES, chunk_bytes, chunk_key, get_chunks, put_chunks

MINE = Namespace(b"mine".ljust(16, b"."))
SEGMENT = 128 << 10
CAPACITY = 1 << 20


class Medium(Directory):
    """A directory whose calls fail on demand."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fail: dict[str, int] = {}
        self.delay_s = 0.0
        self.short = False

    def _maybe(self, name: str) -> None:
        time.sleep(self.delay_s)
        if name in self.fail:
            raise OSError(self.fail[name], os.strerror(self.fail[name]))

    def create(self, name: str, size_bytes: int) -> int:
        self._maybe("create")
        return super().create(name, size_bytes)

    def open(self, name: str, *, write: bool = False) -> int:
        self._maybe("open_write" if write else "open_read")
        return super().open(name, write=write)

    def readv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._maybe("readv")
        if self.short:
            return super().readv(fd, [buffers[0]], offset)
        return super().readv(fd, buffers, offset)

    def writev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> None:
        self._maybe("writev")
        super().writev(fd, buffers, offset)

    def unlink(self, name: str) -> None:
        if name.endswith(".kv"):
            self._maybe("unlink")
        super().unlink(name)


class Store(FileStore):
    """A file store over a ``Medium``."""

    medium: Medium

    def _open_directory(self) -> Directory:
        self.medium = Medium(self._path)
        return self.medium


def make(directory: Path, capacity_bytes: int = CAPACITY, namespace: Namespace = MINE) -> Store:
    return Store(directory, namespace, capacity_bytes=capacity_bytes, segment_bytes=SEGMENT)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make(tmp_path / "dp0")
    store.open()
    yield store
    store.close()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def flip_bit(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_every_flipped_bit_is_a_miss_and_never_wrong_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bits anywhere in segment headers, record headers, payloads and padding."""
    rng = random.Random(5)
    for number in range(25):
        directory = tmp_path / f"d{number}"
        store = make(directory)
        store.open()
        put_chunks(store, range(3), 9_000)
        if number % 2:
            store.close()
        path = directory / "segment-00000000.kv"
        flip_bit(path, rng.choice([rng.randrange(200), PAGE + rng.randrange(3 * 4 * PAGE), PAGE + rng.randrange(100)]))
        if number % 2:
            store = make(directory)
            store.open()
        outcomes = get_chunks(store, range(3), 9_000)  # fails on wrong bytes
        assert outcomes.count(ReadOutcome.OK) >= 2 or set(outcomes) == {ReadOutcome.ABSENT}
        store.close()


def test_a_flipped_payload_is_dropped_counted_and_said_once(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put_chunks(store, range(3))
    record = PAGE + CHUNK_BYTES
    for number in (0, 1):
        flip_bit(store.medium.path / "segment-00000000.kv", PAGE + number * record + PAGE + 77)
    assert get_chunks(store, range(3)) == [ReadOutcome.CORRUPT, ReadOutcome.CORRUPT, ReadOutcome.OK]
    assert get_chunks(store, range(3)) == [ReadOutcome.ABSENT, ReadOutcome.ABSENT, ReadOutcome.OK]
    assert store.stats().corrupt == 2
    assert len(lines(caplog)) == 1
    assert put_chunks(store, [0]).outcomes == [WriteOutcome.STORED]
    assert get_chunks(store, [0]) == [ReadOutcome.OK]


@pytest.mark.parametrize("reopen", [False, True])
@pytest.mark.parametrize("keep_bytes", [0, 100, PAGE, PAGE + 5000, 2 * PAGE + CHUNK_BYTES + 1])
def test_a_truncated_segment(tmp_path: Path, keep_bytes: int, reopen: bool) -> None:
    store = make(tmp_path / "s")
    store.open()
    put_chunks(store, range(3))
    if reopen:
        store.close()
    os.truncate(tmp_path / "s" / "segment-00000000.kv", keep_bytes)
    if reopen:
        store = make(tmp_path / "s")
        store.open()
    outcomes = get_chunks(store, range(3))
    whole = max(0, keep_bytes - PAGE) // (PAGE + CHUNK_BYTES)
    assert outcomes.count(ReadOutcome.OK) == whole
    assert put_chunks(store, range(50, 70)).outcomes == [WriteOutcome.STORED] * 20
    assert get_chunks(store, range(60, 70)) == [ReadOutcome.OK] * 10
    store.close()


def test_a_deleted_segment_and_a_deleted_directory(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put_chunks(store, range(8))  # two segments
    (store.medium.path / "segment-00000000.kv").unlink()
    outcomes = get_chunks(store, range(8))
    assert outcomes.count(ReadOutcome.OK) == 4
    assert store.stats().errors == 4
    assert len(lines(caplog)) == 1
    for first in range(100, 200, 4):  # eviction passes over what is gone
        assert set(put_chunks(store, range(first, first + 4)).outcomes) == {WriteOutcome.STORED}
    for path in store.medium.path.iterdir():
        path.unlink()
    store.medium.path.rmdir()
    assert ReadOutcome.OK not in get_chunks(store, range(100, 110))
    put_chunks(store, range(300, 340))
    store.close()


@pytest.mark.parametrize("damage", ["delete", "truncate", "flip", "junk", "empty"])
def test_a_damaged_snapshot_only_costs_a_scan(tmp_path: Path, damage: str) -> None:
    store = make(tmp_path / "s")
    store.open()
    put_chunks(store, range(9))
    store.close()
    snapshot = tmp_path / "s" / "snapshot"
    match damage:
        case "delete":
            snapshot.unlink()
        case "truncate":
            os.truncate(snapshot, snapshot.stat().st_size - 3)
        case "flip":
            flip_bit(snapshot, 60)
        case "junk":
            snapshot.write_bytes(b"WARMTIDX" + os.urandom(500))
        case "empty":
            snapshot.write_bytes(b"")
    assert len(list(store.open())) == 9
    assert store.recovery is not None
    assert store.recovery.scanned == 9
    assert get_chunks(store, range(9)) == [ReadOutcome.OK] * 9


def test_a_torn_tail_is_dropped_and_what_was_acknowledged_behind_a_hole_is_kept(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    store.open()
    put_chunks(store, range(4))
    session = store._session
    assert session is not None
    session.abandon()
    record = PAGE + CHUNK_BYTES
    with (tmp_path / "s" / "segment-00000000.kv").open("r+b") as file:
        file.seek(PAGE + record)
        file.write(bytes(PAGE))  # the header of the second never arrived
        file.seek(PAGE + 3 * record + PAGE + 9_000)
        file.write(bytes(500))  # half of the last never arrived
    store = make(tmp_path / "s")
    assert sorted(key for key, _ in store.open()) == [chunk_key(0), chunk_key(2)]
    assert store.recovery is not None
    assert store.recovery.torn == 1
    assert put_chunks(store, [1, 3]).outcomes == [WriteOutcome.STORED] * 2
    assert get_chunks(store, range(4)) == [ReadOutcome.OK] * 4
    store.close()


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (errno.EIO, WriteOutcome.ERROR),
        (errno.ENOSPC, WriteOutcome.NO_ROOM),
        (errno.EDQUOT, WriteOutcome.NO_ROOM),
        (errno.EROFS, WriteOutcome.READ_ONLY),
    ],
)
def test_failing_writes(store: Store, code: int, outcome: WriteOutcome, caplog: pytest.LogCaptureFixture) -> None:
    put_chunks(store, [1])
    store.medium.fail["writev"] = code
    assert put_chunks(store, [2, 3]).outcomes == [outcome] * 2
    assert get_chunks(store, [1, 2, 3]) == [ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.ABSENT]
    put_chunks(store, [4])
    assert store.stats().errors >= 2
    put_chunks(store, range(5, 15))
    said = [line.split(": ")[1][:14] for line in lines(caplog)]
    assert said == ["cannot write (", "cannot make a "]  # however often
    store.medium.fail.clear()
    assert put_chunks(store, range(20, 25)).outcomes == [WriteOutcome.STORED] * 5
    assert get_chunks(store, range(20, 25)) == [ReadOutcome.OK] * 5


def test_failing_reads_cost_only_what_they_hit(store: Store) -> None:
    put_chunks(store, range(6))
    store.medium.fail["readv"] = errno.EIO
    assert get_chunks(store, [0, 1]) == [ReadOutcome.ERROR] * 2
    store.medium.fail.clear()
    assert get_chunks(store, range(6)) == [ReadOutcome.ABSENT] * 2 + [ReadOutcome.OK] * 4
    assert store.stats().errors == 2
    for first in range(100, 160, 4):
        assert set(put_chunks(store, range(first, first + 4)).outcomes) == {WriteOutcome.STORED}


def test_running_out_of_descriptors_blames_no_segment(store: Store) -> None:
    put_chunks(store, range(3))
    store.medium.fail["open_read"] = errno.EMFILE
    assert get_chunks(store, [0]) == [ReadOutcome.ERROR]
    store.medium.fail.clear()
    assert get_chunks(store, [1, 2]) == [ReadOutcome.OK] * 2
    session = store._session
    assert session is not None
    assert not any(segment.failed for segment in session._shared.index.segments.values())


def test_a_short_read_is_a_miss(store: Store) -> None:
    put_chunks(store, [1])
    store.medium.short = True
    assert get_chunks(store, [1]) == [ReadOutcome.CORRUPT]


def test_a_full_disk_reuses_what_there_is(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    put_chunks(store, range(12))  # three segments
    store.medium.fail["create"] = errno.ENOSPC
    for first in range(100, 140, 4):
        assert set(put_chunks(store, range(first, first + 4)).outcomes) == {WriteOutcome.STORED}
    assert get_chunks(store, range(136, 140)) == [ReadOutcome.OK] * 4
    assert len(lines(caplog)) == 1


def test_a_disk_that_was_full_from_the_start_gives_misses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = make(tmp_path / "s")
    store.open()
    store.medium.fail["create"] = errno.ENOSPC
    for _ in range(3):
        assert put_chunks(store, [1]).outcomes == [WriteOutcome.NO_ROOM]
    assert get_chunks(store, [1]) == [ReadOutcome.ABSENT]
    assert len(lines(caplog)) == 1
    store.medium.fail.clear()
    assert put_chunks(store, [1]).outcomes == [WriteOutcome.STORED]
    store.close()


def test_undeletable_and_unreusable_segments_never_wedge_eviction(store: Store) -> None:
    """While nothing can be reopened or removed, puts are refused; afterwards the others go on."""
    put_chunks(store, range(28))  # the tier is full
    store.medium.fail.update({"open_write": errno.EIO, "unlink": errno.EPERM})
    for number in range(100, 140):
        outcomes = put_chunks(store, [number]).outcomes
        assert outcomes[0] in (WriteOutcome.STORED, WriteOutcome.NO_ROOM)
    store.medium.fail.clear()
    store.close()
    store.open()
    assert put_chunks(store, range(200, 208)).outcomes == [WriteOutcome.STORED] * 8
    assert get_chunks(store, range(200, 208)) == [ReadOutcome.OK] * 8
    assert store.stats().used_bytes <= CAPACITY


def test_one_undeletable_segment_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = make(tmp_path / "s", namespace=Namespace(b"f" * 16))
    foreign.open()
    put_chunks(foreign, range(4))
    foreign.close()
    (tmp_path / "s" / "segment-00000000.kv").write_bytes(b"x" * 40_000)  # unreadable
    store = make(tmp_path / "s")
    store.open()
    store.medium.fail["unlink"] = errno.EPERM
    for first in range(0, 80, 4):
        assert set(put_chunks(store, range(first, first + 4)).outcomes) == {WriteOutcome.STORED}
    assert get_chunks(store, range(76, 80)) == [ReadOutcome.OK] * 4
    assert store.stats().used_bytes <= CAPACITY
    assert [line for line in lines(caplog) if "cannot remove" in line]
    store.close()


def test_a_slow_disk_is_only_slow(store: Store) -> None:
    """A second in production; what is late is the executor's business."""
    store.medium.delay_s = 0.05
    started_s = time.perf_counter()
    assert put_chunks(store, [1, 2]).outcomes == [WriteOutcome.STORED] * 2
    assert get_chunks(store, [1, 2]) == [ReadOutcome.OK] * 2
    assert time.perf_counter() - started_s >= 0.1
    assert store.stats().read_seconds >= 0.05


def test_formats_to_come_are_left_alone_counted_and_aged(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    for number, sequence in ((7, 90), (8, 95)):
        page = aligned(SEGMENT)
        header = SegmentHeader(2, sequence, SEGMENT, MINE, sealed=True, used_bytes=PAGE, records=1)
        pack_segment(header, page[:PAGE])
        page[100:4000] = os.urandom(3900)  # a later version may put anything here
        (directory / f"segment-0000000{number}.kv").write_bytes(page)
    store = make(directory, 768 << 10)
    assert list(store.open()) == []
    assert store.stats().used_bytes >= 2 * SEGMENT
    put_chunks(store, range(8))
    assert (directory / "segment-00000007.kv").exists()
    assert (directory / "segment-00000008.kv").exists()
    evicted = put_chunks(store, range(8, 20)).evicted
    assert evicted == []
    survivors = [n for n in (7, 8) if (directory / f"segment-0000000{n}.kv").read_bytes()[8:10] == b"\x02\x00"]
    assert survivors in ([8], [])
    store.close()


def test_links_are_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(StoreError, match="cannot open the file tier's directory"):
        make(tmp_path / "link").open()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious" * 1000)
    for name in ("segment-00000000.kv", "snapshot"):
        (target / name).symlink_to(victim)
    store = make(target)
    assert list(store.open()) == []
    for first in range(0, 60, 4):
        put_chunks(store, range(first, first + 4))
    store.close()
    assert victim.read_bytes() == b"precious" * 1000
    (target / "lock").unlink()
    (target / "lock").symlink_to(victim)
    with pytest.raises(StoreError, match="cannot write"):
        make(target).open()


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    (tmp_path / "s").mkdir()
    os.chown(tmp_path / "s", 4242, 4242)
    with pytest.raises(StoreError, match="belongs to user 4242"):
        make(tmp_path / "s").open()


def test_a_second_engine_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    first, second = make(tmp_path / "s"), make(tmp_path / "s")
    first.open()
    put_chunks(first, [1])
    for _ in range(3):
        with pytest.raises(StoreLockedError, match="is in use") as refusal:
            second.open()
        assert str(os.getpid()) in str(refusal.value)
        assert put_chunks(second, [2]).outcomes == [WriteOutcome.READ_ONLY]
        assert get_chunks(second, [1]) == [ReadOutcome.ABSENT]
    first.close()
    assert dict(second.open()) == {chunk_key(1): CHUNK_BYTES}
    second.close()


def test_the_lock_ends_with_the_process_even_if_a_child_lives(tmp_path: Path) -> None:
    """A forked worker must not keep its dead engine's directory."""
    script = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_file_faults import make
store = make(Path({str(tmp_path / "s")!r}))
store.open()
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, check=False)
    child = int(process.stdout)
    try:
        os.kill(child, 0)  # it is alive
        store = make(tmp_path / "s")
        store.open()
        store.close()
    finally:
        os.kill(child, 9)


def test_a_read_only_directory_cannot_be_opened(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(tmp_path)], check=False, capture_output=True
        )
        if mounted.returncode != 0:
            pytest.skip(f"root may write everywhere and cannot mount here: {mounted.stderr!r}")
    else:
        tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError):
            make(tmp_path).open()
        with pytest.raises(StoreError):
            make(tmp_path / "s").open()
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(tmp_path)], check=True)
        else:
            tmp_path.chmod(0o700)


def test_a_small_full_filesystem(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A real one: the tier is promised 64 MiB on a filesystem of 1 MiB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(tmp_path)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small filesystem here: {mounted.stderr!r}")
    try:
        store = make(tmp_path / "s", 64 << 20)
        store.open()
        for first in range(0, 120, 4):
            assert set(put_chunks(store, range(first, first + 4)).outcomes) == {WriteOutcome.STORED}
        assert get_chunks(store, range(112, 120)) == [ReadOutcome.OK] * 8
        assert len(lines(caplog)) == 1
        store.close()
        assert len(list(store.open())) >= 8
        store.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_file_size_limit_of_the_process(tmp_path: Path) -> None:
    """RLIMIT_FSIZE below a segment: no segment can be made, so everything is a miss."""
    store = make(tmp_path / "s")
    store.open()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT // 2, hard))
    try:
        assert put_chunks(store, [1]).outcomes == [WriteOutcome.NO_ROOM]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert put_chunks(store, [1]).outcomes == [WriteOutcome.STORED]
    store.close()


def test_close_waits_for_running_calls(store: Store) -> None:
    store.medium.delay_s = 0.1
    outcomes: list[WriteOutcome] = []
    data = memoryview(chunk_bytes(1))
    writer = threading.Thread(target=lambda: outcomes.extend(store.put([Write(chunk_key(1), data)]).outcomes))
    writer.start()
    time.sleep(0.05)
    store.close()
    writer.join()
    assert outcomes in ([WriteOutcome.STORED], [WriteOutcome.READ_ONLY])
    store.open()
    assert store.stats().chunks == (outcomes == [WriteOutcome.STORED])
