"""``warmtier sim``: what a policy or a size would have done on a trace."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from warmtier.cli import sim_run, sim_validate
from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.cli.trace_options import (
    BlockOption,
    ChunkOption,
    FormatNameOption,
    GapOption,
    SeedOption,
    SkipBadOption,
    StartsOption,
    TokenizerOption,
    TraceArgument,
    read_options,
    report_problems,
)
from warmtier.core.errors import UsageError
from warmtier.policy.registry import DEFAULT_POLICY, modes_of
from warmtier.sim.result import SimResult
from warmtier.sim.specify import SimSpec
from warmtier.sim.sweep import Cell, Row, run_sweep
from warmtier.trace.claude_code import Starts
from warmtier.trace.readers import ReadOptions, open_trace

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TracesArgument = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Mooncake-format JSON lines, or .gz.")]
PolicyOption = Annotated[str, typer.Option("--policy", metavar="NAME,...", help="Policies, comma-separated.")]
ChunksOption = Annotated[
    str, typer.Option("--host-chunks", metavar="N,...", help="Sizes of the tier in chunks (the trace's own blocks).")
]
HitsOnlyOption = Annotated[bool, typer.Option("--hits-only", help="One cache, without time or bytes: quick.")]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="production or raw (as published, per block). Default: what a policy has first."
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes in parallel. Default: one per core.")
]


@app.callback(no_args_is_help=True)
def group() -> None:
    """Ask what a policy or a size would have done on a trace."""


app.command()(sim_validate.validate)


@app.command()
def run(
    trace: TraceArgument,
    *,
    device_tokens: sim_run.DeviceOption = None,
    host_tier: sim_run.HostOption = "none",
    file_tier: sim_run.FileOption = "none",
    object_tier: sim_run.ObjectOption = "none",
    policy: PolicyOption = DEFAULT_POLICY,
    cold_policy: sim_run.ColdPolicyOption = "lru",
    touches: sim_run.TouchesOption = "1",
    cold_touches: sim_run.ColdTouchesOption = "1",
    placement: sim_run.PlacementOption = "through",
    blocks_per_chunk: sim_run.ChunkBlocksOption = "1",
    model: sim_run.ModelOption = None,
    calibration: sim_run.CalibrationOption = None,
    achieved_flops: sim_run.FlopsOption = None,
    step_time: sim_run.StepOption = "8ms",
    host_link: sim_run.HostLinkOption = "20GB/s",
    file_link: sim_run.FileLinkOption = "5GB/s,2GB/s",
    object_link: sim_run.ObjectLinkOption = "1GB/s,500MB/s",
    max_num_batched_tokens: sim_run.BatchOption = 8192,
    max_num_seqs: sim_run.SeqsOption = 256,
    max_concurrency: sim_run.ConcurrencyOption = None,
    engine_price: sim_run.PriceOption = 0.0,
    format_name: FormatNameOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    skip_bad: SkipBadOption = False,
    session_starts: StartsOption = Starts.POISSON,
    session_gap: GapOption = "60s",
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Play a trace through an engine with tiers: hits, times, transfers, cost. Same input, same output."""
    from warmtier.sim.run import simulate

    spec = sim_run.spec_of(locals())
    options = read_options(
        format_name, block_tokens, chunk_tokens, skip_bad, session_starts, session_gap, seed, tokenizer=tokenizer
    )
    opened = open_trace(trace, options)
    result = simulate(spec.settings(opened.trace.chunk_tokens), opened.trace)
    out = Output(format, output, quiet=quiet)
    report_problems(out, opened)
    notes = [*opened.notes, *(() if calibration else ("speeds are assumed, not measured (no --calibration)",))]
    sim_run.show(out, trace.name, spec, result, notes)


