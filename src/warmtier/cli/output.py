"""How commands print: data to stdout, progress and notes to stderr, a table for people or JSON for programs.

Every command that yields data takes the same options and ends with one ``emit``::

    @app.command()
    def ls(directory: Path, format: FormatOption = Format.TABLE, output: OutputOption = None,
           quiet: QuietOption = False, debug: DebugOption = False) -> None:
        out = Output(format, output, quiet=quiet)
        out.note("reading 12 segments")
        out.emit("tier.ls", {"segments": rows}, [Table(["segment", "size"], [["0001", "256MiB"]])])

A missing measurement is None (``null``, printed as a dash), never 0.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmtier.cli.errors import DebugOption

__all__ = ["DebugOption", "Format", "FormatOption", "Output", "OutputOption", "QuietOption", "Table"]

SCHEMA_VERSION: Final = 1


class Format(enum.StrEnum):
    """What stdout carries."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="Table for people or JSON for programs.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write the data to FILE instead of stdout.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress and no notes on stderr.")]


@dataclass(slots=True)
class Table:
    """Rows for people. Cells are shown with ``str``; None is a dash; columns of numbers are right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str | None = None
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> str:
        """Return aligned lines, plain enough for any terminal or pipe."""
        cells = [[_cell(value) for value in row] for row in self.rows]
        numeric = [all(_is_number(row[i]) for row in self.rows) for i in range(len(self.columns))]
        widths = [max(len(row[i]) for row in [list(self.columns), *cells]) for i in range(len(self.columns))]

        def line(row: Sequence[str]) -> str:
            parts = [v.rjust(w) if n else v.ljust(w) for v, w, n in zip(row, widths, numeric, strict=True)]
            return "  ".join(parts).rstrip()

        head = [self.title, ""] if self.title else []
        rule = "  ".join("-" * width for width in widths)
        notes = ["", *self.notes] if self.notes else []
        return "\n".join([*head, line(self.columns), rule, *(line(row) for row in cells), *notes])


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _is_number(value: object) -> bool:
    if value is None or isinstance(value, int | float):
        return True
    return isinstance(value, str) and value[:1] in "+-0123456789" and value[:1] != ""


class Output:
    """Where one command's words go. Not shared between threads."""

    def __init__(self, format: Format = Format.TABLE, path: Path | None = None, *, quiet: bool = False) -> None:  # noqa: A002
        self.format = format
        self.path = path
        self.quiet = quiet
        self._started_s = time.time()
        self._last_tenth = -1

    def note(self, text: str) -> None:
        """Say something on stderr, unless ``--quiet``."""
        if not self.quiet:
            typer.echo(text, err=True)

    def progress(self, done: int, total: int, what: str) -> None:
        """Report progress on stderr: in place on a terminal, one line per tenth otherwise."""
        if self.quiet or total <= 0:
            return
        if sys.stderr.isatty():
            end = "\n" if done >= total else "\r"
            sys.stderr.write(f"\x1b[2K{what} {done}/{total}{end}")
            sys.stderr.flush()
            return
        tenth = 10 * done // total
        if tenth > self._last_tenth or done >= total:
            self._last_tenth = -1 if done >= total else tenth
            typer.echo(f"{what} {done}/{total}", err=True)

    def emit(self, kind: str, data: Mapping[str, object], tables: Sequence[Table] = (), text: str = "") -> None:
        """Print the command's data: ``text`` and ``tables``, or one JSON document of ``data``."""
        self.print_document(self.document(kind, data), tables, text)

    def print_document(self, document: Mapping[str, object], tables: Sequence[Table], text: str = "") -> None:
        """Print a document made by ``document``; for commands that also keep it in a file."""
        if self.format is Format.JSON:
            body = dumps(document)
        else:
            body = "\n\n".join(part for part in (text, *(table.text() for table in tables)) if part)
        if self.path is None:
            typer.echo(body)
        else:
            self.path.write_text(body + "\n")
            self.note(f"wrote {self.path}")

    def document(self, kind: str, data: Mapping[str, object]) -> dict[str, Any]:
        """Return ``data`` with its schema version and the facts of this run."""
        return {"schema_version": SCHEMA_VERSION, "kind": kind, "run": self.run_facts(), **data}

    def run_facts(self) -> dict[str, object]:
        """Return what a reader needs to place the figures: versions, machine, time, command line."""
        from importlib.metadata import version

        uname = os.uname()
        return {
            "warmtier": version("warmtier"),
            "python": sys.version.split()[0],
            "machine": f"{uname.sysname} {uname.release} {uname.machine}",
            "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "started_at_s": round(self._started_s, 3),
            "seconds": round(time.time() - self._started_s, 3),
            "arguments": sys.argv[1:],
        }


def dumps(document: Mapping[str, object]) -> str:
    """Return a document as indented JSON."""
    return json.dumps(document, indent=2, default=_jsonable)


def _jsonable(value: object) -> object:
    if isinstance(value, Path | enum.Enum):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
