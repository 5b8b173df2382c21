"""Tells other replicas what this writer has. A manifest carries the changes since the last one; now and then a full
one lists everything, so that a replica that joins reads few objects, and the earlier ones are deleted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from warmtier.core.types import Key
from warmtier.store.object.client import Failure, RequestError
from warmtier.store.object.format import Manifest, PackEntry, PackIndex, encode_manifest
from warmtier.store.object.index import Pack
from warmtier.store.object.names import ManifestName
from warmtier.store.object.state import State


@dataclass(frozen=True, slots=True)
class _Told:
    packs: set[str]
    removed: list[str]
    forgot: list[Key]


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
        self._manifests: list[tuple[float, str]] = []
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
        self._manifests.extend((0.0, path) for path in paths)

    async def publish(self, *, full: bool = False) -> str:
        """Write one manifest and return its path. What could not be told is told by the next. Raises RequestError."""
        async with self._busy:
            return await self._publish(full=full)

    async def _publish(self, *, full: bool) -> str:
        state = self._state
        with state.lock:
            full = full or self._since_full >= state.options.roll_after
            packs = [pack for pack in state.budget.packs if pack.region is None] if full else list(self._added.values())
            told = _Told({pack.name for pack in packs}, list(self._removed), list(self._forgot))
            removed = [] if full else told.removed
            entries = [self._entry(pack) for pack in packs]
            manifest = Manifest(bytes(state.namespace), entries, removed, [bytes(key) for key in told.forgot])
            path = state.manifest_path(str(self._name(packs, full=full)))
        data = encode_manifest(manifest)
        with state.lock:
            state.budget.add_manifest(path, len(data))
        try:
            await self._put(path, data)
        except RequestError:
            with state.lock:
                state.budget.drop_manifests([path])
                state.doomed.append(path)
            raise
        self._note_told(path, told, full=full)
        return path

    def _name(self, packs: list[Pack], *, full: bool) -> ManifestName:
        state = self._state
        now_s = state.now_s()
        expires_s = max([now_s + state.options.ttl_s, *(pack.expires_s for pack in packs)])
        number, self._number = self._number, self._number + 1
        return ManifestName(int(now_s * 1000), int(expires_s) + 1, state.options.writer, state.session, number, full)

    async def _put(self, path: str, data: bytes) -> None:
        client, timeout_s = self._state.client, self._state.options.deadline_s(len(data))
        try:
            await client.put_new(path, data, timeout_s=timeout_s)
        except RequestError as error:
            # Only this session makes this name: if it exists, an attempt that looked failed has arrived.
            if error.failure is not Failure.EXISTS:
                raise

    def _note_told(self, path: str, told: _Told, *, full: bool) -> None:
        state = self._state
        with state.lock:
            for name in told.packs:
                self._added.pop(name, None)
            del self._removed[: len(told.removed)]
            for key in told.forgot:
                self._forgot.pop(key, None)
            now_s = state.now_s()
            self._since_full = 0 if full else self._since_full + 1
            if full:
                self._superseded.extend((now_s, earlier) for _, earlier in self._manifests)
                self._manifests.clear()
            self._manifests.append((now_s, path))

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
