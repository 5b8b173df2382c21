"""``WarmtierConnector``: vLLM's ``OffloadingConnector`` that survives a failed load.

vLLM's own connector stops the engine when a transfer fails. This thin subclass reports the request instead, and vLLM
computes it again (``kv_load_failure_policy`` must be ``recompute``). Beyond vLLM's public connector methods it reads
two names: ``connector_worker.worker`` and ``connector_worker._load_jobs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from warmtier.core.errors import ConfigError, UnsupportedError


class WarmtierConnector(OffloadingConnector):  # type: ignore[misc]
    """Recomputes what could not be loaded. Otherwise exactly vLLM's connector."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:  # noqa: ANN401 - vLLM's types
        policy = vllm_config.kv_transfer_config.kv_load_failure_policy
        if policy != "recompute":
            raise ConfigError(
                f"kv_load_failure_policy is {policy!r}",
                why="WarmtierConnector reports failed loads so that vLLM recomputes them",
                fix='add "kv_load_failure_policy": "recompute" to --kv-transfer-config',
            )
        if not hasattr(base, "KVConnectorTransferResults"):
            raise UnsupportedError("this vLLM cannot be told of failed loads", fix="use OffloadingConnector")
        super().__init__(vllm_config, role, kv_cache_config)

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """Make the worker and promise it that failures are handled."""
        super().register_kv_caches(kv_caches)
        worker = self.connector_worker.worker
        if hasattr(worker, "contain_failures"):  # not the stand-in of an engine without tiers
            worker.contain_failures()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:  # noqa: ANN401 - vLLM's type
        """Return what ended, and which requests must be computed again."""
        connector = self.connector_worker
        requests = dict(connector._load_jobs)  # noqa: SLF001 - get_finished forgets who asked for which job
        sent, received = self.get_finished(finished_req_ids)
        worker = connector.worker
        failed = worker.take_failed_loads() if hasattr(worker, "take_failed_loads") else set()
        return base.KVConnectorTransferResults(
            finished_sending=set(sent),
            finished_recving=set(received),
            failed_recving={requests[job_id] for job_id in failed} & set(received),
        )

    def request_finished(self, request: Any, block_ids: Any) -> Any:  # noqa: ANN401 - vLLM's types
        """Tell the manager the true lengths, then do as vLLM does."""
        self._note_lengths(request)
        return super().request_finished(request, block_ids)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:  # noqa: ANN401 - vLLM's types
        """Tell the manager the true lengths, then do as vLLM does."""
        self._note_lengths(request)
        return super().request_finished_all_groups(request, block_ids)

    def _note_lengths(self, request: Any) -> None:  # noqa: ANN401 - vLLM's Request
        manager = getattr(self.connector_scheduler, "manager", None)
        if manager is not None and hasattr(manager, "note_lengths"):  # not the stand-in of an engine without tiers
            manager.note_lengths(request.request_id, request.num_prompt_tokens, request.num_output_tokens)
