"""The namespace: one digest of everything that makes KV bytes incompatible.

The engine collects the facts; nothing here imports one. Two engines with equal facts may use each other's bytes, so a
fact left out is wrong KV and a fact too many is only a lost hit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from warmtier.core.errors import InternalError, RequirementError
from warmtier.core.types import Namespace

Fact: TypeAlias = "str | int | float | bool | bytes | Sequence[Fact] | Mapping[str, Fact] | None"

REQUIRED_FACTS: Final = (
    "model",  # identity and revision as the engine knows them
    "weights",  # ``weights_digest``
    "adapters",
    "kv_dtype",
    "layout",  # shapes and order of one chunk's bytes, every KV group
    "tokens_per_chunk",
    "parallel",  # tensor, pipeline and context parallel sizes
    "hash_algorithm",
    "hash_seed",
    "format_version",
)
"""Facts that every namespace must name, None included where one does not apply."""

_WEIGHT_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz"})
_HEADER_BYTES: Final = 1 << 20  # the start of every file: the whole header of most
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def namespace_of(facts: Mapping[str, Fact]) -> Namespace:
    """Return the digest of ``facts``, whatever their order. InternalError when a required one is missing."""
    missing = [name for name in REQUIRED_FACTS if name not in facts]
    if missing:
        raise InternalError(f"a namespace needs the facts {', '.join(missing)}")
    return Namespace(hashlib.blake2b(_encode(facts), digest_size=16, person=b"warmtier-space").digest())


def _encode(value: Fact) -> bytes:
    """Encode without ambiguity: every value with its type and length, mappings by sorted name."""
    match value:
        case None:
            return b"n;"
        case bool():
            return b"t;" if value else b"f;"
        case int():
            return _framed(b"i", str(value).encode("ascii"))
        case float():
            return _framed(b"d", value.hex().encode("ascii"))
        case str():
            return _framed(b"s", value.encode())
        case bytes():
            return _framed(b"b", value)
        case Mapping():
            return _framed(b"m", b"".join(_encode(name) + _encode(value[name]) for name in sorted(value)))
        case Sequence():
            return _framed(b"l", b"".join(map(_encode, value)))
        case _:
            raise InternalError(f"a namespace cannot hold a {type(value).__name__}")


def _framed(kind: bytes, content: bytes) -> bytes:
    return kind + str(len(content)).encode("ascii") + b":" + content


def weight_files(model_directory: Path) -> list[Path]:
    """Return the weight files below ``model_directory``, sorted."""
    found = (path for path in model_directory.rglob("*") if path.suffix in _WEIGHT_SUFFIXES and path.is_file())
    return sorted(found)


def weights_digest(files: Iterable[Path], root: Path | None = None) -> str:
    """Return a digest of weight files by name, size, first MiB and 64 samples of 4 KiB each: seconds, not minutes.

    It tells apart models that were trained apart. It does not prove that no single byte differs. ``root`` makes the
    names relative, so that a moved model keeps its digest. Raises RequirementError when a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(files):
        name = path.relative_to(root) if root is not None else Path(path.name)
        digest.update(_encode(str(name)))
        try:
            _sample(path, digest)
        except OSError as error:
            raise RequirementError(f"cannot read the weights in {path}", why=str(error)) from error
    return digest.hexdigest()


def _sample(path: Path, digest: hashlib.blake2b) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size_bytes = os.fstat(fd).st_size
        digest.update(_encode(size_bytes))
        digest.update(os.pread(fd, _HEADER_BYTES, 0))
        span = max(0, size_bytes - _HEADER_BYTES - _SAMPLE_BYTES)
        for number in range(_SAMPLES if span else 0):
            digest.update(os.pread(fd, _SAMPLE_BYTES, _HEADER_BYTES + span * number // (_SAMPLES - 1)))
        if not span:
            digest.update(os.pread(fd, 2 * _SAMPLE_BYTES, _HEADER_BYTES))
    finally:
        os.close(fd)
