"""What becomes of each request, measured where the manager stands: decisions, waits, loads, prefill speed.

Times are the manager's clock. Lengths are what vLLM's keys tell: whole chunks. The thin connector adds exact ones.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from warmtier.core.types import Key, TierKind
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.decisions import DecisionRing
from warmtier.engines.vllm.requests import RequestState
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.types import Lookup, Offer
from warmtier.trace.access_log import AccessRecord

_FEW_TOKENS: Final = 128  # a step that computes less tells nothing of the speed of prefill
_STEPS: Final = 4  # engine steps under way at once, at most


@dataclass(slots=True)
class Exact:
    """What only vLLM's ``Request`` knows."""

    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None = None


@dataclass(slots=True)
class Track:
    """The measured life of one request."""

    arrival_s: float
    began_s: float
    asked_s: float | None = None
    pending_since_s: float | None = None
    pending_s: float = 0.0
    load_since_s: float | None = None
    load_s: float | None = None
    answer: Lookup | None = None
    device_tokens: int | None = None
    loaded_to: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    stores: Counter[str] = field(default_factory=Counter)
    exact: Exact | None = None


@dataclass(slots=True)
class Figures:
    """Totals for the metrics. Lists are observations since they were taken last."""

    prefill_saved_s: float = 0.0
    prefill_spent_s: float = 0.0
    load_bytes: int = 0
    load_s: float = 0.0
    unread_chunks: int = 0
    invalid_hints: int = 0
    load_latencies: list[float] = field(default_factory=list)
    pending_waits: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    began_s: float
    spans: list[tuple[int, int]] = field(default_factory=list)


