"""Asks ``WarmtierManager`` what vLLM's connector would, following a recorded schedule. Needs vLLM installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim_recorder import Call
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext

from warmtier.core.types import Key
from warmtier.engines.vllm.manager import WarmtierManager
from warmtier.engines.vllm.metrics import MetricsFeed
from warmtier.engines.vllm.status import StatusLine
from warmtier.tiering.cache import TieredCache


@dataclass
class ManagerDriver:
    """Plays calls one by one. Keys get vLLM's group suffix on the way in and lose it on the way out."""

    cache: TieredCache
    chunk_tokens: int
    now: float = 0.0
    contexts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        feed = MetricsFeed(self.cache.stats().tiers, 1)
        status = StatusLine(lambda *_: None, 1, 60.0)
        self.manager = WarmtierManager(self.cache, None, feed, status, clock=lambda: self.now)

    def play(self, call: Call) -> tuple[Any, Any]:
        """Return what the simulator decided and what the manager does."""
        self.now = max(self.now, call.now)
        play = getattr(self, f"_{call.name}", None)
        return (None, None) if play is None else play(call)

    def _begin(self, call: Call) -> tuple[Any, Any]:
        context = ReqContext(str(call.request))
        self.contexts[str(call.request)] = context
        self.manager.on_new_request(context)
        return None, None

    def _lookup(self, call: Call) -> tuple[Any, Any]:
        path, start = call.arguments
        context = self._know(call, path)
        usable, pending, _, _ = call.answer
        hits, deferred = 0, False
        for key in path[start:]:
            result = self.manager.lookup(key, context)
            if result is LookupResult.MISS:
                break
            deferred = deferred or result is not LookupResult.HIT
            hits += 1
        return (pending, 0 if pending else usable), (deferred, 0 if deferred else hits)

    def _know(self, call: Call, path: list[Key]) -> Any:
        """VLLM registers every key's position before the first lookup."""
        context = self.contexts[str(call.request)]
        for index, key in enumerate(path):
            context._offload_key_positions.setdefault(key, (index + 1) * self.chunk_tokens)
        return context

    def _pin(self, call: Call) -> tuple[Any, Any]:
        slots = self.manager.prepare_load(call.arguments[0], self.contexts[str(call.request)])
        return call.answer, slots.block_ids.tolist()

    def _load_done(self, call: Call) -> tuple[Any, Any]:
        self.manager.complete_load(set(call.arguments[0]), self.contexts[str(call.request)])
        return None, None

    def _offer(self, call: Call) -> tuple[Any, Any]:
        keys, start = call.arguments
        context = self.contexts[str(call.request)]
        for index, key in enumerate(keys, start):
            context._offload_key_positions.setdefault(key, (index + 1) * self.chunk_tokens)
        output = self.manager.prepare_store(keys, context)
        stored, slots, evicted, _ = call.answer
        found = (list(output.keys_to_store), output.store_spec.block_ids.tolist(), list(output.evicted_keys))
        return (stored, slots, evicted), found

    def _store_done(self, call: Call) -> tuple[Any, Any]:
        self.manager.complete_store(set(call.arguments[0]), self.contexts[str(call.request)])
        return None, None

    def _tick(self, call: Call) -> tuple[Any, Any]:
        del call
        self.manager.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))
        return None, None

    def _end(self, call: Call) -> tuple[Any, Any]:
        self.manager.on_request_finished(self.contexts[str(call.request)])
        return None, None
