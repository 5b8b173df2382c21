"""Synthetic traces: one seeded generator per traffic pattern that cache guides tell apart.

Every generator yields requests in order of arrival, and the same ones for the same knobs and seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from warmtier.core.errors import UsageError
from warmtier.trace.chain import chain_key, key_of_text
from warmtier.trace.schema import TraceRequest

DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Knobs:
    """What every pattern takes. ``rate_per_s`` is the mean arrival rate; lengths are means of log-normal draws."""

    requests: int = 1000
    seed: int = 0
    chunk_tokens: int = 512
    rate_per_s: float = 2.0
    output_tokens: int = 200


@dataclass(frozen=True, slots=True)
class SharedPrefix(Knobs):
    """A long system prompt, or one of ``prefixes`` retrieved documents, before a short question (Zipf popularity)."""

    prefixes: int = 50
    prefix_tokens: int = 8192
    question_tokens: int = 300
    skew: float = 1.0


@dataclass(frozen=True, slots=True)
class Sessions(Knobs):
    """Long-lived conversations that pause: ``turns`` on average, ``idle_s`` (mean, heavy tail) between two turns."""

    turns: float = 8.0
    idle_s: float = 120.0
    system_tokens: int = 1024
    turn_tokens: int = 800


@dataclass(frozen=True, slots=True)
class OneShot(Knobs):
    """Mostly unique prompts: ``repeat_share`` of the requests repeat an earlier one."""

    prompt_tokens: int = 4096
    repeat_share: float = 0.02


@dataclass(frozen=True, slots=True)
class TightDevice(Knobs):
    """More live sessions than the device holds, none idle for long: what spare host memory is for."""

    live_sessions: int = 40
    start_tokens: int = 1024
    turn_tokens: int = 128
    turns: int = 8


@dataclass(frozen=True, slots=True)
class ColdReuse(Knobs):
    """Work that comes back after hours or days: ``documents`` visited in bursts, ``gap_s`` between two bursts."""

    documents: int = 60
    document_tokens: int = 16_384
    burst: int = 3
    gap_s: float = DAY_S
    question_tokens: int = 200


class _Text:
    """Text under construction: keys of full chunks, and the tokens and name of the open tail."""

    __slots__ = ("keys", "tokens")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.tokens = 0

    def copy(self) -> _Text:
        other = _Text()
        other.keys, other.tokens = list(self.keys), self.tokens
        return other

    def append(self, name: str, tokens: int, chunk_tokens: int) -> None:
        """Add ``tokens`` of content called ``name``; a chunk that it completes takes its name."""
        block = key_of_text(name)
        self.tokens += tokens
        for index in range(self.tokens // chunk_tokens - len(self.keys)):
            self.keys.append(chain_key(self.keys[-1] if self.keys else 0, block + index))

    def request(self, arrival_s: float, output: int, chunk_tokens: int, session: str | None) -> TraceRequest:
        """Return a request for this text; a tail that fills no chunk has no key."""
        return TraceRequest(arrival_s, self.tokens, output, list(self.keys), chunk_tokens, session=session)


def _length(rng: random.Random, mean: float, sigma: float = 0.6) -> int:
    """Draw a log-normal length with the given mean, at least 1."""
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))) if mean > 0 else 0


def _gap(rng: random.Random, knobs: Knobs) -> float:
    return rng.expovariate(knobs.rate_per_s)


def shared_prefix(knobs: SharedPrefix) -> Iterator[TraceRequest]:
    """Yield requests that share one of a few long prefixes."""
    rng, now, texts = random.Random(knobs.seed), 0.0, {}
    weights = [1.0 / (rank + 1) ** knobs.skew for rank in range(knobs.prefixes)]
    for number in range(knobs.requests):
        chosen = rng.choices(range(knobs.prefixes), weights)[0]
        if chosen not in texts:
            texts[chosen] = _Text()
            texts[chosen].append(f"prefix {chosen}", _length(rng, knobs.prefix_tokens, 0.3), knobs.chunk_tokens)
        text = texts[chosen].copy()
        text.append(f"question {number}", _length(rng, knobs.question_tokens), knobs.chunk_tokens)
        yield text.request(now, _length(rng, knobs.output_tokens), knobs.chunk_tokens, None)
        now += _gap(rng, knobs)


def sessions(knobs: Sessions) -> Iterator[TraceRequest]:
    """Yield conversations that start at a steady rate, grow turn by turn and pause in between."""
    rng, started = random.Random(knobs.seed), 0
    root = _Text()
    root.append("system", knobs.system_tokens, knobs.chunk_tokens)
    next_start_s = 0.0
    live: list[tuple[float, int, _Text]] = []
    for _ in range(knobs.requests):
        if not live or next_start_s <= live[0][0]:
            heapq.heappush(live, (next_start_s, started, root.copy()))
            started += 1
            next_start_s += rng.expovariate(knobs.rate_per_s / knobs.turns)
        now, number, text = heapq.heappop(live)
        text.append(f"session {number} turn at {text.tokens}", _length(rng, knobs.turn_tokens), knobs.chunk_tokens)
        output = _length(rng, knobs.output_tokens)
        yield text.request(now, output, knobs.chunk_tokens, f"s{number}")
        text.append(f"session {number} answer at {text.tokens}", output, knobs.chunk_tokens)
        if rng.random() > 1.0 / knobs.turns:
            pause_s = rng.lognormvariate(math.log(knobs.idle_s) - 0.5, 1.0)
            heapq.heappush(live, (now + pause_s, number, text))


def one_shot(knobs: OneShot) -> Iterator[TraceRequest]:
    """Yield prompts that are used once, but for a few repeats."""
    rng, now = random.Random(knobs.seed), 0.0
    recent: list[_Text] = []
    for number in range(knobs.requests):
        if recent and rng.random() < knobs.repeat_share:
            text = rng.choice(recent)
        else:
            text = _Text()
            text.append(f"prompt {number}", _length(rng, knobs.prompt_tokens), knobs.chunk_tokens)
            recent = [*recent[-99:], text]
        yield text.request(now, _length(rng, knobs.output_tokens), knobs.chunk_tokens, None)
        now += _gap(rng, knobs)


def tight_device(knobs: TightDevice) -> Iterator[TraceRequest]:
    """Yield ``live_sessions`` conversations whose turns come in rounds, each round in a new random order.

    Turns are of equal length, so that the working set is known; a session that has had its turns is replaced.
    """
    rng, now, started = random.Random(knobs.seed), 0.0, 0
    live: list[tuple[int, _Text]] = []
    order: list[int] = []
    for _ in range(knobs.requests):
        while len(live) < knobs.live_sessions:
            live.append((started, _Text()))
            started += 1
        order = order or rng.sample(range(len(live)), len(live))
        place = order.pop()
        number, text = live[place]
        turn = f"session {number} turn at {text.tokens}"
        text.append(turn, knobs.turn_tokens if text.tokens else knobs.start_tokens, knobs.chunk_tokens)
        yield text.request(now, knobs.output_tokens, knobs.chunk_tokens, f"s{number}")
        if text.tokens >= knobs.start_tokens + (knobs.turns - 1) * knobs.turn_tokens:
            live[place] = (started, _Text())
            started += 1
        now += _gap(rng, knobs)


def cold_reuse(knobs: ColdReuse) -> Iterator[TraceRequest]:
    """Yield bursts of questions about a document, the same document again after hours or days."""
    rng = random.Random(knobs.seed)
    spread_s = knobs.gap_s / max(1, knobs.documents)
    due = [(index * spread_s, index, knobs.burst) for index in range(knobs.documents)]
    texts: dict[int, _Text] = {}
    heapq.heapify(due)
    for number in range(knobs.requests):
        now, document, left = heapq.heappop(due)
        if document not in texts:
            texts[document] = _Text()
            name = f"document {document}"
            texts[document].append(name, _length(rng, knobs.document_tokens, 0.4), knobs.chunk_tokens)
        text = texts[document].copy()
        text.append(f"question {number}", _length(rng, knobs.question_tokens), knobs.chunk_tokens)
        yield text.request(now, _length(rng, knobs.output_tokens), knobs.chunk_tokens, f"d{document}")
        pause_s = _gap(rng, knobs) if left > 1 else knobs.gap_s * rng.uniform(0.5, 1.5)
        heapq.heappush(due, (now + pause_s, document, left - 1 if left > 1 else knobs.burst))


_K = TypeVar("_K", bound=Knobs)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A traffic pattern: its generator and its knobs with their defaults."""

    knobs: Knobs
    generate: Callable[[Knobs], Iterator[TraceRequest]]