class Tracker:
    """Follows requests for the manager. Called by the scheduler's thread alone; never blocks."""

    def __init__(
        self,
        cache: TieredCache,
        slots: int,
        *,
        chunk_bytes: int,
        log: AccessLog | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.figures = Figures()
        self.ring = DecisionRing()
        self._cache = cache
        self._chunk_bytes = chunk_bytes
        self._log = log
        self._wall = wall
        self._used = np.zeros(slots, bool)  # the slot holds a chunk that was never read
        self._steps: deque[_Step] = deque(maxlen=_STEPS)
        self._ended_s = 0.0
        self._computed_tokens = 0

    def begin(self, now: float) -> Track:
        """A request has arrived."""
        return Track(self._wall(), now)

    # --- lookups and loads ---

    def answered(self, state: RequestState, answer: Lookup, start: int, now: float) -> None:
        """A lookup from path index ``start`` was answered."""
        track = state.track
        if track.asked_s is None:
            track.asked_s = now
        if answer.pending:
            if track.pending_since_s is None:
                track.pending_since_s = now
            return
        if track.pending_since_s is not None:
            waited_s = now - track.pending_since_s
            track.pending_since_s = None
            track.pending_s += waited_s
            self.figures.pending_waits.append(waited_s)
        if track.answer is answer:
            return
        track.answer = answer
        track.device_tokens = start // state.groups * state.request.tokens_per_chunk
        self.ring.note(state.request.request_id, self._facts(state))

    def load_began(self, state: RequestState, keys: Sequence[Key], slots: Sequence[int], now: float) -> None:
        """A load to the device begins."""
        track = state.track
        track.load_since_s = now
        self._used[slots] = False
        tokens = state.request.tokens_per_chunk
        first, last = state.positions[keys[0]] - tokens, state.positions[keys[-1]]
        track.loaded_to = last
        self._count_hits(state, first, last)
        if self._computed_tokens:
            self.figures.prefill_saved_s += (last - first) * self.figures.prefill_spent_s / self._computed_tokens

    def _count_hits(self, state: RequestState, first: int, last: int) -> None:
        tokens, groups = state.request.tokens_per_chunk, state.groups
        left = last - first
        for begin, end, kind in state.origins:
            inside = min(end // groups * tokens, last) - max(begin // groups * tokens, first)
            if inside > 0:
                state.track.hits[kind.value] += inside
                left -= inside
        if left > 0:
            state.track.hits[TierKind.HOST.value] += left

    def load_ended(self, state: RequestState, chunks: int, now: float) -> None:
        """It has ended, well or not."""
        track = state.track
        if track.load_since_s is None:
            return
        seconds = now - track.load_since_s
        track.load_s, track.load_since_s = seconds, None
        size_bytes = chunks * self._chunk_bytes
        self.figures.load_bytes += size_bytes
        self.figures.load_s += seconds
        self.figures.load_latencies.append(seconds)
        self._cache.observe_load(self._cache.state.host.name, size_bytes, seconds)

    # --- stores ---

    def offered(self, state: RequestState, offer: Offer, start: int, count: int) -> None:
        """``count`` chunks from path index ``start`` are on the device and were offered."""
        track = state.track
        track.stores.update({outcome.value: number for outcome, number in offer.outcomes.items()})
        self.filled(offer.slots)
        if track.device_tokens is None or not self._steps:
            return
        tokens = state.request.tokens_per_chunk
        first = max(start // state.groups * tokens, track.device_tokens, track.loaded_to)
        last = (start + count) // state.groups * tokens
        if last > first:
            self._steps[-1].spans.append((first, last))

    def filled(self, slots: Sequence[int]) -> None:
        """These slots get other chunks; what they held and nobody read was stored in vain."""
        if slots:
            self.figures.unread_chunks += int(self._used[slots].sum())
            self._used[slots] = True

    # --- steps ---

    def step_begins(self, now: float) -> None:
        """The scheduler has decided on a step; the model runs next."""
        self._steps.append(_Step(now))

    def step_ended(self, now: float) -> None:
        """Results of the oldest step under way have come.

        A request that is computed waits for the whole step, whoever shares it, as a load waits for the steps that run
        meanwhile. So the decision between them compares what a request waits for, under the load of the moment.
        """
        if not self._steps:
            return
        step = self._steps.popleft()
        seconds = now - max(step.began_s, self._ended_s)
        self._ended_s = now
        total = sum(last - first for first, last in step.spans)
        if total >= _FEW_TOKENS and seconds > 0:
            self.figures.prefill_spent_s += seconds
            self._computed_tokens += total
            for first, last in step.spans:
                self._cache.observe_prefill(first, last, seconds)

    # --- the end ---

    def ended(self, state: RequestState, now: float) -> None:
        """The request is over."""
        self.ring.note(state.request.request_id, self._facts(state))
        if self._log is not None:
            record, keys = self._record(state, now), list(state.whole_path()[:: state.groups])
            self._log.write(record, keys)

    def close(self) -> None:
        """Write the rest of the access log. Blocks, bounded."""
        if self._log is not None:
            self._log.close()

    @property
    def dropped(self) -> int:
        """Records that the access log could not take."""
        return 0 if self._log is None else self._log.dropped

    def _facts(self, state: RequestState) -> dict[str, Any]:
        track, answer = state.track, state.track.answer
        facts: dict[str, Any] = {
            "decision": _decision(track),
            "reason": answer.reason.value if answer and answer.reason else None,
            "source": answer.source.value if answer and answer.source else None,
            "prompt_tokens": self._prompt_tokens(state),
            "device_tokens": track.device_tokens,
            "usable_chunks": answer.usable if answer else 0,
            "hits": dict(track.hits),
            "stores": dict(track.stores),
            "pending_s": track.pending_s,
            "load_s": track.load_s,
            "tenant": state.request.tenant,
            "session": state.request.session,
        }
        return facts

    def _prompt_tokens(self, state: RequestState) -> int:
        exact = state.track.exact
        return exact.prompt_tokens if exact else len(state.positions) // state.groups * state.request.tokens_per_chunk

    def _record(self, state: RequestState, now: float) -> AccessRecord:
        track, answer = state.track, state.track.answer
        device = {"device": track.device_tokens} if track.device_tokens else {}
        return AccessRecord(
            request=state.request.request_id,
            arrival_s=track.arrival_s,
            prompt_tokens=self._prompt_tokens(state),
            output_tokens=track.exact.output_tokens if track.exact else 0,
            chunk_tokens=state.request.tokens_per_chunk,
            keys="",
            session=state.request.session,
            tenant=state.request.tenant,
            hits={**device, **track.hits},
            decision=_decision(track),
            reason=answer.reason.value if answer and answer.reason else None,
            source=answer.source.value if answer and answer.source else None,
            stores=dict(track.stores),
            queue_s=None if track.asked_s is None else track.asked_s - track.began_s,
            pending_s=track.pending_s or None,
            load_s=track.load_s,
            ttft_s=track.exact.ttft_s if track.exact else None,
            duration_s=now - track.began_s,
        )


def _decision(track: Track) -> str:
    if track.hits:
        return "load"
    answer = track.answer
    if answer is None or answer.reason is None or answer.reason.value == "absent":
        return "miss"
    return "recompute" if answer.reason.value in ("recompute_cheaper", "below_minimum") else "miss"
