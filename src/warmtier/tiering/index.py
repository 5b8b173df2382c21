"""Which chunk is in which host slot, in which state, and who holds it. Bookkeeping only, in bulk.

States: absent; ``busy`` (a store from the device or a promotion is writing the slot); ``ready``; doomed (no key leads
to the slot any more, but transfers still read it).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from warmtier.core.errors import InternalError
from warmtier.core.types import Key
from warmtier.policy.base import Pinned
from warmtier.store.host import SlotAllocator
from warmtier.tiering.ledger import Ledger
from warmtier.tiering.request import Slots


class HostIndex:
    """The host tier's index. Single-threaded; every call costs O(keys named).

    Optional records, paid for only if used: who owns a slot (``ledger``), which key is whose parent (``parents``), how
    many requests used a slot (``touches``), which slots the device reads (``conflicts``).
    """

    def __init__(
        self,
        slots: int,
        ledger: Ledger | None = None,
        *,
        parents: bool = False,
        touches: bool = False,
        conflicts: bool = False,
    ) -> None:
        self.allocator = SlotAllocator(slots)
        self.ready: dict[Key, int] = {}
        self.busy: dict[Key, int] = {}
        self.version = 0  # grows whenever an earlier lookup could be answered differently
        self.loads = 0  # slots that the device reads, with multiplicity
        self._loading = np.zeros(slots, dtype=np.uint16) if conflicts else None
        self._refs = array("i", bytes(4 * slots))
        self.refs = np.frombuffer(self._refs, dtype=np.int32)
        self.parents: dict[Key, Key | None] | None = {} if parents else None
        self.touches = np.zeros(slots, dtype=np.uint8) if touches else None
        self._ledger = ledger
        self.doomed: set[int] = set()  # no key leads to them, transfers still read them
        self._holds: list[Sequence[int]] = []
        self._held: set[int] = set()

    def __len__(self) -> int:
        return len(self.ready) + len(self.busy)

    def __contains__(self, key: object) -> bool:
        return key in self.ready or key in self.busy

    @property
    def slots(self) -> int:
        """All slots."""
        return self.allocator.slots

    @property
    def doomed_slots(self) -> int:
        """Slots without a key that transfers still read."""
        return len(self.doomed)

    def ready_prefix(self, keys: Sequence[Key]) -> list[int]:
        """Return the slots of the longest prefix of ``keys`` that is ready."""
        get = self.ready.get
        if not keys or get(keys[0]) is None:
            return []  # the usual miss costs one probe
        slots = list(map(get, keys))
        try:
            return slots[: slots.index(None)]  # type: ignore[return-value]
        except ValueError:
            return slots  # type: ignore[return-value]

    def absent(self, keys: Sequence[Key]) -> list[Key]:
        """Return those of ``keys`` that are neither ready nor being written, in order."""
        ready, busy = self.ready, self.busy
        missing = [key for key in keys if key not in ready]
        return [key for key in missing if key not in busy] if busy else missing

    # --- writing ---

    def start(self, keys: Sequence[Key], reuse: list[int], *, tenant: int = 0, parent: Key | None = None) -> list[int]:
        """Give absent ``keys`` slots, of ``reuse`` (from ``evict``) first, and mark them busy; free what is left of it.

        ``keys`` are consecutive below ``parent``. The caller has made room; raises InternalError otherwise.
        """
        slots = reuse[: len(keys)]
        if len(reuse) > len(keys):
            self.allocator.free(reuse[len(keys) :])
        else:
            slots += self.allocator.allocate(len(keys) - len(slots))
        if len(slots) < len(keys):
            self.allocator.free(slots)
            raise InternalError(f"{len(keys)} chunks were admitted, {len(slots)} slots are free")
        self.busy.update(zip(keys, slots, strict=True))
        self.version += 1
        if self._ledger is not None:
            self._ledger.charge(slots, tenant)
        if self.parents is not None and keys:
            self.parents.update(zip(keys, (parent, *keys[:-1]), strict=True))
        if self.touches is not None and slots:
            self.touches[slots] = 0
        return slots

    def finish(self, keys: Iterable[Key]) -> list[Key]:
        """The busy ones of ``keys`` are complete; return them in the order given."""
        ready, take = self.ready, self.busy.pop
        done = []
        for key in keys:
            slot = take(key, None)
            if slot is not None:
                ready[key] = slot
                done.append(key)
        self.version += 1
        return done

    def fail(self, keys: Iterable[Key]) -> list[Key]:
        """The busy ones of ``keys`` did not arrive; free their slots and return them."""
        take = self.busy.pop
        found = {key: slot for key in keys if (slot := take(key, None)) is not None}
        slots = list(found.values())
        self._left(found, slots)
        self.allocator.free(slots)
        return list(found)

    def quarantine_busy(self, keys: Iterable[Key]) -> list[int]:
        """Make the busy ones of ``keys`` absent while a transfer may still write their slots; return the slots."""
        take = self.busy.pop
        found = {key: slot for key in keys if (slot := take(key, None)) is not None}
        slots = list(found.values())
        self._left(found, slots)
        self.allocator.quarantine(slots)
        return slots

    # --- leaving ---

    def drop(self, keys: Iterable[Key]) -> list[Key]:
        """Make the ready ones of ``keys`` absent; their slots are free once nothing reads them. Return them."""
        take = self.ready.pop
        found = {key: slot for key in keys if (slot := take(key, None)) is not None}
        slots = list(found.values())
        self._left(found, slots)
        self._give_back(slots)
        return list(found)

    def evict(self, keys: Sequence[Key]) -> list[int]:
        """Make ready ``keys`` absent; return the slots that nothing reads, for ``start``."""
        take = self.ready.pop
        slots = [take(key) for key in keys]
        self._left(keys, slots)
        if self.parents is None:
            return slots  # nothing is written down from here: no victim is being read
        refs = self._refs
        self.doomed.update(slot for slot in slots if refs[slot])
        return [slot for slot in slots if not refs[slot]]

    def _left(self, keys: Iterable[Key], slots: Sequence[int]) -> None:
        """These chunks are no longer in the index."""
        self.version += 1
        if self._ledger is not None:
            self._ledger.release(slots)
        if self.parents is not None:
            for key in keys:
                self.parents.pop(key, None)

    def _give_back(self, slots: Sequence[int]) -> None:
        refs = self._refs
        pinned = [slot for slot in slots if refs[slot]]
        if pinned:
            self.doomed.update(pinned)
            slots = [slot for slot in slots if not refs[slot]]
        self.allocator.free(slots)

    def touch(self, keys: Sequence[Key]) -> list[int]:
        """One more request used the longest ready prefix of ``keys``; return how many used each, this one included."""
        slots = self.ready_prefix(keys)
        if self.touches is None or not slots:
            return []
        array = np.array(slots, dtype=np.intp)
        counts = self.touches[array]
        counts += counts < 255
        self.touches[array] = counts
        return counts.tolist()  # type: ignore[no-any-return]

    # --- pins and holds ---

    def pinned(self) -> Pinned[Key]:
        """Return the predicate for policies: a chunk stays that is being written, read, or was promised by a lookup."""
        self._apply_holds()
        slot_of, refs, held = self.ready.get, self._refs, self._held
        if held:
            return lambda key: (slot := slot_of(key)) is None or refs[slot] > 0 or slot in held
        return lambda key: (slot := slot_of(key)) is None or refs[slot] > 0

    def slots_of(self, keys: Iterable[Key]) -> list[int]:
        """Return the slots of ready keys, in order. Raises InternalError if one is not ready."""
        ready = self.ready
        try:
            return [ready[key] for key in keys]
        except KeyError as error:
            raise InternalError(f"chunk {error.args[0]!r} is not ready in the host tier") from None

    def ref(self, slots: Slots) -> None:
        """Take one reference to each of distinct ``slots``."""
        self.refs[slots] += 1

    def unref(self, slots: Slots) -> None:
        """Give one reference to each of distinct ``slots`` back; free those that are doomed and now unread."""
        self.refs[slots] -= 1
        if self.doomed:
            free = [slot for slot in slots.tolist() if slot in self.doomed and not self._refs[slot]]
            self.doomed.difference_update(free)
            self.allocator.free(free)

    def start_load(self, slots: Slots) -> None:
        """The device starts reading distinct ``slots``."""
        self.refs[slots] += 1
        self.loads += len(slots)
        if self._loading is not None:
            self._loading[slots] += 1
            self.version += 1

    def end_load(self, slots: Slots) -> None:
        """The device has stopped reading ``slots``."""
        self.loads -= len(slots)
        if self._loading is not None:
            self._loading[slots] -= 1
            self.version += 1
        self.unref(slots)

    def loading(self, slots: Slots) -> int | None:
        """Return the position of the first of ``slots`` that the device is reading."""
        if self._loading is None:
            return None
        found = np.flatnonzero(self._loading[slots])
        return int(found[0]) if len(found) else None

    def hold(self, slots: Sequence[int]) -> None:
        """Protect ``slots`` from eviction until ``release_holds``. O(1); paid when an eviction asks."""
        self._holds.append(slots)

    def _apply_holds(self) -> None:
        if self._holds:
            self._held.update(*self._holds)
            self._holds.clear()

    def release_holds(self) -> None:
        """End every hold: the scheduling pass that led to them is over."""
        self._holds.clear()
        self._held.clear()

    # --- reset ---

    def reset(self) -> list[int]:
        """Make everything absent; return the quarantined slots of what was being written.

        Slots that are being read become doomed and are freed with their last reference.
        """
        suspect = list(self.busy.values())
        if self._ledger is not None:
            self._ledger.clear()
        if self.parents is not None:
            self.parents.clear()
        self._give_back(list(self.ready.values()))
        self.allocator.quarantine(suspect)
        self.ready.clear()
        self.busy.clear()
        self.release_holds()
        self.version += 1
        return suspect

    def release(self, slots: Collection[int]) -> None:
        """Free quarantined slots: nothing writes them any more."""
        self.allocator.release(list(slots))
