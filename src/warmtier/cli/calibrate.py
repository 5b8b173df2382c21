"""``warmtier calibrate``: measure this machine and a running server, and write the calibration file."""

from __future__ import annotations

import datetime as dt
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

from warmtier.cli.output import DebugOption, Format, FormatOption, Output, QuietOption, Table
from warmtier.cli.sim_run import ModelOption
from warmtier.core.errors import UsageError
from warmtier.core.units import format_duration, format_size, parse_size
from warmtier.tiering.calibration import Calibration, LinkSpeed, encode_calibration, read_calibration

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def calibrate(
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="Calibration file to write, or to bring up to date.")
    ],
    *,
    url: Annotated[
        str | None, typer.Option("--url", help="An idle server: measures prefill, decoding and loads.")
    ] = None,
    device_tokens: Annotated[
        int | None,
        typer.Option("--device-tokens", min=1, help="What the server's own cache holds; lets loads be measured."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--file-tier", metavar="DIR", help="Measure a file tier in this directory.")
    ] = None,
    chunk_size: Annotated[str, typer.Option("--chunk-size", metavar="SIZE", help="Bytes of a chunk.")] = "1MiB",
    max_length: Annotated[int, typer.Option("--max-length", min=64, help="Longest prompt to send.")] = 1536,
    model: ModelOption = None,
    format: FormatOption = Format.TABLE,  # noqa: A002
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure host copies, the link to a CUDA device, a file tier, and a server's prefill by length."""
    from warmtier.bench import calibrate_local as local
    from warmtier.engines.cuda_link import measure_cuda_link

    out = Output(format, None, quiet=quiet)
    old = read_calibration(to) if to.exists() else None
    if old is None and url is None:
        raise UsageError("the speed of prefill is not known", fix="pass --url of an idle server")
    chunk_bytes = parse_size(chunk_size)
    if chunk_bytes < 4096:
        raise UsageError(f"--chunk-size {chunk_size}: at least 4KiB")
    links: dict[str, LinkSpeed] = {} if old is None else dict(old.links)
    rows: list[list[object]] = []
    data: dict[str, Any] = {"file": str(to)}

    out.note("copies in host memory")
    copied = local.measure_copy(chunk_bytes)
    rows.append(_row("host memory copy, one thread", copied.speed))
    data["host_copy"] = {"speed": copied.speed, "points": copied.points}
    cuda = measure_cuda_link()
    if cuda is None:
        links["host"] = copied.speed
        out.note("no CUDA device: the host tier's link is a copy in memory")
    else:
        links["host"] = local.line(cuda.loads)
        where = f"{cuda.device}, NUMA node {cuda.numa_node}, PCIe {cuda.pcie}"
        rows += [_row(f"to {where}", links["host"]), _row(f"from {where}", local.line(cuda.stores))]
        data["cuda"] = cuda
    if directory is not None:
        out.note(f"a file tier in {directory}")
        read, written = local.measure_file(directory, chunk_bytes)
        links["file"] = read.speed
        rows += [_row("file tier, reads", read.speed), _row("file tier, writes", written.speed)]
        data["file_tier"] = {"reads": read, "writes": written}
    if url is not None:
        figures = _measure_server(out, url, device_tokens, max_length)
        prefill, engine = figures.prefill, figures.engine
        links["host"] = figures.host or links["host"]
        data["server"] = figures
        rows += _engine_rows(figures)
    elif old is not None:
        prefill, engine = old.prefill, old.engine
    now = dt.datetime.now(dt.UTC).isoformat(timespec="minutes")
    _write(to, Calibration(1, prefill, links, engine, measured_at=now, machine=_machine(cuda)))
    out.emit("calibrate", data, [Table(["what", "bandwidth", "fixed"], rows)], f"wrote {to}")


def _measure_server(out: Output, url: str, device_tokens: int | None, max_length: int) -> Any:  # noqa: ANN401
    from warmtier.bench.calibrate_engine import Probe, measure_engine

    lengths = sorted({max(32, round(max_length * share)) for share in (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3, 1)})
    return measure_engine(url.rstrip("/"), Probe(lengths, device_tokens=device_tokens), out.note)


def _row(name: str, speed: LinkSpeed) -> list[object]:
    return [name, f"{format_size(round(speed.bytes_per_second))}/s", format_duration(speed.fixed_seconds)]


def _engine_rows(figures: Any) -> list[list[object]]:  # noqa: ANN401
    prefill, engine = figures.prefill, figures.engine
    per_1000 = format_duration(prefill.seconds(0, 1000))
    rows: list[list[object]] = [
        ["prefill of 1,000 tokens", f"{1000 / prefill.seconds(0, 1000):.0f} tokens/s", per_1000],
        ["a step, and the way to it", None, format_duration(engine.step_seconds + engine.front_seconds)],
        ["one more sequence in a step", None, format_duration(engine.seconds_per_sequence)],
    ]
    if figures.host is not None:
        rows.append(_row("load from the host tier", figures.host))
    return rows


def _machine(cuda: Any) -> str:  # noqa: ANN401
    where = f", {cuda.device}, NUMA node {cuda.numa_node}, PCIe {cuda.pcie}" if cuda is not None else ""
    return f"{platform.system()} {platform.machine()}{where}"


def _write(path: Path, calibration: Calibration) -> None:
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(encode_calibration(calibration))
    temporary.replace(path)
