"""A continuous-batching engine with chunked prefill, as vLLM's scheduler has it: what runs in a step, and how long.

Rules of vLLM 0.32 ``v1/core/sched/scheduler.py``: running requests first, in order; then waiting ones, first come first
served, skipping those that wait for a transfer; a token budget per step; blocks allocated before the step and visible
to others at once; the last running request is preempted when blocks run out.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.errors import InternalError
from warmtier.sim.connector import Connector, Transfer
from warmtier.sim.device import DevicePool
from warmtier.sim.loop import Loop
from warmtier.sim.measure import Measures
from warmtier.sim.requests import Phase, SimRequest
from warmtier.sim.settings import EngineModel

_STUCK: Final = 100_000
_GROWTH: Final = 1.05
MAX_REPEATS: Final = 512
MAX_IDLE_POLLS: Final = 16
"""Empty steps that are skipped at once while only transfers are under way; deadlines are checked between."""


@dataclass(slots=True)
class Plan:
    """One step: (request, tokens before, tokens new), and the stores that still read blocks it uses anew.

    ``repeat``: so many steps alike, decoding only, are taken as one.
    """

    work: list[tuple[SimRequest, int, int]] = field(default_factory=list)
    repeat: int = 1
    fences: list[Transfer] = field(default_factory=list)
    preempted: bool = False


class Engine:
    """One engine. ``on_done`` hears of every request that ends."""

    def __init__(
        self,
        loop: Loop,
        model: EngineModel,
        connector: Connector | None,
        measures: Measures,
        on_done: Callable[[SimRequest], None],
    ) -> None:
        self.pool = DevicePool(model.device_blocks)
        self.waiting: deque[SimRequest] = deque()
        self.holding: deque[SimRequest] = deque()
        self.running: list[SimRequest] = []
        self._prefills: dict[SimRequest, None] = {}  # loading, or not yet computed to their end
        self.steps = 0
        self._progress = 0
        self._loop = loop
        self._model = model
        self._connector = connector
        self._measures = measures
        self._on_done = on_done
        self._stepping = False
        self._blank_keys = itertools.count(-1, -1)

    # --- arrivals ---

    def arrive(self, request: SimRequest) -> bool:
        """A request reaches the scheduler. False: it can never fit and is refused."""
        needed = -(-(request.prompt_tokens + request.output_tokens - 1) // self._model.block_tokens)
        if needed > self.pool.blocks or request.prompt_tokens < 1:
            return False
        if self._connector is not None:
            self._connector.begin(request)
        self.waiting.append(request)
        self._wake()
        return True

    def _wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._loop.at(self._loop.now, self._step)

    # --- a step ---

    def _step(self) -> None:
        connector, now = self._connector, self._loop.now
        self.steps += 1
        if connector is not None:
            connector.collect()
        plan = self._schedule()
        if connector is not None:
            connector.end_schedule([(r, before + new) for r, before, new in plan.work if r.stored < len(r.chunks)])
            connector.start_step()
        if not plan.work:
            self._idle_step()
            return
        self._progress = self.steps
        start_s = max([now, *(transfer.done_s for transfer in plan.fences)])
        self._measures.stalled_s += start_s - now
        duration_s = self._duration(plan, start_s)
        repeat = plan.repeat = self._repeats(plan, duration_s)
        if repeat > 1:
            # Each step's contexts are longer by one token per sequence than those of the step before.
            growth_s = self._model.context_s * len(plan.work)
            duration_s = repeat * duration_s + growth_s * repeat * (repeat - 1) / 2
            self.steps += repeat - 1
            for request, before, _ in plan.work:
                request.computed = before + repeat
        self._loop.at(start_s + duration_s, lambda: self._end_step(plan, duration_s))

    def _duration(self, plan: Plan, start_s: float) -> float:
        model = self._model
        total_s = model.step_s
        for request, before, new in plan.work:
            if new > 1 or request.emitted == 0:
                prefill_s = model.prefill.seconds(before, before + new)
                self._measures.prefill_s += prefill_s
                total_s += prefill_s
            else:
                total_s += model.sequence_s + model.context_s * before
        if self._connector is not None and model.steal:
            for link in {id(x): x for x in (self._connector.load_link, self._connector.store_link)}.values():
                total_s += model.steal * max(0.0, min(link.busy_until_s, start_s + total_s) - start_s)
        return total_s

    def _end_step(self, plan: Plan, duration_s: float) -> None:
        now, measures = self._loop.now, self._measures
        measures.busy_s += duration_s
        ended = False
        gaps: dict[float, int] = {}
        for request, before, new in plan.work:
            if before + new < request.prompt_tokens + request.emitted or request.phase is not Phase.RUNNING:
                continue
            request.emitted += plan.repeat
            if request.first_token_s is None:
                request.first_token_s = now
            else:
                gap_s = (now - request.last_token_s) / plan.repeat
                gaps[gap_s] = gaps.get(gap_s, 0) + plan.repeat
            request.last_token_s = now
            if request.emitted >= request.output_tokens:
                ended = True
                self._finish(request)
        for gap_s, count in gaps.items():
            measures.itl.add(gap_s, count)
        if ended:
            self.running = [request for request in self.running if request.phase is Phase.RUNNING]
        self._collect_transfers()
        self._continue()

    def _repeats(self, plan: Plan, duration_s: float) -> int:
        """Return how many steps like this one follow each other for sure: only decoding, and nothing else happens."""
        if self.waiting or self.holding or (self._connector is not None and self._connector.busy) or duration_s <= 0:
            return 1
        size = self._model.block_tokens
        steps = MAX_REPEATS
        for request, before, _ in plan.work:
            if request.emitted == 0 or before + 1 != request.prompt_tokens + request.emitted:
                return 1
            # The step that fills a block, and the one that needs a new one, are made one by one.
            steps = min(steps, request.output_tokens - request.emitted, size - 1 - before % size)
        due_s = self._loop.next_time()
        if due_s is not None:
            steps = min(steps, int((due_s - self._loop.now) / (duration_s * _GROWTH)))
        return max(1, steps)

    def _idle_step(self) -> None:
        """Nothing to compute: poll until a transfer or a job ends, in steps of ``idle_step_s``."""
        connector = self._connector
        pause_s = self._model.idle_step_s
        if connector is None or not (connector.busy or self.waiting or self.holding):
            self._stepping = False
            return
        if not connector.busy and self._loop.next_time() is None and self.steps - self._progress > _STUCK:
            waiting = len(self.waiting) + len(self.holding)
            raise InternalError(f"{waiting} requests wait and nothing will happen")
        due = [time_s for time_s in (connector.next_done_s(), self._loop.next_time()) if time_s is not None]
        polls = 1
        if due and pause_s > 0:
            polls = min(MAX_IDLE_POLLS, max(1, int((min(due) - self._loop.now) / pause_s)))
        self._loop.at(self._loop.now + polls * pause_s, self._end_idle_step)

    def _end_idle_step(self) -> None:
        self._collect_transfers()
        self._continue()

    def _collect_transfers(self) -> None:
        if self._connector is None:
            return
        for request in self._connector.end_step():
            request.loaded = True

    def _continue(self) -> None:
        if self.running or self.waiting or self.holding or (self._connector is not None and self._connector.busy):
            self._loop.at(self._loop.now, self._step)
        else:
            self._stepping = False

    # --- scheduling ---

    def _schedule(self) -> Plan:
        plan = Plan()
        budget = self._schedule_running(plan, self._model.max_num_batched_tokens)
        if not plan.preempted:
            self._schedule_waiting(plan, budget)
        for request, before, new in plan.work:
            request.computed = before + new
            if request.computed < request.tokens:
                self._prefills[request] = None
            elif request in self._prefills:
                del self._prefills[request]
        return plan

    def _schedule_running(self, plan: Plan, budget: int) -> int:
        index, size, work = 0, self._model.block_tokens, plan.work
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            computed = request.computed
            new = request.prompt_tokens + request.emitted - computed
            if new == 1 and computed % size and (computed + 1) % size:
                work.append((request, computed, 1))  # the usual token: its block is there and stays open
                budget -= 1
                index += 1
                continue
            new = min(new, budget)
            while not self._allocate(request, computed + new, plan):
                victim = self.running.pop()
                self._preempt(victim, plan)
                if victim is request:
                    break
            if request.phase is not Phase.RUNNING:
                break
            plan.work.append((request, computed, new))
            work = plan.work
            budget -= new
            index += 1
        return budget

    def _preempt(self, request: SimRequest, plan: Plan) -> None:
        plan.preempted = True
        plan.work = [item for item in plan.work if item[0] is not request]
        self._prefills.pop(request, None)
        self.pool.release(request.blocks)
        request.blocks, request.keyed, request.computed = [], 0, 0
        request.phase = Phase.WAITING
        request.preemptions += 1
        self._measures.preemptions += 1
        self.waiting.appendleft(request)

    def _schedule_waiting(self, plan: Plan, budget: int) -> None:
        """Requests that hold blocks for a load go first; who has to wait longer keeps its place."""
        holding: list[SimRequest] = []
        waiting: list[SimRequest] = []
        while budget > 0 and len(self.running) < self._model.max_num_seqs:
            queue = self.holding or self.waiting
            if not queue:
                break
            request = queue.popleft()
            new = self._try(request, plan, budget)
            if new is None:
                (holding if request.blocks else waiting).append(request)
                continue
            if new < 0:
                queue.appendleft(request)
                break
            request.phase = Phase.RUNNING
            self.running.append(request)
            plan.work.append((request, request.computed, new))
            budget -= new
        self.holding.extendleft(reversed(holding))
        self.waiting.extendleft(reversed(waiting))

    def _try(self, request: SimRequest, plan: Plan, budget: int) -> int | None:
        if request.phase is Phase.LOADING:
            if not request.loaded:
                return None
            self._loaded(request)
        return self._admit(request, plan, budget)

    def _loaded(self, request: SimRequest) -> None:
        """A load has arrived: its blocks can be found by others; the newest token is always computed."""
        self._set_keys(request, request.computed)
        request.phase = Phase.WAITING
        request.loaded = False
        request.computed = min(request.computed, request.tokens - 1)

    def _admit(self, request: SimRequest, plan: Plan, budget: int) -> int | None:
        """Return the tokens to compute now; None: ask again next step; -1: no blocks, nobody behind may pass."""
        if request.computed:  # its load has arrived
            new = min(request.tokens - request.computed, budget)
            return new if self._allocate(request, request.computed + new, plan) else -1
        size = self._model.block_tokens
        hit = self.pool.prefix(request.trace.full_keys, (request.tokens - 1) // size)
        computed, external = len(hit) * size, 0
        if self._connector is not None:
            matched = self._connector.matched(request, computed)
            if matched is None:
                self._defer(request)
                return None
            external = matched
        new = 0 if external else min(request.tokens - computed, budget)
        kept = self._reserved() if external else 0
        if not self._reserve(request, hit, computed + external + new, kept, plan):
            return -1
        self._note_hits(request, computed, external)
        request.computed = computed + external
        if external and self._connector is not None:
            self._connector.start_load(request, computed, external)
            request.phase, request.load_start_s = Phase.LOADING, self._loop.now
            self._prefills[request] = None
            return None
        self._set_keys(request, request.computed + new)
        return new

    def _defer(self, request: SimRequest) -> None:
        if request.pending_from_s is None:
            request.pending_from_s = self._loop.now

    def _note_hits(self, request: SimRequest, computed: int, external: int) -> None:
        if request.pending_from_s is not None:
            request.pending_s += self._loop.now - request.pending_from_s
            request.pending_from_s = None
        if request.admitted:
            return
        request.admitted = True
        ranges = [("device", 0, computed)] if computed else []
        if external:
            ranges += request.hit_ranges
        request.hit_ranges = ranges
        request.hits = {}
        for tier, start, stop in ranges:
            request.hits[tier] = request.hits.get(tier, 0) + stop - start

    # --- blocks ---

    def _reserved(self) -> int:
        """Return the blocks that prefills and loads under way still need: a load must leave them."""
        size = self._model.block_tokens
        return sum(-(-request.tokens // size) - len(request.blocks) for request in self._prefills)

    def _reserve(self, request: SimRequest, hit: list[int], tokens: int, kept: int, plan: Plan) -> bool:
        """Take the blocks hit and new ones for all of ``tokens``, if the whole prompt can be held."""
        size = self._model.block_tokens
        needed = -(-tokens // size) - len(hit)
        whole = -(-request.tokens // size) - len(hit)
        free = self.pool.free_blocks - self.pool.idle(hit)
        if whole > free or needed > free - kept:
            return False
        self.pool.touch(hit)
        request.blocks = [*hit, *self._take(needed, plan)]
        request.keyed = len(hit)
        return True

    def _allocate(self, request: SimRequest, tokens: int, plan: Plan) -> bool:
        missing = -(-tokens // self._model.block_tokens) - len(request.blocks)
        if missing > 0:
            if missing > self.pool.free_blocks:
                return False
            request.blocks += self._take(missing, plan)
        self._set_keys(request, tokens)
        return True

    def _take(self, count: int, plan: Plan) -> list[int]:
        taken = self.pool.take(count)
        if self._connector is not None:
            plan.fences += self._connector.fenced(taken)
        return taken

    def _set_keys(self, request: SimRequest, tokens: int) -> None:
        """Blocks that are full by the end of this step can be found by others; those with output are all different."""
        full, keys = tokens // self._model.block_tokens, request.trace.full_keys
        known = len(keys)
        for index in range(request.keyed, min(full, len(request.blocks))):
            key = keys[index] if index < known else next(self._blank_keys)
            self.pool.set_key(request.blocks[index], key)
        request.keyed = max(request.keyed, full)

    def _finish(self, request: SimRequest) -> None:
        request.phase = Phase.DONE
        request.done_s = self._loop.now
        self.pool.release(request.blocks)
        if self._connector is not None:
            self._connector.finished(request)
        request.blocks = []
        self._on_done(request)
