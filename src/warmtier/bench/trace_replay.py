"""Plays a trace on a real server: as the requests arrived, or so many in flight at a time. Times of every request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from warmtier.bench.load import Client, Reply
from warmtier.core.errors import TargetError
from warmtier.trace.schema import TraceRequest
from warmtier.trace.tokens import TokenSource

Send = Callable[[int], Awaitable[None]]

# A token whose text is empty (half a character) would be missed without its logprob.
EVERY_TOKEN: Final = {"ignore_eos": True, "logprobs": 0}


@dataclass(frozen=True, slots=True)
class Played:
    """One request as it went, in seconds: when it was sent (from the start), its first token, its end."""

    number: int
    sent_s: float
    ttft_s: float
    end_s: float
    itls_s: list[float]


def replay(
    base_url: str,
    requests: Sequence[TraceRequest],
    tokens: TokenSource,
    *,
    concurrency: int | None = None,
    pause_s: float = 0.0,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Played]:
    """Send all requests and return what became of them, in the trace's order. Blocks. Raises TargetError.

    ``concurrency``: keep so many in flight, in order, each next one ``pause_s`` after one has ended; None: each when it
    arrived in the trace.
    """
    return asyncio.run(_replay(base_url, requests, tokens, concurrency, pause_s, progress))


async def _replay(
    base_url: str,
    requests: Sequence[TraceRequest],
    tokens: TokenSource,
    concurrency: int | None,
    pause_s: float,
    progress: Callable[[int, int], None],
) -> list[Played]:
    prompts = [tokens.prompt(request, number) for number, request in enumerate(requests)]
    played: dict[int, Played] = {}
    start_s = time.perf_counter()
    async with Client(base_url) as client:

        async def send(number: int) -> None:
            sent_s = time.perf_counter() - start_s
            limit = max(1, requests[number].output_tokens)
            reply = await client.complete(prompts[number], max_tokens=limit, extra=EVERY_TOKEN)
            played[number] = Played(number, sent_s, first_token_s(reply), reply.end_s, reply.itls_s)
            progress(len(played), len(requests))

        if concurrency is None:
            await asyncio.gather(*(_later(send, n, r.arrival_s, start_s) for n, r in enumerate(requests)))
        else:
            turns = iter(range(len(requests)))
            await asyncio.gather(*(_in_turn(send, turns, pause_s) for _ in range(concurrency)))
    return [played[number] for number in sorted(played)]


def first_token_s(reply: Reply) -> float:
    """Return the time to the first token. Raises TargetError if none came."""
    if reply.ttft_s is None:
        raise TargetError("a completion brought no token")
    return reply.ttft_s


async def _later(send: Send, number: int, arrival_s: float, start_s: float) -> None:
    await asyncio.sleep(max(0.0, arrival_s - (time.perf_counter() - start_s)))
    await send(number)


async def _in_turn(send: Send, turns: Iterator[int], pause_s: float) -> None:
    for number in turns:
        await send(number)
        await asyncio.sleep(pause_s)
