"""What a simulation is told: the engine, its speeds, the tiers. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from warmtier.core.errors import ConfigError
from warmtier.core.model import ModelShape
from warmtier.core.types import TierKind
from warmtier.tiering.calibration import Calibration, LinkSpeed, PrefillSpeed
from warmtier.tiering.types import Placement

_PCIE = LinkSpeed(20e9, 0.001)
_NVME_READ, _NVME_WRITE = LinkSpeed(5e9, 0.0002), LinkSpeed(2e9, 0.0002)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How the engine schedules and how long its steps take. Names of knobs as in vLLM.

    ``device_blocks``: usable KV blocks of ``block_tokens`` each. A step takes ``step_s``, plus prefill by position,
    plus ``sequence_s`` per decoding sequence and ``context_s`` per token of their contexts. A step without work takes
    ``idle_step_s``. ``front_s`` passes between a client's request and the scheduler, and back. ``steal`` is the
    share of the time of concurrent host copies that is added to a step.
    """

    device_blocks: int
    block_tokens: int
    prefill: PrefillSpeed
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    step_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0
    idle_step_s: float = 0.001
    front_s: float = 0.0
    steal: float = 0.0

    def __post_init__(self) -> None:
        for name in ("device_blocks", "block_tokens", "max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class HostModel:
    """The host tier and its link. ``duplex``: loads and stores do not wait for one another."""

    chunks: int
    policy: str = "lru"
    touches: int = 1
    load: LinkSpeed = _PCIE
    store: LinkSpeed = _PCIE
    duplex: bool = True


@dataclass(frozen=True, slots=True)
class ColdModel:
    """A tier below the host, its medium and its prices. ``parallel``: requests the medium works on at once."""

    name: str
    kind: TierKind
    chunks: int
    policy: str = "lru"
    placement: Placement = Placement.THROUGH
    touches: int = 1
    read: LinkSpeed = _NVME_READ
    write: LinkSpeed = _NVME_WRITE
    parallel: int = 8
    deadline_cap_s: float = 2.0
    price_per_gib_month: float = 0.0
    price_per_1000_reads: float = 0.0
    price_per_1000_writes: float = 0.0


@dataclass(frozen=True, slots=True)
class SimSettings:
    """One simulation. Without ``concurrency`` requests come as they arrived, else so many are kept in flight: the next
    is sent ``pause_s`` after one has ended.

    ``kv_bytes_per_token`` or ``model`` say how large chunks are; the model also weighs hits by FLOPs. ``calibration``
    is what production would know for load or recompute.
    """

    engine: EngineModel
    host: HostModel | None = None
    cold: tuple[ColdModel, ...] = ()
    blocks_per_chunk: int = 1
    kv_bytes_per_token: int = 0
    model: ModelShape | None = None
    calibration: Calibration | None = None
    concurrency: int | None = None
    pause_s: float = 0.0
    engine_price_per_hour: float = 0.0
    cache: dict[str, float] = field(default_factory=dict)

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one chunk of the tiers."""
        return self.engine.block_tokens * self.blocks_per_chunk

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk; at least 1, so that hits can be simulated without a model."""
        per_token = self.kv_bytes_per_token or (self.model.kv_bytes_per_token if self.model else 0)
        return max(1, per_token * self.chunk_tokens)
