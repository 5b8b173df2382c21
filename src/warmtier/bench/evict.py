"""What does an evicted prefix cost when it is sent again? The field's published method, on a real server.

The device cache holds about 1.5 prompts. A batch sends prefix A (``cold``), A again at once (``device``), B and C that
push A out (``evictors``), and A once more (``resent``). Prefixes are real text and new in each batch. The first request
of a server pays its warm-up and is reported apart. Where tokens came from is read from the server's own /metrics, and
the text of ``resent`` must equal that of ``device``: both reuse the same tokens and compute the same rest.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmtier.bench.corpus import passages
from warmtier.bench.load import Client, Reply
from warmtier.bench.scrape import Scrape, growth, scrape
from warmtier.core.errors import TargetError

CASES: Final = ("cold", "device", "evictors", "resent")
SOURCES: Final = ("device", "host", "disk", "computed")
_CACHED: Final = "vllm:prompt_tokens_cached_by_source_total"
_BY_SOURCE: Final = "vllm:prompt_tokens_by_source_total"
_CHARACTERS_PER_TOKEN: Final = 7  # generous for English prose; the surplus is cut after tokenizing
_METRICS_TIMEOUT_S: Final = 10.0
_SETTLE_S: Final = 0.3

# Published with the first write-up of this experiment: a laptop GPU with 8 GB and a model of 0.6B parameters.
REFERENCE: Final[dict[str, object]] = {
    "what": "published: laptop GPU with 8 GB, 0.6B model",
    "cold_ms": 77.3,
    "device_ms": 14.0,
    "resent_with_offload_ms": 35.1,
    "resent_without_offload_ms": [76.0, 78.0],
}

Progress = Callable[[int, int], None]
FirstBatch = Callable[[float], int]
"""Told how long the first batch took, in seconds, answers how many batches there shall be."""

_COMPARED: Final = ("device", "resent")


@dataclass(frozen=True, slots=True)
class Settings:
    """Size of the experiment."""

    prompt_tokens: int = 1600
    evictor_tokens: int = 1280  # two of these fill the device cache
    batches: int = 5
    output_tokens: int = 16  # of the requests whose texts are compared; the others stop at their first token

    @property
    def texts(self) -> int:
        """Passages that one server needs: the warm-up's, and A, B and C of each batch."""
        return 1 + 3 * self.batches


@dataclass(frozen=True, slots=True)
class Request:
    """One request as measured. ``tokens`` is None for a source that the server does not report."""

    case: str
    batch: int
    ttft_ms: float
    total_ms: float
    prompt_tokens: int
    tokens: dict[str, int | None]
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """All requests of one case."""

    ttft_ms: list[float]
    ttft_p50_ms: float
    tokens: dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Transfers:
    """What moved between device and host during a run, by the server's counters; None where it reports nothing."""

    store_bytes: int | None
    store_seconds: float | None
    store_gb_per_s: float | None
    load_bytes: int | None
    load_seconds: float | None
    load_gb_per_s: float | None


@dataclass(slots=True)
class Run:
    """Everything measured on one server."""

    first_request_ttft_ms: float
    cases: dict[str, Case]
    cold_over_resent: float
    resent_over_device: float
    transfers: Transfers
    requests: list[Request] = field(default_factory=list)


def measure(
    base_url: str,
    settings: Settings,
    progress: Progress = lambda _done, _total: None,
    first_batch: FirstBatch | None = None,
) -> Run:
    """Run the experiment against a fresh server. Blocks. Raises TargetError."""
    return asyncio.run(_measure(base_url, settings, progress, first_batch))


async def _measure(base_url: str, settings: Settings, progress: Progress, first_batch: FirstBatch | None) -> Run:
    start = scrape(base_url)
    async with Client(base_url) as client:
        prompts = await _prompts(client, settings)
        probe = _Probe(client, base_url, settings)
        first = await probe.send("first", 0, prompts[0])
        requests: list[Request] = []
        batch, batches = 0, settings.batches
        while batch < batches:
            started_s = time.monotonic()
            a, b, c = prompts[1 + 3 * batch : 4 + 3 * batch]
            for case, prompt in (("cold", a), ("device", a), ("evictors", b), ("evictors", c), ("resent", a)):
                tokens = prompt[: settings.evictor_tokens] if case == "evictors" else prompt
                requests.append(await probe.send(case, batch, tokens))
                progress(1 + len(requests), 1 + 5 * batches)
            if batch == 0 and first_batch is not None:
                batches = max(1, min(batches, first_batch(time.monotonic() - started_s)))
            batch += 1
        # Transfer counters travel with the next step's answers; one more tiny request brings the last ones out.
        await client.complete(prompts[0][:8], max_tokens=1)
        await asyncio.sleep(_SETTLE_S)
    return summarize(first.ttft_ms, requests, _transfers(start, scrape(base_url)))


