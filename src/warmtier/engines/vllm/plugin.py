"""The ``vllm.general_plugins`` entry point: makes warmtier's names known to vLLM in each of its processes.

vLLM calls ``register`` in every process of every server on a machine where warmtier is installed, whether it is used or
not. So this imports nothing at the top, takes milliseconds, and never fails.
"""

from __future__ import annotations

import logging


def register() -> None:
    """Register ``WarmtierSpec`` and ``WarmtierConnector`` by name. Idempotent; what cannot be done is only logged."""
    try:
        _register_spec()
        _register_connector()
    except Exception:
        logging.getLogger("vllm.warmtier").warning("warmtier cannot register with this vLLM", exc_info=True)


def _register_spec() -> None:
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    known = getattr(OffloadingSpecFactory, "_registry", {})
    if "WarmtierSpec" not in known:
        OffloadingSpecFactory.register_spec("WarmtierSpec", "warmtier.engines.vllm.spec", "WarmtierSpec")


def _register_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    known = getattr(KVConnectorFactory, "_registry", {})
    if "WarmtierConnector" not in known:
        KVConnectorFactory.register_connector(
            "WarmtierConnector", "warmtier.engines.vllm.connector", "WarmtierConnector"
        )
