"""What an earlier session of the same writer left: found again, counted, and told anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from warmtier.core.types import Key
from warmtier.store.object.client import Failure, Listed, RequestError
from warmtier.store.object.follower import Found
from warmtier.store.object.format import TRAILER_BYTES, PackIndex, decode_index, index_range
from warmtier.store.object.index import Pack
from warmtier.store.object.names import PackName, parse_pack
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.state import State


@dataclass(frozen=True, slots=True)
class _Left:
    name: PackName
    item: Listed


async def adopt(state: State, publisher: Publisher, manifests: Sequence[Found]) -> None:
    """Take over the packs of this writer. Those that no manifest names are read by their own index, or doomed.

    Afterwards the budget holds them all, or fewer when the capacity is smaller now. Raises RequestError.
    """
    writer = state.options.writer
    directory = state.pack_path(f"{writer}/")
    listed = await state.client.list_after(directory, None, timeout_s=state.timeout_s)
    left = [_Left(name, item) for item in listed if (name := parse_pack(writer, item.path.rsplit("/", 1)[-1]))]
    await asyncio.gather(*(_adopt_pack(state, each) for each in left))
    with state.lock:
        present = {str(each.name) for each in left}
        for known in state.index.names_of(writer):
            if known not in present:
                state.index.drop_pack(known)
        own = [item for name, item in manifests if name.writer == writer]
        for item in own:
            state.budget.add_manifest(item.path, item.size_bytes)
        publisher.supersede([item.path for item in own])
        state.drop_own(state.budget.victims(0, ()) or [])


async def _adopt_pack(state: State, left: _Left) -> None:
    name = str(left.name)
    known = state.index.pack(name)
    if known is not None and known.size_bytes == left.item.size_bytes:
        with state.lock:
            state.budget.adopt(known)
        return
    if known is not None:
        with state.lock:
            state.index.drop_pack(name)
    index = None if left.name.expires_s <= state.now_s() else await _read_index(state, left.item)
    with state.lock:
        if index is None or not state.index.has_room(len(index.keys)):
            state.doomed.append(left.item.path)
            return
        pack = Pack(name, left.name.writer, left.name.expires_s, left.item.size_bytes)
        for key, offset, length in zip(index.keys, index.offsets, index.lengths, strict=True):
            pack.append(Key(key), offset, length)
        state.index.add(pack)
        state.budget.adopt(pack)


async def _read_index(state: State, item: Listed) -> PackIndex | None:
    if item.size_bytes <= TRAILER_BYTES:
        return None
    try:
        trailer = await _range(state, item.path, item.size_bytes - TRAILER_BYTES, TRAILER_BYTES)
        where = index_range(trailer, item.size_bytes)
        return None if where is None else decode_index(await _range(state, item.path, *where))
    except RequestError as error:
        if error.failure in {Failure.ABSENT, Failure.SHORT}:
            return None
        raise


async def _range(state: State, path: str, start: int, length: int) -> memoryview:
    return await state.client.get(path, start, length, timeout_s=state.deadline_s(length))
