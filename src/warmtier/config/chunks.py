"""How many engine blocks make a chunk, when the user did not say.

A chunk is what moves, what is admitted and what is given up. Small chunks waste time per item (one request of 100,000
tokens is 6,250 blocks of 16), large ones waste room on tails that never fill a chunk. About 1 MB lies where memory
and disks already reach their bandwidth; see docs/design.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TARGET_BYTES: Final = 1 << 20
BLOCKS_MAX: Final = 16
TOKENS_UNKNOWN_MODEL: Final = 64
_DTYPE_BYTES: Final = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1}


def kv_bytes_per_token(model: Mapping[str, object], dtype: str = "auto") -> int | None:
    """Return the KV bytes of one token from a model's ``config.json``; None for shapes that it does not state."""
    text = model.get("text_config")
    facts = text if isinstance(text, Mapping) else model
    layers, heads = facts.get("num_hidden_layers"), facts.get("num_attention_heads")
    kv_heads, hidden = facts.get("num_key_value_heads", heads), facts.get("hidden_size")
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(kv_heads, int)):
        return None
    head_size = facts.get("head_dim")
    if not isinstance(head_size, int):
        if not isinstance(hidden, int) or heads == 0:
            return None
        head_size = hidden // heads
    name = dtype if dtype in _DTYPE_BYTES else str(facts.get("dtype") or facts.get("torch_dtype") or "bfloat16")
    return 2 * layers * kv_heads * head_size * _DTYPE_BYTES.get(name.removeprefix("torch."), 2)


def blocks_per_chunk(bytes_per_token: int | None, block_tokens: int) -> int:
    """Return the power of two of blocks whose bytes come nearest to ``TARGET_BYTES`` from below, at least one."""
    if bytes_per_token is None:
        return max(1, TOKENS_UNKNOWN_MODEL // block_tokens)
    blocks = 1
    while blocks < BLOCKS_MAX and 2 * blocks * block_tokens * bytes_per_token <= TARGET_BYTES:
        blocks *= 2
    return blocks


def read_model_config(model: str) -> Mapping[str, object] | None:
    """Return ``config.json`` of a local model directory; None where there is none. Never downloads."""
    path = Path(model) / "config.json"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, Mapping) else None
