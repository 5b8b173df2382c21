"""``warmtier trace profile|record|convert|anonymize|sample|synth``: what does my traffic look like?"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from warmtier.cli import trace_view
from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption
from warmtier.cli.trace_options import (
    BlockOption,
    ChunkOption,
    FormatNameOption,
    GapOption,
    MergeOption,
    OutFileOption,
    SeedOption,
    SkipBadOption,
    StartsOption,
    TokenizerOption,
    TraceArgument,
    parse_bandwidth,
    read_options,
    report_problems,
)
from warmtier.core.errors import UsageError
from warmtier.core.units import format_size, parse_duration, parse_size
from warmtier.trace.claude_code import Starts
from warmtier.trace.readers import OpenTrace, open_trace
from warmtier.trace.schema import TraceRequest

app = typer.Typer(rich_markup_mode=None, add_completion=False)

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="config.json, its directory, or a known name: bytes and FLOPs."),
]
TopOption = Annotated[int, typer.Option("--top", min=0, help="Shared prefixes to list.")]
RateOption = Annotated[
    float, typer.Option("--sample", min=1e-6, max=1.0, help="Read only this share of the keys; errors are shown.")
]
BandwidthOption = Annotated[
    str | None, typer.Option("--bandwidth", metavar="SIZE/s", help="Of the tier's link, such as 20GB/s.")
]
CapacitiesOption = Annotated[
    str, typer.Option("--chunks", metavar="N,...", help="Capacities of the curve in chunks; found if absent.")
]
KvBytesOption = Annotated[
    int | None, typer.Option("--kv-bytes-per-token", min=1, help="KV bytes of one token, if no model is given.")
]


@app.callback(no_args_is_help=True)
def group() -> None:
    """Look at traffic: profile a trace, record, convert, disguise, sample or make one."""


def _written(output: Output, opened: OpenTrace, requests: Iterable[TraceRequest], path: Path, kind: str) -> None:
    from warmtier.trace.writer import write_trace

    for note in opened.notes:
        output.note(f"note: {note}")
    count = write_trace(requests, path)
    report_problems(output, opened)
    skipped = opened.file.problems.skipped
    data = {"file": str(path), "requests": count, "chunk_tokens": opened.trace.chunk_tokens, "skipped": skipped}
    text = f"{count} requests in chunks of {opened.trace.chunk_tokens} tokens written to {path}"
    output.emit(kind, data, text=text)


@app.command()
def profile(
    trace: TraceArgument,
    *,
    model: ModelOption = None,
    kv_bytes_per_token: KvBytesOption = None,
    bandwidth: BandwidthOption = None,
    sample: RateOption = 1.0,
    chunks: CapacitiesOption = "",
    top: TopOption = 10,
    format_name: FormatNameOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    skip_bad: SkipBadOption = False,
    session_starts: StartsOption = Starts.POISSON,
    session_gap: GapOption = "60s",
    merge_gap: MergeOption = "2s",
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Say what a trace could gain from a cache, from which prefixes, and what not to store."""
    import msgspec

    from warmtier.core.model import load_shape
    from warmtier.trace.profile import ProfileOptions, profile_trace

    out = Output(format, output, quiet=quiet)
    opened = open_trace(
        trace,
        read_options(
            format_name, block_tokens, chunk_tokens, skip_bad, session_starts, session_gap, seed, merge_gap, tokenizer
        ),
    )
    options = ProfileOptions(
        model=None if model is None else load_shape(model),
        kv_bytes_per_token=kv_bytes_per_token,
        bandwidth=None if bandwidth is None else parse_bandwidth(bandwidth),
        rate=sample,
        seed=seed,
        capacities=_numbers(chunks),
        top=top,
    )
    found = profile_trace(opened.trace, options)
    report_problems(out, opened)
    data = msgspec.to_builtins(found)
    data |= {"file": str(trace), "notes": opened.notes, "skipped": opened.file.problems.skipped}
    out.emit("trace.profile", data, trace_view.tables(found), trace_view.headline(trace.name, found, opened.notes))


def _numbers(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",") if part.strip()})
    except ValueError:
        raise UsageError(f"--chunks {text!r}: not a list of integers", fix="such as 1000,10000") from None


