"""The command tree and how a run of it ends.

Each command lives in its own module with a typer object named ``app`` (one command makes it a leaf, several a group).
``COMMANDS`` names the modules; a module is imported only when its command runs, so ``warmtier --help`` stays quick.

Exit codes: 0 ok, 1 check failed, 2 usage or configuration, 3 requirement missing, 4 target unreachable,
130 interrupted.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core

from warmtier.cli import errors

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("warmtier.cli.serve", "Start a vLLM server with warm tiers below its device cache."),
    "demo": ("warmtier.cli.demo", "Show on this machine that an evicted prefix comes back from host memory."),
    "config": ("warmtier.cli.config", "Check a configuration and print what vLLM needs to be told."),
    "trace": ("warmtier.cli.trace", "Look at traffic: profile, record, convert, disguise, sample or make a trace."),
    "sim": ("warmtier.cli.sim", "Ask what a policy or a size would have done on a trace."),
    "calibrate": ("warmtier.cli.calibrate", "Measure this machine and a running server; write the calibration file."),
    "tier": ("warmtier.cli.tier", "Look into the directory of a file tier: list, verify, collect."),
    "ctl": ("warmtier.cli.ctl", "Switch tiers, show figures and explain decisions of a running engine."),
}
"""Name: (module, one line for the help)."""

_INTERRUPTED: Final = 130


def is_installed(name: str) -> bool:
    """Return whether the command's module is part of this installation. Imports nothing but packages above it."""
    return name in COMMANDS and importlib.util.find_spec(COMMANDS[name][0]) is not None


class LazyCommand(typer.core.TyperCommand):
    """Stands for a command in listings; becomes the real one when it runs."""

    def __init__(self, name: str, module: str, summary: str) -> None:
        super().__init__(name, help=summary, short_help=summary)
        self.module = module

    def load(self) -> Any:  # noqa: ANN401 - typer's command classes moved between versions
        """Import the module and return its command."""
        command = typer.main.get_command(importlib.import_module(self.module).app)
        command.name = self.name
        command.help = command.help or self.help
        return command

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:  # noqa: ANN401
        """Hand over to the real command."""
        return self.load().make_context(info_name, args, parent=parent, **extra)


class LazyGroup(typer.core.TyperGroup):
    """The root: knows names and summaries of all commands without importing them."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002
        """Return the commands that this installation has."""
        return [name for name in COMMANDS if is_installed(name)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002
        """Return a stand-in for ``cmd_name``, or None."""
        if not is_installed(cmd_name):
            return None
        return LazyCommand(cmd_name, *COMMANDS[cmd_name])


app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]})


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"warmtier {version('warmtier')}")
        raise typer.Exit


@app.callback(no_args_is_help=True)
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: errors.DebugOption = False,
) -> None:
    """KV cache tiers for vLLM that prove themselves on your own traffic."""


def _terminate(_number: int, _frame: object) -> NoReturn:
    """Unwind on SIGTERM, so that servers that were started are stopped."""
    raise SystemExit(128 + signal.SIGTERM)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Never raises but for SystemExit of vLLM itself."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = typer.main.get_command(app).main(args=list(arguments), prog_name="warmtier", standalone_mode=False)
    except BrokenPipeError:
        # The reader of stdout has gone; a later flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes words and an exit code
        if errors.debugging():
            traceback.print_exc()
        report = errors.describe(error)
        typer.echo(report.text(), err=True)
        return report.exit_code
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
        typer.echo("interrupted", err=True)
    return code if isinstance(code, int) else 0
