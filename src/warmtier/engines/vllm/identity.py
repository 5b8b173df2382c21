"""Which weights a model directory holds, as a digest of samples: it tells a retrained checkpoint from the old one.

Reading every byte of a large model would take minutes at each start; a sample of every file finds any real retraining,
since it changes nearly all weights. It is no protection against someone who forges weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xxhash

_SAMPLES: Final = 32
_SAMPLE_BYTES: Final = 16 * 1024
_SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".gguf")


def weights_identity(model: str, revision: str | None, load_format: str) -> str:
    """Return a digest of the weights that ``model`` names. Reads about half a megabyte per weight file."""
    if load_format == "dummy":
        return f"dummy:{model}"  # random weights from a fixed seed; only configuration tells them apart
    directory = Path(model)
    files = sorted(path for path in directory.glob("*") if path.suffix in _SUFFIXES) if directory.is_dir() else []
    if not files:
        return f"name:{model}@{revision or 'default'}"
    state = xxhash.xxh3_128()
    for path in files:
        _add(state, path)
    return f"sample:{state.hexdigest()}"


def _add(state: xxhash.xxh3_128, path: Path) -> None:
    size = path.stat().st_size
    state.update(f"{path.name}:{size};".encode())
    with path.open("rb") as file:
        for index in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            state.update(file.read(_SAMPLE_BYTES))
