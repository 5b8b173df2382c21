"""The wrapper around vLLM's device worker, with that worker replaced: no such device is here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vllm.v1.kv_offload.base import GPULoadStoreSpec, TransferResult

from warmtier.core.errors import InternalError, StoreError
from warmtier.engines.vllm.device_worker import DeviceCopyWorker, SlabRegion
from warmtier.engines.vllm.slab import CORRUPT, EMPTY, FAILED, STORED, Slab, SlabLayout
from warmtier.engines.vllm.specs import HostSlots

LAYOUT = SlabLayout(slots=4, ranks=2, blocks_per_chunk=3, block_bytes=1024)
DEVICE = GPULoadStoreSpec([1, 2], [2], [0])


class FakeWorker:
    """Accepts or refuses everything and reports what it is told to."""

    def __init__(self) -> None:
        self.accepts = True
        self.results: list[TransferResult] = []
        self.waited: set[int] = set()

    def submit_store(self, job_id: int, src_spec: object, dst_spec: object) -> bool:
        return self.accepts

    def submit_load(self, job_id: int, src_spec: object, dst_spec: object, *, expedited: bool = False) -> bool:
        return self.accepts

    def get_finished(self) -> list[TransferResult]:
        results, self.results = self.results, []
        return results

    def wait(self, job_ids: set[int]) -> None:
        self.waited |= job_ids

    def shutdown(self) -> None:
        pass


@pytest.fixture
def slab(tmp_path: Path) -> Slab:
    slab = Slab.open("device", LAYOUT, {}, directory=tmp_path)
    slab.mark([0, 1, 2, 3], EMPTY)
    return slab


def test_views_of_both_ranks_fill_the_row_without_touching_each_other_or_the_digests(slab: Slab) -> None:
    for rank in (0, 1):
        region = SlabRegion(slab, rank)
        for layer in range(2):
            view = region.create_next_worker_view(3 * 512)
            assert view.shape == (4, 1536)
            view[2] = 10 * rank + layer + 1
    expected = np.repeat(np.array([1, 2, 11, 12], np.uint8), 1536)
    assert (slab.chunks[2, : 4 * 1536] == expected).all()
    assert not slab.digests.any()
    assert not slab.chunks[1].any()


def test_more_tensors_than_a_row_has_room_for_are_refused(slab: Slab) -> None:
    region = SlabRegion(slab, 0)
    region.create_next_worker_view(3 * 1024)
    with pytest.raises(InternalError, match="more than a row has"):
        region.create_next_worker_view(1)


def test_success_and_failure_of_stores_reach_the_slab(slab: Slab) -> None:
    inner = FakeWorker()
    worker = DeviceCopyWorker(inner, slab, 0)
    worker.submit_store(1, DEVICE, HostSlots([0, 1]))
    worker.submit_store(2, DEVICE, HostSlots([2]))
    inner.accepts = False
    worker.submit_store(3, DEVICE, HostSlots([3]))
    inner.results = [TransferResult(1, True, 10, 0.1), TransferResult(2, False)]
    results = worker.get_finished()
    assert [(result.job_id, result.success) for result in results] == [(1, True), (2, True), (3, True)]
    assert slab.status[:, 0].tolist() == [STORED, STORED, FAILED, FAILED]


def test_a_failed_load_is_contained_only_if_someone_promised_to(slab: Slab) -> None:
    inner = FakeWorker()
    worker = DeviceCopyWorker(inner, slab, 1)
    worker.submit_load(1, HostSlots([1]), DEVICE, expedited=True)
    inner.results = [TransferResult(1, False)]
    with pytest.raises(StoreError, match="failed on the device"):
        worker.get_finished()
    worker.contain_failures()
    worker.submit_load(2, HostSlots([2]), DEVICE)
    inner.results = [TransferResult(2, False)]
    assert [result.success for result in worker.get_finished()] == [True]
    assert worker.take_failed_loads() == {2}
    assert slab.status[2, 1] == CORRUPT
    worker.wait({2})
    assert inner.waited == {2}
