"""How wrong is the simulator? The same trace on a real server and in the simulator: hits by tier, times.

The server is calibrated first, then played to one request at a time (hits must be equal), then with several in flight,
more than once: the server's own difference between runs is the yardstick for the simulator's error.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from warmtier.bench.calibrate_engine import EngineFigures, Probe, measure_engine
from warmtier.bench.scrape import Scrape, growth, scrape
from warmtier.bench.trace_replay import replay
from warmtier.core.errors import TargetError
from warmtier.sim.run import Simulation
from warmtier.sim.settings import SimSettings
from warmtier.tiering.cache import TieredCache
from warmtier.trace.schema import TraceRequest
from warmtier.trace.tokens import TokenSource

SOURCES: Final = {"device": "device", "host": "host", "file": "disk"}
"""Tier, and what vLLM calls it in ``prompt_tokens_cached_by_source``."""
_CACHED: Final = "vllm:prompt_tokens_cached_by_source_total"
_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
HITS_TOLERANCE: Final = 0.02
P50_TOLERANCE: Final = 0.10
P99_TOLERANCE: Final = 0.20

Note = Callable[[str], None]


class Outcome(msgspec.Struct, frozen=True):
    """One run, on the server or in the simulator: cached tokens by tier, TTFT in seconds, duration."""

    hit_tokens: dict[str, int]
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_mean_s: float
    duration_s: float


class Comparison(msgspec.Struct, frozen=True):
    """Server and simulator at one concurrency. Errors are relative; ``own`` ones are between the server's runs."""

    concurrency: int
    server: list[Outcome]
    simulator: Outcome
    hits_error: dict[str, float]
    p50_error: float
    p99_error: float
    own_p50: float
    own_p99: float
    failures: list[str]


@dataclass(slots=True)
class Validation:
    """Everything: the calibration's points, both comparisons."""

    figures: EngineFigures
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """What did not hold."""
        return [line for comparison in self.comparisons for line in comparison.failures]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to play. ``make_cache`` builds the server's own cache anew for every simulation."""

    requests: Sequence[TraceRequest]
    settings: SimSettings
    make_cache: Callable[[EngineFigures], TieredCache]
    concurrency: int = 8
    runs: int = 3
    pause_s: float = 0.05
    probe: Probe = field(default_factory=Probe)


def validate(base_url: str, plan: Plan, note: Note) -> Validation:
    """Run everything against a server that does nothing else. Blocks for minutes. Raises TargetError."""
    note("measuring the server")
    figures = measure_engine(base_url, plan.probe, note)
    found = Validation(figures)
    for concurrency, runs in ((1, 1), (plan.concurrency, plan.runs)):
        server = []
        for run in range(runs):
            note(f"playing {len(plan.requests)} requests, {concurrency} in flight (run {run + 1} of {runs})")
            server.append(_play(base_url, plan, concurrency))
        note("simulating")
        found.comparisons.append(compare(concurrency, server, simulate(plan, figures, concurrency)))
    return found


def simulate(plan: Plan, figures: EngineFigures, concurrency: int) -> Outcome:
    """Return what the simulator says of the plan at one concurrency."""
    engine = replace(
        plan.settings.engine,
        prefill=figures.prefill,
        step_s=figures.engine.step_seconds,
        sequence_s=figures.engine.seconds_per_sequence,
        context_s=figures.engine.seconds_per_context_token,
        front_s=figures.engine.front_seconds,
        steal=figures.engine.steal,
    )
    host = plan.settings.host
    if host is not None and figures.host is not None:
        host = replace(host, load=figures.host, store=figures.host)
    settings = replace(plan.settings, engine=engine, host=host, concurrency=concurrency, pause_s=plan.pause_s)
    simulation = Simulation(settings, plan.make_cache(figures))
    simulation.keep_requests = True
    result = simulation.run(plan.requests)
    times = [r.first_token_s - r.arrival_s for r in simulation.requests if r.first_token_s is not None]
    hits = {tier.tier: tier.hit_tokens for tier in result.tiers}
    return _outcome(hits, times, result.duration_s)


