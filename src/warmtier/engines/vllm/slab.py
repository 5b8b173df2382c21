"""The host tier's memory: one shared mapping for all workers and the manager of an engine.

Layout, in this order::

    header   64 KiB: magic, format version, state, then the creator's facts as JSON
    status   one byte per (slot, rank): what the last store into the slot came to
    rows     one per slot, each a multiple of 4096 bytes:
             rank 0: block 0 .. block n-1 | rank 1: ... | digests: one uint64 per (rank, block) | padding

A row is a whole chunk: the bytes a cold tier writes and reads. Digests travel inside it, so bytes that went from the
device to a disk and back are still checked against what left the device.

The first worker creates the file, sizes it and touches every page; the others wait for it. The manager maps it when all
workers are up and removes its name, after which no way of dying can leak it.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from warmtier.core.errors import InternalError, RequirementError
from warmtier.core.units import format_size
from warmtier.engines.vllm.slab_files import SHM_DIRECTORY, SlabFiles, hold, remove, slab_files

Bytes = npt.NDArray[np.uint8]

PAGE: Final = 4096
HEADER_BYTES: Final = 64 * 1024
_MAGIC: Final = b"WARMSLAB"
_VERSION: Final = 1
_PREAMBLE: Final = struct.Struct("<8sIII")  # magic, version, state, length of the facts
_READY: Final = 1
_POPULATE_WRITE: Final = getattr(mmap, "MADV_POPULATE_WRITE", 23)  # Linux 5.14
_JOIN_TIMEOUT_S: Final = 600.0  # touching a terabyte takes minutes

EMPTY: Final = 0
STORED: Final = 1
FAILED: Final = 2
CORRUPT: Final = 3


@dataclass(frozen=True, slots=True)
class SlabLayout:
    """How many slots there are and where things lie. All sizes in bytes.

    ``block_bytes``: one engine block of one rank, all layers.
    """

    slots: int
    ranks: int
    blocks_per_chunk: int
    block_bytes: int

    @classmethod
    def fit(cls, capacity_bytes: int, ranks: int, blocks_per_chunk: int, block_bytes: int) -> Self:
        """Return the layout with the most slots that stays within ``capacity_bytes``. Raises RequirementError."""
        one = cls(1, ranks, blocks_per_chunk, block_bytes)
        slots = max(0, (capacity_bytes - HEADER_BYTES - PAGE) // (one.row_bytes + ranks))
        if slots == 0:
            raise RequirementError(
                f"a host tier of {format_size(capacity_bytes)} cannot hold a single chunk",
                why=f"one chunk of {blocks_per_chunk} blocks over {ranks} ranks takes {format_size(one.total_bytes)}",
                fix="give the host tier more memory or lower blocks_per_chunk",
            )
        return cls(slots, ranks, blocks_per_chunk, block_bytes)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk over all ranks, digests included: what a cold tier moves."""
        return self.ranks * self.blocks_per_chunk * (self.block_bytes + 8)

    @property
    def row_bytes(self) -> int:
        """Distance between two rows."""
        return _round_up(self.chunk_bytes, PAGE)

    @property
    def rows_offset(self) -> int:
        """Where the first row begins."""
        return HEADER_BYTES + _round_up(self.slots * self.ranks, PAGE)

    @property
    def total_bytes(self) -> int:
        """Size of the whole mapping."""
        return self.rows_offset + self.slots * self.row_bytes


