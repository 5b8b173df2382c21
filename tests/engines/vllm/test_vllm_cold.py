"""The manager with a file tier, behind vLLM's own scheduler-side connector: real stores, real threads, no server."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from vllm.v1.kv_offload.base import Locality, Medium, ScheduleEndContext
from vllm_mini_engine import BLOCK_TOKENS, MiniEngine, cold_engine, fill, tokens

from warmtier.core.types import StoreOutcome, TierMode
from warmtier.store.file.io import Directory
from warmtier.store.file.lock import DirectoryLock
from warmtier.store.file.store import engine_directory

SEED = 11


def test_a_prefix_that_the_host_gave_up_comes_back_from_the_file_tier(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path)
    fill(engine, range(4))
    assert engine.cache.stats().tiers["host"].counters.evictions > 0
    warm = engine.serve(tokens(0, 6))
    assert warm.loaded_tokens == 6 * BLOCK_TOKENS
    assert warm.deferred_steps >= 1
    stats = engine.cache.stats().tiers["file"]
    assert stats.counters.hits == 6
    assert stats.counters.promotions == 6
    assert stats.counters.stores[StoreOutcome.STORED] >= 24
    engine.close()


def test_an_idle_engine_steps_until_what_it_knows_is_told(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path, opened=False)
    deadline = time.monotonic() + 20
    modes = []
    while engine.manager.has_pending_work():
        assert time.monotonic() < deadline
        engine.manager.on_schedule_end(ScheduleEndContext((), ()))
        stats = engine.manager.get_stats()
        modes += [stats.data["data"].get("warmtier_tier_mode", {}).get(("file",))] if stats else []
        time.sleep(0.001)
    assert [mode for mode in modes if mode is not None] == [0, 3]
    engine.close()


def test_a_restart_finds_what_the_engine_before_stored(tmp_path: Path) -> None:
    first = cold_engine(tmp_path, "first")
    fill(first, range(3))
    first.close()
    second = cold_engine(tmp_path, "second")
    assert second.cache.stats().tiers["file"].resident == 18
    assert second.serve(tokens(1, 6)).loaded_tokens == 6 * BLOCK_TOKENS
    second.close()


def test_other_weights_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cold_engine(tmp_path, "first")
    fill(first, range(2))
    first.close()
    import vllm_mini_engine

    monkeypatch.setitem(vllm_mini_engine.FACTS, "weights", "others")
    second = cold_engine(tmp_path, "second")
    assert second.cache.stats().tiers["file"].resident == 0
    assert second.serve(tokens(1, 6)).loaded_tokens == 0
    second.close()


def test_a_reset_reaches_the_file_tier_and_what_follows_is_not_found_by_the_next_start(tmp_path: Path) -> None:
    first = cold_engine(tmp_path, "first")
    fill(first, range(3))
    first.manager.reset_cache()
    first.idle()
    assert first.serve(tokens(0, 6)).loaded_tokens == 0
    assert first.serve(tokens(0, 6)).loaded_tokens == 6 * BLOCK_TOKENS
    fill(first, range(10, 13))
    assert first.serve(tokens(0, 6)).loaded_tokens == 6 * BLOCK_TOKENS, "the new epoch has a file tier as well"
    first.close()
    second = cold_engine(tmp_path, "second")
    assert second.cache.stats().tiers["file"].resident == 0
    second.close()


def test_a_reset_before_the_store_is_open_hides_what_it_holds(tmp_path: Path) -> None:
    first = cold_engine(tmp_path, "first")
    fill(first, range(3))
    first.close()
    second = cold_engine(tmp_path, "second", opened=False)
    second.manager.reset_cache()
    second.open_cold()
    assert second.cache.stats().tiers["file"].resident == 0
    assert second.serve(tokens(1, 6)).loaded_tokens == 0
    second.close()


def test_a_locked_directory_turns_the_tier_off_until_the_lock_is_free(
    tmp_path: Path,
) -> None:
    directory = engine_directory(tmp_path / "kv", 0)
    directory.mkdir(parents=True)
    opened = Directory(directory)
    lock = DirectoryLock(opened)
    engine = cold_engine(tmp_path, opened=False)
    assert engine.cold is not None
    for tier in engine.cold._tiers.values():
        tier.keeper._retry_s = {True: 0.05, False: 0.05}
    deadline = time.monotonic() + 10
    while "in use" not in (engine.cold.waiting_for()["file"] or ""):
        assert time.monotonic() < deadline
        engine.manager.has_pending_work()
        time.sleep(0.005)
    assert engine.cache.stats().tiers["file"].mode is TierMode.OFF
    engine.manager.get_stats()
    assert not engine.manager.has_pending_work(), "an idle engine does not step for a lock"
    fill(engine, range(2))
    assert engine.serve(tokens(1, 6)).loaded_tokens == 6 * BLOCK_TOKENS, "the host tier serves meanwhile"
    lock.release()
    engine.open_cold()
    engine.close()
    opened.close()


def test_events_name_the_medium_and_the_tier(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path)
    fill(engine, range(3))
    events = list(engine.manager.take_events())
    file = [event for event in events if event.ownership == "file"]
    assert sum(len(event.keys) for event in file if not event.removed) == 18
    assert {(event.medium, event.locality) for event in file} == {(Medium.STORAGE, Locality.LOCAL)}
    host = [event for event in events if event.ownership is None]
    assert {(event.medium, event.locality) for event in host} == {(Medium.CPU, None)}
    assert any(event.removed for event in host)
    engine.close()


def test_the_engines_own_request_parameters_keep_working(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path)
    fill(engine, range(4))
    host_only = [{"medium": "CPU", "locality": "LOCAL"}]
    assert engine.serve(tokens(0, 6), kv_load_tiers=host_only).loaded_tokens == 0
    engine = _refilled(engine)
    assert engine.serve(tokens(0, 6), max_load_tokens=0).loaded_tokens == 0
    engine = _refilled(engine)
    disk = [{"medium": "STORAGE"}]
    assert engine.serve(tokens(0, 6), kv_load_tiers=disk).loaded_tokens == 6 * BLOCK_TOKENS
    before = engine.cache.stats().tiers["file"].resident
    assert engine.serve(tokens(50, 6), max_offload_tokens=0).stored_keys == 0
    engine.idle()
    assert engine.cache.stats().tiers["file"].resident == before
    engine.close()


def _refilled(engine: MiniEngine) -> MiniEngine:
    """Push what was just served out of the host tier."""
    fill(engine, range(1, 4))
    return engine


def test_hints_reach_the_tiers_and_bad_ones_are_counted(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path)
    fill(engine, range(4))
    assert engine.serve(tokens(0, 6), warmtier={"no_load": True}).loaded_tokens == 0
    assert engine.serve(tokens(60, 6), warmtier={"no_store": True}).stored_keys == 0
    assert engine.serve(tokens(61, 6), warmtier={"no_stroe": True}).stored_keys == 6
    assert engine.manager._tracker.figures.invalid_hints == 1
    engine.close()


def test_the_engines_store_threshold_holds_for_every_tier(tmp_path: Path) -> None:
    engine = cold_engine(tmp_path, extra={"store_threshold": 2})
    assert engine.serve(tokens(0, 6)).stored_keys == 0
    assert engine.serve(tokens(0, 6)).stored_keys == 6
    engine.idle()
    assert engine.cache.stats().tiers["file"].resident == 6
    engine.close()


def test_random_traffic_over_both_tiers_is_served_right(tmp_path: Path) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    engine = cold_engine(tmp_path, slots=24, blocks_per_chunk=2, device_blocks=400)
    heads = [tokens(100 + head, 6, 0) for head in range(6)]
    loaded = 0
    for turn in range(100):
        if turn in (40, 70):
            engine.manager.reset_cache()
            engine.idle()
        prompt = rng.choice(heads) + tokens(rng.randrange(8), rng.randrange(1, 8), rng.randrange(1, 4))
        hit = rng.choice([0, 0, rng.randrange(6)])
        loaded += engine.serve(prompt, device_blocks=hit).loaded_tokens
    engine.idle()
    stats = engine.cache.stats()
    assert loaded > 0
    assert stats.tiers["file"].counters.hits > 0
    assert stats.jobs == 0
    assert not engine.manager._requests
    assert engine.cold is not None
    assert not engine.cold._slots
    assert not engine.cold._writes
    engine.close()
