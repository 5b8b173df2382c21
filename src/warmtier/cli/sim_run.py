"""``warmtier sim run``, and ``sweep`` with time: options, and how results are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from warmtier.cli.output import Output, Table
from warmtier.core.errors import UsageError
from warmtier.core.units import format_duration, format_size
from warmtier.sim.result import SimResult, TierResult
from warmtier.sim.specify import SimSpec

DeviceOption = Annotated[
    int | None, typer.Option("--device-tokens", min=1, help="Tokens that the engine's own cache on the device holds.")
]
HostOption = Annotated[
    str,
    typer.Option("--host-tier", metavar="SIZE", help="16GiB, 10000chunks or none; a sweep takes several."),
]
FileOption = Annotated[str, typer.Option("--file-tier", metavar="SIZE", help="Size alone, as for --host-tier.")]
ObjectOption = Annotated[str, typer.Option("--object-tier", metavar="SIZE", help="Size alone, as for --host-tier.")]
TouchesOption = Annotated[str, typer.Option("--touches", help="Store in the host tier at the n-th sighting.")]
ColdTouchesOption = Annotated[str, typer.Option("--cold-touches", help="The same for tiers below.")]
ColdPolicyOption = Annotated[str, typer.Option("--cold-policy", metavar="NAME", help="Policy of tiers below the host.")]
PlacementOption = Annotated[
    str, typer.Option("--placement", metavar="NAME", help="Of tiers below: through, selective or back.")
]
ChunkBlocksOption = Annotated[
    str, typer.Option("--blocks-per-chunk", help="Engine blocks (the trace's keys) that make a chunk of the tiers.")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="config.json, its directory or a known name: bytes and FLOPs."),
]
CalibrationOption = Annotated[
    Path | None, typer.Option("--calibration", metavar="FILE", help="Speeds, as `warmtier calibrate` writes them.")
]
FlopsOption = Annotated[
    float | None,
    typer.Option("--achieved-flops", help="Without a calibration: FLOP/s that prefill achieves, such as 4e14."),
]
StepOption = Annotated[str, typer.Option("--step-time", help="Without a calibration: time of a decoding step.")]
HostLinkOption = Annotated[str, typer.Option("--host-link", help="Without a calibration: bandwidth, such as 20GB/s.")]
FileLinkOption = Annotated[str, typer.Option("--file-link", help="The same, reads and writes: 5GB/s,2GB/s.")]
ObjectLinkOption = Annotated[str, typer.Option("--object-link", help="The same for the object tier.")]
BatchOption = Annotated[int, typer.Option("--max-num-batched-tokens", min=1, help="As for vLLM.")]
SeqsOption = Annotated[int, typer.Option("--max-num-seqs", min=1, help="As for vLLM.")]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option("--max-concurrency", min=1, help="Keep so many requests in flight, whenever they arrived."),
]
PriceOption = Annotated[float, typer.Option("--engine-price", min=0, help="Money per hour of the engine.")]
JournalOption = Annotated[
    Path | None,
    typer.Option("--journal", metavar="FILE", help="Keep finished cells here; the same sweep goes on from it."),
]

SWEPT: Final = (
    "policy",
    "cold_policy",
    "host_tier",
    "file_tier",
    "object_tier",
    "touches",
    "cold_touches",
    "placement",
    "blocks_per_chunk",
)
"""Fields of SimSpec that a sweep may vary."""
_NUMBERS: Final = ("touches", "cold_touches", "blocks_per_chunk")


def axis(name: str, text: str) -> list[str | int]:
    """Return the values of a comma-separated option. Raises UsageError."""
    flag = "--" + name.replace("_", "-")
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{flag} is empty", fix="give one or more values, separated by commas")
    if name not in _NUMBERS:
        return list(parts)
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise UsageError(f"{flag} {text!r}: whole numbers from 1 on are needed")
    return [int(part) for part in parts]


def one(name: str, text: str) -> str | int:
    """Return the only value of an option that a single run takes."""
    values = axis(name, text)
    if len(values) > 1:
        raise UsageError(f"--{name.replace('_', '-')} {text!r}: one value is needed", fix="use `warmtier sim sweep`")
    return values[0]


def spec_of(given: Mapping[str, Any]) -> SimSpec:
    """Return the simulation that the options of ``sim run``, by name, describe. Raises UsageError."""
    same = (
        "model", "achieved_flops", "step_time", "host_link", "file_link", "object_link", "max_num_batched_tokens",
        "max_num_seqs", "engine_price",
    )  # fmt: skip
    return SimSpec(
        need_device(given["device_tokens"]),
        calibration=read_text(given["calibration"]),
        concurrency=given["max_concurrency"],
        **{name: given[name] for name in same},
        **{name: one(name, given[name]) for name in SWEPT},  # type: ignore[arg-type]
    )


def need_device(device_tokens: int | None) -> int:
    """Return the size of the device cache. Raises UsageError without one."""
    if device_tokens is None:
        fix = "pass --device-tokens: vLLM logs it at start as the GPU KV cache size"
        raise UsageError("the size of the engine's own cache is not known", fix=fix)
    return device_tokens


def read_text(path: Path | None) -> str | None:
    """Return a file's content. Raises UsageError if it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def show(out: Output, name: str, spec: SimSpec, result: SimResult, notes: Sequence[str]) -> None:
    """Print one result."""
    data = {"trace": name, "spec": msgspec.to_builtins(spec), "notes": list(notes)} | msgspec.to_builtins(result)
    cost = result.cost
    prefill = f"prefill takes {format_duration(cost.prefill_s)}, {format_duration(cost.prefill_saved_s)} are saved"
    bad = f"{result.refused} refused, {result.preemptions} preemptions"
    time = f"{result.requests} requests in {format_duration(result.duration_s)}"
    lines = [
        f"{name}: {result.token_hit_ratio:.1%} of the prompt tokens come from a cache; {prefill}.",
        f"{time} ({bad}), {result.output_throughput:.0f} output tokens/s.",
        *(f"note: {note}" for note in notes),
    ]
    out.emit("sim.run", data, [_times(result), _tiers(result), _traffic(result)], "\n".join(lines))


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{1000 * value:.2f}"


