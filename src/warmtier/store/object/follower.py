"""Learns what other writers published: one LIST for all of them, from where the last one ended."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from warmtier.core.types import Key
from warmtier.store.object.client import Failure, Listed, RequestError
from warmtier.store.object.format import MAX_MANIFEST_BYTES, Manifest, PackEntry, decode_manifest
from warmtier.store.object.index import Pack
from warmtier.store.object.names import ManifestName, parse_manifest, parse_pack, watermark
from warmtier.store.object.state import State

Found = tuple[ManifestName, Listed]
_OWN_SHARE: Final = 10
"""One part in so many of the index is not for others' chunks, so that they never keep this replica from storing."""


class Follower:
    """Reads manifests into the index. Its coroutine runs once at a time."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._seen: set[str] = set()
        self._last_ms = 0
        self._chains: dict[tuple[str, str], int] = {}
        self._slots = asyncio.Semaphore(state.options.reads_in_flight)

    async def poll(self, *, everything: bool = False) -> list[Found]:
        """List what was published since the last poll (or at all), read it, and return the listing.

        A manifest that could not be fetched is tried again by the next poll. Raises RequestError when the listing
        itself failed.
        """
        state = self._state
        prefix = state.manifest_path("")
        after_ms = 0 if everything else self._last_ms - round(state.options.overlap_s * 1000)
        listed = await state.client.list_after(prefix, prefix + watermark(after_ms), timeout_s=state.timeout_s)
        found = _parsed(listed)
        if everything:
            self._seen &= {item.path for _, item in found}
        await self._read_new([pair for pair in found if pair[1].path not in self._seen])
        return found

    async def _read_new(self, found: Sequence[Found]) -> None:
        by_writer: defaultdict[str, list[Found]] = defaultdict(list)
        for name, item in found:
            if name.session == self._state.session:
                self._done(name, item)
            else:
                by_writer[name.writer].append((name, item))
        await asyncio.gather(*(self._follow(batch) for batch in by_writer.values()))

    async def _follow(self, batch: list[Found]) -> None:
        batch.sort(key=lambda pair: (pair[0].time_ms, pair[0].number))
        needed = self._needed(batch)
        manifests = await asyncio.gather(*(self._fetch(item) for _, item in needed), return_exceptions=True)
        fetched = dict(zip((item.path for _, item in needed), manifests, strict=True))
        first = needed[0] if needed else None
        superseded = first is not None
        for name, item in batch:
            superseded = superseded and (name, item) != first
            manifest = fetched.get(item.path)
            if isinstance(manifest, RequestError) and manifest.failure is not Failure.ABSENT:
                return  # tried again by the next poll, and what follows with it: order matters
            if item.path in fetched:
                self._apply(name, None if isinstance(manifest, BaseException) else manifest)
            elif not superseded and not self._follows(name):
                return  # this full one was thought superfluous, but an earlier one was gone: the next poll fetches it
            elif not superseded:
                self._chains[name.writer, name.session] = name.number
            self._done(name, item)

    def _follows(self, name: ManifestName) -> bool:
        """Return whether everything before this manifest of its session was applied."""
        return self._chains.get((name.writer, name.session)) == name.number - 1

    def _needed(self, batch: Sequence[Found]) -> Sequence[Found]:
        """Return the manifests worth fetching, in order.

        A full one makes all earlier ones superfluous; where all of those were seen, it is superfluous itself, because
        a full one never carries news.
        """
        chain = (batch[0][0].writer, batch[0][0].session)
        last = self._chains.get(chain, -2)
        names = [name for name, _ in batch]
        if all(name.session == chain[1] and name.number == last + n for n, name in enumerate(names, 1)):
            return [pair for pair in batch if not pair[0].full]
        full = [position for position, name in enumerate(names) if name.full]
        return batch[full[-1] if full else 0 :]

    async def _fetch(self, item: Listed) -> Manifest | None:
        state = self._state
        if item.size_bytes > MAX_MANIFEST_BYTES:
            return None
        async with self._slots:
            timeout_s = state.deadline_s(item.size_bytes)
            data = await state.client.get(item.path, 0, max(1, item.size_bytes), timeout_s=timeout_s)
        return decode_manifest(data, state.namespace)

    def _done(self, name: ManifestName, item: Listed) -> None:
        self._seen.add(item.path)
        # A writer whose clock runs ahead must not make everybody else's manifests look old.
        self._last_ms = max(self._last_ms, min(name.time_ms, round(self._state.now_s() * 1000)))

    def _apply(self, name: ManifestName, manifest: Manifest | None) -> None:
        chain = (name.writer, name.session)
        state = self._state
        with state.lock:
            if manifest is None:
                state.counters.manifests_refused += 1
                return
            state.counters.manifests_read += 1
            if name.full:
                kept = {entry.name for entry in manifest.added}
                self._drop([pack for pack in state.index.names_of(name.writer) if pack not in kept])
                self._chains = {known: last for known, last in self._chains.items() if known[0] != name.writer}
                self._chains[chain] = name.number
            elif self._follows(name):
                self._chains[chain] = name.number
            self._drop([pack for pack in manifest.removed if _writer_of(pack) == name.writer])
            for key in manifest.forgot:
                state.index.drop_key(Key(key))
            for entry in manifest.added:
                self._add(name.writer, entry)

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._state.budget:
                self._state.index.drop_pack(name)

    def _add(self, writer: str, entry: PackEntry) -> None:
        index = self._state.index
        parsed = parse_pack(*entry.name.split("/", 1)) if entry.name.startswith(f"{writer}/") else None
        if parsed is None or parsed.expires_s <= self._state.now_s() or index.pack(entry.name) is not None:
            return
        if not index.has_room(len(entry.index.keys) + self._state.options.index_chunks // _OWN_SHARE):
            self._state.counters.index_full += 1
            return
        pack = Pack(entry.name, writer, parsed.expires_s, entry.size_bytes)
        for key, offset, length in zip(entry.index.keys, entry.index.offsets, entry.index.lengths, strict=True):
            pack.append(Key(key), offset, length)
        index.add(pack)


def _parsed(listed: Sequence[Listed]) -> list[Found]:
    found = []
    for item in listed:
        name = parse_manifest(item.path.rsplit("/", 1)[-1])
        if name is not None:
            found.append((name, item))
    return found


def _writer_of(pack: str) -> str:
    return pack.split("/", 1)[0]
