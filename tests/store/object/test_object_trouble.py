"""The object store when things go wrong: clocks, failed uploads, outages, two writers, bounds, bad URLs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_tier_helpers import eventually, eventually_reads, make_store

from warmtier.core.errors import StoreError, UsageError
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.object.backend import open_backend
from warmtier.store.object.client import Failure, ObjectClient, RequestError
from warmtier.store.object.store import ObjectStore
from warmtier.testing.store_suite import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    chunk_bytes,
    chunk_key,
    get_chunks,
    put_chunks,
)

OK, ABSENT, CORRUPT = ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.CORRUPT
STORED, PRESENT = WriteOutcome.STORED, WriteOutcome.PRESENT


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def pair(url: str) -> Iterator[tuple[ObjectStore, ObjectStore]]:
    """Return two replicas on one bucket."""
    stores = make_store(url, writer="a"), make_store(url, writer="b")
    for store in stores:
        store.open()
    yield stores
    for store in stores:
        store.close()


def objects(tmp_path: Path, kind: str) -> list[Path]:
    """Return the packs (p) or manifests (m) in the bucket."""
    return sorted(path for path in (tmp_path / "bucket").rglob("*") if path.is_file() and f"/{kind}/" in str(path))


def bucket_bytes(tmp_path: Path) -> int:
    return sum(path.stat().st_size for path in [*objects(tmp_path, "p"), *objects(tmp_path, "m")])


def test_a_clock_that_is_wrong_is_corrected_by_the_servers(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        late = make_store(url, writer="late", wall=lambda: time.time() - 7200)
        late.open()
    assert "clock differs" in caplog.text
    other = make_store(url, writer="other")
    other.open()
    put_chunks(late, [1])
    assert eventually_reads(other, [1])  # found by the incremental listing
    late.close()
    other.close()


def test_a_full_index_takes_no_more(url: str) -> None:
    a, b = make_store(url, writer="a"), make_store(url, writer="b", index_chunks=10)
    a.open()
    b.open()
    put_chunks(a, range(40))
    assert a.flush(5)
    assert eventually(lambda: b._state is not None and b._state.counters.index_full > 0)
    assert b.stats().chunks <= 9
    room = 10 - b.stats().chunks
    outcomes = put_chunks(b, range(100, 120)).outcomes
    assert outcomes == [STORED] * room + [WriteOutcome.NO_ROOM] * (20 - room)
    a.close()
    b.close()


def test_a_failed_upload_takes_back_what_was_acknowledged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(url)
    store.open()
    put_chunks(store, [1])
    assert store.flush(5)
    real, broken = ObjectClient.put_new, [True]

    async def put_new(self: ObjectClient, path: str, data: memoryview | bytes, *, timeout_s: float) -> None:
        if broken[0]:
            raise RequestError(Failure.UNAVAILABLE, "SlowDown")
        await real(self, path, data, timeout_s=timeout_s)

    monkeypatch.setattr(ObjectClient, "put_new", put_new)
    assert put_chunks(store, [2, 3]).outcomes == [STORED, STORED]
    assert get_chunks(store, [2]) == [OK]  # from memory
    assert not store.flush(5)
    assert get_chunks(store, [1, 2, 3]) == [OK, ABSENT, ABSENT]
    assert {chunk_key(2), chunk_key(3)} <= set(store.poll().removed)
    failed = put_chunks(store, [4])
    assert failed.outcomes == [WriteOutcome.ERROR]
    assert {chunk_key(2), chunk_key(3)} <= set(failed.evicted)
    assert store.stats().errors >= 2
    broken[0] = False
    assert eventually(lambda: put_chunks(store, [5]).outcomes in ([STORED], [PRESENT]))
    assert put_chunks(store, [2]).outcomes == [STORED]
    assert store.flush(5)
    assert get_chunks(store, [1, 2, 4, 5]) == [OK, OK, ABSENT, OK]
    store.close()


def test_an_outage_does_not_empty_the_tier(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is made for what arrives: while nothing does, what is there stays, and nothing piles up.

    Until the first upload has failed, room is made for what is in memory: three packs of ten chunks.
    """
    store = make_store(url, capacity_bytes=2 << 20)
    store.open()
    for first in range(0, 76, 4):
        put_chunks(store, range(first, first + 4))
    assert store.flush(5)
    before = store.stats().chunks

    async def fail(self: ObjectClient, *_: object, timeout_s: float) -> None:
        raise RequestError(Failure.UNAVAILABLE, "SlowDown")

    with monkeypatch.context() as patch:
        patch.setattr(ObjectClient, "put_new", fail)
        patch.setattr(ObjectClient, "delete", fail)
        for first in range(100, 400, 4):
            put_chunks(store, range(first, first + 4))
        assert eventually(lambda: WriteOutcome.STORED not in put_chunks(store, [900]).outcomes)
        assert store.stats().chunks >= before - 40  # what must go for 30 chunks, in whole packs
        assert store._state is not None
        assert len(store._state.doomed) < 10
    assert eventually(lambda: put_chunks(store, [1000]).outcomes in ([STORED], [PRESENT]))
    assert store.flush(5)
    assert get_chunks(store, [1000]) == [OK]
    store.close()


