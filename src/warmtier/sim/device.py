"""The engine's own cache on the device: vLLM's block pool with prefix caching, its order of eviction included.

Semantics of vLLM 0.32 ``v1/core/block_pool.py``: one queue of free blocks; blocks with a hash join its end when they
are freed (last of a request first), blocks without one its front; a new block is taken from the front and loses its
hash; a hit takes the block out of the queue wherever it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from warmtier.core.errors import InternalError

NO_KEY = None


class DevicePool:
    """Blocks by number. Several blocks may have one key; a lookup finds the oldest."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.evictions = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))
        self._refs = [0] * blocks
        self._key_of: list[int | None] = [NO_KEY] * blocks
        self._cached: dict[int, int] = {}
        self._doubles: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody uses now."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Distinct keys that can be found."""
        return len(self._cached)

    def prefix(self, keys: Sequence[int], limit: int) -> list[int]:
        """Return the blocks of the longest cached prefix of ``keys``, at most ``limit``."""
        cached = self._cached
        found = []
        for key in keys[:limit]:
            block = cached.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """Return how many of ``blocks`` nobody uses now."""
        refs = self._refs
        return sum(1 for block in blocks if not refs[block])

    def touch(self, blocks: Sequence[int]) -> None:
        """Use cached blocks once more."""
        refs, free = self._refs, self._free
        for block in blocks:
            if not refs[block]:
                del free[block]
            refs[block] += 1

    def take(self, count: int) -> list[int]:
        """Return ``count`` blocks without a key. Raises InternalError if there are fewer."""
        free = self._free
        if count > len(free):
            raise InternalError(f"{count} blocks asked, {len(free)} free")
        taken = [free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._refs[block] = 1
            if self._key_of[block] is not None:
                self._forget(block)
                self.evictions += 1
        return taken

    def set_key(self, block: int, key: int) -> None:
        """A block in use is full: others may find it by ``key``. Nothing happens if it has one already."""
        if self._key_of[block] is not None:
            return
        self._key_of[block] = key
        if self._cached.setdefault(key, block) != block:
            self._doubles.setdefault(key, []).append(block)

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        self._key_of[block] = NO_KEY
        if key is None:
            return
        others = self._doubles.get(key)
        if self._cached.get(key) == block:
            if others:
                self._cached[key] = others.pop(0)
            else:
                del self._cached[key]
        elif others:
            others.remove(block)
        if others is not None and not others:
            self._doubles.pop(key, None)

    def release(self, blocks: Sequence[int]) -> None:
        """A request lets go of its ``blocks``, given root first."""
        refs, keys = self._refs, self._key_of
        first: list[int] = []
        last: list[int] = []
        for block in reversed(blocks):
            refs[block] -= 1
            if not refs[block]:
                (first if keys[block] is None else last).append(block)
        for block in last:
            self._free[block] = None
        for block in reversed(first):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
