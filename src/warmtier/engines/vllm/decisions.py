"""The last decisions, in memory: what `warmtier ctl explain REQUEST` answers. Always on, bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

KEPT: Final = 2048


class DecisionRing:
    """The facts of the last requests by id. Written by the scheduler's thread; readers get copies."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._facts: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._facts)

    def note(self, request_id: str, facts: dict[str, Any]) -> None:
        """Keep the facts of a request; the oldest are forgotten."""
        self._facts[request_id] = facts
        if len(self._facts) > self._kept:
            self._facts.popitem(last=False)

    def find(self, request: str) -> dict[str, Any] | None:
        """Return the newest request with this id, or whose id begins with it (vLLM appends to what clients see)."""
        exact = self._facts.get(request)
        if exact is not None:
            return {"request": request, **exact}
        for request_id in reversed(self._facts):
            if request in request_id:
                return {"request": request_id, **self._facts[request_id]}
        return None
