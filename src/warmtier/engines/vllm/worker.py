"""The copy worker for devices whose memory the processor can reach: vLLM's CPU platform.

Runs in each worker process. vLLM calls it from the worker's main thread; copies run in a few threads of their own, so
that a forward pass does not wait for them. vLLM itself fences what could go wrong: it calls ``wait`` before it reuses a
device block that a store still reads, and keeps the blocks of a load until the load has ended.

Failures: vLLM cannot be told that a transfer failed (it asserts success). A store that fails is marked in the slab, and
the manager forgets the chunk. A load that fails (digest mismatch, exception) leaves garbage on the device: unless a
connector has called ``contain_failures``, and so promised to have the request recomputed, ``get_finished`` raises and
the engine stops, because the only alternative is wrong output.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker, TransferResult

from warmtier.core.errors import StoreError
from warmtier.engines.vllm.copier import BlockCopier
from warmtier.engines.vllm.digests import DigestLog
from warmtier.engines.vllm.pool import CopyJob, CopyPool, Move
from warmtier.engines.vllm.slab import CORRUPT, FAILED, STORED, Slab
from warmtier.engines.vllm.specs import HostSlots

logger = init_logger("vllm.warmtier.worker")


class HostCopyWorker(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks between CPU tensors and the slab in background threads."""

    def __init__(
        self,
        copier: BlockCopier,
        slab: Slab,
        rank: int,
        *,
        threads: int = 1,
        cpus: Collection[int] = (),
        digest_log: DigestLog | None = None,
    ) -> None:
        self._copier = copier
        self._slab = slab
        self._rank = rank
        self._digest_log = digest_log
        self._contained = False
        self._failed_loads: set[int] = set()
        self._pool = CopyPool(threads, self._on_done, cpus)

    def contain_failures(self) -> None:
        """Promise that the caller collects ``take_failed_loads`` and has those requests recomputed."""
        self._contained = True

    def take_failed_loads(self) -> set[int]:
        """Return the load jobs among those ``get_finished`` has returned whose bytes must not be used."""
        failed, self._failed_loads = self._failed_loads, set()
        return failed

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: HostSlots) -> bool:
        """Queue a copy from the device into slots. Always accepted."""
        moves = block_moves(src_spec, dst_spec.block_ids, self._slab.layout.blocks_per_chunk)
        self._submit(job_id, moves, dst_spec, is_load=False)
        return True

    def submit_load(self, job_id: int, src_spec: HostSlots, dst_spec: GPULoadStoreSpec, **_: object) -> bool:
        """Queue a copy from slots to the device. Always accepted. vLLM 0.33 adds ``expedited``; it changes nothing."""
        moves = block_moves(dst_spec, src_spec.block_ids, self._slab.layout.blocks_per_chunk)
        self._submit(job_id, moves, src_spec, is_load=True)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the jobs that ended since the last call. Raises StoreError for a failed load that nobody contains."""
        jobs = self._pool.take_done()
        failed = {job.job_id for job in jobs if job.is_load and job.failed_slots}
        if failed and not self._contained:
            raise StoreError(
                f"KV bytes of {len(failed)} load(s) did not arrive intact",
                why="vLLM's own connector cannot recompute them and would serve wrong output",
                fix="use the WarmtierConnector, which recomputes; check the machine's memory",
            )
        self._failed_loads |= failed
        return [
            TransferResult(job.job_id, success=True, transfer_size=job.size_bytes, transfer_time=job.seconds)
            for job in jobs
        ]

    def wait(self, job_ids: set[int]) -> None:
        """Block until these jobs have ended."""
        self._pool.wait(job_ids)

    def shutdown(self) -> None:
        """Finish what is queued, end the copy threads and let go of the slab."""
        self._pool.close()
        self._slab.close()

    def _submit(self, job_id: int, moves: Sequence[Move], slots: HostSlots, *, is_load: bool) -> None:
        size_bytes = sum(self._copier.group_bytes[move[0]] for move in moves)
        job = CopyJob(job_id, is_load, moves, self._copier.load if is_load else self._store, size_bytes)
        if self._digest_log is not None:
            self._digest_log.expect(job_id, dict(zip(slots.block_ids.tolist(), slots.keys, strict=False)))
        self._pool.submit(job)

    def _store(self, group: int, block: int, slot: int, place: int) -> bool:
        self._copier.store(group, block, slot, place)
        return True

    def _on_done(self, job: CopyJob) -> None:
        """Mark the slots; runs in a copy thread, before anyone can see that the job is done."""
        status = self._slab.status
        if not job.is_load:
            touched = list({move[2] for move in job.moves})
            status[touched, self._rank] = STORED
        if job.failed_slots:
            status[list(job.failed_slots), self._rank] = CORRUPT if job.is_load else FAILED
            kind = "load" if job.is_load else "store"
            logger.error("%s of %d chunk(s) failed: %s", kind, len(job.failed_slots), job.error or "digest mismatch")
        if self._digest_log is not None:
            self._digest_log.record(job, self._copier)


def block_moves(device: GPULoadStoreSpec, slots: np.ndarray, blocks_per_chunk: int) -> list[Move]:
    """Pair every device block with its slot and its place in the chunk.

    A group's blocks are consecutive from ``block_indices[group]``, which may lie inside its first chunk.
    """
    moves: list[Move] = []
    blocks, slot_list = device.block_ids.tolist(), slots.tolist()
    first_block = first_slot = 0
    for group, (size, index) in enumerate(zip(device.group_sizes, device.block_indices, strict=True)):
        skip = index % blocks_per_chunk
        for at, block in enumerate(blocks[first_block : first_block + size], skip):
            moves.append((group, block, slot_list[first_slot + at // blocks_per_chunk], at % blocks_per_chunk))
        first_block += size
        first_slot += -(-(size + skip) // blocks_per_chunk) if size else 0
    return moves
