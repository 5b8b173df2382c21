"""Every knob reaches the part that acts on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmtier.config.assemble import FILE_TIER, Shape, assemble_cache, cache_config, open_file_store
from warmtier.config.parse import parse_extra_config
from warmtier.core.types import Key, Namespace, RequestId, StoreOutcome
from warmtier.policy.registry import production_names

SHAPE = Shape(part_bytes=4096, tokens_per_chunk=128, host_slots=4)


def offer(data: dict[str, object], keys: int = 1) -> dict[StoreOutcome, int]:
    cache = assemble_cache(parse_extra_config(data), SHAPE)
    names = [Key(bytes([index]) * 8) for index in range(keys)]
    request = cache.begin_request(RequestId("r"), 0.0, prompt_tokens=keys * 128)
    return cache.offer(request, names, 0, 0.0).outcomes


def test_a_host_tier_stores_what_it_is_offered() -> None:
    assert offer({"host": {"capacity": "1GiB"}}) == {StoreOutcome.STORED: 1}


@pytest.mark.parametrize(
    ("host", "outcome"),
    [
        ({"mode": "off"}, StoreOutcome.TIER_OFF),
        ({"admission": {"minimum_touches": 2}}, StoreOutcome.REFUSED_TOUCH),
        ({"admission": {"minimum_priority": 90}}, StoreOutcome.REFUSED_PRIORITY),
    ],
)
def test_modes_and_admission_act(host: dict[str, object], outcome: StoreOutcome) -> None:
    assert offer({"host": {"capacity": "1GiB", **host}}) == {outcome: 1}


@pytest.mark.parametrize("name", production_names())
def test_every_policy_can_be_named(name: str) -> None:
    cache = assemble_cache(parse_extra_config({"host": {"capacity": "1GiB", "policy": name}}), SHAPE)
    assert cache.stats().tiers["host"] is not None


def test_the_settings_of_the_whole_cache() -> None:
    config = parse_extra_config(
        {
            "host": {"capacity": "1GiB"},
            "loading": {"minimum_tokens": 256, "margin": 2.0, "pending_deadline": "100ms"},
            "hints": {"maximum_priority": 80, "maximum_duration": "1min"},
            "tenants": {"a": {"maximum": "1MiB", "reserved_share": 0.25}},
        }
    )
    settings = cache_config(config, SHAPE)
    assert (settings.host_min_tokens, settings.load_margin, settings.pending_deadline_s) == (256, 2.0, 0.1)
    assert (settings.hint_limits.max_priority, settings.hint_limits.max_duration_s) == (80, 60.0)
    assert (settings.quotas["a"].max_bytes, settings.quotas["a"].share) == (2**20, 0.25)


def test_a_file_tier_is_part_of_the_cache_and_has_a_store(tmp_path: Path) -> None:
    file = {"directory": str(tmp_path), "capacity": "64MiB", "segment_size": "8MiB", "free_space_floor": "1MiB"}
    config = parse_extra_config({"host": {"capacity": "1GiB"}, "file": file})
    assert config.file is not None
    assert FILE_TIER in assemble_cache(config, SHAPE).stats().tiers
    store = open_file_store(config.file, Namespace(b"n" * 16), chunk_bytes=4096, data_parallel_rank=0)
    try:
        assert list(store.open()) == []
        assert store.capacity_bytes == 64 * 2**20
        assert any(path.is_dir() for path in tmp_path.iterdir())
    finally:
        store.close()
