"""The object store on S3 servers: moto for conformance, Ceph for what only a real one does."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from ceph_server import ACCESS_KEY, REGION, SECRET_KEY, CephServer
from moto_s3_server import MotoServer
from object_tier_helpers import eventually, eventually_reads, make_store
from server_process import free_port
from slow_tests import slow

from warmtier.core.errors import StoreError
from warmtier.store.base import ReadOutcome, Store, WriteOutcome
from warmtier.store.object.backend import open_backend
from warmtier.store.object.client import Failure, ObjectClient, RequestError
from warmtier.store.object.store import ObjectStore
from warmtier.testing.store_suite import CHUNK_BYTES, StoreSuite, chunk_key, get_chunks, put_chunks

pytestmark = pytest.mark.usefixtures("s3_credentials")
OK, ABSENT = ReadOutcome.OK, ReadOutcome.ABSENT


def make_bucket(endpoint: str, name: str) -> str:
    """Make a bucket and return its name."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
    )
    client.create_bucket(Bucket=name)
    client.close()
    return name


def bucket_name(tmp_path: Path) -> str:
    """Return a name of its own for every test."""
    return f"t{abs(hash(tmp_path)):x}"


MOTO_IS_ENOUGH = shutil.which("radosgw") is None or bool(os.environ.get("WARMTIER_SLOW"))


@pytest.mark.skipif(not MOTO_IS_ENOUGH, reason="Ceph is here and stricter; set WARMTIER_SLOW=1 to run both")
class TestOnMoto(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, moto_server: MotoServer, tmp_path: Path) -> None:
        self._url = moto_server.url(make_bucket(moto_server.endpoint, bucket_name(tmp_path)), "some/prefix")

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(self._url, capacity_bytes=capacity_bytes)


class TestOnCeph(StoreSuite):
    @pytest.fixture(autouse=True)
    def _server(self, ceph_server: CephServer, tmp_path: Path) -> None:
        self._url = ceph_server.url(make_bucket(ceph_server.endpoint, bucket_name(tmp_path)), "some/prefix")

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return make_store(self._url, capacity_bytes=capacity_bytes)


@pytest.fixture
def url(ceph_server: CephServer, tmp_path: Path) -> str:
    return ceph_server.url(make_bucket(ceph_server.endpoint, bucket_name(tmp_path)), "prefix")


@pytest.fixture
def pair(url: str) -> Iterator[tuple[ObjectStore, ObjectStore]]:
    """Return two replicas that give up after half a second."""
    stores = make_store(url, writer="a", timeout_s=0.5), make_store(url, writer="b", timeout_s=0.5)
    for store in stores:
        store.open()
    yield stores
    for store in stores:
        store.close()


def test_every_request_does_what_it_says(url: str) -> None:
    """Put, ranged get, list in order and from a name on, delete, create-if-absent."""
    client = ObjectClient(open_backend(url, timeout_s=2, longest_s=10).store)

    async def work() -> None:
        for name in ("p/b", "p/a", "p/c", "q/x"):
            await client.put_new(name, name.encode() * 100, timeout_s=5)
        with pytest.raises(RequestError) as exists:
            await client.put_new("p/a", b"other", timeout_s=5)
        assert exists.value.failure is Failure.EXISTS
        assert bytes(await client.get("p/a", 3, 6, timeout_s=5)) == b"p/ap/a"
        assert bytes(await client.get("p/a", 297, 100, timeout_s=5)) == b"p/a"
        with pytest.raises(RequestError) as short:
            await client.get("p/a", 300, 1, timeout_s=5)
        assert short.value.failure is Failure.SHORT
        with pytest.raises(RequestError) as absent:
            await client.get("p/none", 0, 1, timeout_s=5)
        assert absent.value.failure is Failure.ABSENT
        listed = await client.list_after("p/", None, timeout_s=5)
        assert [(item.path, item.size_bytes) for item in listed] == [("p/a", 300), ("p/b", 300), ("p/c", 300)]
        assert all(abs(item.modified_s - time.time()) < 60 for item in listed)
        assert [item.path for item in await client.list_after("p/", "p/a", timeout_s=5)] == ["p/b", "p/c"]
        assert sorted(await client.directories("", timeout_s=5)) == ["p", "q"]
        await client.delete(["p/a", "p/b", "p/never"], timeout_s=5)
        assert [item.path for item in await client.list_after("p/", None, timeout_s=5)] == ["p/c"]

    client.run(work(), 30)
    client.close()


@slow
def test_a_listing_of_several_pages_is_complete(url: str) -> None:
    client = ObjectClient(open_backend(url, timeout_s=5, longest_s=10).store)

    async def work() -> None:
        names = [f"p/{number:05d}" for number in range(1203)]
        for name in names:
            await client.put_new(name, b"x", timeout_s=5)
        before = client.traffic().lists
        assert [item.path for item in await client.list_after("p/", None, timeout_s=5)] == names
        assert client.traffic().lists - before == 2
        few = await client.list_after("p/", None, timeout_s=5, until=lambda item: item.path > "p/00004")
        assert [item.path for item in few] == names[:5]
        await client.delete(names, timeout_s=5)
        assert await client.list_after("p/", None, timeout_s=5) == []

    client.run(work(), 120)
    client.close()


def test_a_wrong_secret_is_told_without_showing_any(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-5309")
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreError) as caught:
        make_store(url).open()
    told = str(caught.value) + caplog.text + repr(caught.value.__context__) + repr(caught.value.__cause__)
    assert "refuses access" in told
    assert "SignatureDoesNotMatch" in told
    for secret in ("wrong-secret-5309", SECRET_KEY, ACCESS_KEY):
        assert secret not in told


