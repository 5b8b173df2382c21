"""The default policy."""

from __future__ import annotations

from typing import ClassVar

from warmtier.policy.base import K
from warmtier.policy.index import IndexConfig, IndexPolicy

EvidenceConfig = IndexConfig


class EvidencePolicy(IndexPolicy[K]):
    """The evidence index."""

    name: ClassVar[str] = "evidence"
