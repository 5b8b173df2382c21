"""One request inside the simulated engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from warmtier.core.types import Key
from warmtier.tiering.request import Request
from warmtier.trace.schema import TraceRequest


class Phase(enum.Enum):
    """Where a request is."""

    WAITING = enum.auto()
    LOADING = enum.auto()
    RUNNING = enum.auto()
    DONE = enum.auto()


@dataclass(slots=True, eq=False)
class SimRequest:
    """``computed`` tokens have KV on the device (or will, by the end of the step); ``emitted`` tokens were generated.

    ``chunks``: the tier keys of the prompt's full chunks, root first. ``stored``: chunks offered, loaded or jumped
    over. ``hits``: tokens by where they came from, at the first admission.
    """

    number: int
    trace: TraceRequest
    arrival_s: float
    chunks: list[Key]
    output_tokens: int
    prompt_tokens: int
    phase: Phase = Phase.WAITING
    computed: int = 0
    emitted: int = 0
    blocks: list[int] = field(default_factory=list)
    keyed: int = 0
    stored: int = 0
    tier: Request | None = None
    loading: list[Key] = field(default_factory=list)
    loaded: bool = False
    load_start_s: float = 0.0
    jobs: int = 0
    hits: dict[str, int] = field(default_factory=dict)
    hit_ranges: list[tuple[str, int, int]] = field(default_factory=list)
    reason: str | None = None
    admitted: bool = False
    preemptions: int = 0
    pending_from_s: float | None = None
    pending_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    done_s: float | None = None

    @property
    def tokens(self) -> int:
        """Tokens whose KV is wanted before the next one can be generated."""
        return self.prompt_tokens + self.emitted


def chunk_keys(keys: list[int], blocks_per_chunk: int) -> list[Key]:
    """Return the tier's keys of full chunks: each the key of its last block, as vLLM has it."""
    return [Key(key.to_bytes(8, "little")) for key in keys[blocks_per_chunk - 1 :: blocks_per_chunk]]
