"""What the tests of the object store share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from warmtier.core.types import Namespace
from warmtier.store.base import ReadOutcome
from warmtier.store.object.backend import open_backend
from warmtier.store.object.options import ObjectOptions
from warmtier.store.object.store import ObjectStore
from warmtier.testing.store_suite import CAPACITY_BYTES, get_chunks

NAMESPACE = Namespace(b"suite namespace!")
OTHER_NAMESPACE = Namespace(b"other namespace!")


def make_store(
    url: str,
    *,
    writer: str = "w",
    capacity_bytes: int = CAPACITY_BYTES,
    namespace: Namespace = NAMESPACE,
    wall: Callable[[], float] = time.time,
    timeout_s: float = 2.0,
    pack_delay_s: float = 0.05,
    pack_bytes: int = 256 << 10,
    ttl_s: float = 3600.0,
    roll_after: int = 64,
    expiry_grace_s: float = 600.0,
    index_chunks: int = 100_000,
    collect_interval_s: float = 1800.0,
    read_only: bool = False,
) -> ObjectStore:
    """Return a store with small packs and short intervals, not open yet."""
    options = ObjectOptions(
        capacity_bytes=capacity_bytes,
        writer=writer,
        pack_bytes=pack_bytes,
        pack_delay_s=pack_delay_s,
        poll_interval_s=0.05,
        publish_interval_s=0.05,
        timeout_s=timeout_s,
        ttl_s=ttl_s,
        roll_after=roll_after,
        expiry_grace_s=expiry_grace_s,
        index_chunks=index_chunks,
        collect_interval_s=collect_interval_s,
        read_only=read_only,
    )
    backend = open_backend(url, timeout_s=timeout_s, longest_s=options.longest_s)
    return ObjectStore(backend, namespace, options, wall=wall)


def memory_url(directory: Path) -> str:
    """Return the URL of a store in memory that stands for ``directory``."""
    return f"memory://{str(directory).replace('/', '.')}"


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Return whether ``condition`` came to hold."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def eventually_reads(store: ObjectStore, numbers: Sequence[int], timeout_s: float = 10.0) -> bool:
    """Return whether all chunks came to be readable, bytes checked."""
    return eventually(lambda: get_chunks(store, numbers) == [ReadOutcome.OK] * len(numbers), timeout_s)
