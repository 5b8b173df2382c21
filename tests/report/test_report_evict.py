"""The report shows what was measured, escapes what it did not write, and needs no network."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from warmtier.bench.evict import REFERENCE, Case, Request, Run, Transfers
from warmtier.report import evict as report


def run(resent_ms: float, host: int | None, transfers: Transfers) -> dict[str, Any]:
    from dataclasses import asdict

    def case(ms: float, tokens: dict[str, int | None]) -> Case:
        return Case([ms, ms * 1.1], ms, tokens)

    nothing: dict[str, int | None] = {"device": 0, "host": 0, "disk": None, "computed": 1600}
    cases = {
        "cold": case(1000.0, nothing),
        "device": case(100.0, {**nothing, "device": 1536}),
        "evictors": case(1000.0, nothing),
        "resent": case(resent_ms, {**nothing, "host": host}),
    }
    requests = [Request("cold", 0, 1.0, 2.0, 1600, nothing, "</script><b>text</b>")]
    return asdict(Run(5000.0, cases, 1000.0 / resent_ms, resent_ms / 100.0, transfers, requests))


@pytest.fixture
def result() -> dict[str, Any]:
    none = Transfers(None, None, None, None, None, None)
    moved = Transfers(353_894_400, 0.5, 0.7077888, 176_947_200, 0.25, 0.7077888)
    return {
        "model": "<b>model</b>",
        "machine": {"processor": "a processor", "cores": 2, "load_average": [0.5, 0.4, 0.3]},
        "versions": {"warmtier": "0.1.0"},
        "settings": {"batches": 2, "batches_asked": 5, "prompt_tokens": 1600, "evictor_tokens": 1280},
        "device_cache_tokens": 2432,
        "reference": REFERENCE,
        "servers": {
            "without": {"command": "vllm serve m", "run": run(1000.0, 0, none)},
            "host_tier": {"command": "vllm serve m --kv-transfer-config '{}'", "run": run(125.0, 1536, moved)},
        },
        "verdict": {"passed": True, "failures": [], "sentence": "It came back."},
    }


def test_the_table_puts_both_servers_and_the_published_figures_side_by_side(result: dict[str, Any]) -> None:
    rows = report.rows(result)
    assert rows[2] == ["resent after eviction", "1,000 ms", "125 ms", "35.1 ms (76-78 ms without)"]
    assert rows[3] == ["cold / resent", "1.0x", "8.0x", "2.2x"]
    assert rows[4] == ["resent / device", "10.0x", "1.2x", "2.5x"]


def test_what_was_not_measured_is_none(result: dict[str, Any]) -> None:
    assert ["with host tier", "resent", 0, 1536, 1600] in report.token_rows(result)
    assert report.transfer_rows(result)[0] == ["store", 353_894_400, "0.500", "0.71"]
    result["servers"]["host_tier"]["run"]["transfers"] = dict.fromkeys(
        result["servers"]["host_tier"]["run"]["transfers"]
    )
    assert report.transfer_rows(result)[1] == ["load", None, None, None]
    assert "<td>-</td>" in report.html(result)


def test_the_page_is_self_contained_and_escapes(result: dict[str, Any]) -> None:
    page = report.html(result)
    assert "&lt;b&gt;model&lt;/b&gt;" in page
    assert not re.search(r"(?:src|href)\s*=|https?://|@import|url\(", page)
    raw = re.search(r'<script type="application/json" id="raw">(.*?)</script>', page, re.DOTALL)
    assert raw is not None
    assert json.loads(raw[1]) == result
    assert "It came back." in page
    assert "5 batches were asked for" in page


def test_a_failed_run_says_so_first(result: dict[str, Any]) -> None:
    result["verdict"] = {"passed": False, "failures": ["batch 1: <lost>"], "sentence": "Failed."}
    page = report.html(result)
    assert 'class="verdict failed"' in page
    assert "batch 1: &lt;lost&gt;" in page


def test_bars_are_scaled_to_the_longest_measurement(result: dict[str, Any]) -> None:
    bars = report.bars(result)
    assert len(bars) == 6
    longest = max(dot for bar in bars for dot in bar.dots)
    assert longest == pytest.approx(420.0, abs=0.1)
    resent = next(bar for bar in bars if bar.server == "host_tier" and bar.value_ms == 125.0)
    assert resent.width == pytest.approx(420.0 * 125 / 1100, abs=0.1)
