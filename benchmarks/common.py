"""What every benchmark prints: the machine it ran on, its rows, and its aims with whether they were met."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import psutil

Row = Mapping[str, str | int | float | None]
Aim = dict[str, str | float | bool]


def machine() -> dict[str, str | int | float | list[float]]:
    """Return the facts that a reader needs to judge a number, the load at this moment included."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(value, 2) for value in os.getloadavg()],
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def aim(name: str, value: float, target: float, better: Literal["higher", "lower"]) -> Aim:
    """Return one aim with its verdict."""
    met = value >= target if better == "higher" else value <= target
    return {"name": name, "value": round(value, 4), "aim": target, "better": better, "met": met}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the options that all benchmarks share: ``--quick`` and ``--format``."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="less data, fewer rounds: under 50 seconds")
    options.add_argument("--format", choices=("text", "json"), default="text")
    return options


def emit(
    benchmark: str,
    rows: Iterable[Row],
    aims: Iterable[Aim],
    *,
    format: str,  # noqa: A002 - the option's name
    about: Mapping[str, str | int | float | list[float]],
    write: Callable[[str], object] = print,
) -> None:
    """Print one benchmark's result as JSON or as a table. ``about`` is ``machine()``, taken before the work began."""
    rows, aims = list(rows), list(aims)
    if format == "json":
        write(json.dumps({"benchmark": benchmark, "machine": about, "rows": rows, "aims": aims}))
        return
    write(f"{benchmark} on {about['cpu']}, {about['cores']} cores, load {about['load']}")
    _table(rows, write)
    for entry in aims:
        sign = ">=" if entry["better"] == "higher" else "<="
        write(f"{'met   ' if entry['met'] else 'MISSED'} {entry['name']}: {entry['value']} (aim {sign} {entry['aim']})")


def _table(rows: list[Row], write: Callable[[str], object]) -> None:
    if not rows:
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[n]) for line in cells) for n in range(len(columns))]
    for line in cells:
        write("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)
