"""Sends full packs. Room is made in the bucket before a pack takes it, so that the capacity holds at any moment."""

from __future__ import annotations

import asyncio
import logging
import time

from warmtier.store.base import WriteOutcome
from warmtier.store.object.client import Failure, RequestError
from warmtier.store.object.filling import Draft
from warmtier.store.object.format import PackIndex, encode_index
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.state import State

logger = logging.getLogger(__name__)
_ATTEMPTS = 2


class Uploader:
    """Turns drafts into objects, a few at a time. Coroutines on the client's loop."""

    def __init__(self, state: State, publisher: Publisher) -> None:
        self._state = state
        self._publisher = publisher
        self._slots = asyncio.Semaphore(state.options.uploads_in_flight)

    async def upload(self, draft: Draft) -> None:
        """Send one pack and note how it ended. Never raises RequestError."""
        async with self._slots:
            started_s = time.perf_counter()
            tried = False
            try:
                view = self._complete(draft)
                await self._state.delete_doomed()
                tried = True
                await self._send(self._state.pack_path(draft.pack.name), view)
            except RequestError as error:
                self._failed(draft, error, tried=tried)
            except BaseException:
                self._failed(draft, RequestError(Failure.UNAVAILABLE, ""), tried=tried)
                raise
            else:
                self._sent(draft, time.perf_counter() - started_s)

    def _complete(self, draft: Draft) -> memoryview:
        pack = draft.pack
        index = PackIndex([bytes(key) for key in pack.keys], list(pack.offsets), list(pack.lengths))
        tail = encode_index(index, draft.records_bytes)
        size_bytes = draft.records_bytes + len(tail)
        draft.region.view[draft.records_bytes : size_bytes] = tail
        with self._state.lock:
            self._state.budget.settle(pack, size_bytes)
        return draft.region.view[:size_bytes]

    async def _send(self, path: str, view: memoryview) -> None:
        timeout_s = self._state.deadline_s(len(view))
        for attempt in range(_ATTEMPTS):
            try:
                await self._state.client.put_new(path, view, timeout_s=timeout_s)
            except RequestError as error:
                if error.failure is Failure.EXISTS:
                    return  # only this session makes this name: an attempt that looked failed has arrived
                if error.failure is not Failure.UNAVAILABLE or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _sent(self, draft: Draft, seconds: float) -> None:
        state, pack = self._state, draft.pack
        with state.lock:
            pack.region = None
            state.filler.release(draft.region)
            state.drafts.discard(draft)
            draft.outcome = WriteOutcome.STORED
            state.failing = False
            state.counters.packs_written += 1
            state.counters.write_seconds += seconds
            self._publisher.note_added(pack)
            state.lock.notify_all()

    def _failed(self, draft: Draft, error: RequestError, *, tried: bool) -> None:
        state, pack = self._state, draft.pack
        with state.lock:
            if not state.failing:
                logger.warning("a pack of %d chunks was not stored: %s", len(pack.keys), error)
            # What was sent may arrive yet. What was not must not make the list of objects to delete grow.
            state.lost.extend(state.drop_own([pack.name], doom=tried))
            # A request that timed out may still be sending from this memory.
            state.filler.release(draft.region, reuse=error.failure is not Failure.TIMEOUT)
            state.drafts.discard(draft)
            draft.outcome = WriteOutcome.TIMEOUT if error.failure is Failure.TIMEOUT else WriteOutcome.ERROR
            state.failing = True
            state.counters.errors += 1
            state.counters.packs_lost += 1
            state.lock.notify_all()
