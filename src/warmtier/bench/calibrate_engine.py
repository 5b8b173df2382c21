"""Speeds of a running server: prefill by length, decoding by batch and context, loads from the host tier."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from warmtier.bench.fit import fit, median
from warmtier.bench.load import Client
from warmtier.bench.scrape import growth, scrape
from warmtier.bench.trace_replay import EVERY_TOKEN, first_token_s
from warmtier.core.errors import TargetError
from warmtier.tiering.calibration import EngineSpeed, LinkSpeed, PrefillSpeed
from warmtier.trace.tokens import TokenSource

Progress = Callable[[str], None]
_LOADED = ("vllm:kv_offload_load_bytes_total", "vllm:kv_offload_load_time_total")


@dataclass(frozen=True, slots=True)
class Probe:
    """How much is sent. ``device_tokens`` (what the device cache holds) lets loads be measured: None leaves them out.

    ``front_share``: of the time that does not grow with length, the part outside the engine's step.
    """

    lengths: Sequence[int] = (64, 128, 256, 512, 1024, 1536)
    repeats: int = 3
    batches: Sequence[int] = (1, 2, 4, 8)
    output_tokens: int = 24
    device_tokens: int | None = None
    seed: int = 0


@dataclass(slots=True)
class EngineFigures:
    """What was measured, and the raw points behind it."""

    prefill: PrefillSpeed
    engine: EngineSpeed
    host: LinkSpeed | None
    prefill_points: list[tuple[int, float]] = field(default_factory=list)
    decode_points: list[tuple[int, float, float]] = field(default_factory=list)
    load_points: list[tuple[float, float]] = field(default_factory=list)


def measure_engine(base_url: str, probe: Probe, note: Progress = lambda _text: None) -> EngineFigures:
    """Measure a server that does nothing else. Blocks for about a minute. Raises TargetError."""
    return asyncio.run(_measure(base_url, probe, note))


async def _measure(base_url: str, probe: Probe, note: Progress) -> EngineFigures:
    tokens = TokenSource(seed=1_000_003 + probe.seed)
    numbers = iter(range(1_000_000))
    async with Client(base_url) as client:
        for length in probe.lengths[:2]:  # the first requests warm up
            await client.complete(tokens.unique(next(numbers), length), max_tokens=4, extra=EVERY_TOKEN)
        prefill_points = []
        for length in sorted(set(probe.lengths)):
            note(f"prefill of {length} tokens")
            for _ in range(probe.repeats):
                prompt = tokens.unique(next(numbers), length)
                reply = await client.complete(prompt, max_tokens=1, extra=EVERY_TOKEN)
                prefill_points.append((length, first_token_s(reply)))
        decode_points = []
        for context in (probe.lengths[0], probe.lengths[-2]):
            for batch in probe.batches:
                note(f"decoding {batch} at once behind {context} tokens")
                prompts = [tokens.unique(next(numbers), context) for _ in range(batch)]
                decode_points += await _decode(client, prompts, probe.output_tokens)
        load_points = []
        if probe.device_tokens is not None:
            note("loads from the host tier")
            load_points = await _loads(client, base_url, probe, tokens, numbers)
    return _figures(prefill_points, decode_points, load_points)


async def _decode(client: Client, prompts: Sequence[list[int]], output: int) -> list[tuple[int, float, float]]:
    """Return (sequences, tokens of their contexts, seconds of a step) while all of them decode."""
    replies = await asyncio.gather(
        *(client.complete(prompt, max_tokens=output, extra=EVERY_TOKEN) for prompt in prompts)
    )
    # All decode together from the last first token to the first end.
    begin_s = max(first_token_s(reply) for reply in replies)
    end_s = min(reply.token_times_s[-1] for reply in replies)
    gaps = []
    for reply in replies:
        times = [at for at in reply.token_times_s if begin_s < at <= end_s]
        gaps += [b - a for a, b in itertools.pairwise(times)]
    if not gaps:
        return []
    context = sum(len(prompt) + output / 2 for prompt in prompts)
    return [(len(prompts), context, median(gaps))]


async def _loads(
    client: Client, base_url: str, probe: Probe, tokens: TokenSource, numbers: Iterator[int]
) -> list[tuple[float, float]]:
    """Return (bytes, seconds) of loads: prompts sent, pushed off the device by others, and sent again."""
    points = []
    size = probe.lengths[-1]
    for length in (probe.lengths[-1], probe.lengths[-3]):
        prompt = tokens.unique(next(numbers), length)
        await client.complete(prompt, max_tokens=1, extra=EVERY_TOKEN)
        for _ in range(-(-(probe.device_tokens or 0) // size)):
            other = tokens.unique(next(numbers), size)
            await client.complete(other, max_tokens=1, extra=EVERY_TOKEN)
        before = scrape(base_url)
        await client.complete(prompt, max_tokens=2, extra=EVERY_TOKEN)
        await client.complete(prompt[:8], max_tokens=1, extra=EVERY_TOKEN)  # brings the counters out
        await asyncio.sleep(0.3)
        after = scrape(base_url)
        moved, seconds = (growth(before, after, name) for name in _LOADED)
        if moved and seconds:
            points.append((moved, seconds))
    return points


def _figures(
    prefill_points: list[tuple[int, float]],
    decode_points: list[tuple[int, float, float]],
    load_points: list[tuple[float, float]],
) -> EngineFigures:
    if len({length for length, _ in prefill_points}) < 2:
        raise TargetError("prefill was measured at fewer than two lengths")
    by_length: dict[int, list[float]] = {}
    for length, seconds in prefill_points:
        by_length.setdefault(length, []).append(seconds)
    lengths = sorted(by_length)
    times = [median(by_length[length]) for length in lengths]
    fixed_s, per_token, per_position = fit([[1.0, n, n * n / 2] for n in lengths], times)
    step_s, per_sequence, per_context = 0.0, 0.0, 0.0
    if decode_points:
        rows = [[1.0, batch, context] for batch, context, _ in decode_points]
        step_s, per_sequence, per_context = fit(rows, [seconds for _, _, seconds in decode_points])
    # What a lone step costs without any token is part of every prefill step too.
    step_s = min(step_s, fixed_s)
    host = None
    if load_points:
        host = LinkSpeed(sum(size for size, _ in load_points) / sum(seconds for _, seconds in load_points), 0.0)
    return EngineFigures(
        PrefillSpeed(max(per_token, 1e-9), per_position),
        EngineSpeed(step_s, per_sequence, per_context, front_seconds=max(0.0, fixed_s - step_s)),
        host,
        prefill_points,
        decode_points,
        load_points,
    )
