from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmtier.core.errors import UsageError
from warmtier.core.model import KNOWN_MODELS, load_shape, shape_of


@pytest.mark.parametrize(
    ("name", "kv_bytes", "parameters"),
    [
        ("smollm2-135m", 23_040, 106e6),
        ("qwen3-0.6b", 114_688, 0.44e9),
        ("qwen3-8b", 147_456, 6.95e9),
        ("qwen3-32b", 262_144, 31.2e9),
        ("llama-3.1-8b", 131_072, 6.98e9),
        ("llama-3.1-70b", 327_680, 68.5e9),
    ],
)
def test_known_models_have_their_published_sizes(name: str, kv_bytes: int, parameters: float) -> None:
    shape = load_shape(name)
    assert shape.kv_bytes_per_token == kv_bytes
    assert shape.active_parameters == pytest.approx(parameters, rel=0.01)


def test_flops_add_up_and_grow_with_the_position() -> None:
    shape = KNOWN_MODELS["qwen3-8b"]
    assert shape.flops(0, 1000) == pytest.approx(sum(shape.flops(i, i + 1) for i in range(1000)))
    assert shape.flops(0, 500) + shape.flops(500, 900) == pytest.approx(shape.flops(0, 900))
    first = 2 * shape.active_parameters
    assert shape.flops(0, 1) == first
    assert shape.flops(100, 101) == pytest.approx(first + 4 * 36 * 32 * 128 * 100)


def config(**more: object) -> dict[str, object]:
    base = {"num_hidden_layers": 36, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    return {**base, "head_dim": 128, "intermediate_size": 12_288, **more}


def test_configurations_give_the_same_as_known_names(tmp_path: Path) -> None:
    known = KNOWN_MODELS["qwen3-8b"]
    (tmp_path / "config.json").write_text(json.dumps(config(torch_dtype="bfloat16")))
    for place in (tmp_path, tmp_path / "config.json"):
        found = load_shape(str(place))
        assert (found.active_parameters, found.kv_values) == (known.active_parameters, known.kv_values)
        assert found.attention_width == known.attention_width
    assert shape_of(config(dtype="float32"), "x").kv_bytes_per_token == 2 * known.kv_bytes_per_token
    assert shape_of({"text_config": config()}, "x").kv_values == known.kv_values


def test_experts_and_latent_attention() -> None:
    dense = shape_of(config(), "x").active_parameters
    mixed = shape_of(config(num_experts_per_tok=8, moe_intermediate_size=768), "x").active_parameters
    assert mixed == pytest.approx(dense - 36 * 3 * 4096 * (12_288 - 8 * 768))
    latent = shape_of(
        {
            "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "kv_lora_rank": 512,
            "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536,
            "intermediate_size": 18_432, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
        },
        "v3",
    )  # fmt: skip
    assert latent.kv_bytes_per_token == 70_272
    assert latent.active_parameters == pytest.approx(36e9, rel=0.05)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not known"):
        load_shape("some-model")
    with pytest.raises(UsageError, match="has no num_hidden_layers"):
        shape_of({}, "x")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        load_shape(str(tmp_path))
