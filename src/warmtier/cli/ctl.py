"""``warmtier ctl``: talk to a running engine through its control socket."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from warmtier.cli.errors import DebugOption
from warmtier.cli.output import Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.core.errors import CheckFailedError, TargetError, UsageError
from warmtier.core.units import parse_duration
from warmtier.engines.vllm import control

_HELP = "Switch tiers, show figures and explain decisions of a running engine."

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_HELP)
mode = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show or set what tiers may do.")
app.add_typer(mode, name="mode")


@app.callback()
def main(
    context: typer.Context,
    *,
    socket: Annotated[
        Path | None,
        typer.Option(
            "--socket", metavar="PATH", help="The engine's socket, as its log names it; default: the only one."
        ),
    ] = None,
) -> None:
    """Remember which engine is meant."""
    context.obj = socket


@mode.command("show")
def show_modes(
    context: typer.Context,
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the mode of every tier."""
    del debug
    _emit_modes(Output(format, output, quiet=quiet), _ask(context.obj, control.Mode()))


@mode.command("set")
def set_mode(
    context: typer.Context,
    tier: Annotated[str, typer.Argument(metavar="TIER", help="host, file, ...")],
    to: Annotated[str, typer.Argument(metavar="off|on", help="The new mode.")],
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Switch a tier off or on. What is being transferred stays safe; nothing restarts."""
    del debug
    _emit_modes(Output(format, output, quiet=quiet), _ask(context.obj, control.Mode(tier, to)))


@app.command()
def stats(
    context: typer.Context,
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show sizes and counters of every tier."""
    del debug
    answer = _ask(context.obj, control.Stats())
    rows = [
        [name, t["mode"], t["breaker"], t["resident_chunks"], t["capacity_chunks"], t["hits"],
         sum(t["misses"].values()), t["stores"].get("stored", 0), t["evictions"], t["promotions"]]
        for name, t in answer["tiers"].items()
    ]  # fmt: skip
    columns = ["tier", "mode", "breaker", "chunks", "of", "hits", "missed", "stored", "evicted", "promoted"]
    notes = [f"epoch {answer['epoch']}, {answer['requests']} requests, {answer['jobs']} jobs under way"]
    Output(format, output, quiet=quiet).emit("ctl.stats", answer, [Table(columns, rows, notes=notes)])


@app.command()
def drain(
    context: typer.Context,
    *,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="Give up after this, e.g. 30s.")] = "30s",
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Wait until nothing is being written to or read from cold tiers. Exit 1 when that takes too long."""
    del debug
    deadline_s = time.monotonic() + parse_duration(timeout)
    while not (answer := _ask(context.obj, control.Drain()))["drained"]:
        if time.monotonic() >= deadline_s:
            raise CheckFailedError(f"{answer['jobs']} jobs are still under way after {timeout}")
        time.sleep(0.05)
    Output(format, output, quiet=quiet).emit("ctl.drain", answer, text="nothing is under way")


@app.command()
def evict(
    context: typer.Context,
    *,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="As named in hints.")],
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Give up what a tenant's requests stored since the engine started, in every tier."""
    del debug
    answer = _ask(context.obj, control.Evict(tenant))
    rows = [[name, count] for name, count in answer.get("evicted", {}).items()]
    text = answer.get("queued") or f"{answer['known']} chunks of {tenant} were known"
    tables = [Table(["tier", "evicted"], rows)] if rows else []
    Output(format, output, quiet=quiet).emit("ctl.evict", answer, tables, text)


@app.command()
def explain(
    context: typer.Context,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The id in the response, or a part of it.")],
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what was decided about one of the last requests, and why."""
    del debug
    answer = _ask(context.obj, control.Explain(request))
    rows = [[name, value if isinstance(value, str | int | float) else json.dumps(value)]
            for name, value in answer["explanation"].items() if value not in (None, {})]  # fmt: skip
    Output(format, output, quiet=quiet).emit("ctl.explain", answer, [Table(["fact", "value"], rows)])


def _emit_modes(out: Output, answer: dict[str, Any]) -> None:
    rows = [[name, t["mode"], t["breaker"], t["waiting_for"]] for name, t in answer.get("tiers", {}).items()]
    tables = [Table(["tier", "mode", "breaker", "waits for"], rows)] if rows else []
    out.emit("ctl.mode", answer, tables, answer.get("queued", ""))


def _ask(socket: Path | None, request: control.Request) -> dict[str, Any]:
    path = socket if socket is not None else _only_socket()
    try:
        answer = control.call(path, request)
    except OSError as error:
        raise TargetError(f"no engine answers on {path}", why=str(error), fix="its log names its socket") from error
    if not answer.pop("ok", False):
        raise UsageError(str(answer.get("error")), fix=answer.get("fix"))
    return answer


def _only_socket() -> Path:
    found = sorted(control.runtime_directory().glob("*.sock"))
    if len(found) != 1:
        listed = ", ".join(map(str, found)) or f"none in {control.runtime_directory()}"
        raise UsageError("which engine?", why=f"sockets: {listed}", fix="give --socket PATH")
    return found[0]
