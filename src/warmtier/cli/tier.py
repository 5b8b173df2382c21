"""``warmtier tier``: look into the directory of a file tier, from outside and offline."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from warmtier.cli.errors import DebugOption
from warmtier.cli.output import Format, FormatOption, Output, OutputOption, QuietOption, Table
from warmtier.core.errors import CheckFailedError
from warmtier.core.units import format_size, parse_size
from warmtier.store.file.inspect import SegmentFacts, collect, engine_directories, list_segments, verify_segments

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into the directory of a file tier.")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory given to --file-tier, or one engine's (dp0) in it.")
]


@app.command()
def ls(
    directory: DirectoryArgument,
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """List the segments, oldest first. Safe beside a running engine."""
    del debug
    facts = [fact for path in engine_directories(directory) for fact in list_segments(path)]
    out = Output(format, output, quiet=quiet)
    out.emit("tier.ls", {"segments": [dataclasses.asdict(fact) for fact in facts]}, [_segment_table(facts)])


@app.command()
def stats(
    directory: DirectoryArgument,
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Sum up by engine and namespace. Safe beside a running engine."""
    del debug
    groups: dict[tuple[str, str | None], list[SegmentFacts]] = defaultdict(list)
    for path in engine_directories(directory):
        for fact in list_segments(path):
            groups[fact.engine, fact.namespace].append(fact)
    rows = [_sum_up(engine, namespace, facts) for (engine, namespace), facts in groups.items()]
    table = Table(
        ["engine", "namespace", "segments", "on disk", "records", "newest"],
        [
            [r["engine"], r["namespace"], r["segments"], format_size(_int(r["size_on_disk_bytes"])), r["records"],
             r["newest_sequence"]]
            for r in rows
        ],
        notes=["records: of sealed segments, deleted ones included; namespace -: unreadable or another format"],
    )  # fmt: skip
    Output(format, output, quiet=quiet).emit("tier.stats", {"groups": rows}, [table])


@app.command()
def verify(
    directory: DirectoryArgument,
    *,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Read every record and check it. Exit 1 if any is damaged. Safe beside a running engine, but reads everything."""
    del debug
    out = Output(format, output, quiet=quiet)
    facts: list[SegmentFacts] = []
    for path in engine_directories(directory):
        facts += verify_segments(path, lambda done, total: out.progress(done, total, "segments"))
    corrupt = sum(fact.corrupt or 0 for fact in facts)
    missing = sum(fact.missing or 0 for fact in facts)
    unreadable = sum(fact.state == "unreadable" for fact in facts)
    data = {
        "records": sum(fact.records or 0 for fact in facts),
        "payload_bytes": sum(fact.payload_bytes or 0 for fact in facts),
        "corrupt": corrupt,
        "missing": missing,
        "unreadable_segments": unreadable,
        "segments": [dataclasses.asdict(fact) for fact in facts],
    }
    text = (
        f"{data['records']} records sound, {corrupt} corrupt, {missing} missing, "
        f"{unreadable} of {len(facts)} segments unreadable"
    )
    out.emit("tier.verify", data, [_segment_table(facts, checked=True)], text)
    if corrupt or missing or unreadable:
        raise CheckFailedError(
            f"{directory} is damaged: {corrupt} records corrupt, {missing} missing, {unreadable} segments unreadable",
            why="a disk that lies, a power failure without --durability segment, or a foreign hand",
            fix="nothing needs to be done: an engine takes them as misses and reuses the space",
        )


@app.command()
def gc(
    directory: DirectoryArgument,
    *,
    keep: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="Keep this namespace (default: the one written last).")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Then remove the oldest until so much is left, per engine.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Remove segments that no engine of today can use. Refused while an engine holds the directory."""
    del debug
    to_bytes = parse_size(to) if to is not None else None
    out = Output(format, output, quiet=quiet)
    removed: list[SegmentFacts] = []
    kept: list[SegmentFacts] = []
    for path in engine_directories(directory):
        result = collect(path, keep=keep, to_bytes=to_bytes, dry_run=dry_run)
        removed += result.removed
        kept += result.kept
    freed_bytes = sum(fact.size_on_disk_bytes for fact in removed)
    data = {
        "dry_run": dry_run,
        "freed_bytes": freed_bytes,
        "removed": [dataclasses.asdict(fact) for fact in removed],
        "kept": [dataclasses.asdict(fact) for fact in kept],
    }
    verb = "would remove" if dry_run else "removed"
    text = f"{verb} {len(removed)} segments ({format_size(freed_bytes)}), kept {len(kept)}"
    out.emit("tier.gc", data, [_segment_table(removed)] if removed else [], text)


def _segment_table(facts: list[SegmentFacts], *, checked: bool = False) -> Table:
    columns = ["engine", "segment", "state", "age", "namespace", "on disk", "records"]
    rows: list[list[object]] = [
        [f.engine, f.name, f.state, f.sequence, f.namespace, format_size(f.size_on_disk_bytes), f.records]
        for f in facts
    ]
    if checked:
        columns += ["corrupt", "missing"]
        for row, fact in zip(rows, facts, strict=True):
            row += [fact.corrupt, fact.missing]
    return Table(columns, rows)


def _sum_up(engine: str, namespace: str | None, facts: list[SegmentFacts]) -> dict[str, object]:
    sealed = [fact.records for fact in facts if fact.records is not None]
    return {
        "engine": engine,
        "namespace": namespace,
        "segments": len(facts),
        "size_on_disk_bytes": sum(fact.size_on_disk_bytes for fact in facts),
        "records": sum(sealed) if sealed else None,
        "newest_sequence": max((fact.sequence for fact in facts if fact.sequence is not None), default=None),
        "states": {state: sum(f.state == state for f in facts) for state in sorted({f.state for f in facts})},
    }


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
