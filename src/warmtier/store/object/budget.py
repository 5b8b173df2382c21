"""What one writer keeps in the bucket: its packs, least recently used first, and its manifests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from warmtier.store.object.format import entry_bytes
from warmtier.store.object.index import Pack


class Budget:
    """A hard bound on the bytes of one writer. Pure bookkeeping; its owner holds a lock around every call.

    Packs that are not in the bucket yet count as well.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._packs: OrderedDict[str, Pack] = OrderedDict()
        self._pack_bytes = 0
        self._settled: dict[str, int] = {}
        self._reserved_bytes = 0
        self._manifests: dict[str, int] = {}
        self._manifest_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of all packs and manifests."""
        return self._pack_bytes + self._manifest_bytes

    @property
    def packs(self) -> Iterable[Pack]:
        """The writer's packs, least recently used first."""
        return self._packs.values()

    def __contains__(self, name: str) -> bool:
        return name in self._packs

    def adopt(self, pack: Pack) -> None:
        """Count a pack that is in the bucket, or a new one without chunks."""
        self._packs[pack.name] = pack
        self._pack_bytes += pack.size_bytes
        if pack.keys:
            self._reserve(pack)

    def grow(self, pack: Pack, size_bytes: int) -> None:
        """Count another chunk of a new pack, with its share of the index and of the manifests to come."""
        pack.size_bytes += size_bytes
        self._pack_bytes += size_bytes

    def settle(self, pack: Pack, size_bytes: int) -> None:
        """The pack is complete: from now on count its true size, and what the next full manifest says about it."""
        self._pack_bytes += size_bytes - pack.size_bytes
        pack.size_bytes = size_bytes
        self._reserve(pack)

    def _reserve(self, pack: Pack) -> None:
        reserved = entry_bytes_of(pack)
        self._settled[pack.name] = reserved
        self._reserved_bytes += reserved

    def release(self, name: str) -> Pack | None:
        """No longer count a pack."""
        pack = self._packs.pop(name, None)
        if pack is not None:
            self._pack_bytes -= pack.size_bytes
            self._reserved_bytes -= self._settled.pop(name, 0)
        return pack

    def touch(self, name: str) -> None:
        """Note that a pack was used, if it is the writer's own."""
        if name in self._packs:
            self._packs.move_to_end(name)

    def add_manifest(self, path: str, size_bytes: int) -> None:
        """Count a manifest."""
        self._manifests[path] = size_bytes
        self._manifest_bytes += size_bytes

    def drop_manifests(self, paths: Iterable[str]) -> None:
        """No longer count manifests."""
        for path in paths:
            self._manifest_bytes -= self._manifests.pop(path, 0)

    def victims(self, need_bytes: int, protected: Collection[str]) -> list[str] | None:
        """Return the packs that must go so that ``need_bytes`` fit: least recently used first, none ``protected``.

        Only packs that are wholly in the bucket can go. None: they do not suffice.
        """
        short = self.used_bytes + self._reserved_bytes + need_bytes - self._capacity
        chosen: list[str] = []
        if short <= 0:
            return chosen
        for name, pack in self._packs.items():
            if pack.region is None and name not in protected:
                chosen.append(name)
                short -= pack.size_bytes + self._settled.get(name, 0)
                if short <= 0:
                    return chosen
        return None


def entry_bytes_of(pack: Pack) -> int:
    """Return what a full manifest says about ``pack``, in bytes, at most."""
    return 64 + len(pack.name) + sum(entry_bytes(key) for key in pack.keys)
