"""The one form in which errors reach people: what, where, why, how to fix. Tracebacks only with ``--debug``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from warmtier.core.errors import WarmtierError

# typer exports these two; their bases are click's, whichever copy of click this typer brings.
_PARAMETER_ERROR: Final[type[Exception]] = typer.BadParameter
_USAGE_ERROR: Final = _PARAMETER_ERROR.__mro__[1]
_DEBUG: Final = "WARMTIER_DEBUG"


def _enable(wanted: bool) -> None:
    if wanted:
        os.environ[_DEBUG] = "1"  # children inherit it


DebugOption = Annotated[
    bool, typer.Option("--debug", callback=_enable, is_eager=True, help="Show tracebacks with errors.")
]


def debugging() -> bool:
    """Return whether tracebacks are wanted."""
    return os.environ.get(_DEBUG, "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class Report:
    """An error in words, and what the process returns for it."""

    what: str
    where: str | None
    why: str | None
    fix: str | None
    exit_code: int

    def text(self) -> str:
        """Return the lines to print."""
        lines = [f"error: {self.what}"]
        for label, value in (("where", self.where), ("why", self.why), ("fix", self.fix)):
            if value:
                lines.append(f"  {label}: {value}")
        return "\n".join(lines)


def describe(error: Exception) -> Report:
    """Return the report of any exception that ended a command."""
    if isinstance(error, WarmtierError):
        return Report(error.message, None, error.why, error.fix, error.exit_code)
    if isinstance(error, _USAGE_ERROR):
        return _describe_usage(error)
    if isinstance(error, typer.Abort):
        return Report("interrupted", None, None, None, 130)
    if isinstance(error, OSError) and error.filename is not None:
        return Report(f"{error.filename}: {error.strerror}", None, None, None, 3)
    what = f"{type(error).__name__}: {error}"
    fix = "run again with --debug for the traceback, and report it"
    return Report(what, None, "an error that warmtier did not foresee", fix, 1)


def _describe_usage(error: Exception) -> Report:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "warmtier"
    what = error.format_message() if hasattr(error, "format_message") else str(error)
    if type(error).__name__ == "NoArgsIsHelpError":
        return Report("no command given", command, None, f"see `{command} --help`", 2)
    return Report(what.rstrip("."), command, None, f"see `{command} --help`", 2)
