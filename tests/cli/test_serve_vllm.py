"""`warmtier serve` starts a real vLLM, whichever distribution is installed, with our spec behind its connector."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from warmtier.bench.load import Client, Reply
from warmtier.bench.scrape import growth, scrape
from warmtier.bench.server import Server

pytestmark = pytest.mark.vllm

TINY = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 2048, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "torch_dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


def command(model: Path) -> list[str]:
    script = "from warmtier.cli import main; main()"
    return [
        sys.executable, "-c", script, "serve", str(model), "--host-tier", "64MiB", "--load-format", "dummy",
        "--skip-tokenizer-init", "--enforce-eager", "--max-model-len", "2048", "--num-gpu-blocks-override", "19",
    ]  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(TINY))
    return model


def complete(base_url: str, *prompts: list[int]) -> list[Reply]:
    async def main() -> list[Reply]:
        async with Client(base_url) as client:
            extra = {"detokenize": False, "return_token_ids": True}
            return [await client.complete(prompt, max_tokens=4, extra=extra) for prompt in prompts]

    return asyncio.run(main())


@pytest.mark.timeout(600)
def test_an_evicted_prefix_comes_back_through_the_command_line(tmp_path: Path, tiny: Path) -> None:
    a, b, c = ([(seed * 31 + i * 7) % 2000 + 1 for i in range(1600)] for seed in (1, 2, 3))
    with Server(command(tiny), tmp_path / "log", environment=ENVIRONMENT) as server:
        before = scrape(server.base_url)
        complete(server.base_url, a, b, c, a)
        after = scrape(server.base_url)
        assert growth(before, after, "vllm:prompt_tokens_cached_by_source_total", source="host") == 1536
        assert "WarmtierSpec" in (tmp_path / "log").read_text()
    assert not server.running()
