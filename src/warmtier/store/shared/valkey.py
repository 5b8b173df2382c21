"""A shared tier in Valkey or Redis. The server bounds and evicts; we check that it does.

The server's key is ``wt1:``, the namespace's 16 bytes and the chunk's key; the value is a chunk header and the
payload. Values are set only where there is none, so concurrent writers of one key do no harm.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warmtier.core.errors import StoreError, UsageError
from warmtier.core.types import Key, Namespace, TierKind
from warmtier.store.base import Read, ReadOutcome, StoreStats, Traffic, Write, WriteOutcome, WriteResult
from warmtier.store.record import MAX_KEY_BYTES, encode_header, header_bytes, proves
from warmtier.store.shared.address import Address
from warmtier.store.shared.pool import ConnectionPool
from warmtier.store.shared.resp import Connection, Part, ReplyError, command
from warmtier.store.shared.server_check import check_facts, explain, read_facts

_PREFIX: Final = b"wt1:"
_SCAN_COUNT: Final = b"1000"
_PROBE_BATCH: Final = 512
_GLOB: Final = frozenset(b"*?[]\\^-")
# Values that wait to be sent to us are held in the server's memory, and count against its bound.
_READ_WINDOW_BYTES: Final = 8 << 20
_WRITE_WINDOW_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ValkeyOptions:
    """How one replica uses a server. A call may take ``timeout_s`` plus its bytes at ``slowest_bytes_per_s``.

    ``listed_keys`` bounds what ``open`` lists; the rest is found by asking.
    """

    connections: int = 4
    timeout_s: float = 2.0
    slowest_bytes_per_s: int = 64 << 20
    ttl_s: float = 86400.0
    listed_keys: int = 100_000

    def __post_init__(self) -> None:
        for name in ("connections", "timeout_s", "slowest_bytes_per_s", "ttl_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above zero, not {getattr(self, name)}")


@dataclass(slots=True)
class _Counters:
    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    failures: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0
    corrupt: int = 0
    errors: int = 0


class ValkeyStore:
    """Chunks of one namespace in a server that others use as well. What it evicts is found out by asking."""

    kind = TierKind.SHARED

    def __init__(self, address: Address, namespace: Namespace, options: ValkeyOptions) -> None:
        self._address = address
        self._namespace = namespace
        self._options = options
        self._prefix = _PREFIX + namespace
        self._lifetime_ms = b"%d" % round(options.ttl_s * 1000)
        self._pool: ConnectionPool | None = None
        self._capacity_bytes = 0
        self._used_bytes = 0
        self._chunks = 0
        self._counters = _Counters()
        self._lock = threading.Lock()

    @property
    def capacity_bytes(self) -> int:
        """The server's memory bound, known once open."""
        return self._capacity_bytes

    def open(self) -> Iterable[tuple[Key, int]]:
        """Check the server and list what it has, at most ``listed_keys`` of it. Raises StoreError."""
        if self._pool is not None:
            raise StoreError("this shared store is open already")
        pool = ConnectionPool(self._address, self._options.connections)
        try:
            with pool.connection(time.monotonic() + self._options.timeout_s) as connection:
                facts = read_facts(connection, self._deadline_s(0))
                check_facts(facts, self._address.name, expires=True)
                self._capacity_bytes, self._used_bytes = facts.maximum_bytes, facts.used_bytes
                found = self._list(connection)
                self._refresh(connection)
        except (OSError, ReplyError) as error:
            pool.close()
            raise explain(error, self._address.name) from None
        except StoreError:
            pool.close()
            raise
        self._pool = pool
        return found

    def _list(self, connection: Connection) -> list[tuple[Key, int]]:
        pattern = b"".join(b"\\%c" % byte if byte in _GLOB else b"%c" % byte for byte in self._prefix) + b"*"
        found: list[tuple[Key, int]] = []
        cursor, deadline_s = b"0", self._deadline_s(0)
        while len(found) < self._options.listed_keys and time.monotonic() < deadline_s:
            self._counters.lists += 1
            reply = connection.call(
                b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCAN_COUNT, deadline_s=self._deadline_s(0)
            )
            cursor, names = _scanned(reply)
            found.extend(self._sizes(connection, names))
            if cursor == b"0":
                break
        return list(dict(found).items())

    def _sizes(self, connection: Connection, names: Sequence[bytes]) -> Iterator[tuple[Key, int]]:
        deadline_s = self._deadline_s(0)
        connection.send([part for name in names for part in command(b"STRLEN", name)], deadline_s)
        for name in names:
            size = connection.read_reply(deadline_s)
            key = Key(name[len(self._prefix) :])
            if isinstance(size, int) and size >= header_bytes(key):
                yield key, size - header_bytes(key)

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks: one round trip to ask which are there, one to send the others. STORED: the server has it."""
        pool = self._pool
        if pool is None:
            return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
        started_s = time.perf_counter()
        outcomes = [WriteOutcome.ERROR] * len(writes)
        deadline_s = self._deadline_s(sum(write.data.nbytes for write in writes))
        failure = self._attempt(lambda connection: self._put_on(connection, writes, outcomes, deadline_s), deadline_s)
        if isinstance(failure, TimeoutError):
            outcomes = [WriteOutcome.TIMEOUT if each is WriteOutcome.ERROR else each for each in outcomes]
        stored = [
            write.data.nbytes for write, outcome in zip(writes, outcomes, strict=True) if outcome is WriteOutcome.STORED
        ]
        with self._lock:
            self._counters.bytes_written += sum(stored)
            self._counters.write_seconds += time.perf_counter() - started_s
            self._counters.errors += failure is not None
        return WriteResult(outcomes)

    def _put_on(
        self, connection: Connection, writes: Sequence[Write], outcomes: list[WriteOutcome], deadline_s: float
    ) -> None:
        present = self._exist(connection, [write.key for write in writes], deadline_s)
        wanted: list[int] = []
        seen: set[Key] = set()
        for number, write in enumerate(writes):
            if present[number] or write.key in seen:
                outcomes[number] = WriteOutcome.PRESENT
            elif len(write.key) > MAX_KEY_BYTES or header_bytes(write.key) + write.data.nbytes > self._capacity_bytes:
                # The server would empty itself before it refused.
                outcomes[number] = WriteOutcome.NO_ROOM
            else:
                wanted.append(number)
                seen.add(write.key)
        for window in _windows(wanted, lambda number: writes[number].data.nbytes, _WRITE_WINDOW_BYTES):
            connection.send([part for number in window for part in self._set(writes[number])], deadline_s)
            for number in window:
                outcomes[number] = _stored(connection.read_reply(deadline_s))
        self._refresh(connection)

    def _set(self, write: Write) -> list[Part]:
        data = write.data.cast("B") if write.data.nbytes else write.data
        header = encode_header(self._namespace, write.key, data)
        self._counters.puts += 1
        # One value of two parts: the last two parts of the command after its length.
        parts = command(b"SET", self._name(write.key), b"", b"NX", b"PX", self._lifetime_ms)
        parts[7:9] = [b"$%d\r\n" % (len(header) + data.nbytes), header, data]
        return parts

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks straight into their buffers, pipelined over one connection."""
        if self._pool is None:
            return [ReadOutcome.ABSENT] * len(reads)
        started_s = time.perf_counter()
        outcomes = [ReadOutcome.ERROR] * len(reads)
        deadline_s = self._deadline_s(sum(read.into.nbytes for read in reads))
        failure = self._attempt(lambda connection: self._get_on(connection, reads, outcomes, deadline_s), deadline_s)
        if isinstance(failure, TimeoutError):
            outcomes = [ReadOutcome.TIMEOUT if each is ReadOutcome.ERROR else each for each in outcomes]
        damaged = [read.key for read, each in zip(reads, outcomes, strict=True) if each is ReadOutcome.CORRUPT]
        if damaged:
            self.delete(damaged)
        loaded = [read.into.nbytes for read, each in zip(reads, outcomes, strict=True) if each is ReadOutcome.OK]
        with self._lock:
            self._counters.bytes_read += sum(loaded)
            self._counters.read_seconds += time.perf_counter() - started_s
            self._counters.corrupt += len(damaged)
            self._counters.errors += failure is not None
        return outcomes

    def _get_on(
        self, connection: Connection, reads: Sequence[Read], outcomes: list[ReadOutcome], deadline_s: float
    ) -> None:
        windows = list(_windows(range(len(reads)), lambda number: reads[number].into.nbytes, _READ_WINDOW_BYTES))
        self._ask(connection, reads, windows[0], deadline_s)
        for window, following in itertools.zip_longest(windows, windows[1:]):
            if following:
                self._ask(connection, reads, following, deadline_s)
            for number in window:
                outcomes[number] = self._receive(connection, reads[number], deadline_s)

    def _ask(self, connection: Connection, reads: Sequence[Read], window: Sequence[int], deadline_s: float) -> None:
        self._counters.gets += len(window)
        connection.send(
            [part for number in window for part in command(b"GET", self._name(reads[number].key))], deadline_s
        )

    def _receive(self, connection: Connection, read: Read, deadline_s: float) -> ReadOutcome:
        header = memoryview(bytearray(header_bytes(read.key)))
        try:
            complete = connection.read_value([header, read.into], deadline_s)
        except ReplyError as error:
            return ReadOutcome.CORRUPT if error.code == "WRONGTYPE" else ReadOutcome.ERROR
        if complete is None:
            return ReadOutcome.ABSENT
        right = complete and proves(header, self._namespace, read.key, read.into)
        return ReadOutcome.OK if right else ReadOutcome.CORRUPT

    def probe(self, keys: Sequence[Key]) -> list[bool]:
        """Return which keys the server has now."""
        found = [False] * len(keys)
        deadline_s = self._deadline_s(0)

        def ask(connection: Connection) -> None:
            found[:] = self._exist(connection, keys, deadline_s)

        if self._pool is not None:
            self._attempt(ask, deadline_s)
        return found

    def _exist(self, connection: Connection, keys: Sequence[Key], deadline_s: float) -> list[bool]:
        found: list[bool] = []
        for start in range(0, len(keys), _PROBE_BATCH):
            batch = keys[start : start + _PROBE_BATCH]
            connection.send([part for key in batch for part in command(b"EXISTS", self._name(key))], deadline_s)
            found.extend(connection.read_reply(deadline_s) == 1 for _ in batch)
        return found

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys, for everybody."""
        deadline_s = self._deadline_s(0)

        def unlink(connection: Connection) -> None:
            for start in range(0, len(keys), _PROBE_BATCH):
                names = [self._name(key) for key in keys[start : start + _PROBE_BATCH]]
                self._counters.deletes += 1
                connection.call(b"UNLINK", *names, deadline_s=deadline_s)
            self._refresh(connection)

        if self._pool is not None and keys:
            self._attempt(unlink, deadline_s)

    def _attempt(self, work: Callable[[Connection], None], deadline_s: float) -> OSError | ReplyError | None:
        """Do ``work`` on a connection; again on a new one if an old one turns out to be dead. Return what failed."""
        pool = self._pool
        if pool is None:
            return None
        for fresh in (False, True):
            reused = False
            try:
                with pool.connection(deadline_s, fresh=fresh) as connection:
                    reused = not connection.fresh
                    work(connection)
            except TimeoutError as error:
                return self._failed(error)
            except (OSError, ReplyError) as error:
                if not reused:
                    return self._failed(error)
            else:
                return None
        return None

    def _failed(self, error: OSError | ReplyError) -> OSError | ReplyError:
        with self._lock:
            self._counters.failures += 1
        return error

    def _refresh(self, connection: Connection) -> None:
        deadline_s = self._deadline_s(0)
        self._used_bytes = read_facts(connection, deadline_s).used_bytes
        size = connection.call(b"DBSIZE", deadline_s=deadline_s)
        self._chunks = size if isinstance(size, int) else 0

    def _name(self, key: Key) -> bytes:
        return self._prefix + key

    def _deadline_s(self, size_bytes: int) -> float:
        return time.monotonic() + self._options.timeout_s + size_bytes / self._options.slowest_bytes_per_s

    def stats(self) -> StoreStats:
        """Return our figures; used bytes and chunks are the whole server's, as of our last put or delete."""
        with self._lock:
            counters = self._counters
            return StoreStats(
                capacity_bytes=self._capacity_bytes,
                used_bytes=self._used_bytes,
                chunks=self._chunks,
                bytes_written=counters.bytes_written,
                bytes_read=counters.bytes_read,
                write_seconds=counters.write_seconds,
                read_seconds=counters.read_seconds,
                corrupt=counters.corrupt,
                errors=counters.errors,
            )

    def traffic(self) -> Traffic:
        """Return what was asked of the server since ``open``."""
        pool, counters = self._pool, self._counters
        return Traffic(
            puts=counters.puts,
            gets=counters.gets,
            lists=counters.lists,
            deletes=counters.deletes,
            failures=counters.failures,
            sent_bytes=pool.sent_bytes if pool else 0,
            received_bytes=pool.received_bytes if pool else 0,
        )

    def close(self) -> None:
        """Close all connections. What is stored stays."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _stored(reply: object) -> WriteOutcome:
    if reply == b"OK":
        return WriteOutcome.STORED
    if reply is None:
        return WriteOutcome.PRESENT  # somebody else was faster
    if isinstance(reply, ReplyError) and reply.code == "OOM":
        return WriteOutcome.NO_ROOM
    return WriteOutcome.ERROR


def _scanned(reply: object) -> tuple[bytes, list[bytes]]:
    match reply:
        case [bytes(cursor), list(names)]:
            return cursor, [name for name in names if isinstance(name, bytes)]
    return b"0", []


def _windows(numbers: Iterable[int], size: Callable[[int], int], limit_bytes: int) -> Iterator[list[int]]:
    """Group ``numbers`` so that each group holds at most ``limit_bytes``, and at least one number."""
    window: list[int] = []
    held_bytes = 0
    for number in numbers:
        size_bytes = size(number)
        if window and (held_bytes + size_bytes > limit_bytes or len(window) >= _PROBE_BATCH):
            yield window
            window, held_bytes = [], 0
        window.append(number)
        held_bytes += size_bytes
    if window:
        yield window
