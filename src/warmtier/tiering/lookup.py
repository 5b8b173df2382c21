"""The read path: how much of a request's path can be loaded, from which tiers, now or soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from warmtier.core.types import Key, MissReason, Source, TierKind
from warmtier.tiering.cold import READY, ColdState
from warmtier.tiering.promote import Promoter
from warmtier.tiering.recompute import Segment
from warmtier.tiering.request import Request
from warmtier.tiering.state import CacheState
from warmtier.tiering.stats import count_miss
from warmtier.tiering.types import Lookup


@dataclass(slots=True)
class Piece:
    """Path indices [start, stop) that one tier (None: the host) can serve; ``waits`` until the host slot is written."""

    tier: ColdState | None
    start: int
    stop: int
    waits: bool = False


@dataclass(slots=True)
class Plan:
    """The usable pieces from the first missing chunk on, and why the chunk after them is not usable."""

    slots: list[int]
    parts: int
    pieces: list[Piece] = field(default_factory=list)
    stop: int = 0
    reason: MissReason | None = None
    source: Source | None = None

    def cut(self, at: int, reason: MissReason | None) -> None:
        """Keep only the whole chunks before path index ``at``."""
        at -= at % self.parts
        self.stop, self.reason = at, reason
        self.pieces = [piece for piece in self.pieces if piece.start < at]
        for piece in self.pieces:
            piece.stop = min(piece.stop, at)


_LATER: Final = Lookup(0, pending=True, reason=None, by_tier={})


class ReadPath:
    """Answers lookups and starts the promotions they need. Never blocks; each call costs O(chunks of the path)."""

    def __init__(self, state: CacheState, promoter: Promoter) -> None:
        self._state = state
        self._promoter = promoter
        self._scanned = 0  # parts looked at since the last tick

    def lookup(self, request: Request, path: Sequence[Key], start: int, now: float) -> Lookup:
        """See ``TieredCache.lookup``."""
        self._note_path(request, path, start)
        index = self._state.index
        at, memo = (index.version, len(path), start), request.memo
        if memo is not None and request.memo_at == at and not (memo.pending and now >= request.wait_until_s):
            index.hold(request.hold_slots)
            return memo
        if self._later(request, memo, now):
            return memo if memo is not None and memo.pending else _LATER
        answer = self._answer(request, start, now)
        request.memo, request.memo_at = answer, (index.version, len(path), start)
        if not answer.pending:
            self._count(request, answer, start)
        return answer

    def tick(self) -> None:
        """A scheduling pass has ended."""
        self._scanned = 0

    def _later(self, request: Request, memo: Lookup | None, now: float) -> bool:
        """Return whether a plan would be in vain or too much for this pass; the engine asks again in the next.

        A plan costs about a microsecond per chunk, and every change of the index asks for new ones: a burst of long
        requests must not hold the scheduler up.
        """
        config = self._state.config
        if memo is not None and memo.pending and not request.turn and now < request.wait_until_s:
            return not self._promoter.has_turn(request, self._state.cold)
        if self._scanned < config.max_scanned_parts:
            request.put_off_s = None
            return False
        if request.put_off_s is None:
            request.put_off_s = now
        return now < request.put_off_s + config.pending_deadline_s / 4

    def _note_path(self, request: Request, path: Sequence[Key], start: int) -> None:
        if start != request.lookup_start:
            request.lookup_start, request.round_end, request.memo = start, None, None
        if len(path) > len(request.path):
            request.path.extend(path[len(request.path) :])
        if request.epoch != self._state.epoch:
            # The device cache was reset too: what this request computes from here on belongs to the new epoch.
            request.epoch, request.load_limit, request.round_end = self._state.epoch, None, None

    def _answer(self, request: Request, start: int, now: float) -> Lookup:
        refused, parts = self._refused(request), self._state.config.parts_per_chunk
        if refused is not None:
            return self._say(request, start, Plan([], parts, stop=start, reason=refused), pending=False)
        expired = request.waiting_since_s is not None and now >= request.wait_until_s
        plan = self._plan(request, start, now, cold=not expired)
        if plan.slots or plan.pieces:
            self._choose(request, plan, start, expired=expired)
        if expired:
            self._only_ready(plan)
            if not request.turn and plan.reason is MissReason.ABSENT:
                plan.reason = MissReason.PROMOTION_BUDGET
        elif any(piece.tier is not None or piece.waits for piece in plan.pieces):
            self._wait(request, plan, start, now)
        pending = any(piece.waits for piece in plan.pieces)
        if not pending and self._conflict(request, plan, now):
            pending = True
        return self._say(request, start, plan, pending=pending)

    def _refused(self, request: Request) -> MissReason | None:
        if request.hints.no_load:
            return MissReason.HINT
        return None if self._state.host_mode.on else MissReason.TIER_OFF

    # --- what there is ---

    def _plan(self, request: Request, start: int, now: float, *, cold: bool) -> Plan:
        """Find the longest usable prefix over all tiers, the warmest copy of each chunk."""
        path, index = request.path, self._state.index
        end = len(path) if request.load_limit is None else max(start, min(len(path), request.load_limit))
        slots = index.ready_prefix(path[start:end])
        at = start + len(slots)
        plan = Plan(slots, self._state.config.parts_per_chunk)
        if slots:
            plan.pieces.append(Piece(None, start, at))
        tiers = self._open_tiers(request, now) if cold else []
        reason: MissReason | None = request.limit_reason if end < len(path) else None
        while at < end:
            piece = self._piece(path[at], at, tiers)
            if isinstance(piece, MissReason):
                reason = piece
                break
            last = plan.pieces[-1] if plan.pieces else None
            if last is not None and last.tier is piece.tier and last.waits == piece.waits:
                last.stop = at + 1
            else:
                plan.pieces.append(piece)
            at += 1
            if piece.tier is not None and piece.tier is tiers[0][0]:  # nothing warmer could have the next ones
                at = self._run(piece.tier, path, at, end)
                plan.pieces[-1].stop = at
        self._scanned += at - start
        plan.cut(at, reason)
        return plan

    def _run(self, tier: ColdState, path: Sequence[Key], at: int, end: int) -> int:
        """Return the path index up to which ``tier`` has what the host has not. The tight loop of ``_plan``."""
        get, ready, busy = tier.index.get, self._state.index.ready, self._state.index.busy
        while at < end:
            key = path[at]
            if get(key) != READY or key in ready or key in busy:
                break
            at += 1
        return at

    def _open_tiers(self, request: Request, now: float) -> list[tuple[ColdState, MissReason | None]]:
        kinds = request.hints.load_kinds
        return [
            (tier, tier.closed(now) if kinds is None or tier.spec.kind in kinds else MissReason.HINT)
            for tier in self._state.cold
        ]

    def _piece(self, key: Key, at: int, tiers: Sequence[tuple[ColdState, MissReason | None]]) -> Piece | MissReason:
        if key in self._state.index.ready:
            return Piece(None, at, at + 1)
        if key in self._state.index.busy:
            return Piece(None, at, at + 1, waits=True)
        reason = MissReason.ABSENT
        for tier, closed in tiers:
            if tier.readable(key):
                if closed is None:
                    return Piece(tier, at, at + 1)
                reason = closed
            elif key in tier.index and reason is MissReason.ABSENT:
                reason = MissReason.WRITING
        return reason

    # --- load or recompute ---

    def _choose(self, request: Request, plan: Plan, start: int, *, expired: bool) -> None:
        """Cut the plan where recomputing is cheaper, and where an earlier round of this wait ended."""
        if request.round_end is not None:
            if plan.stop > request.round_end and not expired:
                plan.cut(max(request.round_end, start + len(plan.slots)), request.round_reason)
            return
        costs, config = self._state.costs, self._state.config
        usable = plan.stop - start
        if usable // config.parts_per_chunk * config.tokens_per_chunk < config.host_min_tokens:
            plan.slots = []
            plan.cut(start, MissReason.BELOW_MINIMUM)
            return
        if not costs.informed and not any(piece.tier for piece in plan.pieces):
            plan.source = Source.STATIC
            return
        decision = costs.decide([self._segment(piece) for piece in plan.pieces if piece.stop > piece.start])
        plan.source = decision.source
        if decision.reason is not None:
            plan.cut(plan.pieces[decision.segments].start, decision.reason)

    def _segment(self, piece: Piece) -> Segment:
        config = self._state.config
        scale = config.tokens_per_chunk / config.parts_per_chunk
        tier = piece.tier
        return Segment(
            self._state.host.name if tier is None else tier.name,
            tier is not None,
            int(piece.start * scale),
            int(piece.stop * scale),
            (piece.stop - piece.start) * config.part_bytes,
            0 if tier is None else tier.reads.size_bytes,
        )

    # --- waiting ---

    def _wait(self, request: Request, plan: Plan, start: int, now: float) -> None:
        """Start what must be promoted and join what is on its way."""
        deadline_s = self._state.config.pending_deadline_s
        if request.waiting_since_s is None:
            request.waiting_since_s = now
            request.wait_until_s = now + deadline_s
        cold = [piece for piece in plan.pieces if piece.tier is not None]
        if cold and not self._promoter.has_turn(request, [piece.tier for piece in cold if piece.tier is not None]):
            for piece in cold:
                piece.waits = True
            request.turn, request.wait_until_s = False, request.waiting_since_s + deadline_s / 2
            return
        if not request.turn:
            request.turn, request.wait_until_s = True, request.waiting_since_s + deadline_s
        self._state.index.hold(list(plan.slots))
        for piece in plan.pieces:
            if piece.tier is None:
                continue
            latest_s = request.waiting_since_s + max(deadline_s, piece.tier.spec.deadline_cap_s)
            moving, reason = self._promoter.start(
                piece.tier, request, request.path[piece.start : piece.stop], piece.start, now, latest_s
            )
            piece.waits = True
            if reason is not None:
                plan.cut(piece.start + moving, reason)
                break
        # Making room may have cost a chunk that the plan counts on: look at what is true now.
        ready = self._state.index.ready_prefix(request.path[start : start + len(plan.slots)])
        if len(ready) < len(plan.slots):
            plan.slots = ready
            plan.cut(start + len(ready), MissReason.NO_ROOM)
        request.round_end, request.round_reason = plan.stop, plan.reason
        self._join(request, plan)

    def _join(self, request: Request, plan: Plan) -> None:
        """Wait for the promotions in flight that bring part of the plan; their deadlines are this request's."""
        for piece in plan.pieces:
            at = piece.start
            while piece.waits and at < piece.stop:
                job = self._promoter.job_of(request.path[at])
                if job is None:
                    at += 1
                    continue
                job.waiters.add(request)
                request.wait_until_s = max(request.wait_until_s, job.deadline_s)
                at = max(at + 1, job.start + len(job.keys))

    def _only_ready(self, plan: Plan) -> None:
        """The wait is over: only what is ready now counts."""
        waits = next((piece.start for piece in plan.pieces if piece.waits or piece.tier is not None), None)
        if waits is not None:
            plan.cut(waits, MissReason.PENDING_DEADLINE)

    def _conflict(self, request: Request, plan: Plan, now: float) -> bool:
        """The engine defers a request while another loads one of its chunks: wait for a while, then do without."""
        wait_s = self._state.config.load_conflict_wait_s
        index = self._state.index
        if wait_s is None or not index.loads or not plan.slots:
            return False
        read = index.loading(np.array(plan.slots, dtype=np.intp))
        if read is None:
            return False
        if request.conflict_since_s is None:
            request.conflict_since_s = now
        if now < request.conflict_since_s + wait_s:
            request.wait_until_s = max(request.wait_until_s, request.conflict_since_s + wait_s)
            return True
        at = request.lookup_start + read
        plan.cut(at, MissReason.PENDING_DEADLINE)
        return False

    # --- the answer ---

    def _say(self, request: Request, start: int, plan: Plan, *, pending: bool) -> Lookup:
        usable = max(0, plan.stop - start)
        del plan.slots[usable:]
        ready = plan.slots if len(plan.slots) == usable else self._ready_slots(request, start, usable)
        request.hold_slots = ready
        self._state.index.hold(ready)
        return Lookup(usable, pending, plan.reason, self._by_tier(request, start, usable), plan.source)

    def _ready_slots(self, request: Request, start: int, usable: int) -> list[int]:
        get = self._state.index.ready.get
        return [slot for key in request.path[start : start + usable] if (slot := get(key)) is not None]

    def _by_tier(self, request: Request, start: int, usable: int) -> dict[TierKind, int]:
        found: dict[TierKind, int] = {}
        rest = usable
        for first, last, kind in request.origins:
            count = min(last, start + usable) - max(first, start)
            if count > 0:
                found[kind] = found.get(kind, 0) + count
                rest -= count
        if rest > 0:
            found[TierKind.HOST] = rest
        return found

    def _count(self, request: Request, answer: Lookup, start: int) -> None:
        if request.counted:
            return
        request.counted = True
        state = self._state
        state.host_counters.hits += answer.by_tier.get(TierKind.HOST, 0)
        for tier in state.cold:
            tier.counters.hits += answer.by_tier.get(tier.spec.kind, 0)
        if answer.reason is not None:
            count_miss(state.host_counters, answer.reason, len(request.path) - start - answer.usable)
