"""A medium that fails, fills up, slows down or refuses ends in misses, counters and one log line; nothing wedges."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_faults import CAPACITY, SEGMENT, Store, lines, make

from warmtier.core.errors import StoreError
from warmtier.core.types import Namespace
from warmtier.store.base import ReadOutcome, Write, WriteOutcome
from warmtier.testing.store_suite import chunk_bytes, chunk_key, get_chunks, put_chunks


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = make(tmp_path / "dp0")
    store.open()
    yield store
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
