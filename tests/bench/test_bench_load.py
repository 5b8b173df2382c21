"""The client times tokens and refuses answers that are not whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from warmtier.bench.load import Client, Reply
from warmtier.bench.server import Server, free_port
from warmtier.core.errors import TargetError

StartFake = Callable[..., Server]


def complete(base_url: str, prompt: str | list[int]) -> Reply:
    async def main() -> Reply:
        async with Client(base_url, timeout_s=20) as client:
            return await client.complete(prompt, max_tokens=3)

    return asyncio.run(main())


def test_a_stream_is_timed_token_by_token(start_fake: StartFake) -> None:
    reply = complete(start_fake().base_url, [5] * 200)
    assert reply.text == "aaa"
    assert (reply.prompt_tokens, reply.completion_tokens, reply.finish_reason) == (200, 3, "length")
    assert reply.ttft_s is not None
    assert 0 < reply.ttft_s <= reply.end_s
    assert len(reply.itls_s) == 2
    assert min(reply.itls_s) >= 0


def test_what_is_not_a_whole_answer_is_a_target_error(start_fake: StartFake) -> None:
    base_url = start_fake().base_url
    with pytest.raises(TargetError, match="answered 400") as caught:
        complete(base_url, "refuse")
    assert caught.value.exit_code == 4
    with pytest.raises(TargetError, match="broke the stream off"):
        complete(base_url, [1] * 10)
    with pytest.raises(TargetError, match="error in its stream"):
        complete(base_url, [0] * 10)


def test_a_dead_server_is_a_target_error() -> None:
    with pytest.raises(TargetError, match="failed"):
        complete(f"http://127.0.0.1:{free_port()}", "x")
