"""The simulator and production decide alike: recorded schedules, held against production's own drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_recorder import Call, RecordingCache, replay

from warmtier.config.assemble import Shape, assemble_cache
from warmtier.config.parse import parse_extra_config
from warmtier.core.types import Key, TierKind
from warmtier.policy.registry import create_policy, production_names
from warmtier.sim.run import Simulation, build_cache
from warmtier.sim.settings import ColdModel, EngineModel, HostModel, SimSettings
from warmtier.tiering.calibration import LinkSpeed, PrefillSpeed
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.trace.synth import SynthTrace

CHUNK = 16
FILE_CHUNKS = 250
FILE_BYTES = FILE_CHUNKS * CHUNK * 4096


def sim_settings(policy: str, *, cold: bool, blocks_per_chunk: int = 1) -> SimSettings:
    engine = EngineModel(
        100, CHUNK, PrefillSpeed(1e-4), max_num_batched_tokens=256, max_num_seqs=4, step_s=0.01, steal=0.1
    )
    tier = ColdModel(
        "file", TierKind.FILE, FILE_CHUNKS, policy, read=LinkSpeed(5e7, 0.002), write=LinkSpeed(5e7, 0.002)
    )
    host = HostModel(60, policy, load=LinkSpeed(1e8, 0.001), store=LinkSpeed(1e8, 0.001))
    return SimSettings(
        engine, host, (tier,) if cold else (), kv_bytes_per_token=4096 // blocks_per_chunk,
        blocks_per_chunk=blocks_per_chunk, concurrency=6,
    )  # fmt: skip


def trace(seed: int, requests: int = 60) -> SynthTrace:
    knobs = {"requests": requests, "seed": seed, "chunk_tokens": CHUNK, "live_sessions": 8, "start_tokens": 320}
    return SynthTrace("tight-device", {name: str(value) for name, value in (knobs | {"turn_tokens": 40}).items()})


def recording(made: SimSettings, policy: str) -> RecordingCache:
    assert made.host is not None
    config = CacheConfig(made.chunk_bytes, made.chunk_tokens, offload_prompt_only=False, events=False)
    cold = [
        ColdTier(tier.name, tier.kind, create_policy(policy, tier.chunks), tier.placement, deadline_cap_s=0.5)
        for tier in made.cold
    ]
    return RecordingCache(config, HostTier(create_policy(policy, made.host.chunks), made.host.chunks), cold)


def schedule(policy: str, seed: int, *, cold: bool, blocks_per_chunk: int = 1) -> tuple[SimSettings, list[Call]]:
    made = sim_settings(policy, cold=cold, blocks_per_chunk=blocks_per_chunk)
    cache = recording(made, policy)
    Simulation(made, cache).run(trace(seed))
    return made, cache.calls


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(production_names()), cold=st.booleans())
def test_production_cache_answers_as_the_simulated_one(seed: int, policy: str, cold: bool) -> None:
    """The cache that production assembles from its configuration gives the same answers, call by call."""
    made, calls = schedule(policy, seed, cold=cold)
    section: dict[str, Any] = {"host": {"capacity": "1GiB", "policy": policy}}
    if cold:
        file = {"directory": "/nowhere", "capacity": f"{FILE_BYTES}B", "policy": policy, "deadline": "500ms"}
        section["file"] = file | {"segment_size": "1MiB", "free_space_floor": "0B"}
    config = parse_extra_config(section)
    host_chunks = made.host.chunks if made.host is not None else 0
    shape = Shape(made.chunk_bytes, made.chunk_tokens, host_chunks, events=False)
    for number, (call, answer) in enumerate(replay(calls, assemble_cache(config, shape))):
        assert answer == call.answer, f"seed {seed}, {policy}: call {number}, {call.name} at {call.now}"
    names = [call.name for call in calls]
    assert names.count("lookup") > 30
    assert names.count("pin") > 3


def test_schedules_reach_every_kind_of_decision() -> None:
    seen: set[str] = set()
    for seed in range(4):
        _, calls = schedule("lru", seed, cold=True)
        for call in calls:
            seen.add(call.name)
            if call.name == "lookup":
                usable, pending, reason, by_tier = call.answer
                seen |= {f"usable {bool(usable)}", f"pending {pending}", f"reason {reason}", *map(str, by_tier)}
            elif call.name == "actions":
                seen |= {action[0] for action in call.answer}
    assert {"pin", "load_done", "Promote", "Demote", "Delete", "usable True", "pending True", "file", "host"} <= seen


@pytest.mark.parametrize("policy", production_names())
@pytest.mark.parametrize("blocks_per_chunk", [1, 2])
def test_vllm_manager_decides_as_the_simulator(policy: str, blocks_per_chunk: int) -> None:
    """The same schedule, chunk by chunk, through the manager that vLLM's scheduler talks to."""
    pytest.importorskip("vllm")
    from sim_manager_driver import ManagerDriver

    for seed in range(2):
        made, calls = schedule(policy, seed, cold=False, blocks_per_chunk=blocks_per_chunk)
        cache = recording(made, policy)
        driver = ManagerDriver(cache, made.chunk_tokens)
        compared = 0
        for call in calls:
            expected, found = driver.play(call)
            assert found == expected, f"seed {seed}: {call.name} of {call.request} at {call.now}"
            compared += expected is not None
        assert compared > 100


def test_same_seed_same_output_byte_for_byte() -> None:
    for policy in production_names():
        made = sim_settings(policy, cold=True)
        outputs = {msgspec.json.encode(Simulation(made).run(trace(7))) for _ in range(3)}
        assert len(outputs) == 1, policy


def test_output_does_not_depend_on_the_process(tmp_path: Path) -> None:
    """Hash seeds differ between processes; results must not."""
    import os
    import subprocess
    import sys

    script = tmp_path / "one.py"
    script.write_text(
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import msgspec\n"
        "from test_sim_agreement import sim_settings, trace\n"
        "from warmtier.sim.run import simulate\n"
        "print(msgspec.json.encode(simulate(sim_settings('evidence', cold=True), trace(3))).hex())\n"
    )
    here = str(Path(__file__).parent)
    outputs = {
        subprocess.run(
            [sys.executable, str(script), here],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_the_simulators_own_cache_is_the_production_class() -> None:
    made = sim_settings("lru", cold=True)
    assert made.host is not None
    cache = build_cache(made, made.host)
    assert type(cache).__module__ == "warmtier.tiering.cache"
    assert set(cache.stats().tiers) == {"host", "file"}
    assert Key(b"x") not in cache.state.index
