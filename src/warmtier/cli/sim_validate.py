"""``warmtier sim validate``: starts a real server, plays a trace on it and in the simulator, and says how far apart."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from warmtier.bench.calibrate_engine import Probe
from warmtier.bench.machine import native_bfloat16
from warmtier.bench.sim_validate import Validation
from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.config.assemble import Shape, assemble_cache
from warmtier.config.load import load
from warmtier.config.schema import WarmtierConfig
from warmtier.core.errors import CheckFailedError, RequirementError
from warmtier.core.model import load_shape
from warmtier.sim.settings import EngineModel, HostModel, SimSettings
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.calibration import PrefillSpeed
from warmtier.trace.readers import ReadOptions, open_trace
from warmtier.trace.schema import TraceRequest
from warmtier.trace.synth import SynthTrace

_HOST_CHUNKS: Final = re.compile(r"Host tier: (\d+) chunks")
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # the caches are emptied between runs
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}


def validate(
    *,
    model: Annotated[Path, typer.Option("--model", help="Local model directory.")] = Path(
        "models/SmolLM2-135M-Instruct"
    ),
    trace: Annotated[
        Path | None, typer.Option("--trace", help="In chunks of --block-size. Default: a synthetic multi-session one.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", min=10, help="Requests to play.")] = 300,
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens of the engine's block.")] = 128,
    device_blocks: Annotated[int, typer.Option("--device-blocks", min=4, help="Blocks of the device cache.")] = 40,
    blocks_per_chunk: Annotated[int, typer.Option("--blocks-per-chunk", min=1, help="Blocks in a chunk.")] = 1,
    host_tier: Annotated[str, typer.Option("--host-tier", metavar="SIZE", help="Host memory for KV.")] = "384MiB",
    policy: Annotated[str, typer.Option("--policy", metavar="NAME")] = "lru",
    max_concurrency: Annotated[int, typer.Option("--max-concurrency", min=2)] = 8,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Of the server, with several in flight.")] = 3,
    max_num_batched_tokens: Annotated[int, typer.Option("--max-num-batched-tokens", min=64)] = 2048,
    directory: Annotated[Path, typer.Option("--directory", help="Where the server's log goes.")] = Path("validate"),
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Play one trace on a real server on this machine's CPUs and in the simulator; report the simulator's errors.

    Exits with 1 if hits or times to first token are further apart than they may be.
    """
    from warmtier.bench import sim_validate
    from warmtier.bench.server import Server
    from warmtier.engines.vllm import launch

    launch.require_vllm()
    if not (model / "config.json").is_file():
        raise RequirementError(f"{model} holds no model", fix="run `make setup`, or give --model DIR")
    out = Output(format, output, quiet=quiet)
    played = _requests(trace, requests, block_size, seed)
    config = _config(host_tier, policy, blocks_per_chunk)
    used = Setup(model, block_size, device_blocks, max_num_batched_tokens, policy, blocks_per_chunk)
    plan = launch.make_plan(config, used.flags(played), os.environ)
    command = [sys.executable, "-m", launch.MODULE, *plan.arguments]
    with Server(command, directory / "server.log", environment=_ENVIRONMENT) as server:
        out.note(f"ready after {server.start_seconds:.0f} s")
        settings = used.settings(_host_chunks(server.log))
        found = sim_validate.validate(
            server.base_url,
            sim_validate.Plan(
                played, settings, lambda _: used.cache(config, settings), max_concurrency, runs, probe=used.probe()
            ),
            out.note,
        )
    data = {"figures": asdict(found.figures), "comparisons": msgspec.to_builtins(found.comparisons)}
    out.emit("sim.validate", data, _tables(found), f"{len(played)} requests, {policy}, host tier {host_tier}")
    if found.failures:
        raise CheckFailedError("the simulator is further off than it may be", why="\n    ".join(found.failures))