def _play(base_url: str, plan: Plan, concurrency: int) -> Outcome:
    reset(base_url)
    before = scrape(base_url)
    started_s = time.perf_counter()
    played = replay(base_url, plan.requests, TokenSource(), concurrency=concurrency, pause_s=plan.pause_s)
    duration_s = time.perf_counter() - started_s
    after = _settled(base_url, before, sum(request.prompt_tokens for request in plan.requests))
    hits = {tier: round(growth(before, after, _CACHED, source=name) or 0) for tier, name in SOURCES.items()}
    return _outcome(hits, [one.ttft_s for one in played], duration_s)


def reset(base_url: str) -> None:
    """Empty the device's cache and the tiers. The server must run with VLLM_SERVER_DEV_MODE=1. Raises TargetError."""
    url = f"{base_url}/reset_prefix_cache?reset_external=true"
    request = urllib.request.Request(url, method="POST")  # noqa: S310 - the caller's own server
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            if response.status != 200:
                raise TargetError(f"{url} answered {response.status}")
    except (OSError, urllib.error.URLError) as error:
        fix = "start it with VLLM_SERVER_DEV_MODE=1"
        raise TargetError(f"{url} cannot be reached", why=str(error), fix=fix) from error
    time.sleep(1.0)  # slots of the old epoch come free with the next steps


def _settled(base_url: str, before: Scrape, prompt_tokens: int) -> Scrape:
    """Scrape until every request was counted: statistics lag behind the answers."""
    deadline_s = time.monotonic() + 20.0
    while True:
        after = scrape(base_url)
        if (growth(before, after, _BY_SOURCE) or 0) >= prompt_tokens or time.monotonic() > deadline_s:
            return after
        time.sleep(0.1)


def _outcome(hits: Mapping[str, int], times: Sequence[float], duration_s: float) -> Outcome:
    values = np.array(times)
    p50, p99 = np.quantile(values, [0.5, 0.99]).tolist()
    return Outcome(dict(hits), p50, p99, float(values.mean()), duration_s)


def compare(concurrency: int, server: Sequence[Outcome], simulator: Outcome) -> Comparison:
    """Return the simulator's errors against the runs' mean, and which of them are too large."""
    tiers = [tier for tier in simulator.hit_tokens if tier in SOURCES]
    hits_error = {}
    for tier in tiers:
        real = float(np.mean([run.hit_tokens[tier] for run in server]))
        hits_error[tier] = abs(simulator.hit_tokens[tier] - real) / real if real else float(simulator.hit_tokens[tier])
    p50, own_p50 = _errors([run.ttft_p50_s for run in server], simulator.ttft_p50_s)
    p99, own_p99 = _errors([run.ttft_p99_s for run in server], simulator.ttft_p99_s)
    failures = []
    allowed = 0.0 if concurrency == 1 else HITS_TOLERANCE
    for tier, error in hits_error.items():
        if error > allowed:
            failures.append(f"{concurrency} in flight: hits of {tier} differ by {error:.2%}, allowed {allowed:.0%}")
    for name, error, own, tolerance in (("p50", p50, own_p50, P50_TOLERANCE), ("p99", p99, own_p99, P99_TOLERANCE)):
        if error > max(tolerance, own):
            limit = max(tolerance, own)
            failures.append(f"{concurrency} in flight: TTFT {name} differs by {error:.1%}, allowed {limit:.1%}")
    return Comparison(concurrency, list(server), simulator, hits_error, p50, p99, own_p50, own_p99, failures)


def _errors(server: Sequence[float], simulator: float) -> tuple[float, float]:
    """Return the simulator's relative error against the mean, and the runs' own greatest difference."""
    mean = float(np.mean(server))
    return abs(simulator - mean) / mean, (max(server) - min(server)) / mean
