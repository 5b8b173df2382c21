"""Names and formats: what is written reads back, what is damaged or foreign reads as nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import UsageError
from warmtier.core.types import Key, Namespace
from warmtier.store.object.format import (
    TRAILER_BYTES,
    Manifest,
    PackEntry,
    PackIndex,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
    entry_bytes,
    index_overhead_bytes,
    index_range,
)
from warmtier.store.object.names import ManifestName, PackName, parse_manifest, parse_pack, watermark
from warmtier.store.object.options import ObjectOptions
from warmtier.store.record import encode_header, expected_checksum, header_bytes, proves

NAMESPACE = Namespace(b"0123456789abcdef")
OTHER = Namespace(b"0123456789abcdeX")
keys = st.binary(min_size=1, max_size=80)
writers = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)


@given(st.integers(0, 10**13 - 2), st.integers(0, 10**11 - 1), writers, st.integers(0, 10**8 - 1), st.booleans())
def test_manifest_names_read_back(time_ms: int, expires_s: int, writer: str, number: int, full: bool) -> None:
    name = ManifestName(time_ms, expires_s, writer, "0123456789abcdef", number, full)
    assert parse_manifest(str(name)) == name
    assert watermark(time_ms) <= str(name)
    assert time_ms == 0 or watermark(time_ms + 1) > str(name)


@given(st.integers(0, 10**11 - 1), writers, st.integers(0, 10**8 - 1))
def test_pack_names_read_back(expires_s: int, writer: str, number: int) -> None:
    name = PackName(writer, expires_s, "0123456789abcdef", number)
    directory, _, last = str(name).partition("/")
    assert parse_pack(directory, last) == name


@pytest.mark.parametrize(
    "name", ["", "readme.txt", "1-2-w-s-3-f", "0" * 13, "٣" * 13 + "-00000000001-w-0123456789abcdef-00000001-f"]
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert parse_manifest(name) is None
    assert parse_pack("w", name) is None


def _index(entries: list[bytes]) -> PackIndex:
    return PackIndex(entries, [64 * n for n in range(len(entries))], [2**32 + n for n in range(len(entries))])


@given(st.lists(keys, max_size=20), st.integers(0, 2**40))
def test_an_index_reads_back_and_stays_within_its_estimate(entries: list[bytes], offset: int) -> None:
    tail = memoryview(encode_index(_index(entries), offset))
    start, length = index_range(tail[-TRAILER_BYTES:], offset + len(tail)) or (0, 0)
    assert start == offset
    assert decode_index(tail[:length]) == _index(entries)
    assert len(tail) <= index_overhead_bytes() + sum(entry_bytes(Key(key)) for key in entries)


@given(st.lists(keys, min_size=1, max_size=5), st.data())
def test_a_damaged_manifest_or_one_of_another_namespace_is_nothing(entries: list[bytes], data: st.DataObject) -> None:
    manifest = Manifest(NAMESPACE, [PackEntry("w/x", 9, _index(entries))], ["w/y"], [b"k"])
    good = encode_manifest(manifest)
    assert decode_manifest(memoryview(good), NAMESPACE) == manifest
    assert decode_manifest(memoryview(good), OTHER) is None
    position = data.draw(st.integers(0, len(good) - 1))
    damaged = bytearray(good)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    # The six reserved bytes of the frame carry nothing.
    assert 10 <= position < 16 or decode_manifest(memoryview(damaged), NAMESPACE) is None
    assert decode_manifest(memoryview(good)[:position], NAMESPACE) is None


def test_an_inconsistent_index_is_nothing() -> None:
    tail = memoryview(encode_index(PackIndex([b"a", b"b"], [0], [1]), 0))
    assert decode_index(tail[: len(tail) - TRAILER_BYTES]) is None


@given(keys, st.binary(max_size=300), st.data())
def test_a_header_proves_exactly_its_chunk(key: bytes, payload: bytes, data: st.DataObject) -> None:
    header = encode_header(NAMESPACE, Key(key), memoryview(payload))
    assert len(header) == header_bytes(Key(key))
    assert len(header) % 64 == 0
    assert proves(header, NAMESPACE, Key(key), memoryview(payload))
    assert not proves(header, OTHER, Key(key), memoryview(payload))
    assert not proves(header, NAMESPACE, Key(key + b"x"), memoryview(payload))
    assert not proves(header, NAMESPACE, Key(key), memoryview(payload + b"\0"))
    assert not proves(header[:-64], NAMESPACE, Key(key), memoryview(payload))
    position = data.draw(st.integers(0, 56 + len(key) + 7))
    damaged = bytearray(header)
    damaged[position] ^= 1
    assert expected_checksum(bytes(damaged), NAMESPACE, Key(key), len(payload)) is None


@given(keys, st.binary(min_size=1, max_size=300), st.data())
def test_a_flipped_bit_in_the_payload_is_seen(key: bytes, payload: bytes, data: st.DataObject) -> None:
    header = encode_header(NAMESPACE, Key(key), memoryview(payload))
    damaged = bytearray(payload)
    damaged[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not proves(header, NAMESPACE, Key(key), memoryview(damaged))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"writer": "a/b"}, "cannot name a writer"),
        ({"writer": ""}, "cannot name a writer"),
        ({"pack_bytes": 1024}, "pack_bytes"),
        ({"capacity_bytes": 100 << 20}, "cannot turn over packs"),
        ({"pack_buffers": 1}, "pack_buffers"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"reads_in_flight": 0}, "reads_in_flight"),
    ],
)
def test_options_that_cannot_work_are_refused(change: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"capacity_bytes": 1 << 30, "writer": "w", **change}
    with pytest.raises(UsageError, match=message):
        ObjectOptions(**options)  # type: ignore[arg-type]
