"""``WarmtierSpec`` with faults that a test can switch while the server runs. Loaded by the server, not by pytest.

The file named by ``WARMTIER_TEST_FAULTS`` holds a JSON object, read at every block that is moved: ``skip_load`` says a
load worked without doing it (the poisoned control), ``fail_load`` and ``fail_store`` raise, ``load_delay_s`` waits.
``file`` gives chances of the faults of ``FaultyStore`` in the file tier.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker

from warmtier.engines.vllm import build_cold
from warmtier.engines.vllm.copier import BlockCopier
from warmtier.engines.vllm.spec import WarmtierSpec
from warmtier.engines.vllm.worker import HostCopyWorker
from warmtier.store.faulty import Fault, FaultPlan, FaultyStore


def faults() -> dict[str, Any]:
    try:
        content = json.loads(Path(os.environ["WARMTIER_TEST_FAULTS"]).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


class FaultyCopier:
    def __init__(self, copier: BlockCopier) -> None:
        self._copier = copier
        self.group_bytes = copier.group_bytes
        self.device_digest = copier.device_digest

    def store(self, group: int, block: int, slot: int, place: int) -> None:
        if faults().get("fail_store"):
            raise OSError("injected store failure")
        self._copier.store(group, block, slot, place)

    def load(self, group: int, block: int, slot: int, place: int) -> bool:
        fault = faults()
        time.sleep(fault.get("load_delay_s", 0.0))
        if fault.get("fail_load"):
            raise OSError("injected load failure")
        return bool(fault.get("skip_load")) or self._copier.load(group, block, slot, place)


class FaultySpec(WarmtierSpec):
    def _make_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        worker = super()._make_worker(kv_caches)
        if isinstance(worker, HostCopyWorker):
            worker._copier = FaultyCopier(worker._copier)  # type: ignore[assignment]
        return worker


class SwitchedStore(FaultyStore):
    """A store whose faults follow the file: ``{"file": {"eio_read": 0.1, "latency": 0.05}, "latency_s": 0.5}``."""

    def _draw(self, among: frozenset[Fault]) -> Fault | None:
        now = faults()
        chances = {Fault(name): float(chance) for name, chance in now.get("file", {}).items()}
        self.plan = FaultPlan(chances, float(now.get("latency_s", 0.2)))
        return super()._draw(among)


def _faulty(original: Any) -> Any:
    return lambda *arguments, **options: SwitchedStore(original(*arguments, **options), FaultPlan())


vars(build_cold)["open_file_store"] = _faulty(vars(build_cold)["open_file_store"])
