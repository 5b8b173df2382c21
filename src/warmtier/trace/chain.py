"""Keys that chain the prefix in, for traces whose ids name a block's content only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import xxhash

from warmtier.trace.schema import KEY_BITS

_MASK: Final = (1 << KEY_BITS) - 1


def chain_key(parent: int, block: int) -> int:
    """Return the key of ``block`` below ``parent`` (0: root)."""
    return xxhash.xxh3_64_intdigest(block.to_bytes(16, "little", signed=True), seed=parent) & _MASK


def chain_keys(blocks: Iterable[int], parent: int = 0) -> list[int]:
    """Return the keys of consecutive ``blocks`` below ``parent``."""
    keys = []
    for block in blocks:
        parent = chain_key(parent, block)
        keys.append(parent)
    return keys


def key_of_text(text: str) -> int:
    """Return a key for any name or text."""
    return xxhash.xxh3_64_intdigest(text.encode()) & _MASK


def key_of_hash(block_hash: bytes | int) -> int:
    """Return the key of an engine's own block hash, which chains the prefix already."""
    raw = block_hash if isinstance(block_hash, bytes) else block_hash.to_bytes(40, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little") & _MASK
