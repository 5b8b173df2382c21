"""A small engine around vLLM's own scheduler-side connector class: real requests, hashes, keys, jobs and call order.

What vLLM's scheduler, block manager and model would do is done by hand, for any number of full-attention KV groups. The
device is a numpy array; the content of a block is a function of its hash and group, so every load can be judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xxhash
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.base import OffloadingKVEventsConfig
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from warmtier.config.parse import parse_extra_config
from warmtier.core.types import TierMode
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.build import build_cache
from warmtier.engines.vllm.build_cold import build_cold
from warmtier.engines.vllm.copier import BlockCopier, stack_pages
from warmtier.engines.vllm.manager import WarmtierManager
from warmtier.engines.vllm.metrics import MetricsFeed
from warmtier.engines.vllm.slab import Bytes, Slab, SlabLayout
from warmtier.engines.vllm.status import StatusLine
from warmtier.engines.vllm.worker import HostCopyWorker

BLOCK_TOKENS = 4
PAGE = 64
LAYERS = 2
FACTS = {
    "model": "mini",
    "model_config": "",
    "weights": "w",
    "quantization": None,
    "dtype": "float16",
    "kv_dtype": "auto",
    "engine": "mini",
    "device": "cpu",
    "groups": [],
    "kv_cache_layout": None,
    "tokens_per_block": [BLOCK_TOKENS],
    "parallel": [1, 1, 1, 1],
    "hash_algorithm": "sha256_cbor",
}


def offloading_config(groups: int = 1, blocks_per_chunk: int = 1, **extra: Any) -> OffloadingConfig:
    return OffloadingConfig(
        groups=tuple(OffloadingGroupConfig(BLOCK_TOKENS, (f"layer.{g}",), g) for g in range(groups)),
        worker_kv_bytes_per_block=groups * LAYERS * PAGE,
        enable_kv_cache_events=True,
        extra_config={"warmtier": {"host": {"capacity": "1MiB"}, **extra}},
        engine_id="mini",
        model=OffloadingModelConfig("mini", "float16"),
        cache=OffloadingCacheConfig(tokens_per_hash=BLOCK_TOKENS, blocks_per_chunk=blocks_per_chunk),
        parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )


@dataclass
class Served:
    """What became of one request."""

    loaded_tokens: int
    deferred_steps: int
    stored_keys: int


@dataclass
class MiniEngine:
    """One engine with ``slots`` places in its host tier."""

    directory: Path
    groups: int = 1
    blocks_per_chunk: int = 1
    slots: int = 64
    device_blocks: int = 256
    contained: bool = False
    wait_for_cold: bool = True
    access_log: AccessLog | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0

    def __post_init__(self) -> None:
        init_none_hash(sha256_cbor)
        self.rng = np.random.default_rng(7)
        self.config = offloading_config(self.groups, self.blocks_per_chunk, **self.settings)
        self.config.extra_config.update(self.extra)
        self.memory = np.zeros((self.groups * LAYERS, self.device_blocks, PAGE), np.uint8)
        tensors: list[Bytes] = list(self.memory)
        layout = SlabLayout(self.slots, 1, self.blocks_per_chunk, len(tensors) * PAGE)
        self.slab = Slab.open("mini", layout, {}, directory=self.directory)
        stacks = [stack_pages(tensors, range(g * LAYERS, (g + 1) * LAYERS)) for g in range(self.groups)]
        self.worker = HostCopyWorker(BlockCopier(stacks, self.slab, 0), self.slab, 0)
        if self.contained:
            self.worker.contain_failures()
        settings = parse_extra_config(self.config.extra_config["warmtier"])
        self.cache = build_cache(self.config, settings, layout)
        facts = {**FACTS, "layout": asdict(layout)}
        self.cold = build_cold(self.config, settings, self.cache, self.slab, facts, clock=lambda: self.now)
        self.lines: list[str] = []
        self.manager = WarmtierManager(
            self.cache,
            self.slab,
            MetricsFeed(self.cache.stats().tiers, layout.row_bytes),
            StatusLine(self.lines.append, layout.row_bytes, 60.0),
            cold=self.cold,
            access_log=self.access_log,
            groups=self.groups,
            clock=lambda: self.now,
        )
        self.connector = OffloadingConnectorScheduler(*self._connector_arguments())
        self.free = list(self.rng.permutation(np.arange(1, self.device_blocks)).tolist())
        self.requests = 0
        self.pending_stores: dict[int, Any] = {}
        self.failed_requests: set[str] = set()

    def _connector_arguments(self) -> tuple[Any, Any, Any]:
        spec = SimpleNamespace(
            config=self.config,
            tokens_per_block=(BLOCK_TOKENS,) * self.groups,
            tokens_per_hash=BLOCK_TOKENS,
            blocks_per_chunk=self.blocks_per_chunk,
            offload_prompt_only=True,
            kv_events_config=OffloadingKVEventsConfig(True, False),
            get_manager=lambda: self.manager,
        )
        vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(prefix_cache_retention_interval=None, enable_prefix_caching=True),
            speculative_config=None,
            parallel_config=SimpleNamespace(world_size=1, decode_context_parallel_size=1),
        )
        attention = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=8, dtype=torch.float16)
        groups = [KVCacheGroupSpec([f"layer.{g}"], attention) for g in range(self.groups)]
        return spec, vllm_config, KVCacheConfig(self.device_blocks, [], groups)

    # --- requests ---

    def request(self, tokens: Sequence[int], **transfer: Any) -> Request:
        """Make a vLLM request."""
        self.requests += 1
        parameters = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": transfer} if transfer else None)
        hasher = get_request_block_hasher(BLOCK_TOKENS, sha256_cbor)
        return Request(f"r{self.requests}", list(tokens), parameters, None, block_hasher=hasher)

    def content(self, group: int, block_hash: bytes) -> Bytes:
        """Return what the model computes for a block: one page per layer of the group."""
        seed = xxhash.xxh3_64_intdigest(block_hash + bytes([group]))
        return np.random.default_rng(seed).integers(0, 256, (LAYERS, PAGE), np.uint8)

    def held(self, group: int, block: int) -> Bytes:
        """Return what the device holds."""
        return self.memory[group * LAYERS : (group + 1) * LAYERS, block]

    def serve(self, tokens: Sequence[int], *, device_blocks: int = 0, **transfer: Any) -> Served:
        """Run one request to its end, alone. ``device_blocks`` leading blocks are a device hit."""
        request = self.request(tokens, **transfer)
        self.connector.on_new_request(request)
        matched, deferred = self.match(request, device_blocks)
        blocks = self.allocate(request, device_blocks)
        if matched:
            self.load(request, blocks, device_blocks, matched)
        stored = self.compute(request, blocks, device_blocks * BLOCK_TOKENS + matched)
        self.finish(request, blocks)
        return Served(matched, deferred, stored)

    def match(self, request: Request, device_blocks: int = 0) -> tuple[int, int]:
        """Ask until the answer is not "later"; return the tokens and the steps waited."""
        for deferred in range(1000):
            matched, is_async = self.connector.get_num_new_matched_tokens(request, device_blocks * BLOCK_TOKENS)
            if matched is not None:
                assert is_async == bool(matched)
                return matched, deferred
            self.step()
        raise AssertionError("deferred for ever")

    def allocate(self, request: Request, device_blocks: int = 0) -> list[list[int]]:
        """Take device blocks for every group; the device hit's blocks hold their content already."""
        count = -(-request.num_tokens // BLOCK_TOKENS)
        blocks = [[self.free.pop() for _ in range(count)] for _ in range(self.groups)]
        for group, ids in enumerate(blocks):
            for index in range(device_blocks):
                self.held(group, ids[index])[:] = self.content(group, request.block_hashes[index])
        return blocks

    def start_load(self, request: Request, blocks: list[list[int]], device_blocks: int, matched: int) -> None:
        """Tell the connector where to load to."""
        groups = tuple(
            [
                KVCacheBlock(block, _block_hash=b"cached" if index < device_blocks else None)
                for index, block in enumerate(ids)
            ]
            for ids in blocks
        )
        self.connector.update_state_after_alloc(request, KVCacheBlocks(groups), matched)

    def load(self, request: Request, blocks: list[list[int]], device_blocks: int, matched: int) -> None:
        """Load and judge every byte that arrived."""
        self.start_load(request, blocks, device_blocks, matched)
        self.step()
        self.step()
        if request.request_id not in self.failed_requests:
            self.judge(request, blocks, device_blocks + matched // BLOCK_TOKENS)

    def judge(self, request: Request, blocks: list[list[int]], count: int) -> None:
        """Compare the first ``count`` blocks with what the model would have computed."""
        for group, ids in enumerate(blocks):
            for index in range(count):
                expected = self.content(group, request.block_hashes[index])
                assert (self.held(group, ids[index]) == expected).all(), f"group {group} block {index} is wrong"

    def compute(self, request: Request, blocks: list[list[int]], cached: int) -> int:
        """Run the prefill of what is not cached and let the connector offer it; return the keys stored."""
        for group, ids in enumerate(blocks):
            for index in range(cached // BLOCK_TOKENS, request.num_tokens // BLOCK_TOKENS):
                self.held(group, ids[index])[:] = self.content(group, request.block_hashes[index])
        request.num_computed_tokens = min(cached, request.num_tokens - 1)
        new = SimpleNamespace(req_id=request.request_id, block_ids=tuple(list(ids) for ids in blocks))
        before = sum(len(job.keys) for job in self.connector._jobs.values())
        self.step(new=[new], scheduled={request.request_id: request.num_tokens - request.num_computed_tokens})
        return sum(len(job.keys) for job in self.connector._jobs.values()) - before

    def finish(self, request: Request, blocks: list[list[int]], *, aborted: bool = False) -> None:
        """End the request, run what is left of its stores, free its blocks."""
        request.status = RequestStatus.FINISHED_ABORTED if aborted else RequestStatus.FINISHED_LENGTH_CAPPED
        request.num_computed_tokens = request.num_tokens
        self.connector.request_finished(request)
        self.step(finished={request.request_id})
        self.step()
        self.step()
        self.free += [block for ids in blocks for block in ids]

    # --- steps ---

    def step(
        self,
        *,
        new: Sequence[Any] = (),
        scheduled: dict[str, int] | None = None,
        finished: set[str] | None = None,
        preempted: set[str] | None = None,
    ) -> None:
        """One engine step: schedule, submit the last step's stores and this step's loads, report what has ended."""
        self.now += 0.01
        self.settle_cold()
        output = SimpleNamespace(
            scheduled_new_reqs=list(new),
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set()),
            num_scheduled_tokens=scheduled or {},
            finished_req_ids=finished or set(),
            preempted_req_ids=preempted,
            kv_cache_block_copies=None,
            kv_connector_block_state=None,
        )
        meta = self.connector.build_connector_meta(output)
        jobs: set[int] = set()
        for job_id, job in self.pending_stores.items():
            assert self.worker.submit_store(job_id, job.src_spec, job.dst_spec)
            jobs.add(job_id)
        self.pending_stores = dict(meta.store_jobs)
        requests = {job_id: job.req_id for job_id, job in meta.load_jobs.items()}
        for job_id, job in meta.load_jobs.items():
            assert self.worker.submit_load(job_id, job.src_spec, job.dst_spec)
            jobs.add(job_id)
        self.worker.wait(jobs)
        done = OffloadingWorkerMetadata({result.job_id: 1 for result in self.worker.get_finished()})
        self.failed_requests |= {requests[job_id] for job_id in self.worker.take_failed_loads()}
        self.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))
        self.connector.get_stats()

    def settle_cold(self) -> None:
        """Give the cold tiers' threads the time that a step takes on a real engine."""
        if self.cold is not None and self.wait_for_cold:
            assert self.cold._executor.drain(10.0)

    def open_cold(self, name: str = "file") -> None:
        """Step until the tier's store is open and its chunks are known."""
        deadline = time.monotonic() + 20
        while self.cache.stats().tiers[name].mode is not TierMode.ON:
            assert time.monotonic() < deadline, self.cold and self.cold.waiting_for()
            self.manager.has_pending_work()
            time.sleep(0.002)

    def close(self) -> None:
        """Shut down as vLLM does."""
        self.manager.shutdown()
        self.worker.shutdown()

    def idle(self, steps: int = 5) -> None:
        """Let everything in flight end."""
        for _ in range(steps):
            self.step()


def tokens(seed: int, blocks: int, extra: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(blocks * BLOCK_TOKENS + extra)]


def cold_engine(path: Path, name: str = "one", *, slots: int = 8, opened: bool = True, **options: Any) -> MiniEngine:
    """``slots`` host places above a file tier that is never full."""
    directory = path / name
    directory.mkdir(exist_ok=True)
    file = {
        "directory": str(path / "kv"),
        "capacity": "64MiB",
        "segment_size": "4MiB",
        "free_space_floor": "0B",
        "policy": "lru",
        **options.pop("file", {}),
    }
    settings = {
        "file": file,
        "host": {"capacity": "1MiB", "policy": "lru"},
        "loading": {"pending_deadline": "60s"},
        **options.pop("settings", {}),
    }
    engine = MiniEngine(directory, slots=slots, settings=settings, **options)
    engine.cache.state.costs.static_min_tokens = 1  # prompts are tiny here
    if opened:
        engine.open_cold()
    return engine


def fill(engine: MiniEngine, seeds: range, blocks: int = 6) -> None:
    for seed in seeds:
        engine.serve(tokens(seed, blocks))
