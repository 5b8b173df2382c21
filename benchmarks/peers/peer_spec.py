"""vLLM's own tiering (its manager, policies and file tier) made to run on the CPU platform with our copy worker.

vLLM refuses to offload from CPU devices, because it has no copy worker for them. This gives it ours, so that both sides
of a benchmark copy with the same code and only what decides differs. Loaded by servers that the benchmarks start.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from warmtier.engines.vllm.copier import BlockCopier, stack_pages
from warmtier.engines.vllm.slab import SlabLayout
from warmtier.engines.vllm.worker import HostCopyWorker


class PeerSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """Only ``get_worker`` differs from vLLM's spec."""

    _peer: OffloadingWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return our copy worker over vLLM's region."""
        if self._peer is None:
            self._peer = self._host_worker(kv_caches)
        return self._peer

    def _host_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        block_bytes = sum(tensor.page_size_bytes for tensor in kv_caches.tensors)
        ranks, per_chunk = self.config.parallel.world_size, self.blocks_per_chunk
        rows = region._base.numpy().view(np.uint8).reshape(self.num_chunks, self.kv_bytes_per_chunk)
        payload = ranks * per_chunk * block_bytes
        slab: Any = SimpleNamespace(
            region=region,
            layout=SlabLayout(self.num_chunks, ranks, per_chunk, block_bytes),
            blocks=rows[:, :payload].reshape(self.num_chunks, ranks, per_chunk, block_bytes),
            digests=np.zeros((self.num_chunks, ranks, per_chunk), np.uint64),
            status=np.zeros((self.num_chunks, ranks), np.uint8),
            close=lambda: None,
        )
        tensors = [np.asarray(tensor.tensor.numpy().view(np.uint8)) for tensor in kv_caches.tensors]
        stacks = [stack_pages(tensors, [ref.tensor_idx for ref in refs]) for refs in kv_caches.group_data_refs]
        return HostCopyWorker(BlockCopier(stacks, slab, self.config.parallel.rank, 0), slab, self.config.parallel.rank)
