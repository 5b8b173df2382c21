"""The report of the eviction experiment: a table for terminals and one self-contained HTML page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from warmtier.core.extras import require

LABELS: Final = {
    "cold": "cold: never seen",
    "device": "device: sent again at once",
    "resent": "resent after eviction",
}
NAMES: Final = {"without": "without offload", "host_tier": "with host tier"}
_BAR_WIDTH: Final = 420.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the chart: a median, and every single measurement as a dot."""

    label: str
    server: str
    value_ms: float
    width: float
    dots: tuple[float, ...]


def rows(result: Mapping[str, Any]) -> list[list[object]]:
    """Return the table: case, without offload, with the host tier, published."""
    runs, reference = result["servers"], result["reference"]
    without, tiered = runs["without"]["run"], runs["host_tier"]["run"]

    def p50(run: Mapping[str, Any], case: str) -> str:
        return f"{run['cases'][case]['ttft_p50_ms']:,.0f} ms"

    low, high = reference["resent_without_offload_ms"]
    published = {
        "cold": f"{reference['cold_ms']} ms",
        "device": f"{reference['device_ms']:.1f} ms",
        "resent": f"{reference['resent_with_offload_ms']} ms ({low:.0f}-{high:.0f} ms without)",
    }
    body: list[list[object]] = [
        [LABELS[case], p50(without, case), p50(tiered, case), published[case]] for case in LABELS
    ]
    faster = reference["cold_ms"] / reference["resent_with_offload_ms"]
    slower = reference["resent_with_offload_ms"] / reference["device_ms"]
    return [
        *body,
        ["cold / resent", _ratio(without, "cold_over_resent"), _ratio(tiered, "cold_over_resent"), f"{faster:.1f}x"],
        [
            "resent / device",
            _ratio(without, "resent_over_device"),
            _ratio(tiered, "resent_over_device"),
            f"{slower:.1f}x",
        ],
    ]


def token_rows(result: Mapping[str, Any]) -> list[list[object]]:
    """Return where the prompt tokens came from: server, case, device, host, computed."""
    found: list[list[object]] = []
    for name, server in result["servers"].items():
        for case in LABELS:
            tokens = server["run"]["cases"][case]["tokens"]
            found.append([NAMES[name], case, tokens["device"], tokens["host"], tokens["computed"]])
    return found


def transfer_rows(result: Mapping[str, Any]) -> list[list[object]]:
    """Return what moved on the server with the tier: way, bytes, seconds, GB/s."""
    moved = result["servers"]["host_tier"]["run"]["transfers"]
    return [
        [way, moved[f"{way}_bytes"], _fixed(moved[f"{way}_seconds"], 3), _fixed(moved[f"{way}_gb_per_s"], 2)]
        for way in ("store", "load")
    ]


def _fixed(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _ratio(run: Mapping[str, Any], name: str) -> str:
    return f"{run[name]:.1f}x"


def bars(result: Mapping[str, Any]) -> list[Bar]:
    """Return the chart, scaled to its longest measurement."""
    servers: Sequence[tuple[str, Mapping[str, Any]]] = [(name, s["run"]) for name, s in result["servers"].items()]
    longest = max(max(run["cases"][case]["ttft_ms"]) for _, run in servers for case in LABELS)
    scale = _BAR_WIDTH / longest
    return [
        Bar(
            label,
            name,
            run["cases"][case]["ttft_p50_ms"],
            round(run["cases"][case]["ttft_p50_ms"] * scale, 1),
            tuple(round(value * scale, 1) for value in run["cases"][case]["ttft_ms"]),
        )
        for case, label in LABELS.items()
        for name, run in servers
    ]


def html(result: Mapping[str, Any]) -> str:
    """Return the page. Needs the extra ``report``."""
    jinja2 = require("jinja2", extra="report", purpose="the HTML report")
    source = files("warmtier.report").joinpath("templates", "evict.html").read_text()
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    raw = json.dumps(result, indent=1).replace("</", "<\\/")
    page = environment.from_string(source).render(
        result=result, rows=rows(result), token_rows=token_rows(result), transfer_rows=transfer_rows(result),
        bars=bars(result), raw=raw, names=NAMES,
    )  # fmt: skip
    return str(page)
