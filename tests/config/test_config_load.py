"""Default < file < environment < flag, each value with its source, each error with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmtier.config.load import load
from warmtier.core.errors import ConfigError

HOST_FLAG = {"--host-tier": (("host", "capacity"), "1GiB")}


def write(directory: Path, text: str) -> Path:
    file = directory / "kv.yaml"
    file.write_text(text)
    return file


def test_later_sources_win_key_by_key(tmp_path: Path) -> None:
    file = write(tmp_path, "host:\n  capacity: 16GiB\n  policy: evidence\nengine:\n  log_interval: 5s\n")
    environ = {"WARMTIER_HOST__POLICY": "lru", "WARMTIER_ENGINE__VERIFY": "always", "UNRELATED": "1"}
    loaded = load(file, environ, {"--host-tier": (("host", "capacity"), "2GiB")})
    assert loaded.config.host.capacity == 2 * 2**30
    assert loaded.config.host.policy == "lru"
    assert loaded.source("host", "capacity") == "--host-tier"
    assert loaded.source("host", "policy") == "WARMTIER_HOST__POLICY"
    assert loaded.source("engine", "log_interval") == f"{file}:5:3"
    assert loaded.source("engine", "verify") == "WARMTIER_ENGINE__VERIFY"
    assert loaded.source("host", "mode") == "default"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:\n  capacity: 1GiB\n  evicton: lru\n", ":3:3 host.evicton: unknown key"),
        ("host:\n  capacity: 16\n", ":2:3 host.capacity: 16 has no unit"),
        ("host: {capacity: 1GiB}\nhost: {capacity: 2GiB}\n", ":2:1 host: given twice"),
        ("host:\n  capacity: [1\n", "not YAML"),
        ("- host\n", ":1:1: expected sections"),
        ("host: 5GiB\n", ":1:1 host"),
        ("host: &a\n  capacity: 1GiB\n  admission: *a\n", "nested too deeply"),
        ("host:\n  capacity: !!python/object:os.system 1\n", ":2:13: not a value"),
    ],
)
def test_errors_in_the_file_name_line_and_column(tmp_path: Path, text: str, expected: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert expected in str(caught.value)
    assert str(file) in str(caught.value)


def test_errors_in_the_environment_name_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"WARMTIER_HOST__CAPCITY host\.capcity: unknown key"):
        load(None, {"WARMTIER_HOST__CAPCITY": "1GiB"}, HOST_FLAG)
    with pytest.raises(ConfigError, match="WARMTIER_HSOT__CAPACITY hsot"):
        load(None, {"WARMTIER_HSOT__CAPACITY": "1GiB"}, HOST_FLAG)


def test_errors_in_a_flag_name_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"--host-tier host\.capacity: '5'"):
        load(None, {}, {"--host-tier": (("host", "capacity"), "5")})


def test_variables_without_a_section_are_not_configuration() -> None:
    assert load(None, {"WARMTIER_DEBUG": "1"}, HOST_FLAG).config.host.capacity == 2**30


def test_structured_variables_are_yaml() -> None:
    environ = {"WARMTIER_TENANTS": "{a: {maximum: 1MiB}}", "WARMTIER_TENANTS__B": "{reserved_share: 0.25}"}
    with pytest.raises(ConfigError, match="WARMTIER_TENANTS__C"):
        load(None, {"WARMTIER_TENANTS__C": "{reserved_share: 0.25"}, HOST_FLAG)
    loaded = load(None, environ, HOST_FLAG)
    assert set(loaded.config.tenants) == {"b"}, "a variable without `__` is not configuration"
    assert loaded.config.tenants["b"].reserved_share == 0.25


def test_nothing_given_says_what_to_give() -> None:
    with pytest.raises(ConfigError, match="--host-tier SIZE"):
        load()


def test_an_empty_file_is_no_error_by_itself(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing\n"), {}, HOST_FLAG).config.host.capacity == 2**30


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "absent.yaml")
