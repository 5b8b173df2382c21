"""One simulation in plain words and numbers: what the command line says, what a sweep varies, what a journal keys."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import msgspec
import xxhash

from warmtier.core.errors import UsageError
from warmtier.core.model import ModelShape, load_shape
from warmtier.core.types import TierKind
from warmtier.core.units import parse_duration, parse_size
from warmtier.sim.settings import ColdModel, EngineModel, HostModel, SimSettings
from warmtier.tiering.calibration import Calibration, EngineSpeed, LinkSpeed, PrefillSpeed, decode_calibration
from warmtier.tiering.types import Placement

NONE = "none"


@dataclass(frozen=True, slots=True)
class SimSpec:
    """Fields are as on the command line; ``calibration`` is the file's content, so that a cell is complete in itself.

    Sizes of tiers: bytes with a unit, ``Nchunks``, or ``none``. Links: ``20GB/s``, or ``5GB/s,2GB/s`` for reads and
    writes. Without calibration, prefill speed comes from ``achieved_flops`` and the model.
    """

    device_tokens: int
    host_tier: str = NONE
    file_tier: str = NONE
    object_tier: str = NONE
    policy: str = "evidence"
    cold_policy: str = "lru"
    touches: int = 1
    cold_touches: int = 1
    placement: str = "through"
    blocks_per_chunk: int = 1
    model: str | None = None
    kv_bytes_per_token: int | None = None
    calibration: str | None = None
    achieved_flops: float | None = None
    step_time: str = "8ms"
    host_link: str = "20GB/s"
    file_link: str = "5GB/s,2GB/s"
    object_link: str = "1GB/s,500MB/s"
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    concurrency: int | None = None
    steal: float = 0.05
    engine_price: float = 0.0

    def digest(self, trace: str) -> str:
        """Return what names this simulation of ``trace`` (a digest of its content) in a journal."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode([trace, asdict(self)], order="sorted"))

    def settings(self, block_tokens: int) -> SimSettings:
        """Return the settings for a trace whose chunks are the engine's blocks. Raises UsageError or ConfigError."""
        shape = None if self.model is None else load_shape(self.model)
        known = None if self.calibration is None else decode_calibration(self.calibration)
        token_bytes = self.kv_bytes_per_token or (0 if shape is None else shape.kv_bytes_per_token)
        chunk_bytes = token_bytes * block_tokens * self.blocks_per_chunk
        return SimSettings(
            engine=self._engine(block_tokens, shape, known),
            host=self._host(chunk_bytes, known),
            cold=tuple(tier for tier in self._cold(chunk_bytes, known) if tier is not None),
            blocks_per_chunk=self.blocks_per_chunk,
            kv_bytes_per_token=token_bytes,
            model=shape,
            calibration=known,
            concurrency=self.concurrency,
            engine_price_per_hour=self.engine_price,
        )

    def _engine(self, block_tokens: int, shape: ModelShape | None, known: Calibration | None) -> EngineModel:
        prefill = self._prefill(shape, known)
        engine = known.engine if known is not None else None
        if engine is None:
            engine = EngineSpeed(parse_duration(self.step_time), steal=self.steal)
        return EngineModel(
            max(1, self.device_tokens // block_tokens),
            block_tokens,
            prefill,
            self.max_num_batched_tokens,
            self.max_num_seqs,
            engine.step_seconds,
            engine.seconds_per_sequence,
            engine.seconds_per_context_token,
            engine.idle_step_seconds,
            engine.front_seconds,
            engine.steal,
        )

    def _prefill(self, shape: ModelShape | None, known: Calibration | None) -> PrefillSpeed:
        if known is not None:
            return known.prefill
        if shape is None or self.achieved_flops is None:
            fix = "pass --calibration (see `warmtier calibrate`), or --model and --achieved-flops"
            raise UsageError("the speed of prefill is not known", fix=fix)
        if self.achieved_flops <= 0:
            raise UsageError(f"--achieved-flops must be above 0, got {self.achieved_flops}")
        per_token = 2.0 * shape.active_parameters / self.achieved_flops
        return PrefillSpeed(per_token, 4.0 * shape.attention_width / self.achieved_flops)

    def _host(self, chunk_bytes: int, known: Calibration | None) -> HostModel | None:
        chunks = tier_chunks("--host-tier", self.host_tier, chunk_bytes)
        if chunks is None:
            return None
        load, store = _link("--host-link", self.host_link, 0.001, None if known is None else known.links.get("host"))
        return HostModel(chunks, self.policy, self.touches, load, store)

    def _cold(self, chunk_bytes: int, known: Calibration | None) -> list[ColdModel | None]:
        links = {} if known is None else dict(known.links)
        tiers: list[ColdModel | None] = []
        for name, kind, size, link, fixed_s in (
            ("file", TierKind.FILE, self.file_tier, self.file_link, 0.0002),
            ("object", TierKind.OBJECT, self.object_tier, self.object_link, 0.05),
        ):
            chunks = tier_chunks(f"--{name}-tier", size, chunk_bytes)
            if chunks is None:
                tiers.append(None)
                continue
            if self.host_tier == NONE:
                raise UsageError(f"--{name}-tier needs a host tier", fix="add --host-tier")
            read, write = _link(f"--{name}-link", link, fixed_s, links.get(name))
            placement = _placement(self.placement)
            tier = ColdModel(name, kind, chunks, self.cold_policy, placement, self.cold_touches, read, write)
            tiers.append(tier)
        return tiers


def _placement(text: str) -> Placement:
    try:
        return Placement(text)
    except ValueError:
        raise UsageError(f"placement {text!r} is not known", fix=f"one of {', '.join(Placement)}") from None


def tier_chunks(flag: str, size: str, chunk_bytes: int) -> int | None:
    """Return the chunks that a tier of ``size`` holds; None for no tier. Raises UsageError."""
    if size == NONE:
        return None
    if size.endswith("chunks"):
        number = size.removesuffix("chunks").strip()
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(f"{flag} {size!r} is not a size", fix="such as 64GiB, or 10000chunks")
        return int(number)
    if chunk_bytes < 1:
        raise UsageError(f"{flag} {size}: the bytes of a chunk are not known", fix="pass --model, or a size in chunks")
    chunks = parse_size(size) // chunk_bytes
    if chunks < 1:
        raise UsageError(f"{flag} {size} holds no chunk of {chunk_bytes} bytes")
    return chunks


def _link(flag: str, text: str, fixed_s: float, known: LinkSpeed | None) -> tuple[LinkSpeed, LinkSpeed]:
    """Return the speeds of loads and stores: the measured one for loads where there is one."""
    load_text, _, store_text = text.partition(",")
    speeds = [_bandwidth(flag, part.strip()) for part in (load_text, store_text or load_text)]
    load, store = (LinkSpeed(speed, fixed_s) for speed in speeds)
    return (known, known) if known is not None else (load, store)


def _bandwidth(flag: str, text: str) -> float:
    value = float(parse_size(text.removesuffix("/s")))
    if value <= 0:
        raise UsageError(f"{flag}: a bandwidth must be above 0, got {text!r}")
    return value
