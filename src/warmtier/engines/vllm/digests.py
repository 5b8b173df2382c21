"""A log of what really lay on the device, for proving that loaded KV equals stored KV. Off unless asked for.

Set ``WARMTIER_DIGEST_LOG`` to a path: each worker appends a JSON line per block moved to ``PATH.RANK``, with the digest
of the *device's* pages after the copy. A store and a later load of the same key, rank and place must agree. Slow, and
the digests identify prompts: for tests only.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from warmtier.core.types import Key
from warmtier.engines.vllm.copier import BlockCopier

if TYPE_CHECKING:
    from warmtier.engines.vllm.pool import CopyJob

VARIABLE: Final = "WARMTIER_DIGEST_LOG"


def digest_log_path() -> Path | None:
    """Return where to log, if anyone asked for it."""
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


class DigestLog:
    """Appends one line per block moved by one rank. Used from copy threads; each job is one write."""

    def __init__(self, path: Path, rank: int) -> None:
        self._rank = rank
        self._file = open(f"{path}.{rank}", "a", buffering=1)  # noqa: SIM115 - lives as long as the worker
        self._keys: dict[int, dict[int, Key]] = {}

    def expect(self, job_id: int, keys_by_slot: dict[int, Key]) -> None:
        """Remember whose slots a job touches."""
        self._keys[job_id] = keys_by_slot

    def record(self, job: CopyJob, copier: BlockCopier) -> None:
        """Digest the device's pages of a job that has ended and append them."""
        keys = self._keys.pop(job.job_id, {})
        lines = [
            json.dumps(
                {
                    "op": "load" if job.is_load else "store",
                    "job": job.job_id,
                    "key": keys[slot].hex() if slot in keys else None,
                    "rank": self._rank,
                    "slot": slot,
                    "place": place,
                    "failed": slot in job.failed_slots,
                    "digest": copier.device_digest(group, block),
                }
            )
            for group, block, slot, place in job.moves
        ]
        self._file.write("".join(line + "\n" for line in lines))
