"""Object tier: GB/s and requests per GB on a real S3 (Ceph's gateway), packed against one object per chunk.

All columns use obstore, the same client settings, the same pre-touched memory and the same server, and take turns
within each round; an aim is the median of the rounds' ratios. ``packed`` is warmtier's store with its checksums and
manifests, until everything is in the bucket. The others put and get one object per chunk and check nothing:
``chunk x2`` with as many requests in flight as ``packed`` has uploads, ``chunk x8`` with as many as it has reads at
most. The aims are for 256 KiB chunks; with large ones a pack holds few and gains little.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "servers"))

import boto3  # noqa: E402
import obstore  # noqa: E402
from ceph_server import ACCESS_KEY, REGION, SECRET_KEY, CephServer  # noqa: E402
from obstore.store import S3Store  # noqa: E402
from server_process import ServerUnavailableError  # noqa: E402

import common  # noqa: E402
from warmtier.core.types import Key, Namespace  # noqa: E402
from warmtier.core.units import format_size  # noqa: E402
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome  # noqa: E402
from warmtier.store.object.backend import open_backend  # noqa: E402
from warmtier.store.object.options import ObjectOptions  # noqa: E402
from warmtier.store.object.store import ObjectStore  # noqa: E402

CHUNKS = (256 << 10, 3 << 20, 32 << 20)
UPLOADS, READS = 2, 8
BUCKET = "bench"
PATH_CHUNKS = 16
"""Chunks of one call: one conversation's path at a time, as the engine stores them."""


def row(slab: memoryview, chunk: int, slot: int) -> memoryview:
    return slab[slot * chunk : (slot + 1) * chunk]


class Packed:
    """warmtier's store."""

    def __init__(self, url: str, total: int) -> None:
        options = ObjectOptions(
            capacity_bytes=4 * total + (256 << 20), writer="bench", timeout_s=60, uploads_in_flight=UPLOADS,
            reads_in_flight=READS, pack_delay_s=0.2, publish_interval_s=0.2,
        )  # fmt: skip
        backend = open_backend(url, timeout_s=60, longest_s=120)
        self._store = ObjectStore(backend, Namespace(bytes(16)), options)
        self._store.open()

    def store(self, slab: memoryview, chunk: int, slots: Sequence[int], label: bytes) -> None:
        for first in range(0, len(slots), PATH_CHUNKS):
            path = slots[first : first + PATH_CHUNKS]
            result = self._store.put([Write(self._key(label, n), row(slab, chunk, n)) for n in path])
            assert set(result.outcomes) == {WriteOutcome.STORED}, result.outcomes
        assert self._store.flush(120)

    def load(self, slab: memoryview, chunk: int, slots: Sequence[int], label: bytes) -> None:
        for first in range(0, len(slots), PATH_CHUNKS):
            path = slots[first : first + PATH_CHUNKS]
            outcomes = self._store.get([Read(self._key(label, n), row(slab, chunk, n)) for n in path])
            assert set(outcomes) == {ReadOutcome.OK}, outcomes

    def forget(self, slots: Sequence[int], label: bytes) -> None:
        self._store.delete([self._key(label, n) for n in slots])
        time.sleep(0.6)  # the deletions go out in the background: not on the other column's time

    def requests(self) -> tuple[int, int]:
        traffic = self._store.traffic()
        return traffic.puts, traffic.gets

    @staticmethod
    def _key(label: bytes, slot: int) -> Key:
        return Key(label + slot.to_bytes(8, "big"))

    def close(self) -> None:
        self._store.close()