def test_two_live_writers_of_one_name_do_no_harm(url: str) -> None:
    """A misconfiguration: they evict each other's packs, and serve right bytes only."""
    twins = make_store(url, writer="same"), make_store(url, writer="same")
    other = make_store(url, writer="other")
    twins[0].open()
    put_chunks(twins[0], range(10))
    assert twins[0].flush(5)
    twins[1].open()
    other.open()
    for first in range(100, 400, 4):
        put_chunks(twins[first // 4 % 2], range(first, first + 4))
    for store in (*twins, other):
        assert set(get_chunks(store, range(400))) <= {OK, ABSENT}
        assert store.stats().corrupt == 0
    assert eventually(lambda: OK in get_chunks(other, range(100, 400)))
    for store in (*twins, other):
        store.close()
    again = make_store(url, writer="same")
    keys = [int.from_bytes(key[-8:], "big") for key, _ in again.open()]
    assert keys
    assert get_chunks(again, keys) == [OK] * len(keys)
    assert again.stats().used_bytes <= CAPACITY_BYTES
    again.close()


def test_puts_wait_for_memory_only_until_their_deadline(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    async def put_new(self: ObjectClient, path: str, data: memoryview | bytes, *, timeout_s: float) -> None:
        await asyncio.to_thread(release.wait)

    store = make_store(url, timeout_s=0.3, capacity_bytes=64 << 20)
    store.open()
    monkeypatch.setattr(ObjectClient, "put_new", put_new)
    started_s = time.monotonic()
    outcomes = put_chunks(store, range(40)).outcomes
    assert time.monotonic() - started_s < 5
    assert outcomes.count(STORED) == 30  # three buffers of 256 KiB hold ten chunks each
    assert set(outcomes[30:]) == {WriteOutcome.TIMEOUT}
    assert get_chunks(store, range(30)) == [OK] * 30
    release.set()
    store.close()


def test_a_read_only_store_writes_nothing(url: str, tmp_path: Path) -> None:
    a = make_store(url, writer="a")
    a.open()
    put_chunks(a, [1])
    a.close()
    before = sorted(tmp_path.rglob("*"))
    reader = make_store(url, writer="r", read_only=True)
    assert dict(reader.open()) == {chunk_key(1): CHUNK_BYTES}
    assert get_chunks(reader, [1]) == [OK]
    assert put_chunks(reader, [2]).outcomes == [WriteOutcome.READ_ONLY]
    reader.delete([chunk_key(1)])
    reader.close()
    assert sorted(tmp_path.rglob("*")) == before


def test_opening_twice_is_refused_and_again_after_close_is_fine(url: str) -> None:
    store = make_store(url)
    store.open()
    with pytest.raises(StoreError, match="open already"):
        store.open()
    put_chunks(store, [1])
    store.close()
    assert dict(store.open()) == {chunk_key(1): CHUNK_BYTES}
    store.close()


def test_a_large_chunk_goes_through_a_pack_of_its_own(url: str) -> None:
    store = make_store(url)
    store.open()
    assert put_chunks(store, [1], 200 << 10).outcomes == [STORED]
    assert put_chunks(store, [2], 300 << 10).outcomes == [WriteOutcome.NO_ROOM]  # larger than any pack
    assert get_chunks(store, [1], 200 << 10) == [OK]
    long_key = type(chunk_key(1))(b"k" * 600)
    assert store.put([Write(long_key, memoryview(b"x"))]).outcomes == [WriteOutcome.NO_ROOM]
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://AKIA:topsecret@bucket/x", "holds credentials"),
        ("s3://bucket/x?secret_access_key=topsecret", "unknown parameter 'secret_access_key'"),
        ("ftp://bucket", "unknown scheme"),
        ("s3:///x", "names no bucket"),
        ("s3://bucket?path_style=maybe", "path_style"),
        ("s3://bucket?ca=/does/not/exist", "cannot read the certificates"),
        ("file:///tmp/x?region=y", "unknown parameter"),
    ],
)
def test_urls_that_cannot_work_are_refused_without_repeating_secrets(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        open_backend(url, timeout_s=1, longest_s=1)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "az://container/prefix?account=someone"])
def test_other_clouds_are_configured_without_a_request(url: str) -> None:
    backend = open_backend(url, timeout_s=1, longest_s=1)
    assert (backend.prefix, backend.name) == ("prefix", url.split("?")[0])


def test_bytes_are_as_they_were(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    into = bytearray(CHUNK_BYTES)
    a.put([Write(chunk_key(1), memoryview(chunk_bytes(1)).cast("B"))])
    assert eventually_reads(b, [1])
    assert b.get([Read(chunk_key(1), memoryview(into).cast("I"))]) == [OK]
    assert into == chunk_bytes(1)
