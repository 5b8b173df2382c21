"""The object store: many replicas, one bucket, no service of our own between them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

from warmtier.core.errors import StoreError
from warmtier.core.types import Key, Namespace, TierKind
from warmtier.store.base import Changes, Read, ReadOutcome, StoreStats, Traffic, Write, WriteOutcome, WriteResult
from warmtier.store.object.backend import Backend
from warmtier.store.object.background import Background
from warmtier.store.object.client import Failure, ObjectClient, RequestError
from warmtier.store.object.follower import Follower
from warmtier.store.object.options import ObjectOptions
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.reader import Reader
from warmtier.store.object.recovery import adopt
from warmtier.store.object.state import State
from warmtier.store.object.writer import Writer

logger = logging.getLogger(__name__)
_OPEN_TIMEOUT_S = 120.0
_CLOCK_TOLERANCE_S = 2.0


class ObjectStore:
    """Chunks of one namespace in a bucket that other writers use as well.

    A chunk that a replica stored is found by the others after about ``pack_delay_s + publish_interval_s +
    poll_interval_s`` and the time to send it. ``put`` acknowledges what ``writer`` says. Two live writers of one name
    do no harm but evict each other's packs. ``wall`` is for tests.
    """

    kind = TierKind.OBJECT

    def __init__(
        self, backend: Backend, namespace: Namespace, options: ObjectOptions, *, wall: Callable[[], float] = time.time
    ) -> None:
        self._backend = backend
        self._namespace = namespace
        self._options = options
        self._wall = wall
        self._state: State | None = None
        self._closed = False

    @property
    def capacity_bytes(self) -> int:
        """The hard bound on what this writer keeps in the bucket."""
        return self._options.capacity_bytes

    def open(self) -> Iterable[tuple[Key, int]]:
        """Read what everybody published and take over what this writer left. Raises StoreError."""
        if self._state is not None and not self._closed:
            raise StoreError("this object store is open already")
        client = ObjectClient(
            self._backend.store, keeps_buffers=self._backend.keeps_buffers, ordered=self._backend.ordered
        )
        state = State(self._options, self._namespace, self._backend.prefix, secrets.token_hex(8), client, self._wall)
        try:
            client.run(self._start(state), _OPEN_TIMEOUT_S)
        except RequestError as error:
            client.close()
            raise self._explain(error) from None
        self._state, self._closed = state, False
        with state.lock:
            state.opened = True
            found, _ = state.index.take_changes()
        return found

    async def _start(self, state: State) -> None:
        self._publisher = Publisher(state)
        follower = Follower(state)
        manifests = await follower.poll(everything=True)
        if not self._options.read_only:
            await adopt(state, self._publisher, manifests)
            await state.delete_doomed()
            await self._introduce(state)
        self._reader = Reader(state)
        self._writer = Writer(state, self._publisher)
        Background(state, self._publisher, follower).start()

    async def _introduce(self, state: State) -> None:
        """Publish what was taken over: proves that this replica may write, and shows the server's clock."""
        before_s = self._wall()
        path = await self._publisher.publish(full=True)
        between_s = (before_s + self._wall()) / 2
        directory = state.manifest_path("")
        listed = await state.client.list_after(directory, path[:-1], timeout_s=state.timeout_s)
        offset_s = next((item.modified_s - between_s for item in listed if item.path == path), 0.0)
        if abs(offset_s) > _CLOCK_TOLERANCE_S:
            logger.warning("this machine's clock differs from the object storage's by %.0f s", -offset_s)
            state.clock_offset_s = offset_s
            await self._publisher.publish(full=True)
        with state.lock:
            self._publisher.doom_superseded(at_once=True)
        await state.delete_doomed()

    def _explain(self, error: RequestError) -> StoreError:
        where = f"the object tier {self._backend.name}"
        if error.code == "NoSuchBucket" or error.failure is Failure.ABSENT:
            return StoreError(f"{where} does not exist", why=error.code or None, fix="create the bucket")
        if error.failure is Failure.DENIED:
            return StoreError(
                f"{where} refuses access",
                why=error.code or "permission denied",
                fix="check the credentials in the environment or of the instance's role: list, get, put and delete",
            )
        return StoreError(
            f"{where} cannot be reached", why=str(error), fix="check the endpoint, the network and the certificates"
        )

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store the chunks of one path; see ``writer`` for what STORED means."""
        if self._state is None or self._closed or self._options.read_only:
            return WriteResult([WriteOutcome.READ_ONLY] * len(writes))
        return self._writer.put(writes)

    def get(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Load chunks, in ranges, many at once. Blocks at most ``timeout_s`` plus the bytes at the slowest rate."""
        if self._state is None or self._closed:
            return [ReadOutcome.ABSENT] * len(reads)
        return self._reader.get(reads)

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget the keys, here at once and everywhere with the next manifest; a pack without chunks is deleted."""
        state = self._state
        if state is None or self._closed or self._options.read_only:
            return
        with state.lock:
            known = [key for key in keys if key in state.index]
            touched = {location.pack.name for key in known if (location := state.index.find(key)) is not None}
            for key in known:
                state.index.drop_key(key)
            self._publisher.note_forgotten(known)
            for name in touched:
                self._drop_if_empty(state, name)

    def _drop_if_empty(self, state: State, name: str) -> None:
        pack = state.index.pack(name)
        own = pack is not None and name in state.budget and pack.region is None
        if pack is not None and own and not any(key in state.index for key in pack.keys):
            self._publisher.note_removed(name)
            state.drop_own([name])

    def poll(self) -> Changes:
        """Return what became readable, or ceased to be, since the last call: by others, by eviction, by expiry."""
        state = self._state
        if state is None or self._closed:
            return Changes()
        with state.lock:
            added, removed = state.index.take_changes()
        return Changes(added, removed)

    def flush(self, timeout_s: float) -> bool:
        """Send and publish everything now; return whether that succeeded in time."""
        state = self._state
        if state is None or self._closed or self._options.read_only:
            return True
        deadline_s = time.monotonic() + timeout_s
        with state.lock:
            state.filler.seal()
            state.client.call_soon(state.wake.set)
            sent = state.lock.wait_for(lambda: not state.drafts, timeout_s)
        if not sent or state.failing:
            return False
        try:
            if self._publisher.pending:
                state.client.run(self._publisher.publish(), max(0.0, deadline_s - time.monotonic()))
        except RequestError:
            return False
        return True

    def stats(self) -> StoreStats:
        """Return the figures now. ``used_bytes`` is of this writer, ``chunks`` are those of everybody."""
        state = self._state
        if state is None:
            return StoreStats(self._options.capacity_bytes, 0, 0)
        with state.lock:
            counters = state.counters
            return StoreStats(
                capacity_bytes=self._options.capacity_bytes,
                used_bytes=state.budget.used_bytes,
                chunks=len(state.index),
                bytes_written=counters.bytes_written,
                bytes_read=counters.bytes_read,
                write_seconds=counters.write_seconds,
                read_seconds=counters.read_seconds,
                corrupt=counters.corrupt,
                errors=counters.errors,
            )

    def traffic(self) -> Traffic:
        """Return what was asked of the service since ``open``."""
        return Traffic() if self._state is None else self._state.client.traffic()

    def close(self) -> None:
        """Send what is in memory, say goodbye, end all threads. Takes at most what sending takes, or its timeout."""
        state = self._state
        if state is None or self._closed:
            return
        waiting_bytes = state.options.pack_bytes * state.options.pack_buffers
        if not self.flush(state.deadline_s(waiting_bytes)):
            logger.warning("the object tier closes with chunks that were not stored")
        self._closed = True
        try:
            if not self._options.read_only:
                state.client.run(self._conclude(state), 4 * state.timeout_s)
        except RequestError as error:
            logger.warning("the object tier could not publish its last manifest: %s", error)
        finally:
            state.client.close()

    async def _conclude(self, state: State) -> None:
        """Leave one full manifest, so that the next session and newcomers read little."""
        await self._publisher.publish(full=True)
        with state.lock:
            self._publisher.doom_superseded(at_once=True)
        await state.delete_doomed()
