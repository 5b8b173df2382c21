"""A real vLLM with a real model: what a user reads must not depend on where the prefix came from.

One request at a time. Prompts are not a multiple of the block, and their device hit is a multiple of the chunk, so the
device hit and the host hit compute the same suffix: tokens and logprobs must be equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from vllm_server import BLOCK_TOKENS, Answer, VllmServer, smollm2

from warmtier.bench.corpus import passages

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(smollm2() is None, reason="no models/SmolLM2-135M-Instruct; run scripts/prepare_model.py"),
]

PROMPTS = 3
TOKENS = 4 * BLOCK_TOKENS + 11
OUTPUT = 6
DEVICE_BLOCKS = 8  # one prompt needs five, so each evicts the one before


@pytest.fixture(scope="module", params=[("bfloat16", 4), ("float32", 1)], ids=["bfloat16", "float32"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    dtype, blocks_per_chunk = request.param
    path = tmp_path_factory.mktemp(f"text-{dtype}")
    with VllmServer(
        path,
        model=smollm2(),
        blocks_per_chunk=blocks_per_chunk,
        device_blocks=DEVICE_BLOCKS,
        capacity="640MiB",
        dtype=dtype,
    ) as up:
        yield up
        up.grace_s = (60.0, 5.0, 5.0)
        up.stop()
        assert up.shared_memory() == []


@pytest.fixture(scope="module")
def prompts(server: VllmServer) -> list[list[int]]:
    texts = passages(PROMPTS, 8 * TOKENS)
    return [server.post("/tokenize", {"model": server.model, "prompt": text})["tokens"][:TOKENS] for text in texts]


@pytest.fixture(scope="module")
def device_hits(server: VllmServer, prompts: list[list[int]]) -> list[Answer]:
    """Send every prompt twice; the second answer came from the device's own cache. All are evicted by the next ones."""
    answers = []
    for prompt in prompts:
        assert len(prompt) == TOKENS
        server.complete(prompt)
        answers.append(server.complete(prompt, OUTPUT))
        assert answers[-1].cached_tokens == 4 * BLOCK_TOKENS
    server.settle()
    return answers


def _compare(server: VllmServer, prompts: list[list[int]], expected: list[Answer]) -> None:
    """Resend every prompt and compare it with its device hit."""
    for prompt, device in zip(prompts, expected, strict=True):
        resent = server.complete(prompt, OUTPUT)
        assert resent.cached_tokens == device.cached_tokens
        assert resent.tokens == device.tokens, "the text differs from the device hit's"
        assert resent.logprobs == device.logprobs, "logprobs differ from the device hit's"


def test_a_resent_prompt_is_answered_bit_for_bit_like_the_device_hit(
    server: VllmServer, prompts: list[list[int]], device_hits: list[Answer]
) -> None:
    before = server.metrics()
    _compare(server, prompts, device_hits)
    after = server.metrics()
    name = "vllm:prompt_tokens_cached_by_source_total"
    from_host = (after.total(name, source="host") or 0) - (before.total(name, source="host") or 0)
    assert from_host == PROMPTS * 4 * BLOCK_TOKENS, "every one must have come from the host tier"


def test_the_same_comparison_fails_when_the_load_is_skipped(
    server: VllmServer, prompts: list[list[int]], device_hits: list[Answer]
) -> None:
    """The control. The first prompts were evicted from the device by the last ones of the test before."""
    server.fault(skip_load=True)
    with pytest.raises(AssertionError, match="differ"):
        _compare(server, prompts, device_hits)
    server.fault()
    server.reset()
