"""Puts the parts together from vLLM's and warmtier's configuration."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

from warmtier.config.assemble import Shape, assemble_cache
from warmtier.config.schema import AccessLog as AccessLogSettings
from warmtier.config.schema import EngineConfig
from warmtier.core.errors import InternalError, RequirementError, UnsupportedError
from warmtier.core.units import format_size
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.build_cold import build_cold
from warmtier.engines.vllm.control import ControlSocket, default_path
from warmtier.engines.vllm.copier import CHECK_EVERY, BlockCopier, PageStack, stack_pages
from warmtier.engines.vllm.digests import DigestLog, digest_log_path
from warmtier.engines.vllm.identity import weights_identity
from warmtier.engines.vllm.manager import WarmtierManager
from warmtier.engines.vllm.memory import check_budget, check_shared_memory
from warmtier.engines.vllm.metrics import MetricsFeed
from warmtier.engines.vllm.namespace import layout_facts, model_config_digest
from warmtier.engines.vllm.slab import Slab, SlabLayout
from warmtier.engines.vllm.slab_files import remove_stale
from warmtier.engines.vllm.status import StatusLine
from warmtier.engines.vllm.worker import HostCopyWorker
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.calibration import Calibration, read_calibration

logger = init_logger("vllm.warmtier")

_MANY_CPUS: Final = 4


def build_worker(
    config: OffloadingConfig,
    settings: EngineConfig,
    kv_caches: CanonicalKVCaches,
    vllm_config: Any,  # noqa: ANN401
) -> OffloadingWorker:
    """Make the slab, or join it, and the worker that copies to it. Blocks; raises RequirementError."""
    devices = {tensor.tensor.device.type for tensor in kv_caches.tensors}
    if not (devices == {"cpu"} or devices in ({"cuda"}, {"xpu"})):
        raise UnsupportedError(f"there is no copy worker for devices of type {sorted(devices)}")
    for path in remove_stale():
        logger.info("Removed %s, left over from an engine that is gone", path)
    block_bytes = sum(tensor.page_size_bytes for tensor in kv_caches.tensors)
    ranks, blocks_per_chunk = config.parallel.world_size, config.cache.blocks_per_chunk
    layout = SlabLayout.fit(settings.host.capacity, ranks, blocks_per_chunk, block_bytes)
    slab = Slab.open(config.engine_id, layout, _facts(config, vllm_config, kv_caches), before=_memory_check(settings))
    if devices == {"cpu"}:
        return _host_worker(settings, kv_caches, slab, config.parallel.rank)
    return _device_worker(kv_caches, slab, config.parallel.rank)


def _host_worker(settings: EngineConfig, kv_caches: CanonicalKVCaches, slab: Slab, rank: int) -> OffloadingWorker:
    tensors = [np.asarray(tensor.tensor.numpy().view(np.uint8)) for tensor in kv_caches.tensors]
    log_path = digest_log_path()
    return HostCopyWorker(
        BlockCopier(_group_stacks(kv_caches, tensors), slab, rank, CHECK_EVERY[settings.engine.verify.value]),
        slab,
        rank,
        threads=settings.engine.copy_threads or _default_threads(),
        cpus=_parent_cpus(),
        digest_log=DigestLog(log_path, rank) if log_path else None,
    )


def _device_worker(kv_caches: CanonicalKVCaches, slab: Slab, rank: int) -> OffloadingWorker:
    from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker

    from warmtier.engines.vllm.device_worker import DeviceCopyWorker, SlabRegion

    layout = slab.layout
    worker = CPUOffloadingWorker(kv_caches, layout.blocks_per_chunk, layout.slots, SlabRegion(slab, rank))
    return DeviceCopyWorker(worker, slab, rank)


def build_manager(config: OffloadingConfig, settings: EngineConfig) -> OffloadingManager:
    """Map the slab that the workers made and build the cache over it."""
    slab, facts = Slab.attach(config.engine_id)
    slab.remove_name()
    if slab.layout.blocks_per_chunk != config.cache.blocks_per_chunk:
        raise InternalError(f"workers and scheduler disagree on blocks_per_chunk: {slab.layout}, {config.cache}")
    calibration = read_calibration(settings.loading.calibration) if settings.loading.calibration else None
    cache = build_cache(config, settings, slab.layout, calibration)
    logger.info("Host tier: %d chunks, %s; %s", slab.layout.slots, format_size(slab.layout.total_bytes), facts)
    part_bytes = slab.layout.row_bytes
    rank = config.parallel.data_parallel_index
    manager = WarmtierManager(
        cache,
        slab,
        cold=build_cold(config, settings, cache, slab, facts),
        feed=MetricsFeed(cache.stats().tiers, part_bytes),
        status=StatusLine(logger.info, part_bytes, settings.engine.log_interval),
        groups=len(config.groups),
        access_log=_access_log(settings.access_log, rank),
        log_keys=digest_log_path() is not None,
    )
    if settings.engine.control:
        path = settings.engine.control_socket
        _listen(manager, _of_engine(path, rank) if path is not None else default_path(config.engine_id))
    return manager


def _access_log(settings: AccessLogSettings, rank: int) -> AccessLog | None:
    if settings.path is None:
        return None
    return AccessLog(
        _of_engine(settings.path, rank),
        capacity_bytes=settings.capacity,
        files=settings.files,
        max_queue=settings.queue,
        log=logger.warning,
    )


def _listen(manager: WarmtierManager, path: Path) -> None:
    """Open the control socket. An engine that cannot be controlled still serves."""
    try:
        manager.control = ControlSocket(path, manager.operations.answer)
        logger.info("warmtier ctl --socket %s", path)
    except RequirementError as error:
        logger.warning("There is no control socket: %s", error)


def _of_engine(path: Path, rank: int) -> Path:
    """Return the path of one data-parallel engine."""
    return path.with_name(f"{path.name}.dp{rank}") if rank else path


def build_cache(
    config: OffloadingConfig, settings: EngineConfig, layout: SlabLayout, calibration: Calibration | None = None
) -> TieredCache:
    """Return the tiered cache for one engine. What may be stored of a request (prompt only) is vLLM's own setting."""
    shape = Shape(
        part_bytes=layout.row_bytes,
        tokens_per_chunk=config.groups[0].tokens_per_block * config.cache.blocks_per_chunk,
        host_slots=layout.slots,
        parts_per_chunk=len(config.groups),
        prompt_only=False,
        events=config.enable_kv_cache_events,
        defers_shared_loads=True,
        store_threshold=max(1, int(config.extra_config.get("store_threshold", 0))),
    )
    return assemble_cache(settings, shape, calibration)


