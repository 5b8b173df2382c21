from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from vllm.v1.kv_offload import base
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm_mini_engine import offloading_config

from warmtier.core.errors import ConfigError, InternalError, UnsupportedError
from warmtier.engines.vllm.connector import WarmtierConnector
from warmtier.engines.vllm.down import DownManager, DownWorker
from warmtier.engines.vllm.identity import weights_identity
from warmtier.engines.vllm.plugin import register
from warmtier.engines.vllm.spec import WarmtierSpec
from warmtier.engines.vllm.support import engine_problems, setup_problems


def _setup(**changes: Any) -> SimpleNamespace:
    """Return what ``setup_problems`` reads of a plain, supported VllmConfig; ``changes`` by dotted name."""
    model = SimpleNamespace(
        is_hybrid=False,
        has_inner_state=False,
        is_attention_free=False,
        use_mla=False,
        is_encoder_decoder=False,
        is_multimodal_model=False,
        runner_type="generate",
        get_sliding_window=lambda: None,
        hf_text_config=SimpleNamespace(layer_types=["full_attention"]),
    )
    parallel = SimpleNamespace(
        nnodes_within_dp=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    config = SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        model_config=model,
        parallel_config=parallel,
        speculative_config=None,
        lora_config=None,
    )
    for name, value in changes.items():
        place: Any = config
        *parents, last = name.split("__")
        for parent in parents:
            place = getattr(place, parent)
        setattr(place, last, value)
    return config


def test_this_vllm_and_a_plain_model_are_supported() -> None:
    assert engine_problems() == []
    assert setup_problems(_setup()) == []


@pytest.mark.parametrize(
    ("change", "value", "word"),
    [
        ("cache_config__enable_prefix_caching", False, "prefix caching"),
        ("model_config__is_hybrid", True, "hybrid"),
        ("model_config__has_inner_state", True, "Mamba"),
        ("model_config__use_mla", True, "MLA"),
        ("model_config__is_multimodal_model", True, "multimodal"),
        ("model_config__is_encoder_decoder", True, "encoder-decoder"),
        ("model_config__runner_type", "pooling", "pooling"),
        ("model_config__get_sliding_window", lambda: 4096, "sliding-window"),
        ("model_config__hf_text_config__layer_types", ["full_attention", "sliding_attention"], "sliding-window"),
        ("speculative_config", object(), "EAGLE"),
        ("lora_config", object(), "LoRA"),
        ("parallel_config__nnodes_within_dp", 2, "several nodes"),
        ("parallel_config__pipeline_parallel_size", 2, "pipeline"),
        ("parallel_config__decode_context_parallel_size", 2, "decode context"),
    ],
)
def test_each_unsupported_kind_is_refused_by_name(change: str, value: object, word: str) -> None:
    (problem,) = setup_problems(_setup(**{change: value}))
    assert word in problem


@pytest.mark.parametrize("version", [(0, 30, 2), (0, 34, 0), (1, 0, 0)])
def test_an_untried_version_is_a_problem(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]) -> None:
    monkeypatch.setattr(vllm, "__version_tuple__", version)
    assert any("not one of the tested versions" in problem for problem in engine_problems())


@pytest.mark.parametrize("version", [(0, 31, 1), (0, 32, 0), (0, 33, 5)])
def test_the_tested_minors_are_not(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int]) -> None:
    monkeypatch.setattr(vllm, "__version_tuple__", version)
    assert engine_problems() == []


def test_a_changed_interface_is_found_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(base.OffloadingManager, "complete_store")
    monkeypatch.setattr(base.OffloadingManager, "lookup", base.OffloadingManager.prepare_load)
    assert len(engine_problems()) == 2


def test_the_spec_refuses_with_everything_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version_tuple__", (0, 40, 0))
    with pytest.raises(UnsupportedError, match="tested versions") as raised:
        WarmtierSpec(offloading_config()).get_manager()
    assert "on_unsupported" in str(raised.value)


def test_or_lets_the_engine_run_without_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version_tuple__", (0, 40, 0))
    spec = WarmtierSpec(offloading_config(engine={"on_unsupported": "off"}))
    manager = spec.get_manager()
    assert isinstance(manager, DownManager)
    assert spec.get_manager() is manager


def test_workers_that_are_down_make_the_manager_go_down_too() -> None:
    spec = WarmtierSpec(offloading_config(engine={"on_unsupported": "off"}))
    assert isinstance(spec.get_manager(), DownManager)
    with pytest.raises(InternalError, match="no worker"):
        WarmtierSpec(offloading_config()).get_manager()


def test_a_down_engine_finds_and_stores_nothing() -> None:
    manager = DownManager()
    context = base.ReqContext("r")
    manager.on_new_request(context)
    assert manager.lookup(b"k", context) is base.LookupResult.MISS  # type: ignore[arg-type]
    assert manager.prepare_store([b"k"], context).keys_to_store == []  # type: ignore[list-item]
    assert manager.has_pending_work()
    assert manager.get_stats() is not None
    assert not manager.has_pending_work()
    assert DownWorker().get_finished() == []


def test_a_wrong_configuration_is_never_silently_off() -> None:
    with pytest.raises(ConfigError, match="capacty"):
        WarmtierSpec(offloading_config(host={"capacty": "1GiB"}, engine={"on_unsupported": "off"}))


def test_different_block_sizes_are_refused_as_hybrid() -> None:
    config = offloading_config(groups=2)
    odd = type(config.groups[0])(16, ("layer.1",), 1)
    changed = type(config)(**{**config.__dict__, "groups": (config.groups[0], odd)})
    with pytest.raises(UnsupportedError, match="hybrid"):
        WarmtierSpec(changed).get_manager()


def test_registering_twice_is_fine_and_makes_the_name_known() -> None:
    register()
    register()
    assert OffloadingSpecFactory.get_spec_cls({"spec_name": "WarmtierSpec"}) is WarmtierSpec


def test_importing_the_entry_point_is_quick_and_brings_no_torch() -> None:
    code = (
        "import sys, time\nstart = time.perf_counter()\nimport warmtier.engines.vllm.plugin\n"
        "print(time.perf_counter() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert output[1:] == ["False", "False"]


def test_weights_are_told_apart_by_their_bytes(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3_000_000))
    first = weights_identity(str(tmp_path), None, "auto")
    assert weights_identity(str(tmp_path), None, "auto") == first
    changed = bytearray(3_000_000)
    changed[2_999_999] = 1
    weights.write_bytes(changed)
    assert weights_identity(str(tmp_path), None, "auto") != first
    assert weights_identity("org/model", "abc", "auto") == "name:org/model@abc"
    assert weights_identity(str(tmp_path), None, "dummy").startswith("dummy:")


def test_the_connector_needs_the_recompute_policy() -> None:
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
    with pytest.raises(ConfigError, match="kv_load_failure_policy"):
        WarmtierConnector(config, None, None)
