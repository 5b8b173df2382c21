"""Shared tier: GB/s against the same server, beside plain redis-py (no hiredis) and a bare loopback socket.

One server (Valkey, else Redis) on loopback, one connection each, the same chunks, the same pre-touched memory. The
columns take turns within each round; an aim is the median of the rounds' ratios. warmtier's checksums are on, both
ways. The server's memory is written once before anything is timed. ``limit`` sends the same bytes through a loopback
socket from memory to memory: what no client can exceed.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "servers"))

import redis  # noqa: E402
import redis.utils  # noqa: E402
from mooncake_server import MooncakeServer  # noqa: E402
from server_process import ServerUnavailableError  # noqa: E402
from valkey_server import ValkeyServer  # noqa: E402

import common  # noqa: E402
from warmtier.core.types import Key, Namespace  # noqa: E402
from warmtier.core.units import format_size  # noqa: E402
from warmtier.store.base import Read, ReadOutcome, Store, Write, WriteOutcome  # noqa: E402
from warmtier.store.shared.address import parse_address  # noqa: E402
from warmtier.store.shared.mooncake import MooncakeStore  # noqa: E402
from warmtier.store.shared.mooncake_options import MooncakeOptions  # noqa: E402
from warmtier.store.shared.valkey import ValkeyOptions, ValkeyStore  # noqa: E402

CHUNKS = (256 << 10, 1 << 20, 4 << 20)
NAMESPACE = Namespace(bytes(16))
Slab = memoryview


class Column(Protocol):
    """One way to keep chunks. ``slots`` are row numbers of the slab and name the chunks."""

    def store(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None: ...

    def load(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None: ...

    def forget(self, chunk: int, slots: Sequence[int]) -> None: ...

    def close(self) -> None: ...


def row(slab: Slab, chunk: int, slot: int) -> memoryview:
    return slab[slot * chunk : (slot + 1) * chunk]


def key(chunk: int, slot: int) -> Key:
    return Key(f"{chunk:016d}{slot:016d}".encode())


class Warmtier:
    """Any of warmtier's stores."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._store.open()

    def store(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        result = self._store.put([Write(key(chunk, n), row(slab, chunk, n)) for n in slots])
        assert set(result.outcomes) == {WriteOutcome.STORED}, result.outcomes

    def load(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        outcomes = self._store.get([Read(key(chunk, n), row(slab, chunk, n)) for n in slots])
        assert set(outcomes) == {ReadOutcome.OK}, outcomes

    def forget(self, chunk: int, slots: Sequence[int]) -> None:
        self._store.delete([key(chunk, n) for n in slots])

    def close(self) -> None:
        self._store.close()


class RedisPy:
    """redis-py with its own Python parser; values end up in the slab, as the engine needs them."""

    def __init__(self, port: int) -> None:
        if redis.utils.HIREDIS_AVAILABLE:
            raise SystemExit("this benchmark compares with redis-py without hiredis: uninstall hiredis")
        self._client = redis.Redis(host="127.0.0.1", port=port, protocol=2)

    def store(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        for n in slots:
            self._client.set(b"r" + key(chunk, n), row(slab, chunk, n))

    def load(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        for n in slots:
            value = self._client.get(b"r" + key(chunk, n))
            assert isinstance(value, bytes)
            row(slab, chunk, n)[:] = value

    def forget(self, chunk: int, slots: Sequence[int]) -> None:
        self._client.delete(*[b"r" + key(chunk, n) for n in slots])

    def close(self) -> None:
        self._client.close()


class LoopbackLimit:
    """Memory to memory through a TCP socket of loopback, both ways by one thread and its peer."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._peer = memoryview(bytearray(CHUNKS[-1]))
        self._jobs: list[tuple[bool, int]] = []
        self._wake = threading.Semaphore(0)
        self._here = socket.create_connection(listener.getsockname())
        self._there, _ = listener.accept()
        listener.close()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            sends, size = self._jobs.pop(0)
            view = self._peer[:size]
            self._there.sendall(view) if sends else _receive(self._there, view)

    def _run(self, slab: Slab, chunk: int, slots: Sequence[int], *, load: bool) -> None:
        for n in slots:
            self._jobs.append((load, chunk))
            self._wake.release()
            view = row(slab, chunk, n)
            _receive(self._here, view) if load else self._here.sendall(view)

    def store(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        self._run(slab, chunk, slots, load=False)

    def load(self, slab: Slab, chunk: int, slots: Sequence[int]) -> None:
        self._run(slab, chunk, slots, load=True)

    def forget(self, chunk: int, slots: Sequence[int]) -> None:
        """Nothing is kept."""
        _ = chunk, slots

    def close(self) -> None:
        self._here.close()
        self._there.close()


def _receive(connection: socket.socket, view: memoryview) -> None:
    done = 0
    while done < view.nbytes:
        done += connection.recv_into(view[done:])


def seconds(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def measure(
    columns: dict[str, Column], chunk: int, total: int, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return GB/s of every round, storing and loading; the first round warms everything up and is not counted."""
    slots = range(total // chunk)
    slab = memoryview(bytearray(np.random.default_rng(1).bytes(total)))
    stored: dict[str, list[float]] = {name: [] for name in columns}
    loaded: dict[str, list[float]] = {name: [] for name in columns}
    for number in range(rounds + 1):
        for name, column in columns.items():
            store_s = seconds(lambda column=column: column.store(slab, chunk, slots))  # type: ignore[misc]
            load_s = seconds(lambda column=column: column.load(slab, chunk, slots))  # type: ignore[misc]
            column.forget(chunk, slots)
            if number:
                stored[name].append(total / store_s / 1e9)
                loaded[name].append(total / load_s / 1e9)
    return stored, loaded


def ratio(rates: dict[str, list[float]], over: str) -> float:
    return statistics.median(mine / other for mine, other in zip(rates["warmtier"], rates[over], strict=True))


def with_valkey(home: Path, total: int, rounds: int) -> tuple[list[common.Row], list[common.Aim]]:
    server = ValkeyServer(home, maxmemory=str(8 * total))
    server.start()
    rows: list[common.Row] = []
    aims: list[common.Aim] = []
    options = ValkeyOptions(timeout_s=30)
    columns: dict[str, Column] = {
        "warmtier": Warmtier(ValkeyStore(parse_address(server.url), NAMESPACE, options)),
        "redis-py": RedisPy(server.port),
        "limit": LoopbackLimit(),
    }
    try:
        for chunk in CHUNKS:
            for operation, rates in zip(("SET", "GET"), measure(columns, chunk, total, rounds), strict=True):
                gain = ratio(rates, "redis-py")
                medians = {name: round(statistics.median(values), 3) for name, values in rates.items()}
                rows.append({"store": "valkey", "chunk": format_size(chunk), "operation": operation, **medians})
                if operation == "GET" and chunk >= 1 << 20:
                    aims.append(common.aim(f"GET {format_size(chunk)} over redis-py", gain, 2.0, "higher"))
    finally:
        for column in columns.values():
            column.close()
        server.stop()
    return rows, aims


def with_mooncake(home: Path, total: int, rounds: int) -> list[common.Row]:
    server = MooncakeServer(home, segment_bytes=4 * total)
    server.start()
    master = server.url.removeprefix("mooncake://")
    store = MooncakeStore(NAMESPACE, MooncakeOptions(master=master, host="127.0.0.1", timeout_s=30))
    columns: dict[str, Column] = {"warmtier": Warmtier(store)}
    rows: list[common.Row] = []
    try:
        for chunk in CHUNKS:
            for operation, rates in zip(("SET", "GET"), measure(columns, chunk, total, rounds), strict=True):
                mine = round(statistics.median(rates["warmtier"]), 3)
                rows.append(
                    {
                        "store": "mooncake",
                        "chunk": format_size(chunk),
                        "operation": operation,
                        "warmtier": mine,
                        "redis-py": None,
                        "limit": None,
                    }
                )
    finally:
        columns["warmtier"].close()
        server.stop()
    return rows


def main() -> None:
    options = common.parser(__doc__).parse_args()
    about = common.machine()
    total, rounds = (64 << 20, 3) if options.quick else (256 << 20, 7)
    with tempfile.TemporaryDirectory(prefix="wt-") as directory:
        home = Path(directory)
        rows, aims = with_valkey(home, total, rounds)
        try:
            rows += with_mooncake(home, total, rounds)
        except ServerUnavailableError as error:
            print(f"Mooncake is left out: {error}", file=sys.stderr)
    common.emit("shared_tier", rows, aims, format=options.format, about=about)


if __name__ == "__main__":
    main()
