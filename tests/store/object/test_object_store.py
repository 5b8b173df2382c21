"""The object store on a directory and in memory: conformance, sharing, damage, expiry, recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_tier_helpers import NAMESPACE, OTHER_NAMESPACE, eventually, eventually_reads, make_store, memory_url

from warmtier.store.base import FollowedStore, MeteredStore, ReadOutcome, Store, WriteOutcome
from warmtier.store.object.store import ObjectStore
from warmtier.testing.store_suite import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    StoreSuite,
    chunk_key,
    get_chunks,
    put_chunks,
    store_machine,
)

OK, ABSENT, CORRUPT = ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.CORRUPT
STORED, PRESENT = WriteOutcome.STORED, WriteOutcome.PRESENT


class TestInMemory(StoreSuite):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(memory_url(directory), capacity_bytes=capacity_bytes)


class TestInADirectory(StoreSuite):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(f"file://{directory}", capacity_bytes=capacity_bytes)


TestMachine = store_machine(lambda directory: make_store(memory_url(directory), capacity_bytes=32 << 20)).TestCase


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


def test_a_chunk_of_one_replica_is_a_hit_on_another(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    assert isinstance(a, FollowedStore)
    assert isinstance(a, MeteredStore)
    put_chunks(a, range(30))
    put_chunks(b, [100])
    assert eventually_reads(b, [*range(30), 100])
    assert eventually_reads(a, [100])
    assert put_chunks(b, [3]).outcomes == [PRESENT]
    added = dict(b.poll().added)
    assert added == {chunk_key(n): CHUNK_BYTES for n in [*range(30), 100]}
    assert b.poll().added == []


def test_what_others_delete_or_evict_is_told(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    put_chunks(a, [1, 2])
    assert eventually_reads(b, [1, 2])
    b.poll()
    a.delete([chunk_key(1)])
    assert eventually(lambda: get_chunks(b, [1]) == [ABSENT])
    assert chunk_key(1) in b.poll().removed
    assert put_chunks(a, [1]).outcomes == [STORED]
    assert eventually_reads(b, [1, 2])
    evicted: set[bytes] = set()
    for first in range(1000, 1000 + 2 * CAPACITY_BYTES // CHUNK_BYTES, 8):
        evicted |= set(put_chunks(a, range(first, first + 8)).evicted)
    assert {chunk_key(1), chunk_key(2)} <= evicted
    assert eventually(lambda: get_chunks(b, [1, 2]) == [ABSENT, ABSENT])


def test_namespaces_are_apart(url: str) -> None:
    mine, theirs = make_store(url), make_store(url, namespace=OTHER_NAMESPACE)
    mine.open()
    theirs.open()
    put_chunks(mine, [1])
    assert mine.flush(5)
    time.sleep(0.3)
    assert get_chunks(theirs, [1]) == [ABSENT]
    mine.close()
    theirs.close()


def test_concurrent_writers_of_one_key_do_no_harm(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    barrier = threading.Barrier(2)

    def write(store: ObjectStore) -> None:
        barrier.wait()
        for first in range(0, 40, 4):
            put_chunks(store, range(first, first + 4))

    threads = [threading.Thread(target=write, args=(store,)) for store in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert a.flush(10)
    assert b.flush(10)
    for store in pair:
        assert eventually_reads(store, range(40))
        assert store.stats().corrupt == 0
        assert store.stats().chunks == 40


def test_neighbours_come_in_one_request_and_no_chunk_has_one_of_its_own(
    pair: tuple[ObjectStore, ObjectStore],
) -> None:
    a, b = pair
    put_chunks(a, range(8))
    assert a.flush(5)
    puts = a.traffic().puts
    assert puts <= 4  # the first manifest, one pack, one or two manifests
    assert eventually(lambda: b.stats().chunks == 8)
    gets = b.traffic().gets
    assert get_chunks(b, range(8)) == [OK] * 8
    assert b.traffic().gets == gets + 1
    assert b.traffic().received_bytes >= 8 * CHUNK_BYTES
    assert b.stats().bytes_read == 8 * CHUNK_BYTES


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "delete", "foreign"])
def test_a_damaged_pack_is_a_miss(pair: tuple[ObjectStore, ObjectStore], tmp_path: Path, damage: str) -> None:
    a, b = pair
    put_chunks(a, range(6))
    assert a.flush(5)
    assert eventually(lambda: b.stats().chunks == 6)
    (pack,) = objects(tmp_path, "p")
    data = bytearray(pack.read_bytes())
    if damage == "flip":
        data[2 * (CHUNK_BYTES + 128) + 1000] ^= 4
    elif damage == "truncate":
        del data[2 * (CHUNK_BYTES + 128) + 1000 :]
    elif damage == "empty":
        data.clear()
    elif damage == "foreign":
        data[:] = bytes(len(data))
    if damage == "delete":
        pack.unlink()
    else:
        pack.write_bytes(data)
    outcomes = get_chunks(b, range(6))
    expected = {
        "flip": [OK, OK, CORRUPT, OK, OK, OK],
        "truncate": [OK, OK, CORRUPT, CORRUPT, CORRUPT, CORRUPT],
        "empty": [CORRUPT] * 6,
        "delete": [ABSENT] * 6,
        "foreign": [CORRUPT] * 6,
    }
    assert outcomes == expected[damage]
    assert b.stats().corrupt == outcomes.count(CORRUPT)
    again = get_chunks(b, range(6))
    assert again == [OK if outcome is OK else ABSENT for outcome in outcomes]
    lost = {chunk_key(n) for n, outcome in enumerate(outcomes) if outcome is not OK}
    assert set(b.poll().removed) == lost
    assert put_chunks(b, range(6)).outcomes == [PRESENT if o is OK else STORED for o in outcomes]


def test_a_pack_that_lies_about_its_keys_is_never_believed(
    pair: tuple[ObjectStore, ObjectStore], tmp_path: Path
) -> None:
    """Records of the right format, swapped: each is intact, neither is what was asked for."""
    a, b = pair
    put_chunks(a, [1, 2])
    assert a.flush(5)
    assert eventually(lambda: b.stats().chunks == 2)
    (pack,) = objects(tmp_path, "p")
    data = bytearray(pack.read_bytes())
    size = CHUNK_BYTES + 128
    data[:size], data[size : 2 * size] = data[size : 2 * size], data[:size]
    pack.write_bytes(data)
    assert get_chunks(b, [1, 2]) == [CORRUPT, CORRUPT]


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_damaged_manifest_costs_only_what_it_told(url: str, tmp_path: Path, damage: str) -> None:
    a = make_store(url, writer="a")
    a.open()
    put_chunks(a, [1])
    a.close()
    manifest = objects(tmp_path, "m")[-1]
    data = bytearray(manifest.read_bytes())
    if damage == "delete":
        manifest.unlink()
    else:
        data[len(data) // 2] ^= 1
        manifest.write_bytes(data if damage == "flip" else data[:20])
    b = make_store(url, writer="b")
    assert list(b.open()) == []
    again = make_store(url, writer="a")
    assert dict(again.open()) == {chunk_key(1): CHUNK_BYTES}  # found by the pack's own index
    assert get_chunks(again, [1]) == [OK]
    assert eventually_reads(b, [1])
    again.close()
    b.close()


def test_packs_without_a_manifest_are_recovered_and_garbage_goes(url: str, tmp_path: Path) -> None:
    a = make_store(url, writer="a")
    a.open()
    put_chunks(a, range(5))
    a.close()
    for manifest in objects(tmp_path, "m"):
        manifest.unlink()
    (pack,) = objects(tmp_path, "p")
    garbage = pack.with_name(pack.name[:-1] + "7")
    garbage.write_bytes(b"x" * 1000)
    again = make_store(url, writer="a")
    assert dict(again.open()) == {chunk_key(n): CHUNK_BYTES for n in range(5)}
    assert objects(tmp_path, "p") == [pack]
    assert again.stats().used_bytes == bucket_bytes(tmp_path)
    again.close()


def test_a_restart_counts_what_is_there_before_it_admits_more(url: str, tmp_path: Path) -> None:
    for life in range(4):
        a = make_store(url, writer="a", capacity_bytes=1 << 20)
        a.open()
        for first in range(0, 36, 4):
            put_chunks(a, range(100 * life + first, 100 * life + first + 4))
        assert a.stats().used_bytes <= 1 << 20
        a.close()
        assert bucket_bytes(tmp_path) <= 1 << 20
    a = make_store(url, writer="a", capacity_bytes=600 << 10)
    a.open()
    assert sum(path.stat().st_size for path in objects(tmp_path, "p")) <= 600 << 10
    a.close()


def test_a_newcomer_reads_one_manifest_per_writer(url: str, tmp_path: Path) -> None:
    a = make_store(url, writer="a", roll_after=4)
    a.open()
    for number in range(12):
        put_chunks(a, [number])
        assert a.flush(5)
    assert eventually(lambda: any(path.name.endswith("-f") for path in objects(tmp_path, "m")[1:]))
    b = make_store(url, writer="b")
    assert {key for key, _ in b.open()} == {chunk_key(n) for n in range(12)}
    assert b.traffic().gets <= 5  # the last full one and at most roll_after that follow it
    a.close()
    assert len([path for path in objects(tmp_path, "m") if "-a-" in path.name]) == 1
    b.close()


def test_a_follower_that_saw_everything_skips_full_manifests(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    put_chunks(a, [1])
    assert eventually_reads(b, [1])
    gets = b.traffic().gets
    a._state.client.run(a._publisher.publish(full=True), 5)  # type: ignore[union-attr]
    lists = b.traffic().lists
    assert eventually(lambda: b.traffic().lists >= lists + 3)
    assert b.traffic().gets == gets
    assert get_chunks(b, [1]) == [OK]


def test_expired_packs_are_misses_and_are_deleted(url: str, tmp_path: Path) -> None:
    now = [time.time()]
    a = make_store(url, writer="a", ttl_s=1000, wall=lambda: now[0], collect_interval_s=0.1)
    a.open()
    put_chunks(a, [1])
    assert a.flush(5)
    now[0] += 900
    assert put_chunks(a, [1]).outcomes == [STORED]  # little of its life is left
    assert a.flush(5)
    assert len(objects(tmp_path, "p")) == 2
    now[0] += 150
    assert eventually(lambda: len(objects(tmp_path, "p")) == 1)
    assert get_chunks(a, [1]) == [OK]
    now[0] += 1000
    assert eventually(lambda: not objects(tmp_path, "p"))
    assert get_chunks(a, [1]) == [ABSENT]
    a.close()


def test_what_dead_writers_left_goes_by_age_in_every_namespace(url: str, tmp_path: Path) -> None:
    for name, namespace in (("dead", NAMESPACE), ("old-model", OTHER_NAMESPACE)):
        store = make_store(url, writer=name, namespace=namespace, ttl_s=100)
        store.open()
        put_chunks(store, [1, 2])
        store.close()
    assert len(objects(tmp_path, "p")) == 2
    now = [time.time()]
    alive = make_store(url, writer="alive", wall=lambda: now[0], expiry_grace_s=50, collect_interval_s=0.1)
    alive.open()
    put_chunks(alive, [3])
    assert alive.flush(5)
    time.sleep(0.5)
    assert len(objects(tmp_path, "p")) == 3
    now[0] += 120  # expired, within the grace
    time.sleep(0.5)
    assert len(objects(tmp_path, "p")) == 3
    now[0] += 60
    assert eventually(lambda: len(objects(tmp_path, "p")) == 1)
    assert eventually(lambda: all("-alive-" in path.name for path in objects(tmp_path, "m")))
    assert get_chunks(alive, [3]) == [OK]
    alive.close()


def test_foreign_files_are_left_alone(url: str, tmp_path: Path) -> None:
    store = make_store(url, ttl_s=1, expiry_grace_s=0, collect_interval_s=0.1)
    store.open()
    put_chunks(store, [1])
    assert store.flush(5)
    (pack,) = objects(tmp_path, "p")
    strangers = [
        pack.with_name("readme.txt"),
        tmp_path / "bucket" / "mine.txt",
        objects(tmp_path, "m")[0].with_name("x"),
    ]
    for stranger in strangers:
        stranger.write_text("not ours")
    assert eventually(lambda: pack not in objects(tmp_path, "p"))
    assert all(stranger.read_text() == "not ours" for stranger in strangers)
    store.close()
    again = make_store(url)
    again.open()
    again.close()
    assert all(stranger.exists() for stranger in strangers)
