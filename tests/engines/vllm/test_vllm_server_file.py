"""A real vLLM with a file tier below a small host tier. The digests of what lay on the device are the judge.

Hits after eviction, after a restart and after kill -9; a burst of promotions; faults in every tier under concurrency.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from vllm_server import BLOCK_TOKENS, VllmServer, judge_digests, prompt_tokens

from warmtier.bench.scrape import Scrape
from warmtier.engines.vllm import control

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not (os.environ.get("WARMTIER_SLOW") or os.environ.get("WARMTIER_SOAK_SECONDS")),
        reason="the file tier in vLLM is not proven yet: set WARMTIER_SLOW=1 to run its real servers",
    ),
]

SOAK_S = float(os.environ.get("WARMTIER_SOAK_SECONDS", "60"))
CLIENTS = 16
FAULTS: list[dict[str, Any]] = [
    {"file": {"eio_read": 0.2, "bit_flip": 0.1, "short_read": 0.1}},
    {"file": {"eio_write": 0.2, "enospc": 0.1, "torn_write": 0.2}},
    {"file": {"latency": 0.3}, "latency_s": 1.0},
    {"file": {"poison": 0.3}},
    {"fail_store": True},
    {"fail_load": True},
    {"load_delay_s": 0.02},
    {},
]


def _server(directory: Path, **options: Any) -> VllmServer:
    settings = {
        "file": {
            "directory": str(directory / "kv"),
            "capacity": "1GiB",
            "segment_size": "16MiB",
            "free_space_floor": "0B",
            "breaker_cooldown": "1s",
        },
        "engine": {"verify": "always", "control_socket": str(directory / "c.sock"), "memory_headroom": "0B"},
        "access_log": {"path": str(directory / "access.jsonl")},
    }
    return VllmServer(
        directory,
        capacity="24MiB",
        connector="WarmtierConnector",
        settings=settings,
        flags=["--seed", "1"],
        **options,
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("file")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[VllmServer]:
    with _server(directory) as up:
        up.wait_for_file_tier()
        yield up


def _tokens_from(before: Scrape, after: Scrape, source: str) -> float:
    name = "vllm:prompt_tokens_cached_by_source_total"
    return (after.total(name, source=source) or 0) - (before.total(name, source=source) or 0)


def _fill(server: VllmServer, first: int, count: int, length: int = 1300) -> None:
    for seed in range(first, first + count):
        server.complete(prompt_tokens(seed, length))


def test_file_hits_are_served_after_the_host_gave_the_prefix_up(server: VllmServer, directory: Path) -> None:
    _fill(server, 0, 8)
    server.settle()
    before = server.metrics()
    answer = server.complete(prompt_tokens(0, 1300))
    assert answer.cached_tokens == 10 * BLOCK_TOKENS
    after = server.metrics()
    assert _tokens_from(before, after, "disk") > 0
    assert judge_digests(server.digests()) >= 10
    assert after.total("warmtier_promotion_chunks_total", tier="file", outcome="arrived")
    assert after.total("warmtier_load_seconds_count", tier="file")
    found = control.call(directory / "c.sock", control.Mode())
    assert found["tiers"]["file"]["mode"] == "on"


def test_a_burst_of_evicted_prefixes_neither_thrashes_nor_stalls_others(server: VllmServer) -> None:
    """Fifty requests whose prefixes lie in the file tier, at once, beside one that needs no tier."""
    first, count, length = 1000, 50, 1300
    _fill(server, first, count, length)
    server.settle()
    before = server.metrics()
    slowest: list[float] = []
    done = threading.Event()

    def other() -> None:
        number = 0
        while not done.is_set():
            number += 1
            started = time.monotonic()
            server.complete(prompt_tokens(500_000 + number, 100))
            slowest.append(time.monotonic() - started)

    bystander = threading.Thread(target=other)
    bystander.start()
    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(lambda seed: server.complete(prompt_tokens(seed, length)), range(first, first + count)))
    done.set()
    bystander.join()
    after = server.metrics()
    promoted = (after.total("warmtier_promotion_chunks_total", tier="file", outcome="arrived") or 0) - (
        before.total("warmtier_promotion_chunks_total", tier="file", outcome="arrived") or 0
    )
    print("promoted", promoted, "cached", sum(a.cached_tokens for a in answers), "bystander", max(slowest, default=0))
    assert promoted <= 10 * count * 1.2, "nothing is brought up twice"
    assert sum(answer.cached_tokens > 0 for answer in answers) >= count // 2
    judge_digests(server.digests())


def test_a_skipped_load_fails_the_same_judge(server: VllmServer) -> None:
    server.fault()
    _fill(server, 3000, 4)
    server.settle()
    server.fault(skip_load=True)
    for seed in range(3000, 3004):
        server.complete(prompt_tokens(seed, 1300))
    server.fault()
    with pytest.raises(AssertionError):
        judge_digests(server.digests())
    server.digests_path.with_name(server.digests_path.name + ".0").write_text("")


def test_soak_faults_in_every_tier_under_concurrency_are_misses(server: VllmServer) -> None:
    seed = int(os.environ.get("WARMTIER_TEST_SEED", "7"))
    print("seed", seed)
    deadline = time.monotonic() + SOAK_S
    served = [0] * CLIENTS

    def client(number: int) -> None:
        rng = random.Random(seed * 1000 + number)
        while time.monotonic() < deadline:
            prompt = prompt_tokens(2000 + rng.randrange(12), rng.choice([600, 900, 1300]))
            hints = {"warmtier": {"tenant": f"t{number % 3}"}} if rng.random() < 0.5 else {}
            server.complete(prompt, 1, **({"kv_transfer_params": hints} if hints else {}))
            served[number] += 1

    def switch() -> None:
        rng = random.Random(seed)
        while time.monotonic() < deadline:
            server.fault(**rng.choice(FAULTS))
            time.sleep(1.5)

    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        jobs = [pool.submit(client, number) for number in range(CLIENTS)] + [pool.submit(switch)]
        for job in jobs:
            job.result()
    server.fault()
    server.settle()
    assert min(served) > 0
    print("requests", sum(served), "judged", judge_digests(server.digests()))
    page = server.metrics()
    assert page.total("warmtier_up") == 1
    waited = page.total("warmtier_pending_seconds_sum") or 0
    print("waited", waited, "of", page.total("warmtier_pending_seconds_count"))


def test_file_hits_resume_after_kill_9_and_after_a_restart(server: VllmServer, directory: Path) -> None:
    server.fault()
    time.sleep(1.5)
    _fill(server, 4000, 8)
    server.settle()
    time.sleep(1.0)
    os.killpg(server.pid, signal.SIGKILL)
    server.stop()
    for how in ("kill", "stop"):
        with _server(directory) as second:
            second.wait_for_file_tier()
            before = second.metrics()
            answer = second.complete(prompt_tokens(4000, 1300))
            assert answer.cached_tokens >= 8 * BLOCK_TOKENS, how
            assert _tokens_from(before, second.metrics(), "disk") >= 8 * BLOCK_TOKENS
            judge_digests(second.digests())