async def _prompts(client: Client, settings: Settings) -> list[list[int]]:
    prompts = []
    for text in passages(settings.texts, settings.prompt_tokens * _CHARACTERS_PER_TOKEN):
        tokens = (await client.tokenize(text))[: settings.prompt_tokens]
        if len(tokens) < settings.prompt_tokens:
            raise TargetError(f"a passage of {len(text)} characters has only {len(tokens)} tokens")
        prompts.append(tokens)
    return prompts


class _Probe:
    """Sends one request at a time and attributes the growth of the server's counters to it."""

    def __init__(self, client: Client, base_url: str, settings: Settings) -> None:
        self._client = client
        self._base_url = base_url
        self._settings = settings

    async def send(self, case: str, batch: int, prompt: Sequence[int]) -> Request:
        before = scrape(self._base_url)
        count = self._settings.output_tokens if case in _COMPARED else 1
        reply = await self._client.complete(prompt, max_tokens=count)
        after = await self._scrape_counted(before, len(prompt))
        await asyncio.sleep(_SETTLE_S)  # stores of this request end before the next is timed
        ttft_s = _ttft_s(reply)
        return Request(
            case, batch, round(ttft_s * 1e3, 3), round(reply.end_s * 1e3, 3), len(prompt), sources(before, after),
            reply.text,
        )  # fmt: skip

    async def _scrape_counted(self, before: Scrape, prompt_tokens: int) -> Scrape:
        """Scrape until the server has counted the request; its statistics lag behind its answer."""
        deadline_s = time.monotonic() + _METRICS_TIMEOUT_S
        while time.monotonic() < deadline_s:
            after = scrape(self._base_url)
            if (growth(before, after, _BY_SOURCE) or 0) >= prompt_tokens:
                return after
            await asyncio.sleep(0.02)
        raise TargetError(f"{_BY_SOURCE} did not count a request", why="the server runs without statistics?")


def _ttft_s(reply: Reply) -> float:
    if reply.ttft_s is None:
        raise TargetError("a completion brought no token")
    return reply.ttft_s


def sources(before: Scrape, after: Scrape) -> dict[str, int | None]:
    """Return the prompt tokens between two scrapes by where they came from."""
    found = {source: growth(before, after, _CACHED, source=source) for source in ("device", "host", "disk")}
    found["computed"] = growth(before, after, _BY_SOURCE, source="local_compute")
    return {source: None if value is None else round(value) for source, value in found.items()}


def _transfers(start: Scrape, end: Scrape) -> Transfers:
    values: list[float | None] = []
    for way in ("store", "load"):
        size = growth(start, end, f"vllm:kv_offload_{way}_bytes_total")
        seconds = growth(start, end, f"vllm:kv_offload_{way}_time_total")
        rate = size / seconds / 1e9 if size and seconds else None
        values += [None if size is None else int(size), seconds, rate]
    return Transfers(*values)  # type: ignore[arg-type]  # sizes are whole


def summarize(first_ms: float, requests: list[Request], transfers: Transfers) -> Run:
    """Group the requests by case."""
    cases = {}
    for name in CASES:
        found = [request for request in requests if request.case == name]
        times = [request.ttft_ms for request in found]
        cases[name] = Case(times, statistics.median(times), _sum_tokens(found))
    p50 = {name: case.ttft_p50_ms for name, case in cases.items()}
    return Run(
        first_ms, cases, p50["cold"] / p50["resent"], p50["resent"] / p50["device"], transfers, requests
    )  # fmt: skip


def _sum_tokens(requests: Sequence[Request]) -> dict[str, int | None]:
    sums: dict[str, int | None] = {}
    for source in SOURCES:
        values = [request.tokens.get(source) for request in requests]
        known = [value for value in values if value is not None]
        sums[source] = sum(known) if len(known) == len(values) else None
    return sums


def failures(run: Run, *, offload: bool) -> list[str]:
    """Return what speaks against the run, in words; empty when it shows what it is meant to show."""
    found: list[str] = []
    batches = sorted({request.batch for request in run.requests})
    for batch in batches:
        one = {request.case: request for request in run.requests if request.batch == batch}
        found += _batch_failures(batch, one["device"], one["resent"], offload=offload)
    return found


def _batch_failures(batch: int, device: Request, resent: Request, *, offload: bool) -> list[str]:
    reused = device.tokens["device"] or 0
    host, left = resent.tokens["host"] or 0, resent.tokens["device"] or 0
    name = f"batch {batch + 1}"
    if reused == 0:
        return [f"{name}: prefix A sent twice was no device hit; the experiment is not valid"]
    if not offload:
        return [f"{name}: {host + left} tokens of A were still cached without offload; it was not evicted"] * (
            host + left > 0
        )
    found = []
    if host == 0 or host + left < reused:
        found.append(
            f"{name}: the resent prefix did not come from the host tier: {host} tokens from host and {left} from "
            f"device of the {reused} that the device hit reused"
        )
    if resent.text != device.text:
        found.append(f"{name}: the resent prefix gave {resent.text!r}, the device hit {device.text!r}")
    return found
