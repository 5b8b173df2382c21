"""A bounded pool of connections to one server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warmtier.store.shared.address import Address
from warmtier.store.shared.resp import Connection


class ConnectionPool:
    """At most ``maximum`` connections, made when needed. A connection that failed is closed, never reused."""

    def __init__(self, address: Address, maximum: int) -> None:
        self._address = address
        self._slots = threading.BoundedSemaphore(maximum)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self.sent_bytes = 0
        self.received_bytes = 0

    @contextmanager
    def connection(self, deadline_s: float, *, fresh: bool = False) -> Iterator[Connection]:
        """Lend a connection (with ``fresh`` a new one); OSError when none can be had before the deadline."""
        if not self._slots.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            raise TimeoutError("all connections are in use")
        try:
            connection = self._take(fresh=fresh) or Connection(self._address, deadline_s)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            finally:
                self._count(connection)
            self._give_back(connection)
        finally:
            self._slots.release()

    def _take(self, *, fresh: bool) -> Connection | None:
        with self._lock:
            if fresh:
                stale, self._idle = self._idle, []
            else:
                return self._idle.pop() if self._idle else None
        for connection in stale:
            connection.close()
        return None

    def _count(self, connection: Connection) -> None:
        with self._lock:
            self.sent_bytes += connection.sent_bytes
            self.received_bytes += connection.received_bytes
            connection.sent_bytes = connection.received_bytes = 0

    def _give_back(self, connection: Connection) -> None:
        connection.fresh = False
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
