"""The manager behind vLLM's own scheduler-side connector, with one KV group and with several."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.kv_offload.base import LookupResult
from vllm_mini_engine import BLOCK_TOKENS, MiniEngine

from warmtier.core.types import MissReason, StoreOutcome
from warmtier.engines.vllm.metrics import metric_definitions
from warmtier.tiering.types import TierCounters

SEED = 4
COLD_ONLY = {
    "warmtier_queued_jobs",
    "warmtier_medium_written_bytes",
    "warmtier_store_busy_seconds",
    "warmtier_breaker_trips",
    "warmtier_promotion_chunks",
}


def _tokens(seed: int, blocks: int, extra: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(blocks * BLOCK_TOKENS + extra)]


def _counters(engine: MiniEngine) -> TierCounters:
    counters: TierCounters = engine.cache.stats().tiers["host"].counters
    return counters


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("blocks_per_chunk", [1, 4])
def test_a_prefix_comes_back_byte_for_byte(tmp_path: Path, groups: int, blocks_per_chunk: int) -> None:
    engine = MiniEngine(tmp_path, groups=groups, blocks_per_chunk=blocks_per_chunk)
    prompt = _tokens(1, 9)
    whole = 9 // blocks_per_chunk
    cold = engine.serve(prompt)
    assert (cold.loaded_tokens, cold.stored_keys) == (0, whole * groups)
    warm = engine.serve(prompt)
    assert warm.loaded_tokens == whole * blocks_per_chunk * BLOCK_TOKENS
    assert warm.stored_keys == 0
    longer = engine.serve([*prompt[:-1], *_tokens(2, 4)])
    assert longer.loaded_tokens == warm.loaded_tokens
    assert _counters(engine).hits == 2 * whole * groups


@pytest.mark.parametrize("groups", [1, 2])
def test_a_device_hit_inside_a_chunk_loads_the_rest_of_it(tmp_path: Path, groups: int) -> None:
    engine = MiniEngine(tmp_path, groups=groups, blocks_per_chunk=4)
    prompt = _tokens(3, 12)
    engine.serve(prompt)
    for device_blocks in range(12):
        served = engine.serve(prompt, device_blocks=device_blocks)
        rest = 12 - device_blocks
        assert served.loaded_tokens == (rest * BLOCK_TOKENS if rest >= 4 else 0)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_whole_device_hit_asks_nothing_and_stores_what_is_missing(tmp_path: Path, groups: int) -> None:
    engine = MiniEngine(tmp_path, groups=groups)
    prompt = _tokens(4, 6)
    served = engine.serve(prompt, device_blocks=6)
    assert (served.loaded_tokens, served.stored_keys) == (0, 6 * groups)
    again = engine.serve(prompt, device_blocks=6)
    assert again.stored_keys == 0
    assert engine.serve(prompt).loaded_tokens == 6 * BLOCK_TOKENS


@pytest.mark.parametrize("groups", [1, 2])
def test_random_traffic_over_a_small_tier_is_served_right_and_evicts_whole_chunks(tmp_path: Path, groups: int) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    engine = MiniEngine(tmp_path, groups=groups, blocks_per_chunk=2, slots=24, device_blocks=400)
    heads = [_tokens(100 + head, 6, 0) for head in range(4)]
    loaded = 0
    for turn in range(120):
        prompt = rng.choice(heads) + _tokens(rng.randrange(8), rng.randrange(1, 8), rng.randrange(1, 4))
        prompt = prompt[: rng.randrange(BLOCK_TOKENS, len(prompt))]
        hit = rng.choice([0, 0, rng.randrange(len(prompt) // BLOCK_TOKENS)])
        loaded += engine.serve(prompt, device_blocks=hit).loaded_tokens
        stats = engine.cache.stats().tiers["host"]
        assert stats.resident <= 24, turn
        assert stats.reading == stats.writing == 0
    assert loaded > 0
    assert _counters(engine).evictions > 0
    assert not engine.manager._requests
    assert not engine.manager._storing


def test_a_tier_smaller_than_one_prompt_keeps_its_head_and_says_why_not_more(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path, slots=5)
    prompt = _tokens(5, 12)
    engine.serve(prompt)
    assert engine.serve(prompt).loaded_tokens == 5 * BLOCK_TOKENS
    stores = _counters(engine).stores
    assert stores[StoreOutcome.STORED] == 5
    refused = sum(stores.get(reason, 0) for reason in (StoreOutcome.NO_ROOM, StoreOutcome.REFUSED_POLICY))
    assert refused >= 7
    assert _counters(engine).misses[MissReason.ABSENT] >= 7


def test_a_chunk_being_stored_defers_the_next_request_until_it_is_there(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(6, 5)
    first = engine.request(prompt)
    engine.connector.on_new_request(first)
    engine.match(first)
    blocks = engine.allocate(first)
    engine.compute(first, blocks, 0)
    second = engine.request(prompt)
    engine.connector.on_new_request(second)
    matched, deferred = engine.match(second)
    assert (matched, deferred) == (5 * BLOCK_TOKENS, 1)
    engine.finish(first, blocks)


def test_a_request_never_waits_longer_than_the_deadline(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path, settings={"loading": {"pending_deadline": "35ms"}})
    prompt = _tokens(7, 5)
    first = engine.request(prompt)
    engine.connector.on_new_request(first)
    engine.match(first)
    engine.compute(first, engine.allocate(first), 0)
    engine.pending_stores = {}  # the worker never does it
    second = engine.request(prompt)
    engine.connector.on_new_request(second)
    matched, deferred = engine.match(second)
    assert matched == 0
    assert deferred == 4
    assert _counters(engine).misses[MissReason.PENDING_DEADLINE] == 5


def test_while_a_request_is_deferred_a_step_costs_two_questions(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(8, 50)
    first = engine.request(prompt)
    engine.connector.on_new_request(first)
    engine.match(first)
    engine.compute(first, engine.allocate(first), 0)
    second = engine.request(prompt)
    engine.connector.on_new_request(second)
    asked: list[LookupResult] = []
    lookup = engine.manager.lookup

    def counting(key: Any, context: Any) -> LookupResult:
        asked.append(lookup(key, context))
        return asked[-1]

    engine.manager.lookup = counting
    assert engine.connector.get_num_new_matched_tokens(second, 0)[0] is None
    assert asked == [LookupResult.HIT_PENDING, LookupResult.MISS]


def test_the_cache_is_asked_once_per_request_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(9, 20)
    engine.serve(prompt)
    calls = 0
    lookup = engine.cache.lookup

    def counting(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return lookup(*arguments)

    monkeypatch.setattr(engine.cache, "lookup", counting)
    assert engine.serve(prompt).loaded_tokens == 20 * BLOCK_TOKENS
    assert calls == 1


@pytest.mark.parametrize("groups", [1, 2])
def test_a_corrupt_chunk_is_recomputed_and_forgotten(tmp_path: Path, groups: int) -> None:
    engine = MiniEngine(tmp_path, groups=groups, contained=True)
    prompt = _tokens(10, 6)
    engine.serve(prompt)
    slot = int(next(s for s in range(engine.slots) if engine.slab.digests[s].any()))
    engine.slab.blocks[slot] ^= 0xFF
    request = engine.request(prompt)
    engine.connector.on_new_request(request)
    matched, _ = engine.match(request)
    blocks = engine.allocate(request)
    engine.load(request, blocks, 0, matched)
    assert engine.failed_requests == {request.request_id}
    again, _ = engine.match(request)
    assert again < matched
    engine.finish(request, blocks)
    assert engine.manager._corrupt == 1
    assert engine.serve(prompt).loaded_tokens < 6 * BLOCK_TOKENS
    engine.serve(prompt)
    assert engine.serve(prompt).loaded_tokens == 6 * BLOCK_TOKENS


def test_a_failed_store_is_not_offered_to_anyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(11, 6)

    def failing(*_: int) -> None:
        raise OSError("injected")

    with monkeypatch.context() as patch:
        patch.setattr(engine.worker._copier, "store", failing)
        engine.serve(prompt)
    assert _counters(engine).stores[StoreOutcome.FAILED] == 6
    assert engine.serve(prompt).loaded_tokens == 0
    assert engine.serve(prompt).loaded_tokens == 6 * BLOCK_TOKENS


def test_an_abort_during_a_load_frees_everything(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(12, 6)
    engine.serve(prompt)
    request = engine.request(prompt)
    engine.connector.on_new_request(request)
    matched, _ = engine.match(request)
    blocks = engine.allocate(request)
    engine.start_load(request, blocks, 0, matched)
    engine.finish(request, blocks, aborted=True)
    engine.idle()
    assert not engine.manager._requests
    assert engine.cache.stats().tiers["host"].reading == 0
    assert engine.serve(prompt).loaded_tokens == 6 * BLOCK_TOKENS


@pytest.mark.parametrize("loading", [False, True])
def test_reset_forgets_all_and_gives_every_slot_back(tmp_path: Path, loading: bool) -> None:
    engine = MiniEngine(tmp_path, slots=6)
    prompt = _tokens(13, 6)
    engine.serve(prompt)
    request = engine.request(prompt)
    engine.connector.on_new_request(request)
    matched, _ = engine.match(request)
    blocks = engine.allocate(request)
    if loading:
        engine.start_load(request, blocks, 0, matched)
        engine.connector.build_connector_meta(_empty_output())  # submitted, not reported yet
    engine.connector.reset_cache()
    assert engine.cache.stats().tiers["host"].resident == 0
    engine.idle()
    engine.finish(request, blocks)
    assert engine.serve(prompt).loaded_tokens == 0
    assert engine.serve(prompt).loaded_tokens == 6 * BLOCK_TOKENS
    assert not engine.manager._orphaned_loads


def test_reset_during_a_store_never_serves_it_and_frees_its_slots(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path, slots=6)
    request = engine.request(_tokens(14, 6))
    engine.connector.on_new_request(request)
    engine.match(request)
    blocks = engine.allocate(request)
    engine.compute(request, blocks, 0)
    engine.connector.reset_cache()
    engine.finish(request, blocks)
    engine.idle()
    other = _tokens(15, 6)
    engine.serve(other)
    assert engine.serve(other).loaded_tokens == 6 * BLOCK_TOKENS


def _empty_output() -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={},
        finished_req_ids=set(),
        preempted_req_ids=None,
        kv_cache_block_copies=None,
        kv_connector_block_state=None,
    )


def test_vllms_own_switches_keep_working(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(16, 8)
    assert engine.serve(prompt, max_offload_tokens=3 * BLOCK_TOKENS).stored_keys == 3
    assert engine.serve(prompt, max_load_tokens=0).loaded_tokens == 0
    assert engine.serve(prompt, max_load_tokens=2 * BLOCK_TOKENS + 1).loaded_tokens == 2 * BLOCK_TOKENS


def test_metrics_show_zero_first_and_then_what_changed(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    assert engine.manager.has_pending_work()
    values = _values(engine.manager.get_stats())
    assert not engine.manager.has_pending_work()
    assert values["warmtier_hit_chunks"] == {("host",): 0.0}
    assert set(values["warmtier_miss_chunks"]) == {("host", reason.value) for reason in MissReason}
    assert set(values["warmtier_store_chunks"]) == {("host", outcome.value) for outcome in StoreOutcome}
    assert set(metric_definitions()) - set(values) == COLD_ONLY
    assert engine.manager.get_stats() is None
    seen: dict[str, float] = {}
    get_stats = engine.manager.get_stats

    def noting() -> Any:
        stats = get_stats()
        for name, series in (_values(stats) if stats else {}).items():
            seen[name] = seen.get(name, 0) + sum(v for v in series.values() if not isinstance(v, list))
        return stats

    engine.manager.get_stats = noting
    prompt = _tokens(20, 6)
    engine.serve(prompt)
    engine.serve(prompt)
    assert (seen["warmtier_hit_chunks"], seen["warmtier_miss_chunks"]) == (6, 6)


def _values(stats: Any) -> dict[str, dict[tuple[str, ...], Any]]:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import _StatsKey

    values: dict[str, dict[tuple[str, ...], Any]] = stats.data[_StatsKey.DATA]
    return values


def test_events_name_what_came_and_went(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path, slots=4)
    engine.serve(_tokens(17, 4))
    engine.serve(_tokens(18, 4))
    engine.serve(_tokens(18, 4))
    events = list(engine.manager.take_events())
    stored = {key for event in events if not event.removed for key in event.keys}
    removed = {key for event in events if event.removed for key in event.keys}
    assert removed
    assert removed < stored


def test_the_status_line_says_what_happened_and_is_silent_otherwise(tmp_path: Path) -> None:
    engine = MiniEngine(tmp_path)
    prompt = _tokens(19, 6)
    engine.serve(prompt)
    engine.serve(prompt)
    engine.now += 60
    engine.step()
    (line,) = engine.lines
    assert "6 chunks hit" in line
    assert "6 missed (absent 6)" in line
    assert "6 stored" in line
    engine.now += 60
    engine.step()
    assert len(engine.lines) == 1
