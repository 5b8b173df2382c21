"""A real vLLM with warmtier and a tiny random-weight model: the digests of what lay on the device are the judge.

One server for the whole module, started among the leftovers of engines that died; the last test kills it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from vllm_server import BLOCK_TOKENS, Answer, VllmServer, judge_digests, prompt_tokens

from warmtier.bench.scrape import Scrape
from warmtier.engines.vllm.slab_files import SHM_DIRECTORY, slab_files

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

HOLDER = """
import sys, time
from warmtier.engines.vllm.slab import Slab, SlabLayout
Slab.open(sys.argv[1], SlabLayout(4, 1, 1, 4096), {})
print("up", flush=True)
time.sleep(3600)
"""
CHUNK = 4


class Leftovers:
    """A dead engine's slab, a living engine's slab and a file of someone else, in the real /dev/shm."""

    def __init__(self) -> None:
        self.dead = slab_files(f"test-dead-{os.getpid()}")
        self.live = slab_files(f"test-live-{os.getpid()}")
        self.foreign = SHM_DIRECTORY / f"vllm_offload_test-{os.getpid()}.mmap"
        self._holders = [self._hold("dead"), self._hold("live")]
        self._holders[0].kill()
        self._holders[0].wait()
        self.foreign.write_bytes(b"not ours")

    def _hold(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, f"test-{name}-{os.getpid()}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        for path in (self.foreign, self.live.slab, self.live.lock, self.dead.slab, self.dead.lock):
            path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def leftovers() -> Iterator[Leftovers]:
    left = Leftovers()
    assert left.dead.slab.exists()
    yield left
    left.close()


@pytest.fixture(scope="module")
def server(leftovers: Leftovers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("tiny")
    with VllmServer(directory, blocks_per_chunk=CHUNK, connector="WarmtierConnector", flags=["--seed", "1"]) as up:
        yield up


@pytest.fixture(autouse=True)
def _clean(server: VllmServer) -> Iterator[None]:
    server.fault()
    yield
    server.fault()


def _evict(server: VllmServer, seed: int) -> None:
    """Fill the device cache with other prefixes."""
    for other in range(2):
        server.complete(prompt_tokens(90_000 + 10 * seed + other, 1300))


def _host_tokens(before: Scrape, after: Scrape) -> float:
    name = "vllm:prompt_tokens_cached_by_source_total"
    return (after.total(name, source="host") or 0) - (before.total(name, source="host") or 0)


def test_leftovers_of_dead_engines_are_removed_and_nothing_else(server: VllmServer, leftovers: Leftovers) -> None:
    assert not leftovers.dead.slab.exists()
    assert not leftovers.dead.lock.exists()
    assert leftovers.live.slab.exists()
    assert leftovers.foreign.read_bytes() == b"not ours"
    assert server.shared_memory() == [], "the server's own slab keeps no name"


def test_metrics_are_there_at_zero_before_the_first_request(server: VllmServer) -> None:
    page = server.metrics()
    assert page.total("warmtier_up") == 1
    assert page.total("warmtier_hit_chunks_total", tier="host") == 0
    assert page.total("warmtier_miss_chunks_total", tier="host", reason="absent") == 0
    assert page.total("warmtier_store_chunks_total", tier="host", outcome="stored") == 0
    capacity = page.total("warmtier_tier_capacity_bytes", tier="host")
    assert capacity is not None
    assert 200 << 20 < capacity <= 256 << 20


def test_every_loaded_block_equals_its_stored_bytes(server: VllmServer) -> None:
    """Whole chunks, a device hit inside the first chunk, prompts that end inside the last."""
    before = server.metrics()
    lengths = (1600, 1536, 1100, 700)
    for seed, length in enumerate(lengths):
        server.complete(prompt_tokens(seed, length))
        _evict(server, seed)
    server.settle()
    for seed, length in enumerate(lengths):
        answer = server.complete(prompt_tokens(seed, length))
        chunk_tokens = CHUNK * BLOCK_TOKENS
        assert answer.cached_tokens in (length // chunk_tokens * chunk_tokens, length - 1)
        head = prompt_tokens(seed, length)[: 2 * BLOCK_TOKENS + 5]
        _evict(server, 10 + seed)
        server.complete(head)  # two blocks of the chunk are on the device now
        server.complete(prompt_tokens(seed, length))
        _evict(server, 20 + seed)
    log = server.digests()
    assert judge_digests(log) > 50
    assert _partial(log)
    assert _host_tokens(before, server.metrics()) > 4000


def _partial(log: Sequence[dict[str, object]]) -> bool:
    """Return whether a load began inside a chunk: its first chunk has fewer places than there are blocks in one."""
    places: dict[tuple[object, object], set[object]] = {}
    for line in log:
        if line["op"] == "load":
            places.setdefault((line["job"], line["slot"]), set()).add(line["place"])
    return any(len(found) < CHUNK for found in places.values())


def test_a_load_that_does_nothing_is_found_by_the_same_judge(server: VllmServer) -> None:
    """The control: without it, equal digests would prove nothing."""
    server.complete(prompt_tokens(50, 1600))
    _evict(server, 50)
    server.settle()
    server.fault(skip_load=True)
    seen = len(server.digests())
    server.complete(prompt_tokens(50, 1600))
    server.settle()
    log = server.digests()
    assert any(line["op"] == "load" for line in log[seen:])
    with pytest.raises(AssertionError, match="loaded bytes differ"):
        judge_digests(log)
    Path(f"{server.digests_path}.0").write_text("")  # later tests judge what comes after
    server.reset()


def test_a_failed_load_is_recomputed_and_the_engine_lives(server: VllmServer) -> None:
    prompt = prompt_tokens(60, 1600)
    cold = server.complete(prompt, 4)
    _evict(server, 60)
    server.settle()
    server.fault(fail_load=True)
    before = server.metrics()
    answer = server.complete(prompt, 4)
    server.fault()
    assert answer.tokens == cold.tokens
    after = server.metrics()
    assert (after.total("warmtier_corrupt_chunks_total") or 0) > (before.total("warmtier_corrupt_chunks_total") or 0)
    _evict(server, 61)
    assert server.complete(prompt).prompt_tokens == 1600
    _evict(server, 62)
    assert server.complete(prompt).cached_tokens == 1536


def test_a_failed_store_is_never_served(server: VllmServer) -> None:
    prompt = prompt_tokens(70, 1600)
    server.fault(fail_store=True)
    server.complete(prompt)
    _evict(server, 70)
    server.settle()
    server.fault()
    before = server.metrics()
    server.complete(prompt)
    assert _host_tokens(before, server.metrics()) == 0
    assert (before.total("warmtier_store_chunks_total", outcome="failed") or 0) >= 3


def test_an_aborted_load_leaves_a_working_server(server: VllmServer) -> None:
    prompt = prompt_tokens(80, 1600)
    server.complete(prompt)
    _evict(server, 80)
    server.settle()
    server.fault(load_delay_s=0.2)
    with pytest.raises(TimeoutError):
        server.post("/v1/completions", {"model": server.model, "prompt": prompt, "max_tokens": 1}, timeout_s=0.8)
    server.fault()
    answer = server.complete(prompt)
    assert answer.cached_tokens >= 1536
    _wait_until_idle(server)


def test_reset_forgets_everything_even_during_loads_and_stores(server: VllmServer) -> None:
    prompt = prompt_tokens(81, 1600)
    server.complete(prompt)
    _evict(server, 81)
    server.settle()
    server.fault(load_delay_s=0.2)
    with ThreadPoolExecutor(2) as pool:
        loading = pool.submit(server.complete, prompt)
        storing = pool.submit(server.complete, prompt_tokens(82, 1600))
        time.sleep(0.5)
        server.reset()
        server.fault()
        assert loading.result().prompt_tokens == 1600
        assert storing.result().prompt_tokens == 1600
    _wait_until_idle(server)
    server.reset()
    before = server.metrics()
    server.complete(prompt)
    assert _host_tokens(before, server.metrics()) == 0
    _evict(server, 83)
    server.settle()
    assert server.complete(prompt).cached_tokens == 1536
    judge_digests(server.digests())


def test_preempted_requests_end_and_load_right_bytes(server: VllmServer) -> None:
    before = server.metrics()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda seed: server.complete(prompt_tokens(seed, 500), 60), range(200, 204)))
    assert [len(answer.tokens) for answer in answers] == [60] * 4
    after = server.metrics()
    assert (after.total("vllm:num_preemptions_total") or 0) > (before.total("vllm:num_preemptions_total") or 0)
    judge_digests(server.digests())


def test_eight_clients_over_four_times_the_device_cache_lose_nothing(server: VllmServer) -> None:
    prefixes = [prompt_tokens(300 + index, 5 * BLOCK_TOKENS) for index in range(16)]  # 80 blocks; the device has 19
    before = server.metrics()
    answers: list[Answer] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        for turn in range(8):
            prefix = prefixes[(number * 5 + turn * 3) % 16]
            answer = server.complete([*prefix, *prompt_tokens(1000 + number * 100 + turn, 20)], 4)
            with lock:
                answers.append(answer)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(client, number) for number in range(8)]:
            future.result(timeout=600)
    assert len(answers) == 64
    assert all(len(answer.tokens) == 4 for answer in answers)
    assert _host_tokens(before, server.metrics()) > 10 * BLOCK_TOKENS
    _wait_until_idle(server)
    assert judge_digests(server.digests()) > 100


def test_the_engine_says_whether_it_works(server: VllmServer) -> None:
    assert "Host tier: " in server.log.read_text()


def test_a_killed_server_leaks_no_shared_memory(server: VllmServer, leftovers: Leftovers) -> None:
    """The last test of the module: every process of the server is killed at once."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    for process in processes:
        process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=20)
    assert server.shared_memory() == []
    assert leftovers.live.slab.exists()


def _wait_until_idle(server: VllmServer, timeout_s: float = 20.0) -> None:
    """Nothing runs, waits, or is kept for a request that is over."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "warmtier_tracked_requests")
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        server.complete([1, 2, 3])  # metrics move only with steps
        page = server.metrics()
        if all((page.total(name) or 0) <= 1 for name in names):
            return
        time.sleep(0.2)
    raise AssertionError({name: page.total(name) for name in names})
