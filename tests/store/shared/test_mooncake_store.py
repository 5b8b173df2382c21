"""The shared tier on a real Mooncake cluster: conformance, sharing, faults of master and owner, eviction."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mooncake_server import MooncakeServer
from server_process import ServerUnavailableError, free_port
from slow_tests import slow

from warmtier.core.errors import StoreError, UsageError
from warmtier.core.types import Namespace
from warmtier.store.base import ProbedStore, ReadOutcome, Store, WriteOutcome
from warmtier.store.shared.mooncake import MooncakeStore
from warmtier.store.shared.mooncake_calls import MAX_BATCH, batches
from warmtier.store.shared.mooncake_options import MooncakeOptions, parse_mooncake
from warmtier.testing.store_suite import CHUNK_BYTES, StoreSuite, chunk_bytes, chunk_key, get_chunks, put_chunks

OK, ABSENT, CORRUPT, ERROR = ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.CORRUPT, ReadOutcome.ERROR
STORED, PRESENT = WriteOutcome.STORED, WriteOutcome.PRESENT
NAMESPACE = Namespace(b"suite namespace!")


def start_server(home: Path, *, segment_bytes: int = 256 << 20) -> MooncakeServer:
    """Start a cluster or skip."""
    home.mkdir(parents=True)
    try:
        server = MooncakeServer(home, segment_bytes=segment_bytes, lease_s=0.5)
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    return server


@pytest.fixture(scope="session")
def cluster(server_home: Path) -> Iterator[MooncakeServer]:
    """Return a cluster that nobody kills."""
    server = start_server(server_home / "mooncake")
    yield server
    server.stop()


@pytest.fixture
def fragile(server_home: Path, tmp_path: Path) -> Iterator[MooncakeServer]:
    """Return a cluster of one test."""
    server = start_server(server_home / hashlib.blake2b(str(tmp_path).encode(), digest_size=4).hexdigest())
    yield server
    server.stop()


def make_store(
    server: MooncakeServer, *, namespace: Namespace = NAMESPACE, timeout_s: float = 2.0, lane_bytes: int = 1 << 20
) -> MooncakeStore:
    master = server.url.removeprefix("mooncake://")
    options = MooncakeOptions(master=master, host="127.0.0.1", timeout_s=timeout_s, lane_bytes=lane_bytes)
    return MooncakeStore(namespace, options)


class TestConformance(StoreSuite):
    """A cluster has no bound of ours and lists nothing: what follows from those is tested in another way."""

    @pytest.fixture(autouse=True)
    def _server(self, cluster: MooncakeServer) -> None:
        self._cluster = cluster

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        namespace = Namespace(hashlib.blake2b(str(directory).encode(), digest_size=16).digest())
        return make_store(self._cluster, namespace=namespace, lane_bytes=capacity_bytes)

    def test_is_a_store(self, store: Store) -> None:
        assert isinstance(store, ProbedStore)
        assert store.capacity_bytes == 0

    def test_never_exceeds_its_capacity_and_reports_every_eviction(self, store: Store) -> None:
        pytest.skip("the cluster bounds itself: see test_a_full_cluster_evicts")

    def test_opens_again_with_all_chunks(self, store: Store, directory: Path) -> None:
        put_chunks(store, [1, 2, 3])
        store.delete([chunk_key(2)])
        store.close()
        again = self.make_store(directory, 1 << 20)
        assert list(again.open()) == []
        assert isinstance(again, ProbedStore)
        assert again.probe([chunk_key(n) for n in (1, 2, 3)]) == [True, False, True]
        assert get_chunks(again, [1, 2, 3]) == [OK, ABSENT, OK]
        again.close()


def test_a_chunk_of_one_replica_is_a_hit_on_another(cluster: MooncakeServer) -> None:
    a, b = make_store(cluster), make_store(cluster)
    a.open()
    b.open()
    put_chunks(a, range(4))
    assert get_chunks(b, range(5)) == [OK] * 4 + [ABSENT]
    assert put_chunks(b, [1, 9]).outcomes == [PRESENT, STORED]
    assert (a.traffic().puts, b.traffic().puts) == (4, 1)
    other = make_store(cluster, namespace=Namespace(b"other namespace!"))
    other.open()
    assert get_chunks(other, [1]) == [ABSENT]
    for store in (a, b, other):
        store.close()


def test_batches_are_capped_by_number_and_by_memory(cluster: MooncakeServer) -> None:
    store = make_store(cluster, lane_bytes=256 << 10, timeout_s=20)
    store.open()
    numbers = range(5000, 5000 + MAX_BATCH + 100)
    assert set(put_chunks(store, numbers, 64).outcomes) == {STORED}
    assert set(get_chunks(store, numbers, 64)) == {OK}
    assert set(put_chunks(store, range(6000, 6030)).outcomes) == {STORED}
    assert set(get_chunks(store, range(6000, 6030))) == {OK}
    assert put_chunks(store, [7000], 300 << 10).outcomes == [WriteOutcome.NO_ROOM]
    store.close()
    assert [len(batch) for batch in batches(range(1200), lambda _: 1, 1 << 20)] == [512, 512, 176]
    assert list(batches([1, 2, 3], lambda number: number * 10, 30)) == [[1, 2], [3]]


def test_damaged_objects_are_misses_and_go(cluster: MooncakeServer) -> None:
    store = make_store(cluster, namespace=Namespace(b"damaged objects!"))
    store.open()
    put_chunks(store, [1, 2])
    calls = store._calls
    assert calls is not None
    raw = calls._client
    name, other = (calls._name(chunk_key(n)) for n in (1, 2))
    value = bytearray(raw.get(name))  # type: ignore[attr-defined]
    raw.batch_remove([name, other], True)
    value[-5] ^= 1
    raw.put(name, bytes(value))  # type: ignore[attr-defined]
    raw.put(other, b"short")  # type: ignore[attr-defined]
    assert get_chunks(store, [1, 2]) == [CORRUPT, CORRUPT]
    assert store.stats().corrupt == 2
    assert get_chunks(store, [1, 2]) == [ABSENT, ABSENT]
    assert put_chunks(store, [1, 2]).outcomes == [STORED, STORED]
    assert get_chunks(store, [1, 2]) == [OK, OK]
    store.close()


def test_a_full_cluster_evicts_or_refuses_and_stays_right(server_home: Path, tmp_path: Path) -> None:
    server = start_server(server_home / f"full{tmp_path.name[-1]}", segment_bytes=32 << 20)
    try:
        store = make_store(server, lane_bytes=4 << 20)
        store.open()
        seen: set[WriteOutcome] = set()
        for first in range(0, 96, 4):
            seen |= set(put_chunks(store, range(first, first + 4), 1 << 20).outcomes)
            time.sleep(0.05)
        assert seen <= {STORED, WriteOutcome.NO_ROOM}
        found = store.probe([chunk_key(n) for n in range(96)])
        assert 0 < sum(found) < 32
        assert set(get_chunks(store, range(96), 1 << 20)) <= {OK, ABSENT}
        store.close()
    finally:
        server.stop()


def test_a_dead_owner_is_errors_and_another_one_takes_over(fragile: MooncakeServer) -> None:
    store = make_store(fragile)
    store.open()
    put_chunks(store, range(4))
    fragile.owner.kill()
    assert set(get_chunks(store, range(4))) <= {ERROR, ABSENT}
    assert set(put_chunks(store, [5]).outcomes) <= {WriteOutcome.ERROR, WriteOutcome.NO_ROOM}
    fragile.start_owner()
    deadline_s = time.monotonic() + 20
    number = 100
    while put_chunks(store, [number]).outcomes != [STORED]:
        assert time.monotonic() < deadline_s
        number += 1
        time.sleep(0.2)
    assert get_chunks(store, [number]) == [OK]
    store.close()


def test_a_dead_master_costs_the_deadline_and_one_that_comes_back_empty_is_misses(fragile: MooncakeServer) -> None:
    store = make_store(fragile, timeout_s=0.5)
    store.open()
    put_chunks(store, range(4))
    fragile.master.kill()
    outcomes = []
    for _ in range(6):
        started_s = time.monotonic()
        outcomes.append(set(get_chunks(store, range(4))))
        assert time.monotonic() - started_s < 2  # Mooncake's own calls take about 4 s
    assert all(outcome <= {ReadOutcome.TIMEOUT, ERROR} for outcome in outcomes)
    assert put_chunks(store, [9]).outcomes[0] in {WriteOutcome.TIMEOUT, WriteOutcome.ERROR}
    fragile.start_master()
    deadline_s = time.monotonic() + 30
    number = 100
    while put_chunks(store, [number]).outcomes != [STORED]:
        assert time.monotonic() < deadline_s
        number += 1
        time.sleep(0.2)
    assert get_chunks(store, [number, 0]) == [OK, ABSENT]
    store.close()


def test_a_stopped_master_loses_lanes_not_the_engine(fragile: MooncakeServer) -> None:
    store = make_store(fragile, timeout_s=0.3)
    store.open()
    put_chunks(store, range(2))
    fragile.master.pause()
    slowest_s = 0.0
    for _ in range(8):
        started_s = time.monotonic()
        assert get_chunks(store, range(2)) == [ReadOutcome.TIMEOUT] * 2
        slowest_s = max(slowest_s, time.monotonic() - started_s)
    assert slowest_s < 2
    started_s = time.monotonic()
    assert get_chunks(store, range(2)) == [ReadOutcome.TIMEOUT] * 2
    assert time.monotonic() - started_s < 0.3  # all lanes are lost: at once
    fragile.master.resume()
    deadline_s = time.monotonic() + 20
    while get_chunks(store, range(2)) != [OK, OK]:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    store.close()


@slow
def test_a_master_that_does_not_exist_is_told() -> None:
    options = MooncakeOptions(master=f"127.0.0.1:{free_port()}", host="127.0.0.1", open_timeout_s=3.0)
    with pytest.raises(StoreError, match="cannot be joined"):
        MooncakeStore(NAMESPACE, options).open()


def test_urls() -> None:
    options = parse_mooncake("mooncake://127.0.0.1:7000?segment=4GiB&protocol=rdma&devices=mlx5_0&host=10.0.0.1")
    assert (options.master, options.host, options.segment_bytes) == ("127.0.0.1:7000", "10.0.0.1", 4 << 30)
    assert (options.protocol, options.devices) == ("rdma", "mlx5_0")
    assert parse_mooncake("mooncake://127.0.0.1").host == "127.0.0.1"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mooncake://", "not of the form"),
        ("mooncake://user:secret@host", "not of the form"),
        ("mooncake://host?size=3", "unknown parameter 'size'"),
        ("mooncake://host?protocol=ftp", "protocol must be"),
        ("mooncake://host?segment=4", "is not a size"),
    ],
)
def test_urls_that_cannot_work_are_refused(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_mooncake(url)


def test_bytes_are_as_they_were(cluster: MooncakeServer) -> None:
    store = make_store(cluster, namespace=Namespace(b"bytes as they be"))
    store.open()
    put_chunks(store, [1])
    calls = store._calls
    assert calls is not None
    value = calls._client.get(calls._name(chunk_key(1)))  # type: ignore[attr-defined]
    assert value[-CHUNK_BYTES:] == chunk_bytes(1)
    store.close()