@app.command()
def sweep(
    traces: TracesArgument,
    *,
    hits_only: HitsOnlyOption = False,
    policy: PolicyOption = f"lru,{DEFAULT_POLICY},opt",
    host_chunks: ChunksOption = "",
    mode: ModeOption = None,
    device_tokens: sim_run.DeviceOption = None,
    host_tier: sim_run.HostOption = "",
    file_tier: sim_run.FileOption = "none",
    object_tier: sim_run.ObjectOption = "none",
    cold_policy: sim_run.ColdPolicyOption = "lru",
    touches: sim_run.TouchesOption = "1",
    cold_touches: sim_run.ColdTouchesOption = "1",
    placement: sim_run.PlacementOption = "through",
    blocks_per_chunk: sim_run.ChunkBlocksOption = "1",
    model: sim_run.ModelOption = None,
    calibration: sim_run.CalibrationOption = None,
    achieved_flops: sim_run.FlopsOption = None,
    max_concurrency: sim_run.ConcurrencyOption = None,
    journal: sim_run.JournalOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    workers: WorkersOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Run every trace through every combination of the comma-separated options, in parallel; one row each.

    With ``--hits-only`` one cache without time, ``raw`` policies and the optimum included; else the whole engine.
    """
    out = Output(format, output, quiet=quiet)
    count = workers or os.cpu_count() or 1
    if hits_only:
        if journal is not None:
            raise UsageError("--journal is for sweeps with time", fix="leave it out with --hits-only: they are quick")
        _sweep_hits(out, traces, policy, host_chunks, mode, block_tokens, count)
        return
    chosen = {
        "policy": ",".join(name for name in policy.split(",") if name != "opt"),
        "host_tier": host_tier or _in_chunks(host_chunks),
        "file_tier": file_tier,
        "object_tier": object_tier,
        "cold_policy": cold_policy,
        "touches": touches,
        "cold_touches": cold_touches,
        "placement": placement,
        "blocks_per_chunk": blocks_per_chunk,
    }
    axes = {name: sim_run.axis(name, text) for name, text in chosen.items()}
    spec = SimSpec(
        sim_run.need_device(device_tokens),
        model=model,
        calibration=sim_run.read_text(calibration),
        achieved_flops=achieved_flops,
        concurrency=max_concurrency,
    )
    options = ReadOptions(block_tokens=block_tokens, chunk_tokens=chunk_tokens)
    _sweep_timed(out, traces, options, spec, axes, count, journal)


def _in_chunks(sizes: str) -> str:
    if not sizes:
        raise UsageError("no size of the host tier is given", fix="pass --host-tier, such as 8GiB,16GiB or none")
    return ",".join(f"{_chunks(size)}chunks" for size in _split(sizes, "--host-chunks"))


def _sweep_timed(
    out: Output,
    traces: Sequence[Path],
    options: ReadOptions,
    spec: SimSpec,
    axes: Mapping[str, Sequence[str | int]],
    workers: int,
    journal: Path | None,
) -> None:
    from warmtier.sim.grid import make_cells, run_grid

    for trace in traces:
        if not trace.is_file():
            raise UsageError(f"{trace}: no such file")
    cells = make_cells(traces, options, spec, axes)
    results: dict[int, SimResult] = {}
    for index, result in run_grid(cells, workers, journal):
        results[index] = result
        out.progress(len(results), len(cells), "cells")
    varied = [name for name, values in axes.items() if len(values) > 1] or ["policy", "host_tier"]
    rows = [(cell.trace.name, asdict(cell.spec), results[index]) for index, cell in enumerate(cells)]
    data = [{"trace": name, "spec": used, **msgspec.to_builtins(result)} for name, used, result in rows]
    out.emit("sim.sweep", {"rows": data}, [sim_run.sweep_table(rows, varied)])


def _sweep_hits(
    out: Output,
    traces: Sequence[Path],
    policy: str,
    host_chunks: str,
    mode: str | None,
    block_tokens: int | None,
    workers: int,
) -> None:
    policies = _split(policy, "--policy")
    sizes = [_chunks(size) for size in _split(host_chunks, "--host-chunks")]
    for name in policies:
        _check_mode(name, mode)
    cells = [Cell(trace, name, size, mode, block_tokens) for trace in traces for name in policies for size in sizes]
    rows: dict[int, Row] = {}
    for index, row in run_sweep(cells, workers):
        rows[index] = row
        out.progress(len(rows), len(cells), "cells")
    ordered = [rows[index] for index in range(len(cells))]
    out.emit("sim.sweep", {"rows": [asdict(row) for row in ordered]}, [_table(ordered)])


def _split(text: str, flag: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"{flag} is empty", fix="give one or more values, separated by commas")
    return parts


def _chunks(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"--host-chunks: {text!r} is not a number of chunks", fix="use a whole number from 1 on")
    return int(text)


def _check_mode(policy: str, mode: str | None) -> None:
    modes = modes_of(policy)
    if mode is not None and mode not in modes:
        raise UsageError(f"policy {policy!r} does not run in mode {mode!r}", fix=f"it runs in: {', '.join(modes)}")


def _table(rows: Sequence[Row]) -> Table:
    columns = [field.name for field in fields(Row)]
    return Table(columns, [[getattr(row, column) for column in columns] for row in rows])