def _times(result: SimResult) -> Table:
    columns = ["ms", "count", "mean", "p50", "p90", "p99", "max"]
    rows: list[list[object]] = []
    for name, values in (("TTFT", result.ttft), ("ITL", result.itl), ("E2E", result.e2e), ("waits", result.pending)):
        times = [_milliseconds(values[column]) for column in columns[2:]]
        rows.append([name, values["count"], *times])
    return Table(columns, rows, "Times")


def _ratio(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f}%"


def _tiers(result: SimResult) -> Table:
    columns = [
        "tier",
        "chunks",
        "resident",
        "block hits",
        "token hits",
        "FLOP hits",
        "writes",
        "writes/hit",
        "evictions",
    ]
    rows: list[list[object]] = [
        [
            tier.tier,
            tier.capacity_chunks,
            tier.resident_chunks,
            _ratio(tier.block_hit_ratio),
            _ratio(tier.token_hit_ratio),
            _ratio(tier.flop_hit_ratio),
            tier.writes,
            None if tier.written_per_hit is None else round(tier.written_per_hit, 2),
            tier.evictions,
        ]
        for tier in result.tiers
    ]
    return Table(columns, rows, "Tiers")


def _traffic(result: SimResult) -> Table:
    rows: list[list[object]] = []
    for tier in result.tiers:
        for direction, moved in (("loads", tier.loaded), ("stores", tier.stored)):
            if moved is not None:
                size = format_size(moved.size_bytes)
                rows.append([tier.tier, direction, moved.transfers, size, _ratio(moved.utilization)])
    reasons = ", ".join(f"{reason} {count}" for reason, count in result.first_miss_reasons.items())
    notes = [f"first chunk not served, by reason: {reasons}"] if reasons else []
    money = [result.cost.engine_money, result.cost.tier_money]
    if any(value is not None for value in money):
        notes.append(f"cost: engine {_money(money[0])}, tiers {_money(money[1])}")
    return Table(["tier", "direction", "transfers", "bytes", "link busy"], rows, "Transfers", notes)


def _money(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def sweep_table(rows: Sequence[tuple[str, Mapping[str, object], SimResult]], axes: Sequence[str]) -> Table:
    """Return one line per cell: what varies, hits by tier, times."""
    tiers = list(dict.fromkeys(tier.tier for _, _, result in rows for tier in result.tiers))
    columns = ["trace", *axes, *(f"{tier} hits" for tier in tiers), "TTFT p50", "TTFT p99", "ITL p99", "prefill s"]
    lines = []
    for name, spec, result in rows:
        by_tier: dict[str, TierResult] = {tier.tier: tier for tier in result.tiers}
        hits = [_ratio(by_tier[tier].token_hit_ratio) if tier in by_tier else None for tier in tiers]
        times = [
            _milliseconds(result.ttft["p50"]),
            _milliseconds(result.ttft["p99"]),
            _milliseconds(result.itl["p99"]),
        ]
        lines.append([name, *(spec[axis_name] for axis_name in axes), *hits, *times, round(result.cost.prefill_s, 1)])
    return Table(columns, lines, notes=["hits by tokens; times in ms"])