@dataclass(frozen=True, slots=True)
class Setup:
    """The server under test, as flags and as the simulator's settings."""

    model: Path
    block_size: int
    device_blocks: int
    max_num_batched_tokens: int
    policy: str
    blocks_per_chunk: int

    @property
    def dtype(self) -> str:
        """Bfloat16 where the processor has it: emulated, it takes minutes."""
        return "bfloat16" if native_bfloat16() else "float32"

    def flags(self, played: Sequence[TraceRequest]) -> list[str]:
        """Return the model and vLLM's flags. One block more: vLLM keeps one for itself."""
        longest = max(request.prompt_tokens + request.output_tokens for request in played)
        return [
            str(self.model), "--dtype", self.dtype, "--enforce-eager", "--block-size", str(self.block_size),
            "--num-gpu-blocks-override", str(self.device_blocks + 1),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--max-model-len", str(max(2048, longest + 1)),
        ]  # fmt: skip

    def settings(self, host_chunks: int) -> SimSettings:
        """Return the simulator's settings; speeds are filled in from the calibration."""
        shape = load_shape(str(self.model))
        token_bytes = shape.kv_values * (2 if self.dtype == "bfloat16" else 4)
        engine = EngineModel(
            self.device_blocks,
            self.block_size,
            PrefillSpeed(1.0),  # replaced by what is measured
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
        return SimSettings(
            engine,
            HostModel(host_chunks, self.policy, duplex=False),
            blocks_per_chunk=self.blocks_per_chunk,
            kv_bytes_per_token=token_bytes,
        )

    def cache(self, config: WarmtierConfig, settings: SimSettings) -> TieredCache:
        """Return the cache that the server has, built by the same code."""
        chunks = settings.host.chunks if settings.host is not None else 0
        return assemble_cache(config, Shape(settings.chunk_bytes, settings.chunk_tokens, chunks, events=False))

    def probe(self) -> Probe:
        """Return what the calibration sends: prompts as long as the device allows."""
        device_tokens = self.device_blocks * self.block_size
        longest = min(1536, device_tokens // 2)
        lengths = [round(longest * share) for share in (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1)]
        batches = [n for n in (1, 2, 4, 8) if n * (lengths[-2] + 64) <= device_tokens]
        return Probe(lengths, batches=batches, device_tokens=device_tokens)


def _requests(trace: Path | None, count: int, block_size: int, seed: int) -> list[TraceRequest]:
    if trace is not None:
        options = ReadOptions(chunk_tokens=block_size)
        return list(itertools.islice(open_trace(trace, options).trace, count))
    knobs = {
        "requests": str(count),
        "seed": str(seed),
        "chunk_tokens": str(block_size),
        "live_sessions": "16",
        "start_tokens": "300",
        "turn_tokens": "120",
        "turns": "6",
        "output_tokens": "8",
    }
    return list(SynthTrace("tight-device", knobs))


def _config(host_tier: str, policy: str, blocks_per_chunk: int) -> WarmtierConfig:
    given: dict[str, tuple[tuple[str | int, ...], object]] = {
        "--host-tier": (("host", "capacity"), host_tier),
        "--policy": (("host", "policy"), policy),
        "--blocks-per-chunk": (("vllm", "blocks_per_chunk"), blocks_per_chunk),
    }
    return load(None, {}, given).config


def _host_chunks(log: Path) -> int:
    """Return the chunks of the server's host tier, from its log."""
    match = _HOST_CHUNKS.search(log.read_text(errors="replace"))
    if match is None:
        raise CheckFailedError(f"{log} does not say how large the host tier is")
    return int(match.group(1))


def _tables(found: Validation) -> list[Table]:
    hits: list[list[object]] = []
    times: list[list[object]] = []
    for one in found.comparisons:
        for tier, error in one.hits_error.items():
            real = [run.hit_tokens[tier] for run in one.server]
            shown = ", ".join(map(str, real))
            hits.append([one.concurrency, tier, shown, one.simulator.hit_tokens[tier], f"{error:.2%}"])
        rows = (
            ("p50", [r.ttft_p50_s for r in one.server], one.simulator.ttft_p50_s, one.p50_error, one.own_p50),
            ("p99", [r.ttft_p99_s for r in one.server], one.simulator.ttft_p99_s, one.p99_error, one.own_p99),
        )
        for name, server, simulator, error, own in rows:
            shown = ", ".join(f"{1000 * value:.1f}" for value in server)
            times.append([one.concurrency, name, shown, f"{1000 * simulator:.1f}", f"{error:.1%}", f"{own:.1%}"])
    return [
        Table(["in flight", "tier", "server", "simulator", "error"], hits, "Cached tokens"),
        Table(["in flight", "TTFT ms", "server", "simulator", "error", "server's own"], times, "Times"),
    ]
