"""A shared tier in Valkey or Redis. The server bounds and evicts; we check that it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from warmtier.core.errors import StoreError, UsageError
from warmtier.core.types import Key, Namespace, TierKind
from warmtier.store.base import Read, ReadOutcome, StoreStats, Traffic, Write, WriteOutcome, WriteResult
from warmtier.store.shared.address import Address
from warmtier.store.shared.pipeline import Pipeline
from warmtier.store.shared.pool import ConnectionPool
from warmtier.store.shared.resp import Connection, ReplyError
from warmtier.store.shared.server_check import check_facts, explain, read_facts


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
        self._options = options
        self._pipeline = Pipeline(namespace, options.ttl_s)
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
            with pool.connection(self._deadline_s(0)) as connection:
                facts = read_facts(connection, self._deadline_s(0))
                check_facts(facts, self._address.name, expires=True)
                self._capacity_bytes = facts.maximum_bytes
                found = self._pipeline.listing(connection, self._options.listed_keys, self._deadline_s(0))
                self._refresh(connection)
        except (OSError, ReplyError) as error:
            pool.close()
            raise explain(error, self._address.name) from None
        except StoreError:
            pool.close()
            raise
        self._pool = pool
        return found

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks: one round trip to ask which are there, one to send the others. STORED: the server has it."""
        if self._pool is None:
            return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
        started_s = time.perf_counter()
        outcomes = [WriteOutcome.ERROR] * len(writes)
        deadline_s = self._deadline_s(sum(write.data.nbytes for write in writes))

        def work(connection: Connection) -> None:
            self._pipeline.put(connection, writes, outcomes, largest_bytes=self._capacity_bytes, deadline_s=deadline_s)
            self._refresh(connection)

        failure = self._attempt(work, deadline_s)
        if isinstance(failure, TimeoutError):
            outcomes = [WriteOutcome.TIMEOUT if each is WriteOutcome.ERROR else each for each in outcomes]
        pairs = zip(writes, outcomes, strict=True)
        stored_bytes = sum(write.data.nbytes for write, outcome in pairs if outcome is WriteOutcome.STORED)
        with self._lock:
            self._counters.bytes_written += stored_bytes
            self._counters.write_seconds += time.perf_counter() - started_s
            self._counters.errors += failure is not None
        return WriteResult(outcomes)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks straight into their buffers, pipelined over one connection."""
        if self._pool is None:
            return [ReadOutcome.ABSENT] * len(reads)
        started_s = time.perf_counter()
        outcomes = [ReadOutcome.ERROR] * len(reads)
        deadline_s = self._deadline_s(sum(read.into.nbytes for read in reads))
        failure = self._attempt(
            lambda connection: self._pipeline.get(connection, reads, outcomes, deadline_s), deadline_s
        )
        if isinstance(failure, TimeoutError):
            outcomes = [ReadOutcome.TIMEOUT if each is ReadOutcome.ERROR else each for each in outcomes]
        damaged = [read.key for read, each in zip(reads, outcomes, strict=True) if each is ReadOutcome.CORRUPT]
        if damaged:
            self.delete(damaged)
        pairs = zip(reads, outcomes, strict=True)
        loaded_bytes = sum(read.into.nbytes for read, outcome in pairs if outcome is ReadOutcome.OK)
        with self._lock:
            self._counters.bytes_read += loaded_bytes
            self._counters.read_seconds += time.perf_counter() - started_s
            self._counters.corrupt += len(damaged)
            self._counters.errors += failure is not None
        return outcomes

    def probe(self, keys: Sequence[Key]) -> list[bool]:
        """Return which keys the server has now."""
        found = [False] * len(keys)
        deadline_s = self._deadline_s(0)

        def work(connection: Connection) -> None:
            found[:] = self._pipeline.exist(connection, keys, deadline_s)

        self._attempt(work, deadline_s)
        return found

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys, for everybody."""
        deadline_s = self._deadline_s(0)

        def work(connection: Connection) -> None:
            self._pipeline.delete(connection, keys, deadline_s)
            self._refresh(connection)

        if keys:
            self._attempt(work, deadline_s)

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

    def _deadline_s(self, size_bytes: int) -> float:
        return time.monotonic() + self._options.timeout_s + size_bytes / self._options.slowest_bytes_per_s

    def stats(self) -> StoreStats:
        """Return our figures; used bytes and chunks are the whole database's, as of our last put or delete."""
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
        pool, requests = self._pool, self._pipeline.requests
        return Traffic(
            puts=requests.puts,
            gets=requests.gets,
            lists=requests.lists,
            deletes=requests.deletes,
            failures=self._counters.failures,
            sent_bytes=pool.sent_bytes if pool else 0,
            received_bytes=pool.received_bytes if pool else 0,
        )

    def close(self) -> None:
        """Close all connections. What is stored stays."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
