from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from trace_helpers import shared_trace

from warmtier.core.errors import ConfigError, UsageError
from warmtier.core.model import KNOWN_MODELS
from warmtier.sim import grid
from warmtier.sim.grid import GridCell, make_cells, read_journal, run_cell, run_grid
from warmtier.sim.result import SimResult
from warmtier.sim.run import simulate
from warmtier.sim.settings import EngineModel, HostModel, SimSettings
from warmtier.sim.specify import SimSpec, tier_chunks
from warmtier.tiering.calibration import (
    Calibration,
    EngineSpeed,
    LinkSpeed,
    PrefillSpeed,
    decode_calibration,
    encode_calibration,
)
from warmtier.trace.readers import ReadOptions, open_trace
from warmtier.trace.schema import TraceRequest
from warmtier.trace.synth import SynthTrace
from warmtier.trace.writer import write_trace

SPEC = SimSpec(device_tokens=2000, host_tier="100chunks", model="smollm2-135m", achieved_flops=1e11)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    write_trace(SynthTrace("sessions", {"requests": "80", "chunk_tokens": "64"}), path)
    return path


def test_grid_is_the_product_and_its_journal_goes_on(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = make_cells([trace], ReadOptions(), SPEC, {"policy": ["lru", "evidence"], "touches": [1, 2]})
    assert len({cell.digest for cell in cells}) == 4
    journal = trace.with_suffix(".journal")
    first = dict(run_grid(cells[:3], 1, journal))
    ran: list[GridCell] = []

    def count(cell: GridCell) -> SimResult:
        ran.append(cell)
        return run_cell(cell)

    monkeypatch.setattr(grid, "run_cell", count)
    whole = dict(run_grid(cells, 1, journal))
    assert ran == cells[3:], "finished cells are not run again"
    assert {i: whole[i] for i in first} == first
    assert len(read_journal(journal)) == 4


def test_cut_journals_go_on_and_foreign_ones_are_refused(trace: Path) -> None:
    cells = make_cells([trace], ReadOptions(), SPEC, {"policy": ["lru", "index"]})
    journal = trace.with_suffix(".journal")
    list(run_grid(cells, 1, journal))
    journal.write_bytes(journal.read_bytes()[:-20])  # killed while writing
    assert len(read_journal(journal)) == 1
    list(run_grid(cells, 1, journal))
    assert len(read_journal(journal)) == 2
    journal.write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(UsageError, match=r"journal:1: not a line of a sweep"):
        read_journal(journal)


def test_changed_traces_and_settings_are_other_cells(trace: Path) -> None:
    (one,) = make_cells([trace], ReadOptions(), SPEC, {})
    (other,) = make_cells([trace], ReadOptions(), replace(SPEC, touches=2), {})
    (coarse,) = make_cells([trace], ReadOptions(chunk_tokens=128), SPEC, {})
    write_trace(SynthTrace("sessions", {"requests": "81", "chunk_tokens": "64"}), trace)
    (longer,) = make_cells([trace], ReadOptions(), SPEC, {})
    assert len({one.digest, other.digest, coarse.digest, longer.digest}) == 4


def test_processes_find_the_same(trace: Path) -> None:
    cells = make_cells([trace], ReadOptions(), SPEC, {"policy": ["lru", "evidence"]})
    alone, together = dict(run_grid(cells, 1, None)), dict(run_grid(cells, 2, None))
    assert msgspec.json.encode([alone[i] for i in range(2)]) == msgspec.json.encode([together[i] for i in range(2)])


# --- what the command line says ---


def test_sizes_of_tiers() -> None:
    assert tier_chunks("--host-tier", "none", 100) is None
    assert tier_chunks("--host-tier", "12chunks", 0) == 12
    assert tier_chunks("--host-tier", "1KiB", 100) == 10
    for size, chunk, reason in (("1KiB", 0, "not known"), ("50B", 100, "no chunk"), ("0chunks", 1, "not a size")):
        with pytest.raises(UsageError, match=reason):
            tier_chunks("--host-tier", size, chunk)


def test_speeds_come_from_the_calibration_or_the_model() -> None:
    shape = KNOWN_MODELS["smollm2-135m"]
    assumed = SPEC.settings(64).engine
    assert assumed.prefill.seconds(0, 1000) == pytest.approx(shape.flops(0, 1000) / 1e11, rel=1e-3)
    links = {"host": LinkSpeed(7.0), "file": LinkSpeed(9.0)}
    known = Calibration(1, PrefillSpeed(0.5, 0.25), links, EngineSpeed(0.125, front_seconds=2.0, steal=0.75))
    text = encode_calibration(known).decode()
    assert decode_calibration(text) == known
    made = replace(SPEC, calibration=text, file_tier="10chunks").settings(64)
    assert made.engine.prefill == known.prefill
    assert (made.engine.step_s, made.engine.front_s, made.engine.steal) == (0.125, 2.0, 0.75)
    assert made.host is not None
    assert made.host.load == links["host"]
    assert made.cold[0].read == links["file"]
    assert made.calibration == known


def test_incomplete_words_are_refused() -> None:
    for changes, reason in (
        ({"achieved_flops": None}, "speed of prefill"),
        ({"placement": "sideways"}, "placement"),
        ({"host_tier": "none"}, "needs a host tier"),
        ({"host_link": "0B/s"}, "above 0"),
        ({"model": "gpt-9"}, "not known"),
    ):
        given = {"file_tier": "10chunks", **changes}
        with pytest.raises(UsageError, match=reason):
            replace(SPEC, **given).settings(64)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="engine times"):
        decode_calibration(encode_calibration(Calibration(1, PrefillSpeed(1.0), {}, EngineSpeed(-1.0))))


def test_ceiling_of_a_public_trace_is_reached_with_room_for_everything() -> None:
    """Requests one by one through an endless host tier: hits are those of an infinite cache."""
    opened = open_trace(shared_trace("mooncake_conversation_trace.jsonl.gz")).trace
    requests = [TraceRequest(r.arrival_s, r.prompt_tokens, 1, r.keys, 512, r.partial_tail) for r in list(opened)[:4000]]
    seen: set[int] = set()
    hits = 0
    for request in requests:
        known = next((i for i, key in enumerate(request.full_keys) if key not in seen), len(request.full_keys))
        hits += 512 * known
        seen.update(request.full_keys)
    fast = LinkSpeed(1e15)
    engine = EngineModel(300, 512, PrefillSpeed(1e-9), max_num_batched_tokens=1 << 20, step_s=1e-6, idle_step_s=1e-6)
    model = KNOWN_MODELS["qwen3-8b"]
    made = SimSettings(engine, HostModel(200_000, load=fast, store=fast), model=model, concurrency=1, pause_s=0.001)
    result = simulate(made, requests)
    found = sum(tier.hit_tokens for tier in result.tiers)
    # A prompt that is known to its last token computes that one anew: at most a block, on the device.
    assert hits - 512 * 40 <= found <= hits
    assert result.refused == 0
    assert result.flop_hit_ratio is not None
    assert result.flop_hit_ratio < result.token_hit_ratio, "known tokens come first, and early tokens are cheap"
