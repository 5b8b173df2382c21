"""The model store passes the suite that it is the measure of."""

from __future__ import annotations

from pathlib import Path

from warmtier.core.types import TierKind
from warmtier.store.base import Store, WriteOutcome
from warmtier.store.memory import MemoryStore
from warmtier.testing.store_suite import StoreSuite, get_chunks, put_chunks


class TestMemoryStore(StoreSuite):
    persistent = False

    def make_store(self, directory: Path, capacity_bytes: int) -> Store:
        return MemoryStore(capacity_bytes)


def test_evicts_the_oldest_and_never_its_own_batch() -> None:
    store = MemoryStore(300, kind=TierKind.HOST)
    store.open()
    assert put_chunks(store, [1, 2, 3], 100).evicted == []
    result = put_chunks(store, [4, 5], 100)
    assert [key[-1] for key in result.evicted] == [1, 2]
    result = put_chunks(store, [6, 7, 8, 9], 100)
    assert result.outcomes == [WriteOutcome.STORED] * 3 + [WriteOutcome.NO_ROOM]
    assert [o.value for o in get_chunks(store, [6, 7, 8, 9], 100)] == ["ok", "ok", "ok", "absent"]
    assert store.kind is TierKind.HOST
