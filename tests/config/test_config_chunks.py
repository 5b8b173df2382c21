"""The chunk size that is chosen when nobody chose one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmtier.config.chunks import blocks_per_chunk, kv_bytes_per_token, read_model_config

SMOLLM2 = {
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576,
    "dtype": "bfloat16",
}  # fmt: skip


def test_bytes_of_a_token_follow_the_model_and_the_dtype() -> None:
    assert kv_bytes_per_token(SMOLLM2) == 23_040
    assert kv_bytes_per_token(SMOLLM2, "float32") == 46_080
    assert kv_bytes_per_token({"text_config": {**SMOLLM2, "head_dim": 128}}) == 46_080
    assert kv_bytes_per_token({"architectures": ["Mamba"]}) is None


@pytest.mark.parametrize(
    ("bytes_per_token", "block_tokens", "expected"),
    [(23_040, 128, 1), (23_040, 16, 2), (131_072, 16, 1), (1_024, 16, 16), (None, 16, 4), (None, 128, 1)],
)
def test_a_chunk_is_about_a_megabyte(bytes_per_token: int | None, block_tokens: int, expected: int) -> None:
    assert blocks_per_chunk(bytes_per_token, block_tokens) == expected


def test_only_local_models_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    assert read_model_config(str(tmp_path)) == SMOLLM2
    assert read_model_config("someone/some-model") is None
    (tmp_path / "config.json").write_text("[1]")
    assert read_model_config(str(tmp_path)) is None
