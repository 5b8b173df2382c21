"""A production cache that writes down every call and its answer, so that another driver can be held against it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from warmtier.core.types import Key, RequestId
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.request import Request
from warmtier.tiering.types import NO_HINTS, Action, JobResult, Lookup, Offer, RequestHints


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what, when, for which request, with which words, and what came back."""

    name: str
    now: float
    request: str | None
    arguments: tuple[Any, ...]
    answer: Any


class RecordingCache(TieredCache):
    """Behaves as its base; ``calls`` is the schedule."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.calls: list[Call] = []

    def _note(self, name: str, now: float, request: Request | None, arguments: tuple[Any, ...], answer: Any) -> Any:
        self.calls.append(Call(name, now, None if request is None else str(request.request_id), arguments, answer))
        return answer

    def begin_request(
        self, request_id: RequestId, now: float, *, prompt_tokens: int | None = None, hints: RequestHints = NO_HINTS
    ) -> Request:
        request = super().begin_request(request_id, now, prompt_tokens=prompt_tokens, hints=hints)
        self._note("begin", now, request, (), None)
        return request

    def lookup(self, request: Request, path: Sequence[Key], start: int, now: float) -> Lookup:
        answer = super().lookup(request, path, start, now)
        plain = (answer.usable, answer.pending, answer.reason, dict(answer.by_tier))
        self._note("lookup", now, request, (list(path), start), plain)
        return answer

    def pin_for_load(self, request: Request, keys: Sequence[Key], now: float) -> list[int]:
        slots = super().pin_for_load(request, keys, now)
        self._note("pin", now, request, (list(keys),), list(slots))
        return slots

    def load_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        super().load_done(request, keys, now, ok=ok)
        self._note("load_done", now, request, (list(keys), ok), None)

    def offer(self, request: Request, keys: Sequence[Key], start: int, now: float) -> Offer:
        answer = super().offer(request, keys, start, now)
        plain = (list(answer.keys), list(answer.slots), list(answer.evicted), dict(answer.outcomes))
        self._note("offer", now, request, (list(keys), start), plain)
        return answer

    def store_done(self, request: Request, keys: Collection[Key], now: float, *, ok: bool = True) -> None:
        super().store_done(request, keys, now, ok=ok)
        self._note("store_done", now, request, (list(keys), ok), None)

    def end_request(self, request: Request, now: float) -> None:
        super().end_request(request, now)
        self._note("end", now, request, (), None)

    def tick(self, now: float) -> None:
        super().tick(now)
        self._note("tick", now, None, (), None)

    def job_done(self, result: JobResult, now: float) -> None:
        super().job_done(result, now)
        self._note("job_done", now, None, (result,), None)

    def observe_load(self, tier: str, size_bytes: int, seconds: float) -> None:
        super().observe_load(tier, size_bytes, seconds)
        self._note("observe_load", 0.0, None, (tier, size_bytes, seconds), None)

    def take_actions(self) -> list[Action]:
        actions = super().take_actions()
        self._note("actions", 0.0, None, (), [plain_action(action) for action in actions])
        return actions


def plain_action(action: Action) -> tuple[Any, ...]:
    slots = list(getattr(action, "slots", ()))
    return type(action).__name__, action.tier, list(action.keys), slots, getattr(action, "deadline_s", None)


def replay(calls: Iterable[Call], cache: TieredCache) -> list[tuple[Call, Any]]:
    """Make the same calls on another cache; return each call with what it answered there."""
    requests: dict[str, Request] = {}
    answers: list[tuple[Call, Any]] = []
    for call in calls:
        answers.append((call, _repeat(call, cache, requests)))
    return answers


def _repeat(call: Call, cache: TieredCache, requests: dict[str, Request]) -> Any:
    name, now, words = call.name, call.now, call.arguments
    request = requests.get(call.request or "")
    if name == "begin":
        requests[str(call.request)] = cache.begin_request(RequestId(str(call.request)), now)
    elif name == "tick":
        cache.tick(now)
    elif name == "job_done":
        cache.job_done(words[0], now)
    elif name == "observe_load":
        cache.observe_load(words[0], words[1], words[2])
    elif name == "actions":
        return [plain_action(action) for action in cache.take_actions()]
    elif request is not None:
        return _repeat_for(call, cache, request)
    return None


def _repeat_for(call: Call, cache: TieredCache, request: Request) -> Any:
    now, words = call.now, call.arguments
    if call.name == "lookup":
        found = cache.lookup(request, words[0], words[1], now)
        return found.usable, found.pending, found.reason, dict(found.by_tier)
    if call.name == "pin":
        return list(cache.pin_for_load(request, words[0], now))
    if call.name == "offer":
        offer = cache.offer(request, words[0], words[1], now)
        return list(offer.keys), list(offer.slots), list(offer.evicted), dict(offer.outcomes)
    if call.name == "load_done":
        cache.load_done(request, words[0], now, ok=words[1])
    elif call.name == "store_done":
        cache.store_done(request, words[0], now, ok=words[1])
    elif call.name == "end":
        cache.end_request(request, now)
    return None
