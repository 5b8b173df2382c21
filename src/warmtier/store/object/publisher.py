"""Tells other replicas what this writer has. A manifest carries the changes since the last one. Now and then a full
one lists everything that was told, so that a replica that joins reads few objects, and the earlier ones are deleted.
A full one carries no news: who has seen all before it need not read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from warmtier.core.types import Key
from warmtier.store.object.client import Failure, RequestError
from warmtier.store.object.format import Manifest, PackEntry, PackIndex, encode_manifest
from warmtier.store.object.index import Pack
from warmtier.store.object.names import ManifestName
from warmtier.store.object.state import State


class Publisher:
    """Writes the manifests of one session. One manifest is written at a time; ``note_*`` need the lock."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._added: dict[str, Pack] = {}
        self._removed: list[str] = []
        self._forgot: dict[Key, None] = {}
        self._busy = asyncio.Lock()
        self._number = 0
        self._since_full = 0
        self._manifests: list[str] = []
        self._superseded: list[tuple[float, str]] = []

    @property
    def pending(self) -> bool:
        """Whether something waits to be told."""
        return bool(self._added or self._removed or self._forgot)

    def note_added(self, pack: Pack) -> None:
        """A pack is in the bucket."""
        self._added[pack.name] = pack

    def note_removed(self, name: str) -> None:
        """A pack will go, or has gone."""
        self._added.pop(name, None)
        self._removed.append(name)

    def note_forgotten(self, keys: list[Key]) -> None:
        """Keys shall no longer be read by anybody."""
        self._forgot.update(dict.fromkeys(keys))

    def note_stored(self, key: Key) -> None:
        """A key was stored again before it was told that it shall be forgotten."""
        self._forgot.pop(key, None)

    def supersede(self, paths: list[str]) -> None:
        """Manifests of earlier sessions of this writer are replaced by the next full one."""
        self._manifests.extend(paths)

    async def publish(self, *, full: bool = False) -> str:
        """Write what waits, and a full manifest if asked or due; return the last one's path.

        What could not be told stays waiting. Raises RequestError.
        """
        async with self._busy:
            path = ""
            if self.pending:
                path = await self._publish_changes()
            if full or self._since_full >= self._state.options.roll_after:
                path = await self._publish_all()
            return path

    async def _publish_changes(self) -> str:
        with self._state.lock:
            packs, removed, forgot = list(self._added.values()), list(self._removed), list(self._forgot)
            entries = [self._entry(pack) for pack in packs]
        manifest = Manifest(bytes(self._state.namespace), entries, removed, [bytes(key) for key in forgot])
        path = await self._write(packs, manifest, full=False)
        with self._state.lock:
            for pack in packs:
                self._added.pop(pack.name, None)
            del self._removed[: len(removed)]
            for key in forgot:
                self._forgot.pop(key, None)
            self._manifests.append(path)
        self._since_full += 1
        return path

    async def _publish_all(self) -> str:
        state = self._state
        with state.lock:
            packs = [pack for pack in state.budget.packs if pack.region is None and pack.name not in self._added]
            entries = [self._entry(pack) for pack in packs]
        path = await self._write(packs, Manifest(bytes(state.namespace), entries, [], []), full=True)
        with state.lock:
            now_s = state.now_s()
            self._superseded.extend((now_s, earlier) for earlier in self._manifests)
            self._manifests = [path]
        self._since_full = 0
        return path

    async def _write(self, packs: Sequence[Pack], manifest: Manifest, *, full: bool) -> str:
        state = self._state
        data = encode_manifest(manifest)
        path = state.manifest_path(str(self._name(packs, full=full)))
        with state.lock:
            state.budget.add_manifest(path, len(data))
        try:
            await self._put(path, data)
        except RequestError:
            with state.lock:
                state.budget.drop_manifests([path])
                state.doomed.append(path)
            raise
        return path

    def _name(self, packs: Sequence[Pack], *, full: bool) -> ManifestName:
        state = self._state
        now_s = state.now_s()
        expires_s = max([now_s + state.options.ttl_s, *(pack.expires_s for pack in packs)])
        number, self._number = self._number, self._number + 1
        return ManifestName(int(now_s * 1000), int(expires_s) + 1, state.options.writer, state.session, number, full)

    async def _put(self, path: str, data: bytes) -> None:
        client, timeout_s = self._state.client, self._state.deadline_s(len(data))
        try:
            await client.put_new(path, data, timeout_s=timeout_s)
        except RequestError as error:
            # Only this session makes this name: if it exists, an attempt that looked failed has arrived.
            if error.failure is not Failure.EXISTS:
                raise

    def doom_superseded(self, *, at_once: bool = False) -> None:
        """Doom manifests that a full one replaced, once every follower had the time to read that one. Locked."""
        state = self._state
        patience_s = 0.0 if at_once else state.options.overlap_s
        due = [path for replaced_s, path in self._superseded if replaced_s + patience_s <= state.now_s()]
        if due:
            gone = set(due)
            self._superseded = [item for item in self._superseded if item[1] not in gone]
            state.doomed.extend(due)
            state.budget.drop_manifests(due)

    def _entry(self, pack: Pack) -> PackEntry:
        # Chunks that were deleted or proved damaged are not told, so that nobody learns of them again.
        kept = [position for position, key in enumerate(pack.keys) if key in self._state.index]
        index = PackIndex(
            [bytes(pack.keys[position]) for position in kept],
            [pack.offsets[position] for position in kept],
            [pack.lengths[position] for position in kept],
        )
        return PackEntry(pack.name, pack.size_bytes, index)