class Slab:
    """A mapping of the host tier's memory. Its arrays may be used from several threads.

    ``status`` is (slots, ranks), ``rows`` (slots, bytes); ``digests`` is (slots, ranks, blocks) and lies in the rows.
    """

    def __init__(self, layout: SlabLayout, files: SlabFiles, lock: int, descriptor: int) -> None:
        self.layout = layout
        self.files = files
        self._lock = lock
        self._map = mmap.mmap(descriptor, layout.total_bytes, flags=mmap.MAP_SHARED)
        self._bytes: Bytes = np.frombuffer(self._map, np.uint8)
        rows = self.rows = self._bytes[layout.rows_offset :].reshape(layout.slots, layout.row_bytes)
        payload = layout.chunk_bytes - 8 * layout.ranks * layout.blocks_per_chunk
        self.status: Bytes = self._bytes[HEADER_BYTES : HEADER_BYTES + layout.slots * layout.ranks].reshape(
            layout.slots, layout.ranks
        )
        self.chunks: Bytes = rows[:, : layout.chunk_bytes]
        self.blocks: Bytes = rows[:, :payload].reshape(
            layout.slots, layout.ranks, layout.blocks_per_chunk, layout.block_bytes
        )
        self.digests: npt.NDArray[np.uint64] = _digest_view(rows, payload, layout)

    @classmethod
    def open(
        cls,
        engine_id: str,
        layout: SlabLayout,
        facts: Mapping[str, Any],
        *,
        before: Callable[[int], None] = lambda _: None,
        directory: Path = SHM_DIRECTORY,
        timeout_s: float = _JOIN_TIMEOUT_S,
    ) -> Self:
        """Create the slab, or join the one that another worker of this engine creates. Blocks until it is ready.

        Whoever creates it first calls ``before`` with its size, to check that there is room. Raises RequirementError if
        the memory is not there, or if the creator's layout is another than ``layout``.
        """
        files = slab_files(engine_id, directory)
        lock = hold(files)
        try:
            descriptor = os.open(files.slab, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return cls._join(files, lock, layout, timeout_s)
        return cls._create(files, lock, descriptor, layout, facts, before)

    @classmethod
    def attach(
        cls, engine_id: str, *, directory: Path = SHM_DIRECTORY, timeout_s: float = _JOIN_TIMEOUT_S
    ) -> tuple[Self, dict[str, Any]]:
        """Map a slab that workers have made; return it with its creator's facts. For the manager."""
        files = slab_files(engine_id, directory)
        if not files.slab.exists():
            raise InternalError(f"no worker has made {files.slab}")
        lock = hold(files)
        descriptor = _wait_until_ready(files, timeout_s)
        try:
            facts = _read_facts(descriptor)
            layout = SlabLayout(**facts["layout"])
            return cls(layout, files, lock, descriptor), facts
        finally:
            os.close(descriptor)

    @classmethod
    def _create(
        cls,
        files: SlabFiles,
        lock: int,
        descriptor: int,
        layout: SlabLayout,
        facts: Mapping[str, Any],
        before: Callable[[int], None],
    ) -> Self:
        try:
            before(layout.total_bytes)
            os.ftruncate(descriptor, layout.total_bytes)
            slab = cls(layout, files, lock, descriptor)
            slab._populate()
            slab._publish({**facts, "layout": asdict(layout)})
            return slab
        except BaseException as error:
            remove(files)
            os.close(lock)
            if isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.ENOSPC, errno.EFAULT):
                raise _no_room(files, layout) from error
            raise
        finally:
            os.close(descriptor)

    @classmethod
    def _join(cls, files: SlabFiles, lock: int, layout: SlabLayout, timeout_s: float) -> Self:
        descriptor = _wait_until_ready(files, timeout_s)
        try:
            found = _read_facts(descriptor)["layout"]
            if found != asdict(layout):
                raise RequirementError(
                    f"{files.slab} has another layout than this worker needs", why=f"found {found}, need {layout}"
                )
            slab = cls(layout, files, lock, descriptor)
        finally:
            os.close(descriptor)
        slab._populate()
        return slab

    def chunk(self, slot: int) -> memoryview:
        """Return the writable bytes of one chunk, for cold tiers."""
        return memoryview(self.chunks[slot])

    def failed(self, slots: Sequence[int]) -> Bytes:
        """Return for each slot whether any rank failed to store it or found it corrupt."""
        return np.asarray((self.status[list(slots)] != STORED).any(axis=1))

    def mark(self, slots: Sequence[int], status: int) -> None:
        """Set the status of whole slots, for all ranks."""
        self.status[list(slots)] = status

    def remove_name(self) -> None:
        """Remove the files' names; the mapping stays. From now on no way of dying leaks the memory."""
        remove(self.files)

    def close(self) -> None:
        """Stop being a user of the slab. The memory is unmapped with the last array that was handed out. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _populate(self) -> None:
        try:
            self._map.madvise(_POPULATE_WRITE, 0, self.layout.total_bytes)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._bytes[::PAGE] |= 0  # kernels before 5.14; keeps what is there

    def _publish(self, facts: Mapping[str, Any]) -> None:
        text = json.dumps(facts, sort_keys=True).encode()
        if len(text) > HEADER_BYTES - _PREAMBLE.size:
            raise InternalError(f"slab facts take {len(text)} bytes")
        self._map[_PREAMBLE.size : _PREAMBLE.size + len(text)] = text
        self._map[: _PREAMBLE.size] = _PREAMBLE.pack(_MAGIC, _VERSION, _READY, len(text))


def _digest_view(rows: Bytes, payload: int, layout: SlabLayout) -> npt.NDArray[np.uint64]:
    trailer = rows[:, payload : layout.chunk_bytes]
    if payload % 8:
        raise InternalError(f"a chunk of {payload} bytes does not align its digests")
    return trailer.view(np.uint64).reshape(layout.slots, layout.ranks, layout.blocks_per_chunk)


def _wait_until_ready(files: SlabFiles, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            descriptor = os.open(files.slab, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise RequirementError(f"{files.slab} is gone", why="the worker that made it has failed") from error
        if os.fstat(descriptor).st_uid != os.geteuid():
            os.close(descriptor)
            raise RequirementError(f"{files.slab} belongs to another user")
        head = os.pread(descriptor, _PREAMBLE.size, 0)
        if len(head) == _PREAMBLE.size and _PREAMBLE.unpack(head)[2] == _READY:
            return descriptor
        os.close(descriptor)
        time.sleep(0.01)
    raise RequirementError(f"{files.slab} was not ready within {timeout_s:.0f} s", why="the worker that makes it hangs")


def _read_facts(descriptor: int) -> dict[str, Any]:
    magic, version, _, length = _PREAMBLE.unpack(os.pread(descriptor, _PREAMBLE.size, 0))
    if magic != _MAGIC or version != _VERSION:
        raise RequirementError(f"not a warmtier slab of version {_VERSION}", why=f"found {magic!r} version {version}")
    facts: dict[str, Any] = json.loads(os.pread(descriptor, length, _PREAMBLE.size))
    return facts


def _no_room(files: SlabFiles, layout: SlabLayout) -> RequirementError:
    return RequirementError(
        f"cannot take {format_size(layout.total_bytes)} in {files.slab.parent}",
        why="the kernel refused the memory",
        fix="lower the host tier; or docker: --shm-size, Kubernetes: an emptyDir with medium Memory at /dev/shm",
    )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
