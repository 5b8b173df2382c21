"""What a simulation adds up: hits by tier, times, steps. Bounded: distributions are histograms of 1 % steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from warmtier.core.model import ModelShape
from warmtier.sim.requests import SimRequest
from warmtier.tiering.calibration import PrefillSpeed

_STEP: Final = math.log(1.01)
_SMALLEST: Final = 1e-6


class Histogram:
    """Counts of positive values in bins 1 % wide; quantiles are within 0.5 %, mean and extremes exact."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._bins: dict[int, int] = {}

    def add(self, value: float, count: int = 1) -> None:
        """Count ``value`` so many times."""
        index = math.floor(math.log(max(value, _SMALLEST)) / _STEP)
        self._bins[index] = self._bins.get(index, 0) + count
        self.count += count
        self.total += value * count
        self.largest = max(self.largest, value)

    def quantile(self, share: float) -> float | None:
        """Return the value below which ``share`` of the counts lie; None without any."""
        if not self.count:
            return None
        rank, seen = share * (self.count - 1), 0
        for index in sorted(self._bins):
            seen += self._bins[index]
            if seen > rank:
                return min(self.largest, math.exp((index + 0.5) * _STEP))
        return self.largest

    def summary(self) -> dict[str, float | int | None]:
        """Return count, mean and quantiles in seconds."""
        mean = self.total / self.count if self.count else None
        quantiles = {f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.9, 0.95, 0.99)}
        return {"count": self.count, "mean": mean, **quantiles, "max": self.largest if self.count else None}


@dataclass(slots=True)
class Measures:
    """Sums over a run. Times to first token count from when the client asked."""

    block_tokens: int
    prefill: PrefillSpeed
    model: ModelShape | None = None
    requests: int = 0
    refused: int = 0
    preemptions: int = 0
    blocks: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prompt_flops: float = 0.0
    hit_tokens: dict[str, int] = field(default_factory=dict)
    hit_blocks: dict[str, int] = field(default_factory=dict)
    hit_flops: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    busy_s: float = 0.0
    prefill_s: float = 0.0
    prefill_saved_s: float = 0.0
    stalled_s: float = 0.0
    end_s: float = 0.0
    ttft: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    pending: Histogram = field(default_factory=Histogram)

    def done(self, request: SimRequest) -> None:
        """A request has ended."""
        self.requests += 1
        self.blocks += len(request.trace.keys)
        self.prompt_tokens += request.trace.prompt_tokens
        self.output_tokens += request.emitted
        if request.first_token_s is not None and request.done_s is not None:
            self.ttft.add(request.first_token_s - request.arrival_s)
            self.e2e.add(request.done_s - request.arrival_s)
            self.end_s = max(self.end_s, request.done_s)
        if request.pending_s:
            self.pending.add(request.pending_s)
        if request.reason is not None:
            self.reasons[request.reason] = self.reasons.get(request.reason, 0) + 1
        self._count_hits(request)

    def _count_hits(self, request: SimRequest) -> None:
        model = self.model
        if model is not None:
            self.prompt_flops += model.flops(0, request.trace.prompt_tokens)
        for tier, start, stop in request.hit_ranges if request.admitted else ():
            self.hit_tokens[tier] = self.hit_tokens.get(tier, 0) + stop - start
            self.hit_blocks[tier] = self.hit_blocks.get(tier, 0) + (stop - start) // self.block_tokens
            self.prefill_saved_s += self.prefill.seconds(start, stop)
            if model is not None:
                self.hit_flops[tier] = self.hit_flops.get(tier, 0.0) + model.flops(start, stop)
