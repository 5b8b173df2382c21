"""The coroutines that run as long as a store is open. A failed request is tried again later; nothing ends them."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable

from warmtier.store.object.client import RequestError
from warmtier.store.object.collector import Collector
from warmtier.store.object.follower import Follower
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.state import State
from warmtier.store.object.uploader import Uploader

logger = logging.getLogger(__name__)
_LONGEST_WAIT_S = 30.0
_EXPIRE_INTERVAL_S = 10.0
_random = random.SystemRandom()


class Background:
    """Sends packs, publishes, follows and collects. Made and used on the client's loop."""

    def __init__(self, state: State, publisher: Publisher, follower: Follower) -> None:
        self._state = state
        self._publisher = publisher
        self._follower = follower
        self._uploader = Uploader(state, publisher)
        self._collector = Collector(state, publisher)
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_relist_s = time.monotonic() + _spread(state.options.relist_interval_s)
        self._next_collection_s = time.monotonic() + _spread(state.options.collect_interval_s)

    def start(self) -> None:
        """Start everything."""
        options = self._state.options
        self._spawn(self._repeat(self._follow, options.poll_interval_s))
        if options.read_only:
            return
        self._spawn(self._send_packs())
        self._spawn(self._repeat(self._publish, options.publish_interval_s))
        self._spawn(self._repeat(self._collect, min(_EXPIRE_INTERVAL_S, options.collect_interval_s)))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_packs(self) -> None:
        state = self._state
        while True:
            state.wake.clear()
            with state.lock:
                left_s = state.filler.seal_if_due(time.monotonic())
                ready = state.filler.take_ready()
            for draft in ready:
                self._spawn(self._uploader.upload(draft))
            try:
                async with asyncio.timeout(left_s):
                    await state.wake.wait()
            except TimeoutError:
                continue

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        failures = 0
        while True:
            wait_s = min(max(_LONGEST_WAIT_S, interval_s), interval_s * 2 ** min(failures, 16))
            await asyncio.sleep(_spread(wait_s))
            try:
                await work()
                failures = 0
            except RequestError as error:
                failures += 1
                if failures == 1:
                    logger.warning("object storage: %s; trying again", error)
            except Exception:
                failures += 1
                logger.exception("object storage: a background task failed; trying again")

    async def _publish(self) -> None:
        if self._publisher.pending:
            await self._publisher.publish()
        with self._state.lock:
            self._publisher.doom_superseded()
        await self._state.delete_doomed()

    async def _follow(self) -> None:
        everything = time.monotonic() >= self._next_relist_s
        await self._follower.poll(everything=everything)
        if everything:
            self._next_relist_s = time.monotonic() + _spread(self._state.options.relist_interval_s)

    async def _collect(self) -> None:
        self._collector.expire()
        if time.monotonic() >= self._next_collection_s:
            self._next_collection_s = time.monotonic() + _spread(self._state.options.collect_interval_s)
            await self._collector.collect()


def _spread(interval_s: float) -> float:
    """Return the interval, a quarter more or less: many replicas must not ask at the same moment."""
    return interval_s * _random.uniform(0.75, 1.25)
