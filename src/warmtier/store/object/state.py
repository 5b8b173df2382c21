"""What the parts of an object store share. ``lock`` guards everything but the client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from warmtier.core.types import Key, Namespace
from warmtier.store.object.budget import Budget
from warmtier.store.object.client import ObjectClient
from warmtier.store.object.filling import Draft, Filler
from warmtier.store.object.index import ObjectIndex
from warmtier.store.object.names import root_of
from warmtier.store.object.options import ObjectOptions


@dataclass(slots=True)
class Counters:
    """What happened since open."""

    bytes_written: int = 0
    bytes_read: int = 0
    write_seconds: float = 0.0
    read_seconds: float = 0.0
    corrupt: int = 0
    errors: int = 0
    packs_written: int = 0
    packs_lost: int = 0
    manifests_read: int = 0
    manifests_refused: int = 0
    index_full: int = 0


@dataclass(slots=True, eq=False)
class State:
    """Index, budget and packs of one open store. ``clock_offset_s`` is the server's clock minus ours.

    ``wake`` (set on the client's loop) tells that packs may be ready. ``drafts`` are the packs that are not in the
    bucket yet. ``failing``: the last upload failed. ``lost``: chunks that were acknowledged and could not be uploaded.
    ``doomed``: objects to delete.
    """

    options: ObjectOptions
    namespace: Namespace
    prefix: str
    session: str
    client: ObjectClient
    wall: Callable[[], float] = time.time
    lock: threading.Condition = field(default_factory=threading.Condition)
    index: ObjectIndex = field(init=False)
    budget: Budget = field(init=False)
    filler: Filler = field(init=False)
    counters: Counters = field(default_factory=Counters)
    clock_offset_s: float = 0.0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    opened: bool = False
    failing: bool = False
    drafts: set[Draft] = field(default_factory=set)
    lost: list[Key] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.index = ObjectIndex(self.options.index_chunks)
        self.budget = Budget(self.options.capacity_bytes)
        self.filler = Filler(self.options, self.session)

    @property
    def root(self) -> str:
        """Where everything of this namespace lies."""
        return root_of(self.prefix, self.namespace)

    @property
    def timeout_s(self) -> float:
        """How long a request without data may take now."""
        return self.options.timeout_s if self.opened else max(self.options.timeout_s, self.options.open_timeout_s)

    def deadline_s(self, size_bytes: int) -> float:
        """Return how long a request that moves ``size_bytes`` may take now."""
        return self.timeout_s + size_bytes / self.options.slowest_bytes_per_s

    def now_s(self) -> float:
        """Return the time by the server's clock, in seconds since 1970."""
        return self.wall() + self.clock_offset_s

    def pack_path(self, name: str) -> str:
        """Return the path of a pack."""
        return f"{self.root}/p/{name}"

    def manifest_path(self, name: str) -> str:
        """Return the path of a manifest."""
        return f"{self.root}/m/{name}"

    def drop_own(self, names: Sequence[str], *, doom: bool = True) -> list[Key]:
        """Forget packs of this writer and doom their objects; return the keys that can no longer be read. Locked."""
        lost: list[Key] = []
        for name in names:
            lost.extend(self.index.drop_pack(name))
            self.budget.release(name)
            if doom:
                self.doomed.append(self.pack_path(name))
        return lost

    async def delete_doomed(self) -> None:
        """Delete the objects that are no longer wanted; they stay doomed if that fails. Raises RequestError."""
        with self.lock:
            paths = list(self.doomed)
        if paths:
            await self.client.delete(paths, timeout_s=self.timeout_s)
            with self.lock:
                gone = set(paths)
                self.doomed = [path for path in self.doomed if path not in gone]
