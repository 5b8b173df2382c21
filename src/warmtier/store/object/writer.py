"""Takes chunks into packs. What ``put`` acknowledges depends on how uploads fare.

While they succeed, STORED means: copied into a pack in memory, readable here at once, and by others once the pack and
its manifest are in the bucket. If that upload then fails, the chunks are reported as evicted by the next ``put``.
After a failed upload STORED means: in the bucket. So a broken bucket shows in outcomes, not only in counters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from warmtier.core.types import Key
from warmtier.store.base import Write, WriteOutcome, WriteResult
from warmtier.store.object.filling import INDEX_ROOM, Draft, Place, charge_bytes
from warmtier.store.object.publisher import Publisher
from warmtier.store.object.reader import copy
from warmtier.store.object.state import State
from warmtier.store.record import MAX_KEY_BYTES, encode_header, header_bytes

_STALE_SHARE = 8
"""A chunk with less than this fraction of its life left is stored again."""


@dataclass(slots=True)
class _Call:
    deadline_s: float
    result: WriteResult = field(default_factory=lambda: WriteResult([]))
    drafts: dict[int, Draft] = field(default_factory=dict)
    used_packs: set[str] = field(default_factory=set)


class Writer:
    """Puts for any number of threads at once."""

    def __init__(self, state: State, publisher: Publisher) -> None:
        self._state = state
        self._publisher = publisher
        self._copying: set[Key] = set()

    def put(self, writes: Sequence[Write]) -> WriteResult:
        """Store chunks in order; waits for memory at most for the deadline of their bytes."""
        state = self._state
        size_bytes = sum(write.data.nbytes for write in writes)
        call = _Call(time.monotonic() + state.deadline_s(size_bytes))
        failing = state.failing
        for number, write in enumerate(writes):
            call.result.outcomes.append(self._put_one(number, write, call))
        if failing:
            self._await_uploads(call)
        with state.lock:
            call.result.evicted.extend(state.lost)
            state.lost.clear()
        return call.result

    def _put_one(self, number: int, write: Write, call: _Call) -> WriteOutcome:
        place = self._reserve(write, call)
        if not isinstance(place, Place):
            return place
        call.drafts[number] = place.draft
        header = header_bytes(write.key)
        try:
            payload = place.view[header : header + place.length]
            copy(payload, write.data)
            place.view[:header] = encode_header(self._state.namespace, write.key, payload)
        finally:
            self._finish(place)
        return WriteOutcome.STORED

    def _reserve(self, write: Write, call: _Call) -> Place | WriteOutcome:
        state, key, length = self._state, write.key, write.data.nbytes
        with state.lock:
            if self._is_present(key, call):
                return WriteOutcome.PRESENT
            if len(key) > MAX_KEY_BYTES or not state.filler.can_ever_hold(key, length) or not state.index.has_room(1):
                return WriteOutcome.NO_ROOM
            refusal = self._make_room(charge_bytes(key, length) + INDEX_ROOM, call)
            if refusal is not None:
                return refusal
            draft = self._draft(key, length, call)
            if draft is None:
                return WriteOutcome.TIMEOUT
            state.budget.grow(draft.pack, charge_bytes(key, length))
            self._copying.add(key)
            self._publisher.note_stored(key)
            return state.filler.place(draft, key, length)

    def _is_present(self, key: Key, call: _Call) -> bool:
        state = self._state
        if key in self._copying:
            return True
        location = state.index.find(key)
        if location is None:
            return False
        state.budget.touch(location.pack.name)
        call.used_packs.add(location.pack.name)
        return location.pack.expires_s - state.now_s() > state.options.ttl_s / _STALE_SHARE

    def _make_room(self, need_bytes: int, call: _Call) -> WriteOutcome | None:
        state = self._state
        while (victims := state.budget.victims(need_bytes, call.used_packs)) is None:
            # What is being sent can go only once it has arrived.
            if not any(draft.sealed for draft in state.drafts):
                return WriteOutcome.NO_ROOM
            if not state.lock.wait(max(0.0, call.deadline_s - time.monotonic())):
                return WriteOutcome.TIMEOUT
        if victims and state.failing and state.doomed:
            return WriteOutcome.ERROR  # an outage must not empty the tier for chunks that do not arrive either
        for name in victims:
            self._publisher.note_removed(name)
        call.result.evicted.extend(state.drop_own(victims))
        return None

    def _draft(self, key: Key, length: int, call: _Call) -> Draft | None:
        state = self._state
        while True:
            previous = state.filler.current
            draft = state.filler.draft_for(key, length, time.monotonic(), state.now_s())
            if draft is not previous:
                state.client.call_soon(state.wake.set)
            if draft is not None:
                break
            if not state.lock.wait(max(0.0, call.deadline_s - time.monotonic())):
                return None
        if draft not in state.drafts:
            state.drafts.add(draft)
            state.index.add(draft.pack)
            state.budget.adopt(draft.pack)
            state.budget.grow(draft.pack, INDEX_ROOM)
        call.used_packs.add(draft.pack.name)
        return draft

    def _finish(self, place: Place) -> None:
        state = self._state
        with state.lock:
            position = state.filler.finish(place)
            state.index.add_chunk(place.draft.pack, position)
            state.counters.bytes_written += place.length
            self._copying.discard(place.key)
            if place.draft.sealed:
                state.client.call_soon(state.wake.set)

    def _await_uploads(self, call: _Call) -> None:
        state = self._state
        with state.lock:
            state.filler.seal()
            state.client.call_soon(state.wake.set)
            left_s = max(0.0, call.deadline_s - time.monotonic())
            state.lock.wait_for(lambda: all(draft.outcome for draft in call.drafts.values()), left_s)
            for number, draft in call.drafts.items():
                call.result.outcomes[number] = draft.outcome or WriteOutcome.TIMEOUT
