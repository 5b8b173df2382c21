from __future__ import annotations

from dataclasses import replace

import pytest
from trace_helpers import random_requests

from warmtier.core.errors import ConfigError, UsageError
from warmtier.core.types import TierKind
from warmtier.sim.run import Simulation, simulate
from warmtier.sim.settings import ColdModel, EngineModel, HostModel, SimSettings
from warmtier.tiering.calibration import LinkSpeed, PrefillSpeed
from warmtier.trace.schema import TraceRequest
from warmtier.trace.synth import SynthTrace

ENGINE = EngineModel(
    device_blocks=1000, block_tokens=4, prefill=PrefillSpeed(0.01, 0.001), max_num_batched_tokens=100, step_s=0.5,
    sequence_s=0.02, context_s=0.003, front_s=0.25,
)  # fmt: skip
INSTANT = LinkSpeed(1e12, 0.0)


def request(keys: list[int], output: int = 1, at: float = 0.0, extra: int = 0) -> TraceRequest:
    return TraceRequest(at, 4 * len(keys) + extra, output, keys, 4)


def run(settings: SimSettings, *requests: TraceRequest) -> Simulation:
    simulation = Simulation(settings)
    simulation.keep_requests = True
    simulation.run(requests)
    return simulation


def ttft(simulation: Simulation, number: int) -> float:
    made = simulation.requests[number]
    assert made.first_token_s is not None
    return made.first_token_s - made.arrival_s


def test_one_request_takes_what_the_model_says() -> None:
    simulation = run(SimSettings(ENGINE), request([1, 2], output=3, extra=1))
    prefill = 0.01 * 9 + 0.001 * 81 / 2
    assert ttft(simulation, 0) == pytest.approx(0.25 + 0.5 + prefill)
    decode = [0.5 + 0.02 + 0.003 * 9, 0.5 + 0.02 + 0.003 * 10]
    made = simulation.requests[0]
    assert made.done_s == pytest.approx(0.25 + 0.5 + prefill + sum(decode))
    assert simulation.measures.itl.count == 2


def test_long_prompts_are_computed_in_chunks_of_the_budget() -> None:
    simulation = run(SimSettings(ENGINE), request(list(range(60))))  # 240 tokens: three steps
    expected = 0.25 + 3 * 0.5 + PrefillSpeed(0.01, 0.001).seconds(0, 240)
    assert ttft(simulation, 0) == pytest.approx(expected)
    assert simulation.engine.steps == 3


def test_running_requests_go_before_waiting_ones() -> None:
    first, second = request(list(range(20)), output=5), request(list(range(100, 130)), at=0.1)
    simulation = run(SimSettings(ENGINE), first, second)
    # The second's 120 tokens share each step's budget of 100 with the first's decoding.
    assert simulation.requests[1].first_token_s is not None
    assert simulation.requests[1].first_token_s > simulation.requests[0].first_token_s  # type: ignore[operator]
    assert simulation.measures.requests == 2


def test_device_hits_need_no_computation_but_the_newest_token_does() -> None:
    simulation = run(replace_turns(SimSettings(ENGINE)), request([1, 2, 3]), request([1, 2, 3]))
    hit = simulation.requests[1]
    assert hit.hits == {"device": 8}, "the last block is computed again: a token must come from somewhere"
    assert ttft(simulation, 1) == pytest.approx(0.25 + 0.5 + PrefillSpeed(0.01, 0.001).seconds(8, 12))


def replace_turns(settings: SimSettings) -> SimSettings:
    return replace(settings, concurrency=1)


def test_evicted_prefixes_come_back_from_the_host() -> None:
    engine = replace(ENGINE, device_blocks=3)
    host = HostModel(100, load=LinkSpeed(40.0, 0.2), store=INSTANT)
    settings = SimSettings(engine, host, kv_bytes_per_token=1, concurrency=1)
    simulation = run(settings, request([1, 2, 3]), request([7, 8, 9]), request([1, 2, 3]))
    back = simulation.requests[2]
    assert back.hits == {"host": 12}
    # Submit, wait 0.2 + 12 / 40 s in empty steps of 1 ms, then compute the newest token.
    expected = 0.25 + 0.5 + 0.5 + PrefillSpeed(0.01, 0.001).seconds(11, 12)
    assert ttft(simulation, 2) == pytest.approx(expected, abs=0.003)


