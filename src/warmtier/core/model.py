"""What a model's shape says about cost: KV bytes per token, and FLOPs of computing a token at its position."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from warmtier.core.errors import UsageError

_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only model. ``active_parameters``: those that work on every token, embeddings left out.

    ``attention_width`` is query heads x head size summed over layers; ``kv_values`` the values kept per token.
    """

    name: str
    active_parameters: float
    attention_width: int
    kv_values: int
    dtype_bytes: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV per token, all layers."""
        return self.kv_values * self.dtype_bytes

    def flops(self, start: int, stop: int) -> float:
        """Return the FLOPs of computing tokens [start, stop) behind ``start`` known ones.

        Two per parameter and token, and four per attention value and earlier token.
        """
        pairs = (stop * (stop - 1) - start * (start - 1)) / 2
        return 2.0 * self.active_parameters * (stop - start) + 4.0 * self.attention_width * pairs


def dense(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, head_size: int, intermediate: int
) -> ModelShape:
    """Return the shape of a dense model with grouped-query attention and a gated feed-forward part, in bfloat16."""
    attention = hidden * head_size * (2 * heads + 2 * kv_heads)
    return ModelShape(
        name,
        float(layers * (attention + 3 * hidden * intermediate)),
        layers * heads * head_size,
        2 * layers * kv_heads * head_size,
    )


KNOWN_MODELS: Final = {
    shape.name: shape
    for shape in (
        dense("smollm2-135m", 30, 576, 9, 3, 64, 1536),
        dense("qwen3-0.6b", 28, 1024, 16, 8, 128, 3072),
        dense("qwen3-8b", 36, 4096, 32, 8, 128, 12288),
        dense("qwen3-32b", 64, 5120, 64, 8, 128, 25600),
        dense("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336),
        dense("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672),
    )
}
"""Public shapes, so that a question about one of them needs no file."""


def load_shape(model: str) -> ModelShape:
    """Return the shape of a known model, or of a local ``config.json`` (or its directory). Raises UsageError."""
    known = KNOWN_MODELS.get(model.lower().rsplit("/", 1)[-1])
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        if known is not None:
            return known
        fix = f"pass a config.json, its directory, or one of {', '.join(KNOWN_MODELS)}"
        raise UsageError(f"model {model!r} is not known", fix=fix)
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    return shape_of(config, path.parent.name or str(path))


def shape_of(config: Mapping[str, object], name: str) -> ModelShape:
    """Return the shape that a model's configuration states. Raises UsageError if it leaves something out."""
    nested = config.get("text_config")
    facts = nested if isinstance(nested, Mapping) else config

    def number(field: str, default: int | None = None) -> int:
        value = facts.get(field, default)
        value = default if value is None else value
        if not isinstance(value, int):
            raise UsageError(f"{name}: the configuration has no {field}")
        return value

    layers, hidden, heads = number("num_hidden_layers"), number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads", heads)
    head_size = number("head_dim", hidden // heads)
    feed_forward = _feed_forward_parameters(number, facts, layers, hidden)
    dtype = str(facts.get("dtype") or facts.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if isinstance(facts.get("kv_lora_rank"), int):  # latent attention keeps one compressed vector per token
        rank, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
        query = number("q_lora_rank", hidden)
        value_size = number("v_head_dim", head_size)
        key_size = number("qk_nope_head_dim", head_size) + rope
        attention = hidden * (query + rank + rope) + heads * (query * key_size + rank * (key_size + value_size))
        attention += heads * value_size * hidden
        kv_values, width = layers * (rank + rope), layers * heads * (key_size + value_size) // 2
    else:
        attention = hidden * head_size * (2 * heads + 2 * kv_heads)
        kv_values, width = 2 * layers * kv_heads * head_size, layers * heads * head_size
    active = float(layers * attention + feed_forward)
    return ModelShape(name, active, width, kv_values, _DTYPE_BYTES.get(dtype, 2))


def _feed_forward_parameters(
    take: Callable[[str, int | None], int], facts: Mapping[str, object], layers: int, hidden: int
) -> int:
    """Return the parameters of all feed-forward parts that work on one token."""
    experts = facts.get("num_experts_per_tok")
    if not isinstance(experts, int) or not experts:
        return layers * 3 * hidden * take("intermediate_size", None)
    plain = facts.get("intermediate_size")
    size = take("moe_intermediate_size", plain if isinstance(plain, int) else None)
    shared = facts.get("n_shared_experts")
    active = experts + (shared if isinstance(shared, int) else 0)
    first = facts.get("first_k_dense_replace")
    dense_layers = first if isinstance(first, int) else 0
    mixed = (layers - dense_layers) * 3 * hidden * size * active
    return mixed + dense_layers * 3 * hidden * take("intermediate_size", size)
