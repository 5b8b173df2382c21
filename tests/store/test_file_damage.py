"""Files damaged, removed, replaced or taken by others: each ends in misses or a refusal, never in wrong bytes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_faults import MINE, SEGMENT, Store, flip_bit, lines, make

from warmtier.core.errors import StoreError, StoreLockedError
from warmtier.store.base import ReadOutcome, WriteOutcome
from warmtier.store.file.format import PAGE, SegmentHeader, pack_segment
from warmtier.store.file.io import aligned
from warmtier.testing.store_suite import CHUNK_BYTES, chunk_key, get_chunks, put_chunks


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make(tmp_path / "dp0")
    store.open()
    yield store
    store.close()


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


def test_an_old_snapshot_is_not_believed_about_segments_used_anew(tmp_path: Path) -> None:
    """As if the process was killed long after its last snapshot, or a backup came back."""
    store = make(tmp_path / "s")
    store.open()
    put_chunks(store, range(28))
    store.close()
    old = (tmp_path / "s" / "snapshot").read_bytes()
    store.open()
    put_chunks(store, range(100, 116))
    store.close()
    alive = set(dict(store.open()))
    store.close()
    (tmp_path / "s" / "snapshot").write_bytes(old)
    assert set(dict(store.open())) == alive
    numbers = [n for n in range(116) if chunk_key(n) in alive]
    assert get_chunks(store, numbers) == [ReadOutcome.OK] * len(numbers)
    store.close()


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


def test_segments_of_a_killed_writer_are_read_whole_only_once(tmp_path: Path) -> None:
    """Two were open when it died: one is resumed, the other sealed."""
    store = make(tmp_path / "s")
    store.open()
    put_chunks(store, range(8))  # two segments
    session = store._session
    assert session is not None
    session.abandon()
    path = tmp_path / "s" / "segment-00000000.kv"
    data = bytearray(path.read_bytes())
    page = aligned(PAGE)
    pack_segment(SegmentHeader(1, 1, SEGMENT, MINE, sealed=False, used_bytes=0, records=0), page)
    data[:PAGE] = page
    path.write_bytes(data)
    store = make(tmp_path / "s")
    assert len(list(store.open())) == 8
    store.close()
    (tmp_path / "s" / "snapshot").unlink()
    store = make(tmp_path / "s")
    assert len(list(store.open())) == 8
    session = store._session
    assert session is not None
    sealed = [segment.sealed for segment in session._shared.index.segments.values()]
    assert sealed == [True, False]  # the second is the one to go on with
    store.close()


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
from file_faults import make
store = make(Path({str(tmp_path / "s")!r}))
store.open()
child = os.fork()
if child == 0:
    os.close(1)  # or the test would wait for its end
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
