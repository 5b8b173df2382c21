"""What an object store is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from warmtier.core.errors import UsageError
from warmtier.core.units import format_size

_WRITER: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
MINIMUM_PACK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """How one replica uses a bucket.

    ``capacity_bytes`` bounds what this writer keeps there, manifests included; the bucket holds that times the number
    of writers. ``writer`` names the writer across restarts: it takes over what its predecessor of that name left.
    A request may take ``timeout_s`` plus its bytes at ``slowest_bytes_per_s``; while the store opens, when connections
    are made and names resolved, ``open_timeout_s`` instead.
    """

    capacity_bytes: int
    writer: str
    pack_bytes: int = 64 << 20
    pack_delay_s: float = 1.0
    pack_buffers: int = 3
    uploads_in_flight: int = 2
    reads_in_flight: int = 16
    range_bytes: int = 8 << 20
    coalesce_gap_bytes: int = 64 << 10
    timeout_s: float = 2.0
    open_timeout_s: float = 10.0
    slowest_bytes_per_s: int = 32 << 20
    ttl_s: float = 86400.0
    expiry_grace_s: float = 600.0
    collect_interval_s: float = 1800.0
    poll_interval_s: float = 2.0
    publish_interval_s: float = 1.0
    overlap_s: float = 30.0
    relist_interval_s: float = 600.0
    roll_after: int = 64
    index_chunks: int = 4_000_000
    read_only: bool = False

    def __post_init__(self) -> None:
        if not _WRITER.fullmatch(self.writer):
            raise UsageError(
                f"{self.writer!r} cannot name a writer", fix="use 1 to 64 of letters, digits, dot, dash, underscore"
            )
        if self.pack_bytes < MINIMUM_PACK_BYTES:
            raise UsageError(f"pack_bytes {format_size(self.pack_bytes)} is below {format_size(MINIMUM_PACK_BYTES)}")
        if self.capacity_bytes < 2 * self.pack_bytes:
            raise UsageError(
                f"an object tier of {format_size(self.capacity_bytes)} cannot turn over packs of "
                f"{format_size(self.pack_bytes)}",
                why="one pack is written while an old one goes",
                fix="raise the capacity or lower pack_bytes",
            )
        self._require_positive()

    def _require_positive(self) -> None:
        for name in ("pack_delay_s", "timeout_s", "ttl_s", "poll_interval_s", "publish_interval_s", "overlap_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above zero, not {getattr(self, name)}")
        for name in ("uploads_in_flight", "reads_in_flight", "range_bytes", "roll_after", "index_chunks"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.pack_buffers < 2:
            raise UsageError("pack_buffers must be at least 2: one fills while another is sent")

    @property
    def longest_s(self) -> float:
        """How long any one request may take."""
        return max(self.timeout_s, self.open_timeout_s) + 2 * self.pack_bytes / self.slowest_bytes_per_s
