"""``warmtier config render|validate|schema``: check a configuration and print what vLLM needs to be told."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.cli.sources import FileTierOption, HostTierOption, load_config
from warmtier.config.load import Loaded

app = typer.Typer(rich_markup_mode=None, add_completion=False)

FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="YAML file; without one, environment and flags alone.")
]
ModelOption = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="Model to name in the command; a local one decides the chunk size."),
]


@app.callback(no_args_is_help=True)
def group() -> None:
    """Check a configuration and print what vLLM needs to be told."""


@app.command()
def render(
    file: FileArgument = None,
    *,
    model: ModelOption = "MODEL",
    host_tier: HostTierOption = None,
    file_tier: FileTierOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Print the ``--kv-transfer-config`` JSON, shell-quoted, and the plain ``vllm serve`` command."""
    from warmtier.config.render import compact_json, kv_transfer_config
    from warmtier.engines.vllm import launch

    loaded = load_config(file, host_tier, file_tier)
    plan = launch.make_plan(loaded.config, [model], os.environ)
    transfer = kv_transfer_config(loaded.config, launch.default_blocks_per_chunk([model], []))
    text = f"--kv-transfer-config {shlex.quote(compact_json(transfer))}\n\n{plan.plain_command()}"
    data = {
        "kv_transfer_config": transfer,
        "command": ["vllm", *plan.arguments],
        "environment": dict(plan.environment),
    }
    Output(format, output, quiet=quiet).emit("config.render", data, text=text)


@app.command()
def validate(
    file: FileArgument = None,
    *,
    host_tier: HostTierOption = None,
    file_tier: FileTierOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Check a configuration; print the values that are not defaults and where each comes from."""
    loaded = load_config(file, host_tier, file_tier)
    rows = _given(loaded)
    data = {"valid": True, "given": [dict(zip(("key", "value", "source"), row, strict=True)) for row in rows]}
    table = Table(["key", "value", "source"], rows, notes=["valid; every other knob has its default"])
    Output(format, output, quiet=quiet).emit("config.validate", data, [table])


@app.command()
def schema(*, output: OutputOption = None, quiet: QuietOption = False, debug: DebugOption = False) -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    import json

    from warmtier.config.reference import json_schema

    body = json.dumps(json_schema(), indent=2)
    if output is None:
        typer.echo(body)
    else:
        output.write_text(body + "\n")


def _given(loaded: Loaded) -> list[list[object]]:
    from warmtier.config.schema import dump

    rows: list[list[object]] = []

    def walk(section: dict[str, object], path: tuple[str, ...]) -> None:
        for name, value in section.items():
            if isinstance(value, dict):
                walk(value, (*path, name))
            else:
                rows.append([".".join((*path, name)), value, loaded.source(*path, name)])

    walk(dump(loaded.config), ())
    return rows
