"""What lies in packs and manifests.

A pack is records (a chunk header of ``store.record``, the payload, zeros up to 64 bytes), then an index of them, then
a trailer. Each record proves itself, so a range read needs nothing else; the index serves recovery. A manifest names
packs and repeats their indexes. Index and manifest are MessagePack behind a magic, a version and a checksum; what
does not decode is treated as absent.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec
import xxhash

from warmtier.core.types import Key, Namespace

MAX_RECORDS: Final = 65_535
MAX_MANIFEST_BYTES: Final = 256 << 20

_MANIFEST_MAGIC: Final = b"WARMTMAN"
_INDEX_MAGIC: Final = b"WARMTIDX"
_FRAME: Final = struct.Struct("<8sHxxxxxx16s")  # magic, version, xxh3-128 of the body
_TRAILER: Final = struct.Struct("<QQ8s")  # index offset, index bytes, magic
_VERSION: Final = 1
TRAILER_BYTES: Final = _TRAILER.size


class PackIndex(msgspec.Struct, frozen=True, array_like=True):
    """The chunks of one pack: ``keys[i]``'s record starts at ``offsets[i]`` and carries ``lengths[i]`` bytes."""

    keys: list[bytes]
    offsets: list[int]
    lengths: list[int]


class PackEntry(msgspec.Struct, frozen=True, array_like=True):
    """One pack in a manifest. ``name`` is a ``PackName``."""

    name: str
    size_bytes: int
    index: PackIndex


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """What a writer published: packs ``added`` and ``removed`` by name, and single keys it ``forgot``.

    A full one lists all packs that its writer still has.
    """

    namespace: bytes
    added: list[PackEntry]
    removed: list[str]
    forgot: list[bytes]


_encoder: Final = msgspec.msgpack.Encoder()
_manifests: Final = msgspec.msgpack.Decoder(Manifest)
_indexes: Final = msgspec.msgpack.Decoder(PackIndex)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest object."""
    return _framed(_MANIFEST_MAGIC, _encoder.encode(manifest))


def decode_manifest(data: memoryview, namespace: Namespace) -> Manifest | None:
    """Return the manifest in ``data``, or None when it is damaged or of another namespace or version."""
    body = _body(_MANIFEST_MAGIC, data)
    if body is None:
        return None
    try:
        manifest = _manifests.decode(body)
    except msgspec.MsgspecError:
        return None
    if manifest.namespace != namespace or not all(_consistent(pack.index) for pack in manifest.added):
        return None
    return manifest


def encode_index(index: PackIndex, offset: int) -> bytes:
    """Return what follows the records of a pack when they end at ``offset``."""
    framed = _framed(_INDEX_MAGIC, _encoder.encode(index))
    return framed + _TRAILER.pack(offset, len(framed), _INDEX_MAGIC)


def index_range(trailer: memoryview, size_bytes: int) -> tuple[int, int] | None:
    """Return start and length of the index of a pack of ``size_bytes``, or None when ``trailer`` is not one."""
    if len(trailer) != _TRAILER.size:
        return None
    offset, length, magic = _TRAILER.unpack(trailer)
    if magic != _INDEX_MAGIC or offset + length + _TRAILER.size != size_bytes:
        return None
    return offset, length


def decode_index(data: memoryview) -> PackIndex | None:
    """Return the index in ``data``, or None when it is damaged."""
    body = _body(_INDEX_MAGIC, data)
    if body is None:
        return None
    try:
        index = _indexes.decode(body)
    except msgspec.MsgspecError:
        return None
    return index if _consistent(index) else None


def entry_bytes(key: Key) -> int:
    """Return at least what one chunk adds to the index of its pack, and to a manifest."""
    return len(key) + 3 + 9 + 9


def index_overhead_bytes() -> int:
    """Return at least what the index of a pack takes beside its entries."""
    return _FRAME.size + _TRAILER.size + 32


def _consistent(index: PackIndex) -> bool:
    count = len(index.keys)
    return count == len(index.offsets) == len(index.lengths) and count <= MAX_RECORDS


def _framed(magic: bytes, body: bytes) -> bytes:
    return _FRAME.pack(magic, _VERSION, xxhash.xxh3_128_digest(body)) + body


def _body(magic: bytes, data: memoryview) -> memoryview | None:
    if len(data) < _FRAME.size:
        return None
    found, version, checksum = _FRAME.unpack_from(data)
    body = data[_FRAME.size :]
    if found != magic or version != _VERSION or checksum != xxhash.xxh3_128_digest(body):
        return None
    return body
