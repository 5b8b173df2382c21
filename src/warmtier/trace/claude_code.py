"""Sessions of a coding agent, one a line (the "Weka" delta form): which blocks a request keeps of the one before.

Session starts are not in the file. They are drawn here: gaps of a stated distribution, seeded, sessions in file order.
Ids are local to a session and shared by its sub-agents, so keys chain the session in; sessions share nothing.
"""

from __future__ import annotations

import enum
import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from warmtier.core.errors import UsageError
from warmtier.trace.base import FileTrace, Numbered
from warmtier.trace.chain import chain_key, key_of_text
from warmtier.trace.lines import BadLine, Problems, TraceError, decode_lines
from warmtier.trace.schema import TraceRequest

MAX_REQUESTS: Final = 1_000_000
"""Requests of one session; a longer one is a malformed line."""


class Starts(enum.StrEnum):
    """How the gaps between session starts are distributed."""

    POISSON = "poisson"  # exponential gaps
    REGULAR = "regular"  # every gap is the mean
    TOGETHER = "together"  # all sessions start at once


@dataclass(frozen=True, slots=True)
class SessionStarts:
    """The drawn starts of sessions: distribution, mean gap in seconds, seed."""

    distribution: Starts = Starts.POISSON
    mean_gap_s: float = 60.0
    seed: int = 0

    def draw(self) -> Iterator[float]:
        """Yield the start of each session in turn, from 0. Endless."""
        generator, start_s = random.Random(self.seed), 0.0
        while True:
            yield start_s
            if self.distribution is Starts.POISSON:
                start_s += generator.expovariate(1.0 / self.mean_gap_s) if self.mean_gap_s > 0 else 0.0
            elif self.distribution is Starts.REGULAR:
                start_s += self.mean_gap_s


class Step(msgspec.Struct, rename={"prompt": "in", "output": "out"}, gc=False):
    """A request, or a sub-agent with requests of its own (``t`` from its start)."""

    t: float
    prompt: int | None = None
    output: int = 0
    keep: int = 0
    add: list[tuple[int, int]] = []
    requests: list[Step] | None = None


class Session(msgspec.Struct):
    """One line."""

    id: str
    block_size: int
    requests: list[Step]


@dataclass(slots=True)
class _Agent:
    """The keys of the latest request of one agent."""

    keys: list[int]
    root: int


def _flatten(steps: list[Step], start_s: float, root: int) -> list[tuple[float, int, Step, _Agent]]:
    """Return (time, order, step, agent) of every request of a session, sub-agents included, in order of time."""
    flat: list[tuple[float, int, Step, _Agent]] = []
    stack = [(steps, start_s)]
    while stack:
        agent = _Agent([], root)
        current, offset_s = stack.pop()
        for step in current:
            if step.requests is not None:
                stack.append((step.requests, offset_s + step.t))
            else:
                flat.append((offset_s + step.t, len(flat), step, agent))
            if len(flat) > MAX_REQUESTS:
                raise BadLine(f"more than {MAX_REQUESTS} requests in one session")
    flat.sort(key=lambda item: item[:2])
    return flat


def _extend(agent: _Agent, step: Step, block_tokens: int) -> list[int]:
    """Return the keys of ``step`` and remember them. Raises BadLine."""
    if not 0 <= step.keep <= len(agent.keys):
        raise BadLine(f"keeps {step.keep} blocks of a request that had {len(agent.keys)}")
    blocks = step.keep + sum(count for _, count in step.add)
    if step.prompt is None or blocks * block_tokens > step.prompt:
        raise BadLine(f"{blocks} blocks of {block_tokens} tokens do not fit in {step.prompt} tokens")
    keys = agent.keys[: step.keep]
    parent = keys[-1] if keys else agent.root
    for first, count in step.add:
        for block in range(first, first + count):
            parent = chain_key(parent, block)
            keys.append(parent)
    agent.keys = keys
    return keys


class ClaudeCodeTrace(FileTrace):
    """Reads one file, session by session as they start: memory grows with the sessions that overlap, no more."""

    format_name = "claude-code"

    def __init__(self, path: Path, *, starts: SessionStarts | None = None, skip_bad: bool = False) -> None:
        super().__init__(path, skip_bad=skip_bad)
        self.starts = starts or SessionStarts()
        if self.starts.mean_gap_s < 0:
            raise UsageError(f"the mean gap between sessions must not be negative, got {self.starts.mean_gap_s}")
        first = next(decode_lines(path, msgspec.json.Decoder(Session), Problems(skip=True)), None)
        if first is None or first[1].block_size < 1:
            raise TraceError(f"{path}: holds no session")
        self._block_tokens = first[1].block_size
        drawn = f"{self.starts.distribution.value}, mean gap {self.starts.mean_gap_s:g}s, seed {self.starts.seed}"
        self.notes.append(f"session starts are not in the file; drawn: {drawn}")

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a full chunk."""
        return self._block_tokens

    def _requests(self, problems: Problems) -> Iterator[Numbered]:
        heap: list[tuple[float, int, int, Iterator[tuple[float, Numbered]], Numbered]] = []
        starts = self.starts.draw()
        for number, session in decode_lines(self.path, msgspec.json.Decoder(Session), problems):
            start_s = next(starts)
            yield from self._pop_until(heap, start_s)
            steps = self._play(number, session, start_s, problems)
            for at_s, numbered in steps:
                heapq.heappush(heap, (at_s, number, 0, steps, numbered))
                break
        yield from self._pop_until(heap, None)

    def _pop_until(
        self, heap: list[tuple[float, int, int, Iterator[tuple[float, Numbered]], Numbered]], limit_s: float | None
    ) -> Iterator[Numbered]:
        while heap and (limit_s is None or heap[0][0] <= limit_s):
            _, number, order, steps, numbered = heap[0]
            yield numbered
            following = next(steps, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (following[0], number, order + 1, steps, following[1]))

    def _play(
        self, line: int, session: Session, start_s: float, problems: Problems
    ) -> Iterator[tuple[float, Numbered]]:
        try:
            if session.block_size != self._block_tokens:
                raise BadLine(f"block_size {session.block_size}; the file began with {self._block_tokens}")
            flat = _flatten(session.requests, start_s, key_of_text(session.id))
        except BadLine as error:
            problems.add(str(self.path), line, str(error))
            return
        for at_s, _, step, agent in flat:
            try:
                keys = _extend(agent, step, self._block_tokens)
            except BadLine as error:
                problems.add(str(self.path), line, f"session {session.id}, t={step.t}: {error}")
                continue
            prompt = step.prompt or 0
            yield (
                at_s,
                (line, TraceRequest(at_s, prompt, step.output, keys, self._block_tokens, False, session.id)),  # noqa: FBT003
            )