class PerChunk:
    """One object per chunk, ``in_flight`` at a time."""

    def __init__(self, endpoint: str, in_flight: int) -> None:
        self._in_flight = in_flight
        limit = timedelta(seconds=60)
        self._store = S3Store(
            BUCKET, prefix=f"chunks{in_flight}", endpoint=endpoint, region=REGION, virtual_hosted_style_request=False,
            unsigned_payload=True,
            client_options={"allow_http": True, "timeout": limit, "connect_timeout": limit},
        )  # fmt: skip
        self._loop = asyncio.new_event_loop()
        self._puts = self._gets = 0

    def _each(self, work: Callable[[int], Awaitable[None]], slots: Sequence[int]) -> None:
        async def run() -> None:
            gate = asyncio.Semaphore(self._in_flight)

            async def one(slot: int) -> None:
                async with gate:
                    await work(slot)

            await asyncio.gather(*(one(slot) for slot in slots))

        self._loop.run_until_complete(run())

    def store(self, slab: memoryview, chunk: int, slots: Sequence[int], label: bytes) -> None:
        async def put(slot: int) -> None:
            self._puts += 1
            name = f"{label.decode()}-{slot}"
            await obstore.put_async(self._store, name, row(slab, chunk, slot), use_multipart=False)

        self._each(put, slots)

    def load(self, slab: memoryview, chunk: int, slots: Sequence[int], label: bytes) -> None:
        async def get(slot: int) -> None:
            self._gets += 1
            data = await obstore.get_range_async(self._store, f"{label.decode()}-{slot}", start=0, length=chunk)
            row(slab, chunk, slot)[:] = memoryview(data)

        self._each(get, slots)

    def forget(self, slots: Sequence[int], label: bytes) -> None:
        obstore.delete(self._store, [f"{label.decode()}-{slot}" for slot in slots])

    def requests(self) -> tuple[int, int]:
        return self._puts, self._gets

    def close(self) -> None:
        self._loop.close()


Column = Packed | PerChunk


def seconds(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def measure(columns: dict[str, Column], chunk: int, total: int, rounds: int) -> list[common.Row]:
    """Return the rows of one chunk size: medians over the rounds, the first one left out."""
    slots = range(total // chunk)
    slab = memoryview(bytearray(np.random.default_rng(chunk).bytes(total)))
    rates: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], float] = {}
    gigabytes = len(slots) * chunk / 1e9
    for number in range(rounds + 1):
        label = f"{chunk:x}.{number}".encode()
        for name, column in columns.items():
            before = column.requests()
            store_s = seconds(partial(column.store, slab, chunk, slots, label))
            load_s = seconds(partial(column.load, slab, chunk, slots, label))
            after = column.requests()
            column.forget(slots, label)
            counts[name, "store"] = (after[0] - before[0]) / gigabytes
            counts[name, "load"] = (after[1] - before[1]) / gigabytes
            if number:
                rates.setdefault((name, "store"), []).append(gigabytes / store_s)
                rates.setdefault((name, "load"), []).append(gigabytes / load_s)
    return [
        {
            "chunk": format_size(chunk),
            "operation": operation,
            **{f"{name} GB/s": round(statistics.median(rates[name, operation]), 4) for name in columns},
            **{f"over {name}": ratio(rates, operation, name) for name in columns if name != "packed"},
            "packed requests/GB": round(counts["packed", operation], 1),
            "chunk requests/GB": round(counts[f"chunk x{READS}", operation], 1),
        }
        for operation in ("store", "load")
    ]


def ratio(rates: dict[tuple[str, str], list[float]], operation: str, other: str) -> float:
    pairs = zip(rates["packed", operation], rates[other, operation], strict=True)
    return round(statistics.median(mine / theirs for mine, theirs in pairs), 3)


def make_bucket(endpoint: str) -> None:
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
    )  # fmt: skip
    client.create_bucket(Bucket=BUCKET)


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument(
        "--objectstore", choices=("memstore", "bluestore"), default="bluestore", help="Ceph's disk format"
    )
    options = parser.parse_args()
    about = common.machine()
    # Two packs at least, or only one upload would be in flight.
    total, rounds = (128 << 20, 1) if options.quick else (192 << 20, 3)
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_EC2_METADATA_DISABLED="true")
    with tempfile.TemporaryDirectory(prefix="wt-") as directory:
        try:
            server = CephServer(Path(directory) / "ceph", objectstore=options.objectstore)
            server.start()
        except ServerUnavailableError as error:
            raise SystemExit(f"error: this benchmark needs Ceph: {error}") from error
        try:
            make_bucket(server.endpoint)
            columns: dict[str, Column] = {
                "packed": Packed(server.url(BUCKET, "tier"), total),
                **{f"chunk x{number}": PerChunk(server.endpoint, number) for number in (UPLOADS, READS)},
            }
            rows = [line for chunk in CHUNKS for line in measure(columns, chunk, total, rounds)]
            for column in columns.values():
                column.close()
        finally:
            server.stop()
    first = next(line for line in rows if line["operation"] == "store")
    aims = [
        common.aim(f"storing {first['chunk']} over chunk x{n}", float(str(first[f"over chunk x{n}"])), 4.0, "higher")
        for n in (UPLOADS, READS)
    ]
    common.emit("object_tier", rows, aims, format=options.format, about={**about, "objectstore": options.objectstore})


if __name__ == "__main__":
    main()