def test_cold_tier_serves_what_the_host_has_lost() -> None:
    engine = replace(ENGINE, device_blocks=3)
    cold = ColdModel("file", TierKind.FILE, 100, read=LinkSpeed(400.0, 0.1), write=INSTANT)
    settings = SimSettings(
        engine, HostModel(3, load=INSTANT, store=INSTANT), (cold,), kv_bytes_per_token=1, concurrency=1,
        cache={"static_min_tokens": 0}, pause_s=1.0,
    )  # fmt: skip
    simulation = run(settings, request([1, 2, 3]), request([7, 8, 9]), request([1, 2, 3]))
    back = simulation.requests[2]
    assert back.hits == {"file": 12}
    assert back.pending_s > 0.12
    assert simulation.measures.hit_blocks["file"] == 3


def test_requests_that_never_fit_are_refused_and_counted() -> None:
    result = simulate(SimSettings(replace(ENGINE, device_blocks=2)), [request([1, 2, 3]), request([1])])
    assert (result.refused, result.requests) == (1, 1)


def test_preemption_frees_blocks_and_everybody_ends() -> None:
    engine = replace(ENGINE, device_blocks=12, max_num_batched_tokens=1000)
    requests = [request([10 * i, 10 * i + 1], output=25) for i in range(4)]
    simulation = run(SimSettings(engine), *requests)
    assert simulation.measures.preemptions > 0
    assert all(made.emitted == 25 for made in simulation.requests)
    assert simulation.engine.pool.free_blocks == 12


def test_concurrent_stores_slow_the_step_down() -> None:
    slow = HostModel(100, load=INSTANT, store=LinkSpeed(10.0, 0.0))
    base = SimSettings(ENGINE, slow, kv_bytes_per_token=1)
    stealing = replace(base, engine=replace(ENGINE, steal=0.5))
    one, other = (run(s, request(list(range(10)), output=20)) for s in (base, stealing))
    # While the copy runs (4 s) a step takes half as long again.
    assert other.requests[0].done_s is not None
    assert one.requests[0].done_s is not None
    assert other.requests[0].done_s - one.requests[0].done_s == pytest.approx(4.0 / 3, rel=0.15)


def test_blocks_under_a_store_are_waited_for() -> None:
    engine = replace(ENGINE, device_blocks=4)
    settings = SimSettings(
        engine, HostModel(50, load=INSTANT, store=LinkSpeed(4.0, 0.0)), kv_bytes_per_token=1, concurrency=1
    )
    simulation = run(settings, request([1, 2, 3]), request([7, 8, 9]))
    assert simulation.measures.stalled_s > 1.0


@pytest.mark.parametrize("seed", range(4))
def test_steps_taken_together_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = SynthTrace("sessions", {"requests": "60", "seed": str(seed), "chunk_tokens": "4", "turn_tokens": "30"})
    settings = SimSettings(
        replace(ENGINE, prefill=PrefillSpeed(1e-3), step_s=0.01, sequence_s=1e-4, context_s=1e-6, device_blocks=4000),
        HostModel(500, load=LinkSpeed(1e6, 1e-4), store=LinkSpeed(1e6, 1e-4)), kv_bytes_per_token=8,
    )  # fmt: skip
    fast = simulate(settings, trace)
    monkeypatch.setattr("warmtier.sim.engine.MAX_REPEATS", 1)
    slow = simulate(settings, trace)
    assert fast.steps == pytest.approx(slow.steps, rel=0.02)
    assert fast.ttft["mean"] == pytest.approx(slow.ttft["mean"], rel=0.02)
    assert fast.e2e["mean"] == pytest.approx(slow.e2e["mean"], rel=0.005)
    assert fast.output_tokens == slow.output_tokens
    assert fast.token_hit_ratio == pytest.approx(slow.token_hit_ratio, abs=0.01)


def test_everything_ends_whatever_comes() -> None:
    for seed in range(12):
        trace = random_requests(seed, 80)
        engine = replace(ENGINE, device_blocks=60, step_s=0.01, max_num_seqs=3)
        cold = ColdModel("file", TierKind.FILE, 40, read=LinkSpeed(300.0, 0.01), write=LinkSpeed(200.0, 0.01))
        settings = SimSettings(engine, HostModel(25, policy="lru"), (cold,), kv_bytes_per_token=2)
        simulation = run(settings, *[r for r in trace if r.prompt_tokens])
        assert simulation.measures.requests + simulation.measures.refused == len(simulation.requests), f"seed {seed}"
        assert simulation.engine.pool.free_blocks == 60, f"seed {seed}"
        assert simulation.connector is not None
        assert not simulation.connector.busy, f"seed {seed}"


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="device_blocks"):
        replace(ENGINE, device_blocks=0)
    with pytest.raises(UsageError, match="chunks of 8 tokens"):
        simulate(SimSettings(ENGINE), [TraceRequest(0.0, 8, 1, [1], 8)])