def _memory_check(settings: EngineConfig) -> Any:  # noqa: ANN401
    def check(needed_bytes: int) -> None:
        check_shared_memory(needed_bytes)
        check_budget(needed_bytes, settings.engine.memory_headroom)

    return check


def _group_stacks(kv_caches: CanonicalKVCaches, tensors: Sequence[np.ndarray]) -> list[list[PageStack]]:
    return [stack_pages(tensors, [ref.tensor_idx for ref in refs]) for refs in kv_caches.group_data_refs]


def _facts(config: OffloadingConfig, vllm_config: Any, kv_caches: CanonicalKVCaches) -> dict[str, Any]:  # noqa: ANN401
    """Return what only workers see and the manager needs: the parts of the namespace of the KV bytes."""
    from vllm import __version__ as vllm_version

    device = kv_caches.tensors[0].tensor.device.type
    page_bytes = [
        [kv_caches.tensors[ref.tensor_idx].page_size_bytes for ref in refs] for refs in kv_caches.group_data_refs
    ]
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, config.parallel
    return {
        "model": config.model.name,
        "dtype": config.model.dtype,
        "kv_dtype": str(cache.cache_dtype),
        "model_config": model_config_digest(model.hf_text_config),
        "engine": vllm_version,
        "device": device,
        "parallel": [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "groups": layout_facts([group.layer_names for group in config.groups], page_bytes),
        "weights": weights_identity(model.model, model.revision, str(vllm_config.load_config.load_format)),
        "quantization": model.quantization,
        "hash_algorithm": cache.prefix_caching_hash_algo,
        "kv_cache_layout": config.kv_cache_layout,
        "tokens_per_block": [group.tokens_per_block for group in config.groups],
    }


def _default_threads() -> int:
    return 2 if (os.cpu_count() or 1) >= _MANY_CPUS else 1


def _parent_cpus() -> Collection[int]:
    """Return the processors that the parent may use. vLLM binds a CPU worker's threads to those it computes on."""
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:
        return ()
