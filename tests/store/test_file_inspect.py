"""``warmtier tier`` sees what is there, beside a live engine too, and removes only what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from warmtier.cli.tier import app
from warmtier.core.errors import CheckFailedError, StoreError, StoreLockedError
from warmtier.core.types import Namespace
from warmtier.store.file import FileStore, engine_directory
from warmtier.store.file.format import PAGE
from warmtier.testing.store_suite import CHUNK_BYTES, put_chunks

SEGMENT = 128 << 10
OLD, NEW = Namespace(b"o" * 16), Namespace(b"n" * 16)


def make(root: Path, rank: int, namespace: Namespace) -> FileStore:
    return FileStore(engine_directory(root, rank), namespace, capacity_bytes=2 << 20, segment_bytes=SEGMENT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two engines; the first also has segments of an older namespace, and all are closed."""
    root = tmp_path / "kv"
    for rank, namespace, numbers in ((0, OLD, range(6)), (0, NEW, range(10)), (1, NEW, range(3))):
        store = make(root, rank, namespace)
        store.open()
        put_chunks(store, numbers)
        store.close()
    return root


def run(*words: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*words, "--format", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


def test_ls_lists_both_engines_oldest_first(root: Path) -> None:
    segments = run("ls", str(root))["segments"]
    assert isinstance(segments, list)
    assert [(s["engine"], s["namespace"], s["records"]) for s in segments] == [
        ("dp0", OLD.hex(), 4),
        ("dp0", OLD.hex(), 2),
        ("dp0", NEW.hex(), 4),
        ("dp0", NEW.hex(), 4),
        ("dp0", NEW.hex(), 2),
        ("dp1", NEW.hex(), 3),
    ]
    assert {s["state"] for s in segments} == {"sealed"}
    assert len(run("ls", str(root / "dp1"))["segments"]) == 1  # type: ignore[arg-type]


def test_stats_sum_up_by_engine_and_namespace(root: Path) -> None:
    groups = run("stats", str(root))["groups"]
    assert isinstance(groups, list)
    assert [(g["engine"], g["namespace"], g["segments"], g["records"]) for g in groups] == [
        ("dp0", OLD.hex(), 2, 6),
        ("dp0", NEW.hex(), 3, 10),
        ("dp1", NEW.hex(), 1, 3),
    ]
    assert all(g["size_on_disk_bytes"] >= g["segments"] * SEGMENT for g in groups)


def test_verify_reads_everything_beside_a_live_engine(root: Path) -> None:
    store = make(root, 1, NEW)
    store.open()
    put_chunks(store, range(50, 53))
    document = run("verify", str(root), "--quiet")
    assert (document["records"], document["corrupt"], document["missing"]) == (22, 0, 0)
    assert document["payload_bytes"] == 22 * CHUNK_BYTES
    store.close()


@pytest.mark.parametrize(
    ("offset", "corrupt", "missing", "unreadable"),
    [(2 * PAGE + 5, 1, 0, 0), (PAGE + 3, 0, 1, 0), (9, 0, 0, 0), (60, 0, 0, 1)],
)
def test_verify_finds_a_flipped_bit(root: Path, offset: int, corrupt: int, missing: int, unreadable: int) -> None:
    """In a payload, a record header, the version (then it is another format), a segment header."""
    path = root / "dp1" / "segment-00000000.kv"
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    result = CliRunner().invoke(app, ["verify", str(root), "--format", "json", "--quiet"])
    document = json.loads(result.stdout)
    assert (document["corrupt"], document["missing"], document["unreadable_segments"]) == (corrupt, missing, unreadable)
    damaged = bool(corrupt or missing or unreadable)
    assert isinstance(result.exception, CheckFailedError) == damaged


def test_gc_keeps_the_newest_namespace_and_refuses_a_live_directory(root: Path) -> None:
    store = make(root, 0, NEW)
    store.open()
    refused = CliRunner().invoke(app, ["gc", str(root)])
    assert isinstance(refused.exception, StoreLockedError)
    dry = run("gc", str(root), "--dry-run")
    assert len(dry["removed"]) == 2  # type: ignore[arg-type]
    store.close()
    document = run("gc", str(root))
    assert document["freed_bytes"] == dry["freed_bytes"]
    assert sorted(p.name for p in (root / "dp0").glob("segment-*")) == [f"segment-0000000{n}.kv" for n in (2, 3, 4)]
    store.open()
    assert store.stats().chunks == 10
    store.close()


def test_gc_down_to_a_size_and_for_a_named_namespace(root: Path) -> None:
    document = run("gc", str(root / "dp0"), "--to", "300KiB")
    assert len(document["kept"]) == 2  # type: ignore[arg-type]
    run("gc", str(root / "dp1"), "--keep", OLD.hex())
    assert list((root / "dp1").glob("segment-*")) == []


def test_tables_for_people(root: Path) -> None:
    for words in (["ls"], ["stats"], ["verify"], ["gc"]):
        result = CliRunner().invoke(app, [*words, str(root)], catch_exceptions=False)
        assert result.exit_code == 0
        assert "128" in result.stdout or "384" in result.stdout or "256" in result.stdout


def test_a_directory_without_a_tier_is_named(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "absent"):
        result = CliRunner().invoke(app, ["ls", str(place)])
        assert isinstance(result.exception, StoreError)
