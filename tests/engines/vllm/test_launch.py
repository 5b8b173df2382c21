"""The command that `warmtier serve` runs, built without vLLM."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from warmtier.config.load import load
from warmtier.config.schema import WarmtierConfig
from warmtier.core.errors import RequirementError
from warmtier.engines.vllm import launch


def config(**sections: dict[str, object]) -> WarmtierConfig:
    return WarmtierConfig.model_validate({"host": {"capacity": "4GiB"}, **sections})


def transfer(plan: launch.Plan) -> dict[str, object]:
    value = json.loads(plan.arguments[plan.arguments.index("--kv-transfer-config") + 1])
    assert isinstance(value, dict)
    return value


def test_the_users_arguments_come_first_and_unchanged() -> None:
    arguments = ["MODEL", "-tp", "2", "--host", "0.0.0.0", "--some-new-flag=1", "-O3"]  # noqa: S104 - only words here
    plan = launch.make_plan(config(), arguments, {})
    assert plan.arguments[: len(arguments) + 1] == ("serve", *arguments)
    assert plan.environment == {}
    assert "--prefix-caching-hash-algo" not in plan.arguments


def test_the_connector_is_vllms_own_with_our_spec() -> None:
    value = transfer(launch.make_plan(config(), ["MODEL"], {}))
    assert value["kv_connector"] == "OffloadingConnector"
    assert value["kv_role"] == "kv_both"
    extra = value["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["spec_module_path"] == "warmtier.engines.vllm.spec"
    assert extra["warmtier"] == {"host": {"capacity": "4GiB"}}


def test_the_thin_connector_needs_recompute() -> None:
    value = transfer(launch.make_plan(config(vllm={"connector": "warmtier"}), ["MODEL"], {}))
    assert value["kv_connector"] == "WarmtierConnector"
    assert value["kv_connector_module_path"] == "warmtier.engines.vllm.connector"
    assert value["kv_load_failure_policy"] == "recompute"


def test_the_plain_command_is_one_shell_line_with_the_same_words() -> None:
    plan = launch.make_plan(config(file={"directory": "/mnt/k v", "capacity": "9GiB"}), ["MODEL"], {})
    words = shlex.split(plan.plain_command())
    assert words[0] == "PYTHONHASHSEED=0"
    assert words[1:] == ["vllm", *plan.arguments]
    assert shlex.split(plan.module_command())[1:4] == ["python", "-m", launch.MODULE]


def test_a_cold_tier_needs_hashes_that_survive_a_restart() -> None:
    cold = config(file={"directory": "/mnt/kv", "capacity": "9GiB"})
    plan = launch.make_plan(cold, ["MODEL"], {})
    assert plan.arguments[-2:] == ("--prefix-caching-hash-algo", "sha256_cbor")
    assert plan.environment == {"PYTHONHASHSEED": "0"}
    chosen = launch.make_plan(cold, ["MODEL", "--prefix_caching_hash_algo=xxhash"], {"PYTHONHASHSEED": "7"})
    assert "sha256_cbor" not in chosen.arguments
    assert chosen.environment == {}


def test_the_chunk_size_follows_file_then_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256})
    )
    model = str(tmp_path)

    def chunk(value: WarmtierConfig, *arguments: str) -> object:
        extra = transfer(launch.make_plan(value, arguments, {}))["kv_connector_extra_config"]
        assert isinstance(extra, dict)
        return extra["blocks_per_chunk"]

    assert chunk(config(), model, "--block-size", "16") == 16
    assert chunk(config(), model, "--block-size", "128") == 4
    assert chunk(config(), "someone/model", "--block-size", "16") == 4
    assert chunk(config(vllm={"blocks_per_chunk": 3}), model, "--block-size", "16") == 3


def test_a_missing_vllm_is_a_requirement_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(RequirementError) as caught:
        launch.require_vllm()
    assert caught.value.exit_code == 3
    assert "pip install vllm" in str(caught.value.fix)


def test_flags_make_a_whole_configuration() -> None:
    flags = {"--host-tier": (("host", "capacity"), "4GiB")}
    assert load(None, {}, flags).config.engine_part() == config().engine_part()