def _pattern(knobs: _K, generate: Callable[[_K], Iterator[TraceRequest]]) -> Pattern:
    return Pattern(knobs, generate)  # type: ignore[arg-type]


PATTERNS: Final[dict[str, Pattern]] = {
    "shared-prefix": _pattern(SharedPrefix(), shared_prefix),
    "sessions": _pattern(Sessions(), sessions),
    "one-shot": _pattern(OneShot(), one_shot),
    "tight-device": _pattern(TightDevice(), tight_device),
    "cold-reuse": _pattern(ColdReuse(), cold_reuse),
}
"""Name: pattern."""


class SynthTrace:
    """A pattern as a trace: generated anew at every iteration."""

    def __init__(self, pattern: str, settings: dict[str, str] | None = None) -> None:
        if pattern not in PATTERNS:
            raise UsageError(f"unknown pattern {pattern!r}", fix=f"patterns: {', '.join(PATTERNS)}")
        self.pattern = pattern
        self.knobs = with_settings(PATTERNS[pattern].knobs, settings or {})

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self.knobs.chunk_tokens

    def __iter__(self) -> Iterator[TraceRequest]:
        return PATTERNS[self.pattern].generate(self.knobs)


def with_settings(knobs: Knobs, settings: dict[str, str]) -> Knobs:
    """Return ``knobs`` with some of them given as text. Raises UsageError for an unknown one or a bad value."""
    known = {item.name: type(getattr(knobs, item.name)) for item in fields(knobs)}
    values: dict[str, Any] = {}
    for name, text in settings.items():
        kind = known.get(name.replace("-", "_"))
        if kind is None:
            raise UsageError(f"unknown knob {name!r}", fix=f"knobs: {', '.join(known)}")
        try:
            value = kind(text)
        except ValueError:
            raise UsageError(f"{name}={text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if value < 0 or (value == 0 and name not in ("seed", "repeat_share", "skew", "output_tokens")):
            raise UsageError(f"{name} must be above 0, got {text}")
        values[name.replace("-", "_")] = value
    return replace(knobs, **values)
