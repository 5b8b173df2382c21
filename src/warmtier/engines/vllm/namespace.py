"""The namespace of an engine's KV bytes, from what the workers saw and what the scheduler's process knows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmtier.core.types import Namespace
from warmtier.store.namespace import Fact, namespace_of

FORMAT_VERSION: Final = 1
_UNSTABLE: Final = ("xxhash", "xxhash_cbor")


def model_config_digest(hf_config: Any) -> str:  # noqa: ANN401 - transformers' PretrainedConfig
    """Return a digest of the model's configuration, overrides included: what decides KV beside the weights."""
    facts = hf_config.to_dict() if hasattr(hf_config, "to_dict") else {}
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def layout_facts(group_layers: Sequence[Sequence[str]], page_bytes: Sequence[Sequence[int]]) -> list[Fact]:
    """Return what a block consists of: per KV group its layers in order and the bytes each has in a block."""
    return [
        {"layers": list(layers), "page_bytes": list(pages)}
        for layers, pages in zip(group_layers, page_bytes, strict=True)
    ]


def namespace(facts: Mapping[str, Any], hash_seed: bytes, *, epoch: str | None = None) -> Namespace:
    """Return the namespace of ``facts`` (the slab's header) and of the root that all keys hang from.

    ``hash_seed`` is vLLM's NONE_HASH: it follows from the seed and from the hash function. ``epoch``: see
    ``EpochedStore``.
    """
    layout = {key: value for key, value in facts["layout"].items() if key != "slots"}  # the size is no matter of bytes
    return namespace_of(
        {
            "model": facts["model"],
            "model_config": facts["model_config"],
            "weights": facts["weights"],
            "quantization": facts["quantization"],
            "adapters": None,
            "dtype": facts["dtype"],
            "kv_dtype": facts["kv_dtype"],
            "engine": facts["engine"],
            "device": facts["device"],
            "layout": {**layout, "groups": facts["groups"], "kv_cache_layout": facts["kv_cache_layout"]},
            "tokens_per_chunk": [tokens * layout["blocks_per_chunk"] for tokens in facts["tokens_per_block"]],
            "parallel": facts["parallel"],
            "hash_algorithm": facts["hash_algorithm"],
            "hash_seed": hash_seed,
            "format_version": FORMAT_VERSION,
            "epoch": epoch,
        }
    )


def unstable_hash(facts: Mapping[str, Any], *, seeded: bool) -> str | None:
    """Return why keys will not be found again after a restart, or None."""
    algorithm = str(facts["hash_algorithm"])
    if algorithm in _UNSTABLE and not seeded:
        return f"{algorithm} is seeded at random in each process; set PYTHONHASHSEED or use sha256_cbor"
    return None
