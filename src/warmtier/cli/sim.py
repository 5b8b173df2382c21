"""``warmtier sim``: what a policy or a size would have done on a trace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import typer

from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.core.errors import UsageError
from warmtier.policy.registry import DEFAULT_POLICY, modes_of
from warmtier.sim.sweep import Cell, Row, run_sweep

app = typer.Typer(rich_markup_mode=None, add_completion=False)

TracesArgument = Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Mooncake-format JSON lines, or .gz.")]
PolicyOption = Annotated[str, typer.Option("--policy", metavar="NAME,...", help="Policies, comma-separated.")]
ChunksOption = Annotated[
    str, typer.Option("--host-chunks", metavar="N,...", help="Sizes of the tier in chunks (the trace's own blocks).")
]
HitsOnlyOption = Annotated[bool, typer.Option("--hits-only", help="Hits without time or bytes; the only kind so far.")]
ModeOption = Annotated[
    str | None,
    typer.Option(
        "--mode", metavar="MODE", help="production or raw (as published, per block). Default: what a policy has first."
    ),
]
BlockOption = Annotated[
    int | None, typer.Option("--block-tokens", min=1, help="Tokens per block of the traces; found from them if absent.")
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes in parallel. Default: one per core.")
]


@app.callback(no_args_is_help=True)
def group() -> None:
    """Ask what a policy or a size would have done on a trace."""


@app.command()
def sweep(
    traces: TracesArgument,
    *,
    policy: PolicyOption = f"lru,{DEFAULT_POLICY},opt",
    host_chunks: ChunksOption,
    hits_only: HitsOnlyOption = False,
    mode: ModeOption = None,
    block_tokens: BlockOption = None,
    workers: WorkersOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Run every trace through every policy at every size, in parallel; one row each."""
    del debug
    if not hits_only:
        raise UsageError("only hits can be simulated so far", fix="add --hits-only")
    policies = _split(policy, "--policy")
    sizes = [_chunks(size) for size in _split(host_chunks, "--host-chunks")]
    for name in policies:
        _check_mode(name, mode)
    cells = [Cell(trace, name, size, mode, block_tokens) for trace in traces for name in policies for size in sizes]
    out = Output(format, output, quiet=quiet)
    rows: dict[int, Row] = {}
    for index, row in run_sweep(cells, workers or os.cpu_count() or 1):
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
