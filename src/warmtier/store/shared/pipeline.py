"""What the shared tier asks of a Valkey or Redis server, pipelined over one connection.

The server's key is ``wt1:``, the namespace's 16 bytes and the chunk's key; the value is a chunk header and the
payload. Values are set only where there is none, so concurrent writers of one key do no harm.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warmtier.core.types import Key, Namespace
from warmtier.store.base import Read, ReadOutcome, Write, WriteOutcome
from warmtier.store.record import MAX_KEY_BYTES, encode_header, header_bytes, proves
from warmtier.store.shared.resp import Connection, Part, ReplyError, command

_PREFIX: Final = b"wt1:"
_SCAN_COUNT: Final = b"1000"
_BATCH: Final = 512
_GLOB: Final = frozenset(b"*?[]\\^-")
# Values that wait to be sent to us are held in the server's memory, and count against its bound.
_READ_WINDOW_BYTES: Final = 8 << 20
# The server receives a large value in place only when nothing follows it in its buffer.
_WRITE_WINDOW_BYTES: Final = 2 << 20


@dataclass(slots=True)
class Requests:
    """Commands sent so far. Approximate when several threads send at once."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0


class Pipeline:
    """Commands of one namespace. ``deadline_s`` is in ``time.monotonic()``; all raise OSError, some ReplyError."""

    def __init__(self, namespace: Namespace, ttl_s: float) -> None:
        self.requests = Requests()
        self._namespace = namespace
        self._prefix = _PREFIX + namespace
        self._lifetime_ms = b"%d" % max(1, round(ttl_s * 1000))

    def _name(self, key: Key) -> bytes:
        return self._prefix + key

    def listing(self, connection: Connection, maximum: int, deadline_s: float) -> list[tuple[Key, int]]:
        """Return keys and payload bytes, up to about ``maximum`` and until about the deadline."""
        pattern = b"".join(b"\\%c" % byte if byte in _GLOB else b"%c" % byte for byte in self._prefix) + b"*"
        found: dict[Key, int] = {}
        cursor, patience_s = b"0", deadline_s - time.monotonic()
        while len(found) < maximum and time.monotonic() < deadline_s:
            self.requests.lists += 1
            step_s = time.monotonic() + patience_s
            reply = connection.call(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", _SCAN_COUNT, deadline_s=step_s)
            cursor, names = _scanned(reply)
            found.update(self._sizes(connection, names, step_s))
            if cursor == b"0":
                break
        return [*found.items()]

    def _sizes(self, connection: Connection, names: Sequence[bytes], deadline_s: float) -> Iterator[tuple[Key, int]]:
        connection.send([part for name in names for part in command(b"STRLEN", name)], deadline_s)
        for name in names:
            size = connection.read_reply(deadline_s)
            key = Key(name[len(self._prefix) :])
            if isinstance(size, int) and size >= header_bytes(key):
                yield key, size - header_bytes(key)

    def exist(self, connection: Connection, keys: Sequence[Key], deadline_s: float) -> list[bool]:
        """Return which keys there are."""
        found: list[bool] = []
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            connection.send([part for key in batch for part in command(b"EXISTS", self._name(key))], deadline_s)
            found.extend(connection.read_reply(deadline_s) == 1 for _ in batch)
        return found

    def delete(self, connection: Connection, keys: Sequence[Key], deadline_s: float) -> None:
        """Forget keys."""
        for start in range(0, len(keys), _BATCH):
            names = [self._name(key) for key in keys[start : start + _BATCH]]
            self.requests.deletes += 1
            connection.call(b"UNLINK", *names, deadline_s=deadline_s)

    def put(
        self,
        connection: Connection,
        writes: Sequence[Write],
        outcomes: list[WriteOutcome],
        *,
        largest_bytes: int,
        deadline_s: float,
    ) -> None:
        """Ask which chunks are there, send the others; fill in ``outcomes`` as they are known."""
        present = self.exist(connection, [write.key for write in writes], deadline_s)
        wanted: list[int] = []
        seen: set[Key] = set()
        for number, write in enumerate(writes):
            if present[number] or write.key in seen:
                outcomes[number] = WriteOutcome.PRESENT
            elif len(write.key) > MAX_KEY_BYTES or header_bytes(write.key) + write.data.nbytes > largest_bytes:
                # The server would empty itself before it refused.
                outcomes[number] = WriteOutcome.NO_ROOM
            else:
                wanted.append(number)
                seen.add(write.key)
        for window in _windows(wanted, lambda number: writes[number].data.nbytes, _WRITE_WINDOW_BYTES):
            connection.send([part for number in window for part in self._set(writes[number])], deadline_s)
            for number in window:
                outcomes[number] = _stored(connection.read_reply(deadline_s))

    def _set(self, write: Write) -> list[Part]:
        data = write.data.cast("B") if write.data.nbytes else write.data
        header = encode_header(self._namespace, write.key, data)
        self.requests.puts += 1
        parts = command(b"SET", self._name(write.key), b"", b"NX", b"PX", self._lifetime_ms)
        # The empty third argument makes way for one value of two parts, the chunk's own memory not copied.
        parts[7:9] = [b"$%d\r\n" % (len(header) + data.nbytes), header, data]
        return parts

    def get(
        self, connection: Connection, reads: Sequence[Read], outcomes: list[ReadOutcome], deadline_s: float
    ) -> None:
        """Receive chunks into their buffers and prove them; fill in ``outcomes`` as they are known."""
        windows = list(_windows(range(len(reads)), lambda number: reads[number].into.nbytes, _READ_WINDOW_BYTES))
        for window, following in itertools.zip_longest([[], *windows], windows):
            if following:
                self.requests.gets += len(following)
                names = [self._name(reads[number].key) for number in following]
                connection.send([part for name in names for part in command(b"GET", name)], deadline_s)
            for number in window:
                outcomes[number] = self._receive(connection, reads[number], deadline_s)

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
        if window and (held_bytes + size_bytes > limit_bytes or len(window) >= _BATCH):
            yield window
            window, held_bytes = [], 0
        window.append(number)
        held_bytes += size_bytes
    if window:
        yield window
