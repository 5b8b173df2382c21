"""The options by which commands open a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from warmtier.cli.output import Output
from warmtier.core.errors import UsageError
from warmtier.core.units import parse_duration, parse_size
from warmtier.trace.claude_code import SessionStarts, Starts
from warmtier.trace.readers import OpenTrace, ReadOptions

TraceArgument = Annotated[
    Path, typer.Argument(metavar="TRACE", help="JSON lines, plain or .gz; the format is found from the first line.")
]
OutFileOption = Annotated[Path, typer.Option("--to", metavar="FILE", help="File to write; .gz is compressed.")]
FormatNameOption = Annotated[
    str | None,
    typer.Option(
        "--trace-format",
        metavar="NAME",
        help="mooncake, timed-trace, lmcache-agent, bailian, claude-code, kv-events, access-log or openai-log.",
    ),
]
BlockOption = Annotated[
    int | None, typer.Option("--block-tokens", min=1, help="Tokens per key of the file; found from it if absent.")
]
ChunkOption = Annotated[
    int | None, typer.Option("--chunk-tokens", min=1, help="Join keys to chunks of this many tokens.")
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave malformed lines out and count them.")]
StartsOption = Annotated[
    Starts, typer.Option("--session-starts", help="Where the file has none: distribution of gaps between them.")
]
GapOption = Annotated[str, typer.Option("--session-gap", metavar="DURATION", help="Mean gap between session starts.")]
MergeOption = Annotated[
    str, typer.Option("--merge-gap", metavar="DURATION", help="KV events this close are one request.")
]
TokenizerOption = Annotated[
    Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json, or its directory, for texts.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Of everything that is drawn.")]


def read_options(
    format_name: str | None,
    block_tokens: int | None,
    chunk_tokens: int | None,
    skip_bad: bool,
    starts: Starts = Starts.POISSON,
    gap: str = "60s",
    seed: int = 0,
    merge_gap: str = "2s",
    tokenizer: Path | None = None,
) -> ReadOptions:
    """Return the options of a reader from those of the command line."""
    return ReadOptions(
        format=format_name,
        block_tokens=block_tokens,
        chunk_tokens=chunk_tokens,
        skip_bad=skip_bad,
        starts=SessionStarts(starts, parse_duration(gap), seed),
        merge_gap_s=parse_duration(merge_gap),
        tokenizer=tokenizer,
    )


def report_problems(output: Output, opened: OpenTrace) -> None:
    """Say how many lines were skipped, and the first."""
    problems = opened.file.problems
    if problems.skipped:
        output.note(f"skipped {problems.skipped} malformed lines, the first: {problems.first}")


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``20GB/s`` (the ``/s`` may be left out). Raises UsageError."""
    value = float(parse_size(text.removesuffix("/s")))
    if value <= 0:
        raise UsageError(f"the bandwidth must be above 0, got {text!r}")
    return value
