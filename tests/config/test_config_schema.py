"""The schema refuses what it does not know, and says where and what was meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.config.fields import write_duration, write_size
from warmtier.config.parse import dotted, nearest, parse_extra_config
from warmtier.config.schema import EngineConfig, WarmtierConfig, dump
from warmtier.core.errors import ConfigError
from warmtier.core.types import TierMode
from warmtier.core.units import parse_duration, parse_size


def test_the_smallest_configuration_is_a_host_capacity() -> None:
    config = parse_extra_config({"host": {"capacity": "16GiB"}})
    assert config.host.capacity == 16 * 2**30
    assert config.host.mode is TierMode.ON
    assert config.file is None


def test_dump_holds_what_was_given_and_parses_to_the_same() -> None:
    given_data = {
        "host": {"capacity": "3GiB", "mode": "observe"},
        "file": {"directory": "/mnt/kv", "capacity": "200GB", "deadline": "250ms"},
        "engine": {"log_interval": "90s"},
    }
    config = parse_extra_config(given_data)
    dumped = dump(config)
    assert parse_extra_config(json.loads(json.dumps(dumped))) == config
    assert set(dumped) == {"host", "file", "engine"}
    assert "policy" not in dumped["host"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("data", "place", "reason"),
    [
        ({"host": {"capacity": 16}}, "host.capacity", "has no unit"),
        ({"host": {"capacity": "16"}}, "host.capacity", "has no unit"),
        ({"host": {"capacity": "16Gb"}}, "host.capacity", "unknown unit"),
        ({"host": {"capcity": "1GiB", "capacity": "1GiB"}}, "host.capcity", "did you mean 'capacity'"),
        ({"host": {"capacity": "1GiB", "mode": "onn"}}, "host.mode", "not one of off, observe, canary, on"),
        ({"host": {"capacity": "1GiB"}, "fiel": {}}, "fiel", "did you mean 'file'"),
        ({}, "host", "missing"),
        ({"host": {"capacity": "1GiB"}, "file": {"directory": "kv", "capacity": "1GiB"}}, "file", "relative"),
        ({"host": {"capacity": "1GiB"}, "file": {"directory": "/k", "capacity": "1MiB"}}, "file", "two segments"),
        ({"host": {"capacity": "1GiB"}, "engine": {"on_unsupported": "of"}}, "engine.on_unsupported", "'off'"),
        ({"host": {"capacity": "1GiB", "admission": {"minimum_priority": 101}}}, "minimum_priority", "100"),
        ({"host": {"capacity": "1GiB"}, "tenants": {"a": {"reserved_share": 1.5}}}, "tenants.a.reserved_share", "less"),
        ({"host": {"capacity": "1GiB"}, "tenants": {"a": {"maximun": "1GiB"}}}, "tenants.a.maximun", "'maximum'"),
        ({"host": {"capacity": "1GiB", "policy": "lur"}}, "host.policy", "did you mean 'lru'"),
        ({"host": {"capacity": "1GiB"}, "loading": {"margin": "nan"}}, "loading.margin", "finite"),
    ],
)
def test_wrong_values_name_their_place_and_reason(data: dict[str, object], place: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_extra_config(data)
    assert place in str(caught.value)
    assert reason in str(caught.value)
    assert caught.value.exit_code == 2


def test_every_wrong_value_is_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_extra_config({"host": {"capacity": "1", "polcy": "lru"}, "loading": {"margn": 1}})
    text = str(caught.value)
    assert all(name in text for name in ("host.capacity", "host.polcy", "loading.margn"))


@pytest.mark.parametrize("data", [None, "16GiB", [], 5])
def test_something_else_than_an_object_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="expected an object"):
        parse_extra_config(data)


def test_the_engine_part_leaves_vllms_own_section_out() -> None:
    config = WarmtierConfig.model_validate({"host": {"capacity": "1GiB"}, "vllm": {"blocks_per_chunk": 4}})
    assert dump(config.engine_part()) == {"host": {"capacity": "1GiB"}}
    assert isinstance(config.engine_part(), EngineConfig)


@given(st.integers(min_value=0, max_value=2**60))
def test_sizes_are_written_exactly(size_bytes: int) -> None:
    assert parse_size(write_size(size_bytes)) == size_bytes


@given(st.integers(min_value=1, max_value=10**9))
def test_durations_are_written_exactly_to_the_microsecond(microseconds: int) -> None:
    assert parse_duration(write_duration(microseconds / 1e6)) == pytest.approx(microseconds / 1e6, rel=1e-6)


def test_names_and_paths() -> None:
    assert dotted(("tiers", 1, "policy")) == "tiers[1].policy"
    assert nearest("evicton-policy", ["eviction_policy", "capacity"]) == "eviction_policy"
    assert nearest("zzz", ["eviction_policy"]) is None
