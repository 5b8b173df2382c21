"""The small parts of the tiered cache: index, jobs, chains, ledger, tracker."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import InternalError
from warmtier.core.types import JobId, Key
from warmtier.testing.fakes import path_of
from warmtier.tiering.chains import chains_above
from warmtier.tiering.index import HostIndex
from warmtier.tiering.jobs import Job, JobKind, JobTable
from warmtier.tiering.ledger import Ledger
from warmtier.tiering.promote import NO_SLOTS
from warmtier.tiering.settings import TenantQuota
from warmtier.tiering.threshold import OfferTracker


def test_a_slot_that_is_read_outlives_its_key() -> None:
    index = HostIndex(2)
    key = path_of("a", 1)
    slots = np.array(index.start(key, []), dtype=np.intp)
    index.finish(key)
    index.ref(slots)
    assert index.drop(key) == key
    assert index.allocator.free_slots == 1
    index.unref(slots)
    assert index.allocator.free_slots == 2


def test_more_chunks_than_slots_is_a_bug_and_changes_nothing() -> None:
    index = HostIndex(2)
    with pytest.raises(InternalError, match="3 chunks were admitted, 2 slots"):
        index.start(path_of("a", 3), [])
    assert index.allocator.free_slots == 2


def test_overdue_jobs_are_told_once_and_the_heap_is_bounded() -> None:
    table = JobTable()
    for number in range(500):
        job_id = table.new_id()
        table.add(Job(job_id, JobKind.DEMOTE, "t", [], 0, float(number), 0, NO_SLOTS))
        if number % 2:
            table.pop(job_id)
    assert len(table._deadlines) <= 2 * len(table) + 65
    assert len(table.overdue(99.0)) == 50
    assert table.overdue(99.0) == []
    assert table.pop(JobId(9999)) is None


def test_chains_bring_the_prefix_of_each_victim_once() -> None:
    a = path_of("a", 5)
    parents: dict[Key, Key | None] = dict(zip(a, [None, *a[:-1]], strict=True))
    fork = Key(b"fork")
    parents[fork] = a[2]
    chains = chains_above([a[4], fork, a[3]], parents, held=lambda k: k == a[0], available=lambda _: True)
    assert [(list(c.keys), c.parent, c.start) for c in chains] == [(a[1:], a[0], 1), ([fork], a[2], 3)]
    assert chains[1].path == [*a[:3], fork]


def test_a_victim_without_its_prefix_is_left_out() -> None:
    a = path_of("a", 3)
    parents: dict[Key, Key | None] = dict(zip(a, [None, *a[:-1]], strict=True))
    assert chains_above([a[2]], parents, held=lambda _: False, available=lambda k: k != a[1]) == []


def test_tenants_are_charged_and_released() -> None:
    ledger = Ledger({"a": TenantQuota(max_bytes=250, share=0.5)}, 8, 100, 16)
    tenant = ledger.tenant("a")
    ledger.charge([0, 1], tenant)
    ledger.charge([2], ledger.tenant("b"))
    assert ledger.room(tenant) == 0
    assert ledger.room(ledger.tenant("b")) is None
    ledger.release([1, 2])
    assert ledger.usage() == {"other": 0, "a": 1, "b": 0}


keys = st.lists(st.integers(0, 30).map(lambda i: Key(bytes([i]))), unique=True, min_size=1, max_size=12)


@given(st.lists(keys, max_size=40), st.integers(1, 10))
def test_the_tracker_counts_within_its_bound(offers: list[list[Key]], size: int) -> None:
    tracker = OfferTracker(2, size)
    seen: dict[Key, int] = {}
    for offer in offers:
        tracker.record(offer)
        for key in offer:
            seen[key] = seen.get(key, 0) + 1
        assert len(tracker) <= size
        for key in offer[: tracker.ripe(offer)]:
            assert seen[key] >= 2, "a chunk cannot be ripe before its second offer"
