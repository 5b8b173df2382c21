"""Removes what is over: expired packs of this writer, and by age what dead writers left, in every namespace.

Names carry the expiry, so nothing is fetched; listings are in that order where the service sorts them, so that a
collection ends at the first pack that is not over.
"""

from __future__ import annotations

from collections.abc import Callable

from warmtier.store.object.client import Listed
from warmtier.store.object.names import parse_manifest, parse_pack, version_root
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.state import State


class Collector:
    """Garbage collection of one writer. Its coroutine runs once at a time."""

    def __init__(self, state: State, publisher: Publisher) -> None:
        self._state = state
        self._publisher = publisher

    def expire(self) -> None:
        """Forget packs whose time is over; the writer's own are deleted and told as removed."""
        state = self._state
        with state.lock:
            over = state.index.expired(state.now_s())
            own = [name for name in over if name in state.budget]
            for name in own:
                self._publisher.note_removed(name)
            state.drop_own(own)
            for name in over:
                state.index.drop_pack(name)

    async def collect(self) -> int:
        """Delete what everybody left longer ago than the grace; return how many objects. Raises RequestError."""
        state = self._state
        root = version_root(state.prefix)
        timeout_s = state.timeout_s
        deleted = 0
        for namespace in await state.client.directories(root, timeout_s=timeout_s):
            base = f"{root}/{namespace}"
            for writer in await state.client.directories(f"{base}/p", timeout_s=timeout_s):
                deleted += await self._sweep(f"{base}/p/{writer}/", self._pack_expiry(writer), ordered=True)
            deleted += await self._sweep(f"{base}/m/", _manifest_expiry, ordered=False)
        return deleted

    async def _sweep(self, directory: str, expiry: Callable[[Listed], float | None], *, ordered: bool) -> int:
        client, timeout_s = self._state.client, self._state.timeout_s
        over_s = self._state.now_s() - self._state.options.expiry_grace_s

        def alive(item: Listed) -> bool:
            expires_s = expiry(item)
            return expires_s is not None and expires_s > over_s

        until = alive if ordered and client.ordered else None
        listed = await client.list_after(directory, None, timeout_s=timeout_s, until=until)
        over = [item.path for item in listed if (expires_s := expiry(item)) is not None and expires_s <= over_s]
        if over:
            await client.delete(over, timeout_s=timeout_s)
        return len(over)

    def _pack_expiry(self, writer: str) -> Callable[[Listed], float | None]:
        def expiry(item: Listed) -> float | None:
            name = parse_pack(writer, item.path.rsplit("/", 1)[-1])
            return None if name is None else name.expires_s

        return expiry


def _manifest_expiry(item: Listed) -> float | None:
    name = parse_manifest(item.path.rsplit("/", 1)[-1])
    return None if name is None else name.expires_s
