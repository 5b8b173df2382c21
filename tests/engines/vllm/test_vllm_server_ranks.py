"""A real vLLM with tensor parallel 2, plain ``OffloadingConnector``, one block per chunk and room for six chunks."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Iterator

import pytest
from vllm_server import BLOCK_TOKENS, VllmServer, judge_digests, prompt_tokens

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

CHUNKS = 6
PROMPT = prompt_tokens(1, 1600)  # twelve chunks


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    directory = tmp_path_factory.mktemp("ranks")
    with VllmServer(directory, tensor_parallel=2, capacity="3300KiB") as up:
        yield up


def _evict(server: VllmServer) -> None:
    """Fill the device cache with prompts too short to be offered to the host tier."""
    for other in range(24):
        server.complete(prompt_tokens(100 + other, BLOCK_TOKENS + 20), max_tokens=1, kv_transfer_params=NO_STORE)


NO_STORE = {"max_offload_tokens": 0}


def test_both_ranks_get_their_own_bytes_back(server: VllmServer) -> None:
    server.complete(PROMPT)
    server.settle()
    _evict(server)
    answer = server.complete(PROMPT)
    assert answer.cached_tokens == CHUNKS * BLOCK_TOKENS
    server.settle()
    log = server.digests()
    loads = [line for line in log if line["op"] == "load"]
    assert {line["rank"] for line in loads} == {0, 1}
    assert len(loads) == 2 * CHUNKS
    assert judge_digests(log) == 2 * CHUNKS
    first = {(line["rank"], line["digest"]) for line in loads}
    assert len({digest for _, digest in first}) == 2 * CHUNKS, "ranks and chunks hold different bytes"


def test_a_tier_smaller_than_one_prompt_says_why_it_holds_no_more(server: VllmServer) -> None:
    page = server.metrics()
    stores = page.by_label("warmtier_store_chunks_total", "outcome")
    assert stores["stored"] == CHUNKS
    assert stores["no_room"] + stores["refused_policy"] + stores["refused_orphan"] >= 12 - CHUNKS
    misses = page.by_label("warmtier_miss_chunks_total", "reason")
    assert misses["absent"] >= 12 - CHUNKS


def test_without_containment_a_failed_load_ends_the_engine_rather_than_serve_it(server: VllmServer) -> None:
    """The last test of the module: vLLM's own connector cannot recompute."""
    _evict(server)
    server.fault(fail_load=True)
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)):
        server.complete(PROMPT)
    deadline_s = time.monotonic() + 60
    while server.running() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert not server.running()
    assert "did not arrive intact" in server.log.read_text()
    assert server.shared_memory() == []
