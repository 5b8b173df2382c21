"""What the manager tells the worker about the host side of a transfer."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from warmtier.core.types import Key


class HostSlots(CPULoadStoreSpec):  # type: ignore[misc]
    """Slots of the slab, in the order of the keys asked for. Sent to every worker.

    A subclass of vLLM's own, so that vLLM's copy worker takes it too. ``keys`` is filled only while digests are logged.
    """

    def __init__(self, slots: Sequence[int], keys: Sequence[Key] = ()) -> None:
        super().__init__(slots)
        self.keys = tuple(keys)
