"""``store_threshold`` with the host engine's meaning: a chunk is stored at its n-th offer.

Source of the semantics: vLLM 0.32 ``CPUOffloadingManager._record_accesses`` (a bounded, least-recently-offered tracker
that never drops a candidate of the offer at hand).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from warmtier.core.types import Key


class OfferTracker:
    """Counts offers of up to ``size`` chunks."""

    def __init__(self, threshold: int, size: int) -> None:
        self.threshold = threshold
        self.size = size
        self._counts: OrderedDict[Key, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def record(self, keys: Sequence[Key]) -> None:
        """Count one offer of each of ``keys``."""
        counts = self._counts
        known = 0
        for key in keys:
            if key in counts:
                counts.move_to_end(key)
                counts[key] += 1
                known += 1
        others = len(counts) - known
        for key in keys:
            if key in counts:
                continue
            if len(counts) >= self.size:
                if others <= 0:
                    continue
                counts.popitem(last=False)
                others -= 1
            counts[key] = 1

    def ripe(self, keys: Sequence[Key]) -> int:
        """Return how many leading ``keys`` were offered often enough."""
        for index, key in enumerate(keys):
            if self._counts.get(key, 0) < self.threshold:
                return index
        return len(keys)

    def clear(self) -> None:
        """Forget all counts."""
        self._counts.clear()
