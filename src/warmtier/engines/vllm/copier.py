"""Copies engine blocks between the device's pages and the slab, with a digest per block. No engine, no threads here.

The device side of a block is one page per layer; on the CPU platform the pages of a layer lie one after another and the
layers at equal distances, so one strided numpy copy moves all layers of a block at the speed of ``memmove`` and without
the interpreter's lock. The host side is contiguous, so its digest is one call over bytes that are still in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from warmtier.core.errors import InternalError
from warmtier.engines.vllm.slab import Bytes, Slab

NO_DIGEST: Final = 0
"""Marks a block that was stored without a digest; such blocks load unchecked."""
_SAMPLE_EVERY: Final = 16
_PIECE_BYTES: Final = 512 << 10


@dataclass(frozen=True, slots=True)
class PageStack:
    """Equally spaced pages: ``pages`` is (layers, blocks, page bytes), ``offset`` their beginning in a host block."""

    pages: Bytes
    offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of one block in this stack."""
        return int(self.pages.shape[0] * self.pages.shape[2])


def stack_pages(tensors: Sequence[Bytes], indices: Sequence[int]) -> list[PageStack]:
    """Join the tensors named by ``indices``, each (blocks, page bytes), into as few stacks as their addresses allow.

    Offsets count over all ``tensors`` in order, so that KV groups sharing a tensor share its place in the host block.
    The stacks borrow the tensors' memory: keep the tensors alive.
    """
    offsets = np.concatenate(([0], np.cumsum([tensor.shape[1] for tensor in tensors]))).tolist()
    stacks: list[PageStack] = []
    for run in _even_runs(tensors, indices):
        first = tensors[run[0]]
        distance = _address(tensors[run[1]]) - _address(first) if len(run) > 1 else 0
        pages = np.lib.stride_tricks.as_strided(
            first, (len(run), *first.shape), (distance, *first.strides), writeable=True
        )
        stacks.append(PageStack(pages, offsets[run[0]]))
    return stacks


class BlockCopier:
    """Moves single blocks of one rank. Thread-safe as long as no two calls name the same block or place.

    ``groups`` holds the page stacks of each KV group. ``check_share`` is the share of slots whose blocks get a digest:
    1 all, 16 every sixteenth, 0 none.
    """

    def __init__(self, groups: Sequence[Sequence[PageStack]], slab: Slab, rank: int, check_every: int = 1) -> None:
        self._groups = [[(stack.pages, _host_view(slab, rank, stack)) for stack in stacks] for stacks in groups]
        self._pieces = [[piece for part in parts for piece in _pieces(*part)] for parts in self._groups]
        self._digests = slab.digests[:, rank]
        self._check_every = check_every
        self.group_bytes = [sum(stack.size_bytes for stack in stacks) for stacks in groups]

    def store(self, group: int, block: int, slot: int, place: int) -> None:
        """Copy device ``block`` to position ``place`` of the chunk in ``slot`` and note its digest."""
        if not self._check_every or slot % self._check_every:
            for pages, host in self._groups[group]:
                np.copyto(host[slot, place], pages[:, block])
            self._digests[slot, place] = NO_DIGEST
            return
        state = xxhash.xxh3_64()
        for pages, host in self._pieces[group]:
            target = host[slot, place]
            np.copyto(target, pages[:, block])
            state.update(target.data)  # while it is in the processor's cache
        self._digests[slot, place] = state.intdigest() or 1

    def load(self, group: int, block: int, slot: int, place: int) -> bool:
        """Copy position ``place`` of ``slot`` to device ``block``; False, and no copy, if its digest does not match."""
        parts = self._groups[group]
        expected = self._digests[slot, place] if self._check_every else NO_DIGEST
        if expected != NO_DIGEST and _digest(parts, slot, place) != expected:
            return False
        for pages, host in parts:
            np.copyto(pages[:, block], host[slot, place])
        return True

    def device_digest(self, group: int, block: int) -> int:
        """Return the digest of what the device holds in ``block`` now. For tests and debugging; slow."""
        return _combine(np.ascontiguousarray(pages[:, block]) for pages, _ in self._groups[group])


CHECK_EVERY: Final = {"off": 0, "sample": _SAMPLE_EVERY, "always": 1}


def _digest(parts: Sequence[tuple[Bytes, Bytes]], slot: int, place: int) -> int:
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0][1][slot, place]) or 1
    return _combine(host[slot, place] for _, host in parts)


def _combine(pieces: Iterable[Bytes]) -> int:
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece.data)
    return state.intdigest() or 1


def _pieces(pages: Bytes, host: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
    """Cut a part along its layers into pieces that a processor's own cache holds."""
    layers = max(1, _PIECE_BYTES // pages.shape[2])
    for first in range(0, pages.shape[0], layers):
        yield pages[first : first + layers], host[:, :, first : first + layers]


def _host_view(slab: Slab, rank: int, stack: PageStack) -> Bytes:
    layers, _, page = stack.pages.shape
    area = slab.blocks[:, rank, :, stack.offset : stack.offset + layers * page]
    view = area.reshape(*area.shape[:2], layers, page)
    if not np.shares_memory(view, slab.blocks):
        raise InternalError("the host view of a page stack is a copy")
    return view


def _even_runs(tensors: Sequence[Bytes], indices: Sequence[int]) -> Iterator[list[int]]:
    """Split ``indices`` into runs that are consecutive in the host block and evenly spaced on the device."""
    run: list[int] = []
    for index in indices:
        if run and not _continues(tensors, run, index):
            yield run
            run = []
        run.append(index)
    if run:
        yield run


def _continues(tensors: Sequence[Bytes], run: Sequence[int], index: int) -> bool:
    last, new = tensors[run[-1]], tensors[index]
    if index != run[-1] + 1 or last.shape != new.shape or last.strides != new.strides:
        return False
    distance = _address(new) - _address(last)
    return distance > 0 and (len(run) < 2 or distance == _address(last) - _address(tensors[run[-2]]))


def _address(array: npt.NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
