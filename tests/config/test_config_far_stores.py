"""Far stores in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from warmtier.config.far_stores import ObjectStoreSettings, SharedStoreSettings
from warmtier.core.errors import UsageError
from warmtier.core.types import Namespace, TierKind
from warmtier.store.object.store import ObjectStore

NAMESPACE = Namespace(bytes(16))


def settings(url: str, **more: object) -> ObjectStoreSettings:
    return ObjectStoreSettings.model_validate({"url": url, "capacity": "1GiB", **more})


def test_every_object_knob_reaches_the_store(tmp_path: Path) -> None:
    given = {
        "writer": "me", "pack_size": "1MiB", "pack_delay": "70ms", "pack_buffers": 5, "time_to_live": "2h",
        "timeout": "3s", "poll_interval": "4s", "reads_in_flight": 6, "index_chunks": 77,
    }  # fmt: skip
    store = settings(f"file://{tmp_path}/b", **given).open_store(NAMESPACE)
    assert isinstance(store, ObjectStore)
    options = store._options
    assert (options.capacity_bytes, options.writer, options.pack_bytes) == (2**30, "me", 2**20)
    assert options.pack_delay_s == pytest.approx(0.07)
    assert (options.pack_buffers, options.ttl_s, options.timeout_s, options.poll_interval_s) == (5, 7200, 3, 4)
    assert (options.reads_in_flight, options.index_chunks) == (6, 77)


def test_engines_of_one_host_are_different_writers(tmp_path: Path) -> None:
    one = settings(f"file://{tmp_path}/b")
    stores = [one.open_store(NAMESPACE, engine=f"dp{rank}") for rank in range(2)]
    names = {store._options.writer for store in stores if isinstance(store, ObjectStore)}
    assert len(names) == 2


def test_shared_stores(tmp_path: Path) -> None:
    for url in ("valkey://127.0.0.1:1", "mooncake://127.0.0.1:1"):
        given = SharedStoreSettings.model_validate({"url": url, "timeout": "1s", "time_to_live": "1h"})
        assert given.open_store(NAMESPACE).kind is TierKind.SHARED


@pytest.mark.parametrize(
    ("url", "message"),
    [("valkey://h", "kind shared, not object"), ("ftp://h", "scheme 'ftp'"), ("bucket", "scheme ''")],
)
def test_urls_of_another_kind_are_refused(url: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(url)


def test_unknown_knobs_and_impossible_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="secret"):
        settings("s3://b", secret="x")  # noqa: S106 - the point
    with pytest.raises(UsageError, match="cannot turn over packs"):
        settings(f"file://{tmp_path}/b", capacity="100MiB").open_store(NAMESPACE)
    with pytest.raises(UsageError, match="holds credentials"):
        settings("s3://me:topsecret@b").open_store(NAMESPACE)
