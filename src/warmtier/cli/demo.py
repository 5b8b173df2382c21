"""``warmtier demo``: a real server, a real model, and the proof that an evicted prefix comes back."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from warmtier.cli.output import DebugOption, Format, FormatOption, Output, OutputOption, QuietOption, Table, dumps
from warmtier.core.errors import CheckFailedError, RequirementError
from warmtier.core.units import parse_duration

DEFAULT_MODEL: Final = Path("models/SmolLM2-135M-Instruct")
_BLOCKS: Final = 19
_BLOCK_TOKENS: Final = 128
_CACHE_FLAGS: Final = (
    "--block-size", str(_BLOCK_TOKENS), "--num-gpu-blocks-override", str(_BLOCKS),
    "--max-model-len", "2048", "--enforce-eager",
)  # fmt: skip
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}
_SECOND_START_SHARE: Final = 2.0  # both servers start and warm up
_SECOND_BATCH_SHARE: Final = 1.8  # the second server computes four prefixes where the first computes five
_NAMES: Final = {"without": "without offload", "host_tier": "with the host tier"}

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def demo(
    *,
    model: Annotated[Path, typer.Option("--model", help="Local model directory.")] = DEFAULT_MODEL,
    host_tier: Annotated[str, typer.Option("--host-tier", metavar="SIZE", help="Host memory for KV.")] = "512MiB",
    batches: Annotated[int, typer.Option("--batches", min=1, help="Batches with fresh prefixes.")] = 5,
    time_limit: Annotated[
        str, typer.Option("--time-limit", metavar="TIME", help="Fewer batches where more would take longer than this.")
    ] = "330s",
    directory: Annotated[Path, typer.Option("--directory", help="Where result.json, report.html and logs go.")] = Path(
        "demo"
    ),
    format: FormatOption = Format.TABLE,  # noqa: A002
    output: OutputOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
) -> None:
    """Show on this machine that an evicted prefix comes back from host memory.

    Two real vLLM servers, one after the other: without offload, and with a host tier. Exits with 1, saying what failed,
    when the resent prefix did not come from the host tier or its text differs from the device hit's.
    """
    from warmtier.bench import evict
    from warmtier.report import evict as report

    out = Output(format, output, quiet=quiet)
    settings = evict.Settings(batches=batches)
    pace = _Pace(parse_duration(time_limit))
    _check_requirements(model)
    servers = {}
    for name, command in _commands(model, host_tier).items():
        servers[name] = _run_server(name, command, settings, pace, directory, out)
        settings = replace(settings, batches=len(servers[name]["run"]["cases"]["cold"]["ttft_ms"]))
    if settings.batches < batches:
        out.note(f"{settings.batches} of {batches} batches were run, to end within {time_limit} on this processor")
    result = out.document("demo.evict", _result(model, settings, servers, batches))
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "result.json", dumps(result) + "\n", out)
    _write(directory / "report.html", report.html(result), out)
    out.print_document(result, _tables(result), text=str(result["verdict"]["sentence"]))
    failed = result["verdict"]["failures"]
    if failed:
        raise CheckFailedError("the demo failed", why="\n    ".join(failed), fix=f"see the logs in {directory}")


def _check_requirements(model: Path) -> None:
    from warmtier.core.extras import require
    from warmtier.engines.vllm import launch

    launch.require_vllm()
    for module, extra in (("aiohttp", "bench"), ("prometheus_client", "bench"), ("jinja2", "report")):
        require(module, extra=extra, purpose="the demo")
    if not (model / "config.json").is_file():
        raise RequirementError(
            f"{model} holds no model", why="the demo downloads nothing", fix="run `make setup`, or give --model DIR"
        )


def _commands(model: Path, host_tier: str) -> dict[str, list[str]]:
    """Return the commands of both servers; they differ in the tier alone."""
    from warmtier.bench.machine import native_bfloat16
    from warmtier.config.load import load
    from warmtier.engines.vllm import launch

    # Float32 where bfloat16 would be emulated: both servers get the same, and the demo must end in minutes.
    arguments = [str(model), "--dtype", "bfloat16" if native_bfloat16() else "float32", *_CACHE_FLAGS]
    config = load(None, {}, {"--host-tier": (("host", "capacity"), host_tier)}).config
    plan = launch.make_plan(config, arguments, os.environ)
    python = [sys.executable, "-m", launch.MODULE]
    return {"without": [*python, "serve", *arguments], "host_tier": [*python, *plan.arguments]}


class _Pace:
    """Chooses how many batches fit into the time limit, from how long the first server and batch took."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._started_s = time.monotonic()

    def batches(self, first_batch_s: float) -> int:
        """Return the number of batches for both servers; the second needs less, because it computes less."""
        before_s = time.monotonic() - self._started_s - first_batch_s
        return max(1, int((self._limit_s - _SECOND_START_SHARE * before_s) / (first_batch_s * _SECOND_BATCH_SHARE)))


