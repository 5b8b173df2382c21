"""A client for RESP2, the protocol of Redis and Valkey, for large values: they are sent from and received into the
caller's memory. Every call has a deadline; past it the connection is useless and must be closed, so nothing writes
into the caller's memory afterwards.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from warmtier.store.shared.address import Address

Part: TypeAlias = "bytes | memoryview"
Reply: TypeAlias = "bytes | int | ReplyError | list[Reply] | None"

_IOV_MAX: Final = 512
_READ_AHEAD: Final = 16 << 10
_LONGEST_LINE: Final = 64 << 10
_LARGEST_SMALL_REPLY: Final = 64 << 20
_CRLF: Final = b"\r\n"


class ReplyError(Exception):
    """An error that the server answered; ``code`` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class ProtocolError(OSError):
    """The server sent something that is not RESP2, or closed the connection."""


def command(*arguments: Part) -> list[Part]:
    """Return the parts of one command; large arguments are not copied."""
    parts: list[Part] = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        size = argument.nbytes if isinstance(argument, memoryview) else len(argument)
        parts.extend((b"$%d\r\n" % size, argument, _CRLF))
    return parts


class Connection:
    """One connection, for one thread at a time. ``deadline_s`` is in ``time.monotonic()`` throughout.

    Raises OSError (TimeoutError past the deadline); the connection must then be closed. After RESP errors, which are
    values or ReplyError, it stays usable.
    """

    def __init__(self, address: Address, deadline_s: float) -> None:
        self.fresh = True
        self.sent_bytes = 0
        self.received_bytes = 0
        self._buffer = bytearray(_READ_AHEAD)
        self._start = self._end = 0
        self._socket = _connect(address, deadline_s)
        try:
            self._introduce(address, deadline_s)
        except BaseException:
            self.close()
            raise

    def _introduce(self, address: Address, deadline_s: float) -> None:
        if address.password is not None:
            user = [address.username.encode()] if address.username else []
            self.call(b"AUTH", *user, address.password.encode(), deadline_s=deadline_s)
        if address.database:
            self.call(b"SELECT", b"%d" % address.database, deadline_s=deadline_s)

    def close(self) -> None:
        """Close it; fine at any moment."""
        self._socket.close()

    def call(self, *arguments: Part, deadline_s: float) -> Reply:
        """Send one command and return its small reply. Raises ReplyError, OSError."""
        self.send(command(*arguments), deadline_s)
        reply = self.read_reply(deadline_s)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def send(self, parts: Sequence[Part], deadline_s: float) -> None:
        """Send all parts."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        if isinstance(self._socket, ssl.SSLSocket):
            self._send_encrypted(views, deadline_s)
            return
        first = 0
        while first < len(views):
            self._set_timeout(deadline_s)
            sent = self._socket.sendmsg(views[first : first + _IOV_MAX])
            self.sent_bytes += sent
            while first < len(views) and sent >= views[first].nbytes:
                sent -= views[first].nbytes
                first += 1
            if sent:
                views[first] = views[first][sent:]

    def _send_encrypted(self, views: Sequence[memoryview], deadline_s: float) -> None:
        small: list[memoryview] = []
        for view in views:
            if view.nbytes < _READ_AHEAD:
                small.append(view)
                continue
            self._send_all(b"".join(small), deadline_s)
            self._send_all(view, deadline_s)
            small.clear()
        self._send_all(b"".join(small), deadline_s)

    def _send_all(self, data: Part, deadline_s: float) -> None:
        if len(data):
            self._set_timeout(deadline_s)
            self._socket.sendall(data)
            self.sent_bytes += len(data)

    def read_reply(self, deadline_s: float) -> Reply:
        """Return one reply; an error of the server is returned, not raised."""
        line = self._line(deadline_s)
        kind, rest = line[:1], line[1:]
        match kind:
            case b"+":
                return rest
            case b"-":
                return ReplyError(rest.decode("utf-8", "replace"))
            case b":":
                return _integer(rest)
            case b"$":
                return self._small_bulk(_integer(rest), deadline_s)
            case b"*":
                return [self.read_reply(deadline_s) for _ in range(max(0, _integer(rest)))]
        raise ProtocolError("the server does not speak RESP2")

    def _small_bulk(self, length: int, deadline_s: float) -> bytes | None:
        if length < 0:
            return None
        if length > _LARGEST_SMALL_REPLY:
            raise ProtocolError("a reply is too large")
        data = bytearray(length + 2)
        self._fill(memoryview(data), deadline_s)
        return bytes(data[:-2])

    def read_value(self, targets: Sequence[memoryview], deadline_s: float) -> bool | None:
        """Read a value into ``targets``, one after the other; return whether it has exactly their length.

        None: there is no such value. One of another length is skipped. Raises ReplyError, OSError.
        """
        line = self._line(deadline_s)
        if line[:1] == b"-":
            raise ReplyError(line[1:].decode("utf-8", "replace"))
        if line[:1] != b"$":
            raise ProtocolError("a value was expected")
        length = _integer(line[1:])
        if length < 0:
            return None
        fits = length == sum(target.nbytes for target in targets)
        if fits:
            for target in targets:
                self._fill(target, deadline_s)
        else:
            self._skip(length, deadline_s)
        self._skip(2, deadline_s)
        return fits

    def _fill(self, target: memoryview, deadline_s: float) -> None:
        target = target.cast("B") if target.nbytes else target
        done = min(target.nbytes, self._end - self._start)
        if done:
            target[:done] = memoryview(self._buffer)[self._start : self._start + done]
            self._start += done
        while done < target.nbytes:
            done += self._receive(target[done:], deadline_s)

    def _skip(self, length: int, deadline_s: float) -> None:
        while length:
            if self._start == self._end:
                self._more(deadline_s)
            step = min(length, self._end - self._start)
            self._start += step
            length -= step

    def _line(self, deadline_s: float) -> bytes:
        pieces = bytearray()
        while True:
            position = self._buffer.find(b"\n", self._start, self._end)
            stop = self._end if position < 0 else position + 1
            pieces += memoryview(self._buffer)[self._start : stop]
            self._start = stop
            if pieces.endswith(_CRLF):
                return bytes(pieces[:-2])
            if len(pieces) > _LONGEST_LINE:
                raise ProtocolError("a line is too long")
            self._more(deadline_s)

    def _more(self, deadline_s: float) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            self._end = self._receive(memoryview(self._buffer), deadline_s)

    def _receive(self, into: memoryview, deadline_s: float) -> int:
        self._set_timeout(deadline_s)
        count = self._socket.recv_into(into)
        if count == 0:
            raise ProtocolError("the server closed the connection")
        self.received_bytes += count
        return count

    def _set_timeout(self, deadline_s: float) -> None:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline has passed")
        self._socket.settimeout(left_s)


def _connect(address: Address, deadline_s: float) -> socket.socket:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline has passed")
    if address.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(left_s)
            connection.connect(address.path)
        except BaseException:
            connection.close()
            raise
        return connection
    connection = socket.create_connection((address.host, address.port), timeout=left_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.tls is None:
        return connection
    try:
        return address.tls.wrap_socket(connection, server_hostname=address.host)
    except BaseException:
        connection.close()
        raise


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ProtocolError("a number was expected") from error
