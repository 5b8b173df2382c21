"""Imports vLLM once with its own warnings silenced, and keeps the tests of one server in the order they are written."""

from __future__ import annotations

import importlib.util
import warnings

import pytest

MISSING = importlib.util.find_spec("vllm") is None
collect_ignore_glob = ["test_vllm_*.py"] if MISSING else []

if not MISSING:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler
        import vllm.v1.kv_offload.cpu.common  # noqa: F401

        import warmtier.engines.vllm.spec  # noqa: F401


def pytest_report_header() -> str | None:
    """Say so when these tests cannot run."""
    return "vLLM is not installed: tests/engines/vllm does not run" if MISSING else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Undo a shuffle within the modules that share one server: their last tests stop it."""
    places: dict[object, list[int]] = {}
    for index, item in enumerate(items):
        if item.path.name.startswith("test_vllm_server"):
            places.setdefault(item.path, []).append(index)
    for indices in places.values():
        ordered = sorted((items[index] for index in indices), key=_written)
        for index, item in zip(indices, ordered, strict=True):
            items[index] = item


def _written(item: pytest.Item) -> tuple[str, int]:
    """Order by the server's parameters, then by line."""
    parameters = item.name.partition("[")[2]
    return parameters, item.location[1] or 0
