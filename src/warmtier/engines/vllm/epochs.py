"""A cold tier's store as the engine uses it: opened late, by a thread of its own, and begun anew at each reset.

Late, because the keys' root is known only when the engine is up, and because another engine may still hold the
directory. Anew, because a reset may mean new weights under the old name: what is stored afterwards must not be found by
the next start, which loads the weights of the name. So each epoch but the first has a namespace of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from queue import SimpleQueue
from typing import Final

from warmtier.core.errors import StoreLockedError
from warmtier.core.types import Key, TierKind
from warmtier.store.base import Read, ReadOutcome, Store, StoreStats, Write, WriteOutcome, WriteResult

MakeStore = Callable[[str | None], Store]
"""Returns a store, not yet opened, for the epoch named (None: the first)."""

_RETRY_LOCKED_S: Final = 2.0
_RETRY_FAILED_S: Final = 30.0
_SAMPLE_S: Final = 1.0
_LEVELS: Final = frozenset({"capacity_bytes", "used_bytes", "chunks"})
_NOTHING: Final = StoreStats(0, 0, 0)


class EpochedStore:
    """Passes calls to the store of the epoch at hand. Before ``open`` and between epochs nothing is there.

    ``erase`` removes from a closed store what deleting leaves on the medium until it is written over.
    """

    def __init__(
        self, kind: TierKind, capacity_bytes: int, make: MakeStore, erase: Callable[[], object] = lambda: None
    ) -> None:
        self.kind = kind
        self._capacity_bytes = capacity_bytes
        self._make = make
        self._erase = erase
        self._epoch: str | None = None
        self._inner: Store | None = None
        self._changing = threading.Lock()
        self._before = _NOTHING  # counters of the epochs that have ended

    @property
    def capacity_bytes(self) -> int:
        """The hard bound on bytes held."""
        return self._capacity_bytes

    def open(self) -> Iterable[tuple[Key, int]]:
        """Open the store. Raises StoreError, StoreLockedError while another engine has it."""
        with self._changing:
            if self._inner is None:
                if self._epoch is not None:
                    self._erase()
                inner = self._make(self._epoch)
                found = list(inner.open())
                self._inner = inner
                return found
            return self._inner.open()

    def begin_epoch(self) -> None:
        """Delete all that is held and go on in a namespace that nobody else will ever have."""
        with self._changing:
            self._epoch = secrets.token_hex(16)
            inner, self._inner = self._inner, None
            if inner is None:
                return  # not open yet: ``open`` will find nothing
            inner.delete([key for key, _ in inner.open()])
            self._before = _sum(self._before, inner.stats())
            inner.close()
            self._erase()
            fresh = self._make(self._epoch)
            fresh.open()
            self._inner = fresh

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks. READ_ONLY while no store is open."""
        inner = self._inner
        return WriteResult([WriteOutcome.READ_ONLY] * len(writes)) if inner is None else inner.put(writes)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks. ABSENT while no store is open."""
        inner = self._inner
        return [ReadOutcome.ABSENT] * len(reads) if inner is None else inner.get(reads)

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget keys."""
        if (inner := self._inner) is not None:
            inner.delete(keys)

    def stats(self) -> StoreStats:
        """Return the figures now; counters grow over all epochs."""
        inner = self._inner
        now = inner.stats() if inner is not None else _NOTHING
        return replace(_sum(self._before, now), capacity_bytes=self._capacity_bytes)

    def close(self) -> None:
        """Seal and release the store."""
        with self._changing:
            inner, self._inner = self._inner, None
            if inner is not None:
                self._before = _sum(self._before, inner.stats())
                inner.close()


def _sum(before: StoreStats, now: StoreStats) -> StoreStats:
    counters = {
        field.name: getattr(before, field.name) + getattr(now, field.name)
        for field in fields(StoreStats)
        if field.name not in _LEVELS
    }
    return replace(now, **counters)


@dataclass(frozen=True, slots=True)
class Opened:
    """What a store held when it was opened."""

    keys: Sequence[Key]


class Keeper:
    """The thread of one cold tier that opens its store, tries again while it cannot, and samples its figures.

    The scheduler's thread calls ``start``, ``take`` and reads ``sample``; none of them waits.
    """

    def __init__(
        self,
        name: str,
        store: EpochedStore,
        chunk_bytes: int,
        log: Callable[[str], None],
        *,
        retry_locked_s: float = _RETRY_LOCKED_S,
        retry_failed_s: float = _RETRY_FAILED_S,
    ) -> None:
        self.name = name
        self.store = store
        self.sample = replace(_NOTHING, capacity_bytes=store.capacity_bytes)
        self.waiting_for: str | None = "the engine"  # why the store is not open; None when it is
        self._chunk_bytes = chunk_bytes
        self._log = log
        self._retry_s = {True: retry_locked_s, False: retry_failed_s}
        self._outbox: deque[Opened] = deque()
        self._stop = threading.Event()
        self._go: SimpleQueue[None] = SimpleQueue()
        self.started = False
        # Started here: starting a thread waits for it, and ``start`` is called within a scheduling step.
        self._thread = threading.Thread(target=self._run, name=f"warmtier-{name}-keeper", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """Begin to open. Idempotent."""
        if not self.started:
            self.started, self.waiting_for = True, None
            self._go.put(None)

    def take(self) -> Opened | None:
        """Return what the store held, once, after it was opened."""
        return self._outbox.popleft() if self._outbox else None

    def stop(self, timeout_s: float) -> bool:
        """End the thread and close the store; return whether both came to an end in time. Blocks."""
        self._stop.set()
        self._go.put(None)
        self._thread.join(timeout_s)
        closing = threading.Thread(target=self.store.close, name=f"warmtier-{self.name}-close", daemon=True)
        closing.start()
        closing.join(timeout_s)
        return not closing.is_alive()

    def _run(self) -> None:
        said = ""
        self._go.get()
        while not self._stop.is_set():
            try:
                found = list(self.store.open())
            except Exception as error:  # noqa: BLE001 - whatever it is, the tier is off and the engine lives
                locked = isinstance(error, StoreLockedError)
                self.waiting_for = str(error).replace("\n ", ";")
                if self.waiting_for != said:
                    again = f"is tried again every {self._retry_s[locked]:.0f} s"
                    self._log(f"The {self.name} tier is off and {again}: {self.waiting_for}")
                    said = self.waiting_for
                self._stop.wait(self._retry_s[locked])
                continue
            self.waiting_for = None
            if said:
                self._log(f"The {self.name} tier is open now")
            whole = [key for key, size_bytes in found if size_bytes == self._chunk_bytes]
            self._outbox.append(Opened(whole))
            break
        self._watch()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.sample = self.store.stats()
            self._stop.wait(_SAMPLE_S)