def _run_server(
    name: str,
    command: list[str],
    settings: Any,  # noqa: ANN401 - bench is imported late
    pace: _Pace,
    directory: Path,
    out: Output,
) -> dict[str, Any]:
    from warmtier.bench import evict
    from warmtier.bench.server import Server

    out.note(f"starting vLLM {_NAMES[name]} ...")
    with Server(command, directory / f"server-{name}.log", environment=_ENVIRONMENT) as server:
        out.note(f"ready after {server.start_seconds:.0f} s")
        run = evict.measure(
            server.base_url,
            settings,
            lambda done, total: out.progress(done, total, _NAMES[name]),
            pace.batches if name == "without" else None,
        )
        return {
            "command": shlex.join(["vllm", *command[3:]]),  # without the interpreter and its module
            "start_seconds": round(server.start_seconds or 0.0, 1),
            "failures": evict.failures(run, offload=name == "host_tier"),
            "run": asdict(run),
        }


def _result(model: Path, settings: Any, servers: Mapping[str, dict[str, Any]], asked: int) -> dict[str, Any]:  # noqa: ANN401
    from warmtier.bench.evict import REFERENCE
    from warmtier.bench.machine import machine_facts, package_versions

    failed = [line for server in servers.values() for line in server["failures"]]
    return {
        "model": model.name,
        "machine": machine_facts(),
        "versions": package_versions(),
        "settings": {**asdict(settings), "batches_asked": asked},
        "device_cache_tokens": _BLOCKS * _BLOCK_TOKENS,
        "reference": REFERENCE,
        "servers": dict(servers),
        "verdict": {"passed": not failed, "failures": failed, "sentence": _sentence(servers, failed)},
    }


def _sentence(servers: Mapping[str, Any], failed: list[str]) -> str:
    if failed:
        return f"Failed: {len(failed)} check{'s' if len(failed) > 1 else ''} did not hold."
    without, tiered = (servers[name]["run"] for name in ("without", "host_tier"))
    resent, cold, anew = (
        run["cases"][case]["ttft_p50_ms"] for run, case in ((tiered, "resent"), (tiered, "cold"), (without, "resent"))
    )
    # The ratios stay within one server: the machine may have been busier while the other one ran.
    return (
        f"An evicted prefix came back from host memory in {resent:,.0f} ms: {cold / resent:.1f}x sooner than computing "
        f"it ({cold:,.0f} ms), {tiered['resent_over_device']:.2f}x a device hit, with the same text. "
        f"Without offload it took {anew:,.0f} ms."
    )


def _tables(result: Mapping[str, Any]) -> list[Table]:
    from warmtier.report import evict as report

    head = ["median TTFT", "without offload", "with host tier", "published (8 GB laptop GPU, 0.6B)"]
    sources = "prompt tokens by source, from /metrics"
    moved = "moved between device and host"
    return [
        Table(head, report.rows(result)),
        Table(["server", "case", "device", "host", "computed"], report.token_rows(result), title=sources),
        Table(["way", "bytes", "seconds", "GB/s"], report.transfer_rows(result), title=moved),
    ]


def _write(path: Path, text: str, out: Output) -> None:
    path.write_text(text)
    out.note(f"wrote {path}")
