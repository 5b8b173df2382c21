"""URLs of far tiers."""

from __future__ import annotations

from pathlib import Path

import pytest
from valkey_server import ValkeyServer

from warmtier.core.errors import UsageError
from warmtier.core.types import Namespace, TierKind
from warmtier.store.base import FollowedStore, ProbedStore
from warmtier.store.object.options import ObjectOptions
from warmtier.store.open_store import kind_of, open_store, writer_name
from warmtier.testing.store_suite import get_chunks, put_chunks

NAMESPACE = Namespace(b"suite namespace!")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("s3://b/p", TierKind.OBJECT),
        ("gs://b", TierKind.OBJECT),
        ("az://c", TierKind.OBJECT),
        ("file:///d", TierKind.OBJECT),
        ("valkey://h", TierKind.SHARED),
        ("rediss://h", TierKind.SHARED),
        ("unix:///s", TierKind.SHARED),
        ("mooncake://h:1", TierKind.SHARED),
    ],
)
def test_kinds(url: str, kind: TierKind) -> None:
    assert kind_of(url) is kind


def test_an_unknown_scheme_is_refused_without_repeating_the_url() -> None:
    with pytest.raises(UsageError, match="'ftp'") as caught:
        kind_of("ftp://me:topsecret@host")
    assert "topsecret" not in str(caught.value)


def test_stores_are_made_for_their_kind(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/bucket", NAMESPACE, capacity_bytes=1 << 30)
    assert isinstance(store, FollowedStore)
    assert list(store.open()) == []
    put_chunks(store, [1])
    assert get_chunks(store, [1]) == ["ok"]
    store.close()
    for url in ("valkey://127.0.0.1:1", "mooncake://127.0.0.1:1"):
        assert isinstance(open_store(url, NAMESPACE, capacity_bytes=0), ProbedStore)


def test_a_shared_store_is_made_and_used(server_home: Path) -> None:
    home = server_home / "open"
    home.mkdir()
    server = ValkeyServer(home)
    server.start()
    try:
        store = open_store(server.url, NAMESPACE, capacity_bytes=0)
        store.open()
        put_chunks(store, [1])
        assert get_chunks(store, [1]) == ["ok"]
        store.close()
    finally:
        server.stop()


def test_writers_have_lasting_distinct_valid_names() -> None:
    names = [writer_name("dp0", {}), writer_name("dp1", {}), writer_name("dp0", {"WARMTIER_WRITER": "pod-7"})]
    assert names == [writer_name("dp0", {}), writer_name("dp1", {}), "pod-7-dp0"]
    assert len(set(names)) == 3
    for name in names:
        ObjectOptions(capacity_bytes=1 << 30, writer=name)
