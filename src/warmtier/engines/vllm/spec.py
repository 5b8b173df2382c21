"""``WarmtierSpec``: what vLLM's ``OffloadingConnector`` loads in the EngineCore, every worker and the API server.

vLLM makes one per process. ``get_worker`` runs first, in each worker, where vLLM's whole configuration is visible: it
checks, makes the slab and writes what it saw into the slab's header. ``get_manager`` runs afterwards in the EngineCore,
maps the slab, reads the header and removes the slab's name.
"""

from __future__ import annotations

from typing import Any, Final

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from warmtier.config.parse import parse_extra_config
from warmtier.config.schema import OnUnsupported
from warmtier.core.errors import UnsupportedError
from warmtier.engines.vllm.build import build_manager, build_worker
from warmtier.engines.vllm.down import DownManager, DownWorker
from warmtier.engines.vllm.metrics import metric_definitions
from warmtier.engines.vllm.slab_files import slab_files
from warmtier.engines.vllm.support import engine_problems, refusal, setup_problems

logger = init_logger("vllm.warmtier")

CONFIG_KEY: Final = "warmtier"


class WarmtierSpec(OffloadingSpec):  # type: ignore[misc]
    """Reads ``kv_connector_extra_config["warmtier"]`` and makes the manager or the worker of this process.

    Raises ConfigError for a wrong configuration, RequirementError when the machine lacks memory and UnsupportedError
    for an engine or model that warmtier refuses (unless ``engine.on_unsupported`` is ``off``).
    """

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """Return the metrics that the manager will report."""
        del extra_config
        return metric_definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.settings = parse_extra_config(self.extra_config.get(CONFIG_KEY))
        self._problems = engine_problems()
        if len({group.tokens_per_block for group in config.groups}) > 1:
            self._problems.append("KV groups of different block sizes (hybrid models) are not supported yet")
        if getattr(config, "canonical_layout", False):
            self._problems.append("canonical_layout is not supported")
        self._manager: OffloadingManager | None = None
        self._worker: OffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """Return the manager of this engine. Called once, after all workers are up."""
        if self._manager is None:
            self._manager = self._make_manager()
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the copy worker of this rank. Blocks until the slab is there."""
        if self._worker is None:
            self._worker = self._make_worker(kv_caches)
        return self._worker

    def _make_manager(self) -> OffloadingManager:
        if self._problems:
            return self._down(refusal(self._problems), DownManager())
        if self._may_be_down() and not slab_files(self.config.engine_id).slab.exists():
            logger.warning("warmtier is off: the workers found a set-up that it does not support (see their log)")
            return DownManager()
        return build_manager(self.config, self.settings)

    def _make_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        from vllm.config import get_current_vllm_config

        vllm_config = get_current_vllm_config()
        problems = self._problems + setup_problems(vllm_config)
        if problems:
            return self._down(refusal(problems), DownWorker())
        return build_worker(self.config, self.settings, kv_caches, vllm_config)

    def _may_be_down(self) -> bool:
        return self.settings.engine.on_unsupported is OnUnsupported.OFF

    def _down(self, error: UnsupportedError, stand_in: Any) -> Any:  # noqa: ANN401 - a manager or a worker
        if not self._may_be_down():
            raise error
        logger.warning("warmtier is off, the engine runs without tiers: %s", error)
        return stand_in
