"""The header that travels with a chunk into every far store, so that its bytes prove themselves when they come back.

Little-endian: magic, version, key bytes, payload bytes, namespace, xxh3-128 of the payload, the key, an xxh3-64 of all
that, zeros up to a multiple of 64 bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from warmtier.core.types import Key, Namespace

ALIGNMENT: Final = 64
MAX_KEY_BYTES: Final = 512
FORMAT_VERSION: Final = 1

_MAGIC: Final = b"WARMTCHK"
_FIXED: Final = struct.Struct("<8sHHIQ16s16s")  # magic, version, key bytes, 0, payload bytes, namespace, checksum
_CHECK: Final = struct.Struct("<Q")


def aligned(length: int) -> int:
    """Return ``length`` rounded up to a multiple of 64."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def header_bytes(key: Key) -> int:
    """Return the length of the header of a chunk with this key."""
    return aligned(_FIXED.size + len(key) + _CHECK.size)


def encode_header(namespace: Namespace, key: Key, payload: memoryview) -> bytes:
    """Return the header for ``payload``; reads all of it once."""
    checksum = xxhash.xxh3_128_digest(payload)
    fixed = _FIXED.pack(_MAGIC, FORMAT_VERSION, len(key), 0, payload.nbytes, namespace, checksum) + key
    content = fixed + _CHECK.pack(xxhash.xxh3_64_intdigest(fixed))
    return content.ljust(aligned(len(content)), b"\0")


def expected_checksum(header: memoryview | bytes, namespace: Namespace, key: Key, length: int) -> bytes | None:
    """Return the payload checksum that ``header`` states, or None unless it is intact and of exactly this chunk."""
    if len(header) < header_bytes(key):
        return None
    magic, version, key_bytes, _, stated_length, stated_namespace, checksum = _FIXED.unpack_from(header)
    end = _FIXED.size + len(key)
    known = magic == _MAGIC and version == FORMAT_VERSION and key_bytes == len(key)
    if not known or stated_length != length or stated_namespace != namespace or bytes(header[_FIXED.size : end]) != key:
        return None
    (check,) = _CHECK.unpack_from(header, end)
    return bytes(checksum) if check == xxhash.xxh3_64_intdigest(header[:end]) else None


def proves(header: memoryview | bytes, namespace: Namespace, key: Key, payload: memoryview) -> bool:
    """Return whether ``payload`` is what was stored under ``key`` in ``namespace``; reads all of it once."""
    checksum = expected_checksum(header, namespace, key, payload.nbytes)
    return checksum is not None and checksum == xxhash.xxh3_128_digest(payload)
