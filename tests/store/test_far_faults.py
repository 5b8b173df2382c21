"""Far stores under the shipped faults: whatever fails, OK means the right bytes, and afterwards all is well."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from mooncake_server import MooncakeServer
from object_tier_helpers import make_store as make_object_store
from server_process import ServerUnavailableError
from valkey_server import ValkeyServer

from warmtier.core.types import Namespace
from warmtier.store.base import ReadOutcome, Store, WriteOutcome
from warmtier.store.faulty import Fault, FaultPlan, FaultyStore
from warmtier.store.open_store import open_store
from warmtier.store.shared.mooncake import MooncakeStore
from warmtier.store.shared.mooncake_options import parse_mooncake
from warmtier.testing.store_suite import get_chunks, put_chunks

MakeStore = Callable[[], Store]
INJECTED = [fault for fault in Fault if fault not in {Fault.POISON, Fault.HANG}]
CHUNKS = 40


@pytest.fixture(scope="module")
def valkey(server_home: Path) -> Iterator[ValkeyServer]:
    home = server_home / "faults"
    home.mkdir()
    try:
        server = ValkeyServer(home)
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mooncake(server_home: Path) -> Iterator[MooncakeServer]:
    home = server_home / "mooncake-faults"
    home.mkdir()
    try:
        server = MooncakeServer(home)
        server.start()
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture(params=["object", "valkey", "mooncake"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    """Return what makes a store of one kind, in a namespace of this test."""
    namespace = Namespace(random.Random(str(tmp_path)).randbytes(16))
    if request.param == "object":
        return lambda: make_object_store(f"file://{tmp_path}/bucket", namespace=namespace)
    server = request.getfixturevalue(request.param)
    if request.param == "mooncake":
        options = replace(parse_mooncake(server.url), lane_bytes=1 << 20)
        return lambda: MooncakeStore(namespace, options)
    return lambda: open_store(server.url, namespace, capacity_bytes=0)


def churn(store: Store, rng: random.Random) -> set[ReadOutcome]:
    """Put and get at random; ``get_chunks`` fails on a wrong byte. Return the outcomes of reads."""
    seen: set[ReadOutcome] = set()
    for _ in range(40):
        numbers = sorted(rng.sample(range(CHUNKS), 5))
        if rng.random() < 0.5:
            put_chunks(store, numbers)
        else:
            seen |= set(get_chunks(store, numbers))
    return seen


@pytest.mark.parametrize("fault", INJECTED)
def test_no_fault_makes_a_wrong_byte(make_store: MakeStore, fault: Fault) -> None:
    rng = random.Random(f"far faults {fault}")
    faulty = FaultyStore(make_store(), FaultPlan({fault: 0.3}, seed=7), sleep=lambda _: None)
    faulty.open()
    seen = churn(faulty, rng)
    assert faulty.injected[fault] > 0
    assert ReadOutcome.OK in seen or fault is Fault.READ_ONLY
    faulty.close()
    healthy = make_store()
    healthy.open()
    outcomes = put_chunks(healthy, range(CHUNKS)).outcomes
    assert set(outcomes) <= {WriteOutcome.STORED, WriteOutcome.PRESENT}
    assert get_chunks(healthy, range(CHUNKS)) == [ReadOutcome.OK] * CHUNKS
    healthy.close()


def test_the_same_churn_notices_poison(make_store: MakeStore) -> None:
    """The control: if a store did hand out wrong bytes as OK, the test above would fail."""
    faulty = FaultyStore(make_store(), FaultPlan({Fault.POISON: 0.3}, seed=7), sleep=lambda _: None)
    faulty.open()
    with pytest.raises(AssertionError, match="came back OK with other bytes"):
        churn(faulty, random.Random("poison"))
    faulty.close()
