"""The experiment judges what it sees: a run without reuse, with wrong text or without eviction must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import pytest

from warmtier.bench.evict import CASES, Settings, failures, measure
from warmtier.bench.server import Server

StartFake = Callable[..., Server]
SETTINGS = Settings(prompt_tokens=1600, batches=2, output_tokens=3)


def test_a_server_with_a_host_tier_passes(start_fake: StartFake) -> None:
    seen: list[tuple[int, int]] = []
    run = measure(start_fake("--tier").base_url, SETTINGS, lambda done, total: seen.append((done, total)))
    assert failures(run, offload=True) == []
    assert run.cases["resent"].tokens == {"device": 0, "host": 3072, "disk": None, "computed": 128}
    assert run.cases["device"].tokens["device"] == 3072
    assert run.cases["cold"].tokens["computed"] == 3200
    assert len(run.cases["evictors"].ttft_ms) == 4
    assert all(case.ttft_p50_ms > 0 for case in run.cases.values())
    assert set(run.cases) == set(CASES)
    assert seen[-1] == (11, 11)
    assert run.transfers.store_bytes is not None
    assert run.transfers.store_gb_per_s == pytest.approx(run.transfers.store_bytes / 0.5 / 1e9) or (
        run.transfers.store_seconds == 0
    )
    assert run.transfers.load_bytes is None, "what the server does not report is not 0"
    assert asdict(run)["requests"][0]["case"] == "cold"


def test_a_server_without_offload_passes_as_the_control(start_fake: StartFake) -> None:
    run = measure(start_fake().base_url, SETTINGS)
    assert failures(run, offload=False) == []
    assert run.cases["resent"].tokens == {"device": 0, "host": 0, "disk": None, "computed": 3200}
    assert run.transfers.store_bytes is None


def test_the_first_batch_may_shorten_the_run_but_not_to_nothing(start_fake: StartFake) -> None:
    seen: list[float] = []

    def first_batch(seconds: float) -> int:
        seen.append(seconds)
        return 0

    run = measure(start_fake("--tier").base_url, SETTINGS, first_batch=first_batch)
    assert len(seen) == 1
    assert seen[0] > 0
    assert len(run.cases["cold"].ttft_ms) == 1
    assert failures(run, offload=True) == []


def test_a_prefix_that_does_not_come_from_the_host_fails(start_fake: StartFake) -> None:
    found = failures(measure(start_fake().base_url, SETTINGS), offload=True)
    assert len(found) == 2
    assert "batch 1: the resent prefix did not come from the host tier: 0 tokens from host" in found[0]


def test_a_different_text_fails(start_fake: StartFake) -> None:
    found = failures(measure(start_fake("--tier", "--garble").base_url, SETTINGS), offload=True)
    assert found == [f"batch {n}: the resent prefix gave '!!!', the device hit 'aaa'" for n in (1, 2)]


def test_a_cache_that_evicts_nothing_makes_the_control_invalid(start_fake: StartFake) -> None:
    found = failures(measure(start_fake("--device", "1000").base_url, SETTINGS), offload=False)
    assert "it was not evicted" in found[0]


def test_no_device_hit_makes_the_experiment_invalid(start_fake: StartFake) -> None:
    found = failures(measure(start_fake("--device", "0", "--tier").base_url, SETTINGS), offload=True)
    assert "no device hit" in found[0]