@app.command()
def convert(
    trace: TraceArgument,
    to: OutFileOption,
    *,
    format_name: FormatNameOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    skip_bad: SkipBadOption = False,
    session_starts: StartsOption = Starts.POISSON,
    session_gap: GapOption = "60s",
    merge_gap: MergeOption = "2s",
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a trace in Mooncake's form, which vLLM's ``timed_trace`` and most tools read."""
    options = read_options(
        format_name, block_tokens, chunk_tokens, skip_bad, session_starts, session_gap, seed, merge_gap, tokenizer
    )
    opened = open_trace(trace, options)
    _written(Output(format, None, quiet=quiet), opened, opened.trace, to, "trace.convert")


@app.command()
def anonymize(
    trace: TraceArgument,
    to: OutFileOption,
    *,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="Secret of 16 to 64 bytes: runs with it can be joined."),
    ] = None,
    round_tokens: Annotated[int, typer.Option("--round-tokens", min=1, help="Round lengths to multiples.")] = 1,
    round_time: Annotated[
        str | None, typer.Option("--round-time", metavar="DURATION", help="Round arrivals down, such as 1s.")
    ] = None,
    format_name: FormatNameOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    skip_bad: SkipBadOption = False,
    tokenizer: TokenizerOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a trace that others may see: keyed hashes, no names. Without a key file, a random key that is forgotten."""
    from warmtier.trace.anonymize import Anonymizer

    opened = open_trace(trace, read_options(format_name, block_tokens, chunk_tokens, skip_bad, tokenizer=tokenizer))
    secret = os.urandom(32) if key_file is None else key_file.read_bytes().strip()
    if not 16 <= len(secret) <= 64:
        raise UsageError(f"{key_file}: a key has 16 to 64 bytes, this one {len(secret)}")
    seconds = 0.0 if round_time is None else parse_duration(round_time)
    disguise = Anonymizer(secret, round_tokens=round_tokens, round_seconds=seconds)
    from warmtier.trace.writer import write_trace

    out = Output(format, None, quiet=quiet)
    count = write_trace(disguise.apply(opened.trace), to, renumber=False)
    report_problems(out, opened)
    data = {"file": str(to), "requests": count, "key": "random, forgotten" if key_file is None else "from the key file"}
    out.emit("trace.anonymize", data, text=f"{count} requests written to {to}; key: {data['key']}")


class SampleBy(enum.StrEnum):
    """What is kept or dropped as a whole."""

    SESSION = "session"
    KEY = "key"


@app.command()
def sample(
    trace: TraceArgument,
    to: OutFileOption,
    *,
    rate: Annotated[float, typer.Option("--rate", min=1e-6, max=1.0, help="Share to keep.")],
    by: Annotated[
        SampleBy, typer.Option("--by", help="Whole sessions (inferred where unknown), or keys by spatial hash.")
    ] = SampleBy.SESSION,
    format_name: FormatNameOption = None,
    block_tokens: BlockOption = None,
    chunk_tokens: ChunkOption = None,
    skip_bad: SkipBadOption = False,
    session_starts: StartsOption = Starts.POISSON,
    session_gap: GapOption = "60s",
    tokenizer: TokenizerOption = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a smaller trace that hits like the whole: cache sizes shrink by the rate."""
    from warmtier.trace.sample import infer_sessions, sample_keys, sample_sessions

    options = read_options(
        format_name, block_tokens, chunk_tokens, skip_bad, session_starts, session_gap, seed, tokenizer=tokenizer
    )
    opened = open_trace(trace, options)
    requests: Iterator[TraceRequest]
    if by is SampleBy.KEY:
        requests = sample_keys(opened.trace, rate, seed)
    else:
        requests = sample_sessions(infer_sessions(opened.trace), rate, seed)
    _written(Output(format, None, quiet=quiet), opened, requests, to, "trace.sample")


@app.command()
def synth(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", help="shared-prefix, sessions, one-shot, tight-device or cold-reuse."),
    ],
    to: OutFileOption,
    *,
    knob: Annotated[
        list[str] | None, typer.Option("--set", metavar="KNOB=VALUE", help="A knob of the pattern; repeat for more.")
    ] = None,
    seed: SeedOption = 0,
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Make a trace of one traffic pattern. Same knobs and seed, same file."""
    from dataclasses import asdict

    from warmtier.trace.synth import SynthTrace
    from warmtier.trace.writer import write_trace

    settings = {"seed": str(seed)}
    for pair in knob or ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"--set {pair!r}: a knob and a value are needed", fix="such as --set requests=5000")
        settings[name] = value
    made = SynthTrace(pattern, settings)
    count = write_trace(made, to)
    data = {"file": str(to), "requests": count, "pattern": pattern, "knobs": asdict(made.knobs)}
    text = f"{count} requests ({pattern}, seed {made.knobs.seed}) written to {to}"
    Output(format, None, quiet=quiet).emit("trace.synth", data, text=text)


@app.command()
def record(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="vLLM's KV event socket: tcp://127.0.0.1:5557.")],
    to: OutFileOption,
    *,
    topic: Annotated[str, typer.Option("--topic", help="Topic of the events.")] = "",
    duration: Annotated[str | None, typer.Option("--duration", metavar="DURATION", help="Stop after, such as 1h.")] = (
        None
    ),
    max_size: Annotated[str, typer.Option("--max-size", metavar="SIZE", help="Stop when the log is this long.")] = (
        "10GiB"
    ),
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Follow a running vLLM's KV events into a log, until interrupted. No token leaves; the engine notices nothing."""
    from dataclasses import asdict

    from warmtier.trace.record import Recording
    from warmtier.trace.record import record as follow

    out = Output(format, None, quiet=quiet)
    out.note(f"recording {endpoint} into {to}; interrupt to end")
    seen = Recording()
    try:
        follow(
            endpoint,
            to,
            seen,
            topic=topic,
            duration_s=None if duration is None else parse_duration(duration),
            max_bytes=parse_size(max_size),
        )
    except KeyboardInterrupt:
        out.note("interrupted; the log is complete up to here")
    text = f"{seen.events} events in {seen.messages} messages, {format_size(seen.size_bytes)}; {seen.lost} lost"
    out.emit("trace.record", {"file": str(to), **asdict(seen)}, text=text)
