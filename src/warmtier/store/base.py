"""Contracts of byte stores. A store knows keys, bytes and bounds; it knows no policy, no request, no engine.

``warmtier.testing.store_suite`` proves an implementation.

Threads: every method may be called from several executor threads at once and may block (never call one on an engine's
scheduler thread). Single chunks never raise: their fate is an outcome. ``StoreError`` is for a store that cannot be
opened or is lost as a whole.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from warmtier.core.types import Key, TierKind


class ReadOutcome(enum.StrEnum):
    """What became of one chunk asked for."""

    OK = "ok"
    ABSENT = "absent"
    CORRUPT = "corrupt"  # key, namespace, length or checksum did not match; the record is dropped
    ERROR = "error"  # the medium failed
    TIMEOUT = "timeout"


class WriteOutcome(enum.StrEnum):
    """What became of one chunk offered."""

    STORED = "stored"
    PRESENT = "present"
    NO_ROOM = "no_room"
    ERROR = "error"
    TIMEOUT = "timeout"
    READ_ONLY = "read_only"


@dataclass(frozen=True, slots=True)
class Write:
    """One chunk to store. ``data`` is read during the call only."""

    key: Key
    data: memoryview


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk to load, straight ``into`` a writable buffer of exactly the stored length.

    The buffer's content is undefined unless the outcome is OK.
    """

    key: Key
    into: memoryview


@dataclass(slots=True)
class WriteResult:
    """Outcomes in the order given, and the keys that lost their place to make room (whoever wrote them)."""

    outcomes: list[WriteOutcome]
    evicted: list[Key] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """A store's figures at one moment. Counters grow from open; sizes are bytes on the medium."""

    capacity_bytes: int
    used_bytes: int
    chunks: int
    bytes_written: int = 0
    bytes_read: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0
    corrupt: int = 0
    errors: int = 0
    evicted: int = 0
    carried_bytes: int = 0  # hot payload written again so that it outlives its segment


@runtime_checkable
class Store(Protocol):
    """Bounded storage of chunks by key, in one namespace."""

    kind: TierKind

    @property
    def capacity_bytes(self) -> int:
        """The hard bound on bytes held, everything on the medium included."""
        ...

    def open(self) -> Iterable[tuple[Key, int]]:
        """Open or recover; return the (key, payload bytes) of every chunk that can be read. Raises StoreError."""
        ...

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store the chunks of one path, root first. Evicts on demand. A later duplicate of a key is PRESENT."""
        ...

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks; OK means that key, namespace, length and checksum matched."""
        ...

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys; absent ones are ignored."""
        ...

    def stats(self) -> StoreStats:
        """Return the figures now. Cheap; never blocks on the medium."""
        ...

    def close(self) -> None:
        """Seal and release everything. Idempotent; afterwards puts are READ_ONLY and gets ABSENT."""
        ...


@dataclass(frozen=True, slots=True)
class Changes:
    """What became readable in a store since the last poll (key, payload bytes), and what no longer is."""

    added: Sequence[tuple[Key, int]] = ()
    removed: Sequence[Key] = ()


@runtime_checkable
class FollowedStore(Store, Protocol):
    """A store that others write to as well, and that learns of it by itself, in threads of its own."""

    def poll(self) -> Changes:
        """Return what changed since ``open`` or the last call. Never blocks on the medium; one caller."""
        ...


@runtime_checkable
class ProbedStore(Store, Protocol):
    """A store that others write to as well, and that must be asked. What ``open`` returns may be incomplete."""

    def probe(self, keys: Sequence[Key]) -> list[bool]:
        """Return which keys can be read now. One round trip, bounded by the store's deadline; False on failure."""
        ...


@runtime_checkable
class EpochStore(Store, Protocol):
    """A store that can start anew, so that nothing of the epoch before is ever read again, by anyone."""

    def begin_epoch(self) -> None:
        """Forget everything; keep what follows apart from it. Raises StoreError when that cannot be had."""
        ...


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a store asked of a server since open: the basis of a bill. Failed requests count too."""

    puts: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    failures: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@runtime_checkable
class MeteredStore(Store, Protocol):
    """A store whose requests cost money or a network."""

    def traffic(self) -> Traffic:
        """Return the figures now. Never blocks."""
        ...
