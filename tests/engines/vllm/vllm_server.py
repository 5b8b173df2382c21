"""Real vLLM servers for the tests: a tiny random-weight model where digests judge, SmolLM2 where texts do.

The tiny one computes in float32: processors without AVX-512 multiply bfloat16 ten times slower.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from warmtier.bench.scrape import Scrape, scrape
from warmtier.bench.server import Server
from warmtier.engines.vllm.slab_files import slab_files

REPOSITORY = Path(__file__).resolve().parents[3]
BLOCK_TOKENS = 128
DEVICE_BLOCKS = 19
TINY = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2047,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}


def smollm2() -> Path | None:
    """Return the directory of the real model, or None where it was not prepared."""
    path = Path(os.environ.get("WARMTIER_MODEL", REPOSITORY / "models" / "SmolLM2-135M-Instruct"))
    return path if (path / "config.json").exists() else None


def write_tiny_model(directory: Path) -> None:
    """Write a random model with real weights: vLLM's dummy weights are the same on every tensor-parallel rank."""
    hidden, inner, key_value, vocabulary = 256, 512, 128, 2048
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= {f"{name}.weight": (vocabulary, hidden) for name in ("model.embed_tokens", "lm_head")}
    for layer in range(4):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for name, rows in (("q", hidden), ("k", key_value), ("v", key_value)):
            shapes[f"{attention}.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{attention}.{name}_proj.bias"] = (rows,)
        shapes[f"{attention}.o_proj.weight"] = (hidden, hidden)
        shapes |= {f"{mlp}.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{mlp}.down_proj.weight"] = (hidden, inner)
    rng = np.random.default_rng(11)
    weights = {name: rng.normal(0, 0.08, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [
        f"model.layers.{layer}.{name}_layernorm.weight" for layer in range(4) for name in ("input", "post_attention")
    ]
    weights |= {name: np.ones(hidden, np.float32) for name in [*norms, "model.norm.weight"]}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(TINY))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


@dataclass
class Answer:
    """What came back for one request."""

    tokens: list[int]
    logprobs: list[float]
    prompt_tokens: int
    cached_tokens: int


class VllmServer(Server):
    """A server with warmtier. ``directory`` gets its log, its fault switches and its digest log."""

    def __init__(
        self,
        directory: Path,
        *,
        model: Path | None = None,
        blocks_per_chunk: int = 1,
        capacity: str = "256MiB",
        tensor_parallel: int = 1,
        data_parallel: int = 1,
        dtype: str = "float32",
        device_blocks: int = DEVICE_BLOCKS,
        connector: str = "OffloadingConnector",
        settings: dict[str, Any] | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.faults_path = directory / "faults.json"
        self.digests_path = directory / "digests"
        self.ranks = tensor_parallel
        self.processes = tensor_parallel * data_parallel
        if data_parallel > 1:
            flags = ["--data-parallel-size", str(data_parallel), *flags]
        self.is_tiny = model is None
        if model is None:
            model = directory / "tiny"
            write_tiny_model(model)
            flags = ["--skip-tokenizer-init", *flags]
        self.model = str(model)
        self.engine_id = f"test-{os.getpid()}-{directory.name}"
        transfer = {
            "kv_connector": connector,
            "engine_id": self.engine_id,
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "spec_name": "FaultySpec",
                "spec_module_path": "vllm_faulty_spec",
                "blocks_per_chunk": blocks_per_chunk,
                "warmtier": {"host": {"capacity": capacity}, "engine": {"verify": "always"}, **(settings or {})},
            },
        }
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", self.model, "--dtype", dtype, "--enforce-eager",
            "--max-model-len", str(min(2048, device_blocks * BLOCK_TOKENS - BLOCK_TOKENS)),
            "--num-gpu-blocks-override", str(device_blocks), "--block-size", str(BLOCK_TOKENS),
            "--enable-prompt-tokens-details", "--no-enable-log-requests",
            "--tensor-parallel-size", str(tensor_parallel),
            "--kv-transfer-config", json.dumps(transfer), *flags,
        ]  # fmt: skip
        super().__init__(command, directory / "server.log", environment=self._variables(), start_timeout_s=600)

    def _variables(self) -> dict[str, str]:
        binding = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if self.processes > 1 else {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
        return {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "WARMTIER_TEST_FAULTS": str(self.faults_path),
            "WARMTIER_DIGEST_LOG": str(self.digests_path),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            **binding,
        }

    def shared_memory(self) -> list[Path]:
        """Return what of this server's files is left in /dev/shm."""
        files = slab_files(self.engine_id)
        return [path for path in (files.slab, files.lock) if path.exists()]

    def fault(self, **faults: Any) -> None:
        """Switch faults; none named means none."""
        temporary = self.faults_path.with_suffix(".new")
        temporary.write_text(json.dumps(faults))
        temporary.replace(self.faults_path)

    def post(self, path: str, body: dict[str, Any] | None = None, timeout_s: float = 120.0) -> Any:
        """POST and return the parsed answer."""
        data = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base_url}{path}", data, headers)  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
                text = response.read()
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode(errors="replace")[:500])
            raise
        return json.loads(text) if text else None

    def complete(self, prompt: Sequence[int], max_tokens: int = 1, **extra: Any) -> Answer:
        """Run one greedy request."""
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            **({} if self.is_tiny else {"logprobs": 1}),  # vLLM needs a tokenizer to name tokens
            "ignore_eos": True,
            "return_token_ids": True,
            **extra,
        }
        answer = self.post("/v1/completions", body)
        choice, usage = answer["choices"][0], answer["usage"]
        details = usage.get("prompt_tokens_details") or {}
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        return Answer(choice["token_ids"], logprobs, usage["prompt_tokens"], details.get("cached_tokens") or 0)

    def metrics(self) -> Scrape:
        """Read /metrics."""
        return scrape(self.base_url)

    def wait_for_file_tier(self, timeout_s: float = 60.0) -> None:
        """Wait until the file tier is in use."""
        deadline_s = time.monotonic() + timeout_s
        while self.metrics().total("warmtier_tier_mode", tier="file") != 3:
            if time.monotonic() > deadline_s:
                raise TimeoutError("the file tier does not open")
            time.sleep(0.1)

    def reset(self) -> None:
        """Empty the device's prefix cache and the tiers."""
        self.post("/reset_prefix_cache?reset_external=true")

    def reset_device(self) -> None:
        """Empty the device's prefix cache alone."""
        self.post("/reset_prefix_cache")

    def settle(self, timeout_s: float = 20.0) -> None:
        """Wait until every store has ended: vLLM ends them in the steps after the request."""
        deadline_s = time.monotonic() + timeout_s
        last = -1
        while time.monotonic() < deadline_s:
            now = len(self.digests())
            if now == last:
                return
            last = now
            time.sleep(0.25)
        raise TimeoutError("stores do not end")

    def digests(self) -> list[dict[str, Any]]:
        """Return the digest log of all ranks."""
        lines: list[dict[str, Any]] = []
        for rank in range(self.ranks):
            path = Path(f"{self.digests_path}.{rank}")
            if path.exists():
                lines += [json.loads(line) for line in path.read_text().splitlines()]
        return lines


def judge_digests(lines: Sequence[dict[str, Any]]) -> int:
    """Check that every block that was loaded equals what was stored for it; return how many were compared.

    A key may be stored again later with other bits (bf16 depends on batch shapes): any earlier store may be the one.
    """
    stored: dict[tuple[str, int, int], set[int]] = {}
    compared = 0
    for line in lines:
        place = (line["key"], line["rank"], line["place"])
        if line["op"] == "store":
            stored.setdefault(place, set()).add(line["digest"])
        elif not line["failed"]:
            assert line["digest"] in stored[place], f"loaded bytes differ from stored ones: {line}"
            compared += 1
    return compared


def prompt_tokens(seed: int, count: int, vocabulary: int = 2000) -> list[int]:
    """Return a random prompt for the tiny model."""
    rng = random.Random(seed)
    return [rng.randrange(1, vocabulary) for _ in range(count)]
