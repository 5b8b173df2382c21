"""The RESP client against a scripted peer: split replies, gathered sends, nonsense, deadlines; and URLs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmtier.core.errors import UsageError
from warmtier.store.shared.address import Address, parse_address
from warmtier.store.shared.resp import Connection, ProtocolError, ReplyError, command

Serve = Callable[[Callable[[socket.socket], None]], Connection]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return what connects to a peer that runs a function."""
    threads: list[threading.Thread] = []
    connections: list[Connection] = []

    def start(work: Callable[[socket.socket], None]) -> Connection:
        connection, thread = connect_to(work)
        threads.append(thread)
        connections.append(connection)
        return connection

    yield start
    for connection in connections:
        connection.close()
    for thread in threads:
        thread.join()


def connect_to(work: Callable[[socket.socket], None]) -> tuple[Connection, threading.Thread]:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        peer, _ = listener.accept()
        with peer, listener:
            work(peer)

    thread = threading.Thread(target=run)
    thread.start()
    address = Address("test", host="127.0.0.1", port=listener.getsockname()[1])
    return Connection(address, time.monotonic() + 5), thread


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def sender(pieces: list[bytes]) -> Callable[[socket.socket], None]:
    def work(peer: socket.socket) -> None:
        for piece in pieces:
            peer.sendall(piece)
            time.sleep(0.001)

    return work


@given(st.binary(max_size=60), st.lists(st.integers(1, 80), max_size=6), st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_replies_and_values_arrive_however_they_are_split(value: bytes, cuts: list[int], first: int) -> None:
    stream = b"+OK\r\n:42\r\n$%d\r\n%s\r\n$-1\r\n*2\r\n$1\r\na\r\n:7\r\n-ERR no\r\n" % (len(value), value)
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    connection, thread = connect_to(sender([*pieces, rest]))
    head, tail = bytearray(min(first, len(value))), bytearray(max(0, len(value) - first))
    assert connection.read_reply(soon()) == b"OK"
    assert connection.read_reply(soon()) == 42
    assert connection.read_value([memoryview(head), memoryview(tail)], soon()) is True
    assert bytes(head + tail) == value
    assert connection.read_value([memoryview(head)], soon()) is None
    assert connection.read_reply(soon()) == [b"a", 7]
    error = connection.read_reply(soon())
    assert isinstance(error, ReplyError)
    assert error.code == "ERR"
    connection.close()
    thread.join()


def test_a_value_of_another_length_is_skipped_and_the_next_is_right(serve: Serve) -> None:
    large = b"x" * 100_000
    connection = serve(sender([b"$100000\r\n" + large + b"\r\n$3\r\nabc\r\n$2\r\nhi\r\n"]))
    into, three = bytearray(3), bytearray(3)
    assert connection.read_value([memoryview(into)], soon()) is False
    assert into == b"\0\0\0"
    assert connection.read_value([memoryview(three)], soon()) is True
    assert three == b"abc"
    assert connection.read_value([memoryview(three)], soon()) is False


@pytest.mark.parametrize("nonsense", [b"hello\r\n", b":x\r\n", b"$abc\r\n", b"$999999999999\r\n", b"x" * 200_000])
def test_nonsense_is_a_protocol_error(serve: Serve, nonsense: bytes) -> None:
    connection = serve(sender([nonsense]))
    with pytest.raises(ProtocolError):
        connection.read_reply(soon())


def test_a_closed_connection_is_an_error_in_the_middle_of_a_value(serve: Serve) -> None:
    connection = serve(sender([b"$100\r\nabc"]))
    with pytest.raises(ProtocolError, match="closed"):
        connection.read_value([memoryview(bytearray(100))], soon())


def test_a_silent_peer_costs_the_deadline(serve: Serve) -> None:
    release = threading.Event()

    def work(peer: socket.socket) -> None:
        peer.sendall(b"$10\r\nabc")
        release.wait(5)

    connection = serve(work)
    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        connection.read_value([memoryview(bytearray(10))], soon(0.2))
    assert 0.1 < time.monotonic() - started_s < 2
    with pytest.raises(TimeoutError):
        connection.send([b"x"], soon(-1))
    release.set()


def test_many_large_parts_are_sent_whole_and_in_order(serve: Serve) -> None:
    received = bytearray()

    def work(peer: socket.socket) -> None:
        while data := peer.recv(1 << 20):
            received.extend(data)

    connection = serve(work)
    parts: list[bytes | memoryview] = []
    for number in range(700):
        parts.extend(command(b"SET", b"k%d" % number, memoryview(bytes([number % 256]) * (number * 13))))
    connection.send(parts, soon(20))
    expected = b"".join(bytes(part) for part in parts)
    connection.close()
    deadline_s = time.monotonic() + 10
    while len(received) < len(expected) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert bytes(received) == expected
    assert connection.sent_bytes == len(expected)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "database", "tls"),
    [
        ("valkey://cache:7000/3", "cache", 7000, "", 3, False),
        ("redis://cache", "cache", 6379, "", 0, False),
        ("redis://[::1]:7000", "::1", 7000, "", 0, False),
        ("redis://[::1]", "::1", 6379, "", 0, False),
        ("valkeys://cache:7000/0", "cache", 7000, "", 0, True),
        ("unix:///run/valkey.sock?db=2", "", 6379, "/run/valkey.sock", 2, False),
        ("valkey+unix:///run/a%20b.sock", "", 6379, "/run/a b.sock", 0, False),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, database: int, tls: bool) -> None:
    address = parse_address(url, {})
    assert (address.host, address.port, address.path, address.database) == (host, port, path, database)
    assert (address.tls is not None) == tls


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://cache", "unknown scheme"),
        ("valkey://user:topsecret@cache", "holds credentials"),
        ("valkey://cache?password=topsecret", "unknown parameter 'password'"),
        ("valkey://:7000", "names no host"),
        ("valkey://cache:port", "port that is no number"),
        ("valkey://cache/name", "database that is no number"),
        ("valkeys://cache?ca=/does/not/exist", "certificates cannot be used"),
    ],
)
def test_urls_that_cannot_work_are_refused_without_repeating_secrets(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_address(url, {})
    assert "topsecret" not in str(caught.value)


def test_secrets_come_from_the_environment_and_are_not_shown() -> None:
    address = parse_address(
        "redis://cache", {"WARMTIER_SHARED_PASSWORD": "topsecret", "WARMTIER_SHARED_USERNAME": "me"}
    )
    assert (address.username, address.password) == ("me", "topsecret")
    assert "topsecret" not in repr(address)
