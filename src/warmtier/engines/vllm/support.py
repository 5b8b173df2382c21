"""What of vLLM is supported, found out by looking at it, and refused by name where it is not.

Two questions: does this vLLM offer what warmtier uses (any process can tell), and is this model and set-up one whose KV
warmtier has been seen to restore (only the workers have vLLM's configuration).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

from warmtier.core.errors import UnsupportedError

TESTED_MINORS: Final = ((0, 31), (0, 32), (0, 33))
_MANAGER_METHODS: Final = ("lookup", "prepare_load", "complete_load", "prepare_store", "complete_store")


def engine_problems() -> list[str]:
    """Return what this vLLM lacks or has that nobody has tried; empty for the supported range."""
    return [*_version_problems(), *_feature_problems()]


def setup_problems(config: Any) -> list[str]:  # noqa: ANN401 - vLLM's VllmConfig
    """Return why this model and set-up cannot be served; empty if they can."""
    return [*_cache_problems(config), *_model_problems(config), *_parallel_problems(config)]


def refusal(problems: list[str]) -> UnsupportedError:
    """Return the error that names all ``problems``."""
    return UnsupportedError(
        "warmtier does not support this engine or model",
        why="; ".join(problems),
        fix="start without warmtier, or set engine.on_unsupported to off: the engine then runs without tiers",
    )


def _version_problems() -> Iterator[str]:
    from vllm import __version__, __version_tuple__

    minor = tuple(__version_tuple__[:2])
    if minor not in TESTED_MINORS:
        tested = ", ".join(".".join(map(str, version)) for version in TESTED_MINORS)
        yield f"vLLM {__version__} is not one of the tested versions ({tested})"


def _feature_problems() -> Iterator[str]:
    from vllm.v1.kv_offload import base, config

    for name in _MANAGER_METHODS:
        if not hasattr(base.OffloadingManager, name):
            yield f"OffloadingManager has no {name}"
    if list(inspect.signature(base.OffloadingManager.lookup).parameters)[1:] != ["key", "req_context"]:
        yield "OffloadingManager.lookup takes other arguments"
    if not hasattr(base.ReqContext("probe"), "_offload_key_positions"):
        yield "ReqContext does not tell the positions of keys"
    if not {"groups", "cache", "parallel", "engine_id"} <= set(config.OffloadingConfig.__dataclass_fields__):
        yield "OffloadingConfig lacks the fields that size the tier"
    if list(inspect.signature(base.GPULoadStoreSpec).parameters) != ["block_ids", "group_sizes", "block_indices"]:
        yield "GPULoadStoreSpec takes other arguments"


def _cache_problems(config: Any) -> Iterator[str]:  # noqa: ANN401
    if not config.cache_config.enable_prefix_caching:
        yield "prefix caching is off, so chunks have no keys (remove --no-enable-prefix-caching)"


def _model_problems(config: Any) -> Iterator[str]:  # noqa: ANN401
    model = config.model_config
    for attribute, name in (
        ("is_hybrid", "hybrid (attention and state space) models"),
        ("has_inner_state", "Mamba and other models with a recurrent state"),
        ("is_attention_free", "models without attention"),
        ("use_mla", "multi-head latent attention (MLA)"),
        ("is_encoder_decoder", "encoder-decoder models"),
        ("is_multimodal_model", "multimodal models"),
    ):
        if getattr(model, attribute, False):
            yield f"{name} are not supported yet"
            return
    if _has_sliding_window(model):
        yield "sliding-window attention is not supported yet"
    if getattr(model, "runner_type", "generate") != "generate":
        yield f"the runner {model.runner_type!r} is not supported"
    if config.speculative_config is not None:
        yield "speculative decoding (EAGLE, MTP, draft models) is not supported yet"
    if config.lora_config is not None:
        yield "LoRA is not supported yet"


def _has_sliding_window(model: Any) -> bool:  # noqa: ANN401
    if model.get_sliding_window() is not None:
        return True
    layer_types = getattr(model.hf_text_config, "layer_types", None) or ()
    return any(kind != "full_attention" for kind in layer_types)


def _parallel_problems(config: Any) -> Iterator[str]:  # noqa: ANN401
    parallel = config.parallel_config
    if getattr(parallel, "nnodes_within_dp", 1) > 1:
        yield "tensor parallelism over several nodes is not supported: the host tier is one machine's memory"
    for attribute, name in (
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("decode_context_parallel_size", "decode context parallelism"),
        ("prefill_context_parallel_size", "prefill context parallelism"),
    ):
        if getattr(parallel, attribute, 1) > 1:
            yield f"{name} is not supported yet"