def test_an_unknown_user_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NOBODY")
    with pytest.raises(StoreError, match="refuses access"):
        make_store(url).open()


def test_a_missing_bucket_is_told(ceph_server: CephServer) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        make_store(ceph_server.url("no-such-bucket", "x")).open()


def test_encrypted_connections_verify_the_server(ceph_server: CephServer, url: str) -> None:
    bucket = url.removeprefix("s3://").split("/")[0]
    encrypted = ceph_server.tls_url(bucket, "tls")
    with pytest.raises(StoreError, match="cannot be reached"):
        make_store(encrypted).open()
    store = make_store(f"{encrypted}&ca={ceph_server.certificate}")
    store.open()
    put_chunks(store, range(3))
    assert store.flush(10)
    assert get_chunks(store, range(3)) == [OK] * 3
    store.close()


def test_nobody_listening_is_told_within_the_timeout(ceph_server: CephServer) -> None:
    url = f"s3://bucket/x?endpoint=http://127.0.0.1:{free_port()}&region=r"
    started_s = time.monotonic()
    with pytest.raises(StoreError, match="cannot be reached"):
        make_store(url, timeout_s=0.5).open()
    assert time.monotonic() - started_s < 10


def test_two_replicas_share_what_either_stores(pair: tuple[ObjectStore, ObjectStore]) -> None:
    a, b = pair
    threads = [threading.Thread(target=put_chunks, args=(store, range(30))) for store in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    put_chunks(a, range(100, 110))
    assert a.flush(10)
    assert eventually_reads(b, [*range(30), *range(100, 110)])
    assert eventually_reads(a, range(30))
    assert (a.stats().corrupt, b.stats().corrupt) == (0, 0)


def test_a_stopped_server_costs_the_deadline_and_then_all_is_well(
    ceph_server: CephServer, pair: tuple[ObjectStore, ObjectStore]
) -> None:
    a, b = pair
    put_chunks(a, range(4))
    assert a.flush(10)
    assert eventually_reads(b, range(4))
    ceph_server.gateway.pause()
    try:
        started_s = time.monotonic()
        assert get_chunks(b, range(4)) == [ReadOutcome.TIMEOUT] * 4
        assert time.monotonic() - started_s < 5
        put_chunks(a, [5])
        assert not a.flush(10)
        started_s = time.monotonic()
        assert put_chunks(a, [6]).outcomes[0] in {WriteOutcome.TIMEOUT, WriteOutcome.ERROR}
        assert time.monotonic() - started_s < 5
        assert eventually(lambda: get_chunks(a, [5, 6]) == [ABSENT, ABSENT])
    finally:
        ceph_server.gateway.resume()
    assert eventually(lambda: get_chunks(b, range(4)) == [OK] * 4)
    assert eventually(lambda: put_chunks(a, [7]).outcomes == [WriteOutcome.STORED])
    assert a.flush(10)
    assert eventually_reads(b, [7], timeout_s=40)


def test_a_server_killed_in_the_middle_of_transfers_loses_no_truth(ceph_server: CephServer, url: str) -> None:
    """SIGKILL while packs go up and ranges come down: afterwards the same objects serve only right bytes."""
    a = make_store(url, writer="a", timeout_s=0.5, capacity_bytes=64 << 20)
    b = make_store(url, writer="b", timeout_s=0.5, capacity_bytes=64 << 20)
    a.open()
    b.open()
    put_chunks(a, range(100))
    assert a.flush(10)
    assert eventually_reads(b, range(100))
    acknowledged: set[int] = set(range(100))
    stop = threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        try:
            for first in range(1000, 100_000, 4):
                if stop.is_set():
                    return
                outcomes = put_chunks(a, range(first, first + 4)).outcomes
                acknowledged.update(first + n for n, outcome in enumerate(outcomes) if outcome is WriteOutcome.STORED)
        except BaseException as error:  # noqa: BLE001 - reported below
            problems.append(error)

    def read() -> None:
        try:
            while not stop.is_set():
                get_chunks(b, range(100))
        except BaseException as error:  # noqa: BLE001 - reported below
            problems.append(error)

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    time.sleep(0.4)
    ceph_server.gateway.kill()
    time.sleep(0.8)
    stop.set()
    for thread in threads:
        thread.join()
    ceph_server.start_gateway()
    assert not problems
    assert eventually(lambda: put_chunks(a, [50_000]).outcomes == [WriteOutcome.STORED], 30)
    assert a.flush(20)
    assert eventually_reads(b, [50_000], timeout_s=40)
    assert eventually_reads(b, range(100), timeout_s=20)
    known = sorted(acknowledged)
    outcomes = get_chunks(a, known)
    lost = {chunk_key(n) for n, outcome in zip(known, outcomes, strict=True) if outcome is not OK}
    assert set(outcomes) <= {OK, ABSENT}
    assert lost <= set(a.poll().removed)  # what was acknowledged and lost was taken back
    assert (a.stats().corrupt, b.stats().corrupt) == (0, 0)
    a.close()
    b.close()


def test_requests_are_counted_as_the_server_sees_them(url: str) -> None:
    a = make_store(url, writer="a", pack_bytes=1 << 20, capacity_bytes=16 << 20)
    a.open()
    before = a.traffic()
    put_chunks(a, range(40))
    assert a.flush(10)
    after = a.traffic()
    assert after.puts - before.puts <= 3  # one pack of 40 chunks, a manifest or two
    assert after.sent_bytes - before.sent_bytes >= 40 * CHUNK_BYTES
    assert after.failures == before.failures
    a.close()
