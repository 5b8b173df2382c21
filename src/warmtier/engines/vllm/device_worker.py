"""vLLM's own copy worker over our slab, for CUDA and XPU. Written from vLLM's source, **not run on such a device yet**.

vLLM's ``CPUOffloadingWorker`` wants a region of host memory; ``SlabRegion`` is one, made of the slab's rows. vLLM packs
a rank's part of a row layer by layer instead of block by block, which only its own worker ever reads. Digests are not
taken here (the bytes arrive without passing through the processor): loads from host memory are unchecked on these
devices, whatever ``engine.verify`` says; bytes that went through a cold tier are checked there.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker, TransferResult

from warmtier.core.errors import InternalError, StoreError
from warmtier.engines.vllm.slab import CORRUPT, FAILED, STORED, Slab
from warmtier.engines.vllm.specs import HostSlots

logger = init_logger("vllm.warmtier.worker")


class SlabRegion:
    """The rows of a slab, with the attributes that vLLM 0.31-0.33 reads of its ``SharedOffloadRegion``."""

    def __init__(self, slab: Slab, rank: int) -> None:
        layout = slab.layout
        self.rank = rank
        self.num_chunks = layout.slots
        self.total_size_bytes = layout.slots * layout.row_bytes
        self.is_pinned = False
        self.pinned_addresses: list[int] = []
        self._row_stride = layout.row_bytes
        self._base = torch.from_numpy(slab.rows.reshape(-1)).view(torch.int8)
        self._offset = rank * layout.blocks_per_chunk * layout.block_bytes
        self._end = self._offset + layout.blocks_per_chunk * layout.block_bytes

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """Return the place of the next device tensor in every row, as (slots, bytes)."""
        start, self._offset = self._offset, self._offset + tensor_page_size
        if self._offset > self._end:
            raise InternalError(f"the device's tensors need {self._offset - self._end} bytes more than a row has")
        return torch.as_strided(self._base, (self.num_chunks, tensor_page_size), (self._row_stride, 1), start)

    def cleanup(self) -> None:
        """Unregister the memory from the device. The mapping stays."""
        if self.pinned_addresses:
            from vllm.v1.kv_offload.cpu.host_register import host_unregister

            for address in reversed(self.pinned_addresses):
                host_unregister(address)
            self.pinned_addresses.clear()
        self.is_pinned = False


class DeviceCopyWorker(OffloadingWorker):  # type: ignore[misc]
    """Passes transfers to vLLM's worker and notes in the slab what became of them."""

    def __init__(self, worker: OffloadingWorker, slab: Slab, rank: int) -> None:
        self._worker = worker
        self._slab = slab
        self._rank = rank
        self._contained = False
        self._jobs: dict[int, tuple[bool, list[int]]] = {}
        self._refused: list[int] = []
        self._failed_loads: set[int] = set()

    def contain_failures(self) -> None:
        """Promise that the caller collects ``take_failed_loads`` and has those requests recomputed."""
        self._contained = True

    def take_failed_loads(self) -> set[int]:
        """Return the load jobs among those ``get_finished`` has returned whose bytes must not be used."""
        failed, self._failed_loads = self._failed_loads, set()
        return failed

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: HostSlots) -> bool:
        """Start a copy from the device into slots."""
        self._jobs[job_id] = (False, dst_spec.block_ids.tolist())
        if not self._worker.submit_store(job_id, src_spec, dst_spec):
            self._refused.append(job_id)
        return True

    def submit_load(self, job_id: int, src_spec: HostSlots, dst_spec: GPULoadStoreSpec, **options: object) -> bool:
        """Start a copy from slots to the device."""
        self._jobs[job_id] = (True, src_spec.block_ids.tolist())
        if not self._worker.submit_load(job_id, src_spec, dst_spec, **options):
            self._refused.append(job_id)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that ended. Raises StoreError for a failed load that nobody contains."""
        refused = [TransferResult(job_id, success=False) for job_id in self._refused]
        self._refused.clear()
        return [self._finish(result) for result in [*self._worker.get_finished(), *refused]]

    def _finish(self, result: TransferResult) -> TransferResult:
        is_load, slots = self._jobs.pop(result.job_id)
        if result.success:
            if not is_load:
                self._slab.status[slots, self._rank] = STORED
            return result
        logger.error("A %s of %d chunk(s) failed on the device", "load" if is_load else "store", len(slots))
        self._slab.status[slots, self._rank] = CORRUPT if is_load else FAILED
        if is_load:
            if not self._contained:
                raise StoreError("a load failed on the device", fix="use the WarmtierConnector, which recomputes")
            self._failed_loads.add(result.job_id)
        return TransferResult(result.job_id, True, result.transfer_size, result.transfer_time)  # noqa: FBT003

    def wait(self, job_ids: Collection[int]) -> None:
        """Block until these jobs have ended."""
        self._worker.wait(set(job_ids))

    def shutdown(self) -> None:
        """End vLLM's worker and let go of the slab."""
        self._worker.shutdown()
        self._slab.close()
