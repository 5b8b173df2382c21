"""What stands between an engine's scheduler and the ``TieredCache`` in vLLM: its OffloadingConnector and our manager.

Same questions, same order, same cache. Differences in time alone: transfers and jobs take what the links say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from warmtier.core.types import Key, RequestId, TierKind
from warmtier.sim.loop import Loop
from warmtier.sim.media import Link, Media
from warmtier.sim.requests import SimRequest
from warmtier.sim.settings import HostModel
from warmtier.tiering.cache import TieredCache


@dataclass(slots=True)
class Transfer:
    """A copy between device and host. ``blocks``: device blocks that a store still reads."""

    request: SimRequest
    keys: list[Key]
    is_load: bool
    blocks: list[int]
    submitted_s: float = 0.0
    done_s: float = 0.0


class Connector:
    """Drives one cache for one engine. Called inside the engine's steps."""

    def __init__(
        self, loop: Loop, cache: TieredCache, media: Media, host: HostModel, chunk_tokens: int, chunk_bytes: int
    ) -> None:
        self.cache = cache
        self.media = media
        self.load_link = Link(host.load)
        self.store_link = Link(host.store) if host.duplex else self.load_link
        self.loads = 0
        self.stores = 0
        self.flush_s = 0.0
        self._host = cache.state.host.name
        self._loop = loop
        self._chunk_tokens = chunk_tokens
        self._chunk_bytes = chunk_bytes
        self._being_loaded: set[Key] = set()
        self._queued: list[Transfer] = []
        self._moving: list[Transfer] = []
        self._finished: list[SimRequest] = []
        self._fences: dict[int, Transfer] = {}

    @property
    def busy(self) -> bool:
        """Whether the engine has to keep stepping for transfers or jobs."""
        return bool(self._queued or self._moving or self._finished or self.media.in_flight)

    def begin(self, request: SimRequest) -> None:
        """A request has reached the scheduler."""
        request.tier = self.cache.begin_request(RequestId(f"r{request.number}"), self._loop.now)

    def matched(self, request: SimRequest, computed: int) -> int | None:
        """Return the tokens beyond ``computed`` (on the device) that can be loaded; None: ask again next step."""
        if request.jobs:
            return None
        size, chunks = self._chunk_tokens, request.chunks
        if len(chunks) * size - computed < size or request.tier is None:
            return 0
        start = computed // size
        answer = self.cache.lookup(request.tier, chunks, start, self._loop.now)
        if request.reason is None and answer.reason is not None:
            request.reason = answer.reason.value
        if answer.pending:
            return None
        tokens = (start + answer.usable) * size - computed
        if answer.usable == 0 or tokens < size:
            return 0
        if not self._being_loaded.isdisjoint(chunks[start : start + answer.usable]):
            return None
        request.hit_ranges = _ranges(answer.by_tier, start, size, computed)
        return tokens

    def start_load(self, request: SimRequest, computed: int, tokens: int) -> None:
        """The blocks for ``tokens`` beyond ``computed`` are allocated: load them after this step's forward pass."""
        size = self._chunk_tokens
        start, stop = computed // size, (computed + tokens) // size
        keys = request.chunks[start:stop]
        if request.tier is not None:
            self.cache.pin_for_load(request.tier, keys, self._loop.now)
        request.loading, request.stored = keys, stop
        request.jobs += 1
        self._being_loaded.update(keys)
        self._queued.append(Transfer(request, keys, True, []))  # noqa: FBT003
        self.loads += 1

    def end_schedule(self, scheduled: Sequence[tuple[SimRequest, int]]) -> None:
        """End the scheduling pass; then offer what the step computes. ``scheduled``: request, tokens after the step."""
        now = self._loop.now
        self.cache.tick(now)
        self.media.perform(self.cache.take_actions())
        for request, after in scheduled:
            self._offer(request, after)
        for request in self._finished:
            if request.tier is not None:
                self.cache.end_request(request.tier, now)
        self._finished.clear()

    def _offer(self, request: SimRequest, after: int) -> None:
        storable = min(after // self._chunk_tokens, len(request.chunks))
        start = request.stored
        if storable <= start or request.tier is None:
            return
        answer = self.cache.offer(request.tier, request.chunks[start:storable], start, self._loop.now)
        request.stored = storable
        if answer.keys:
            request.jobs += 1
            self.stores += 1
            self._queued.append(Transfer(request, list(answer.keys), False, list(request.blocks)))  # noqa: FBT003

    def start_step(self) -> None:
        """The worker begins a step: copies queued in the step before start, loads of this step too."""
        for transfer in self._queued:
            transfer.submitted_s = self._loop.now
            link = self.load_link if transfer.is_load else self.store_link
            transfer.done_s = link.submit(len(transfer.keys) * self._chunk_bytes, self._loop.now)
            self._moving.append(transfer)
        self._queued.clear()

    def fenced(self, blocks: Sequence[int]) -> list[Transfer]:
        """Blocks are used anew: return the stores that still read them, for which the step must wait."""
        if not self._fences:
            return []
        return [self._fences[block] for block in blocks if block in self._fences]

    def end_step(self) -> list[SimRequest]:
        """Tell the cache which transfers have ended; return the requests whose load arrived."""
        now = self._loop.now
        arrived = []
        still: list[Transfer] = []
        for transfer in self._moving:
            if transfer.done_s > now:
                still.append(transfer)
                continue
            request = transfer.request
            request.jobs -= 1
            if request.tier is None:
                continue
            if transfer.is_load:
                self._being_loaded.difference_update(transfer.keys)
                self.cache.load_done(request.tier, transfer.keys, now)
                self._observe(transfer)
                request.loading = []
                arrived.append(request)
            else:
                self.cache.store_done(request.tier, transfer.keys, now)
                for block in transfer.blocks:
                    self._fences.pop(block, None)
        self._moving = still
        return arrived

    def _observe(self, transfer: Transfer) -> None:
        size_bytes = len(transfer.keys) * self._chunk_bytes
        self.cache.observe_load(self._host, size_bytes, transfer.done_s - transfer.submitted_s)

    def collect(self) -> None:
        """Hand the results of jobs to the cache, as the manager does before it answers."""
        for result in self.media.take_results():
            self.cache.job_done(result, self._loop.now)

    def finished(self, request: SimRequest) -> None:
        """A request is over; the cache hears of it in the next scheduling pass. Its blocks may be reused at once."""
        self._finished.append(request)
        if request.jobs:
            for transfer in (*self._queued, *self._moving):
                if transfer.request is request and not transfer.is_load:
                    self._fences.update(dict.fromkeys(transfer.blocks, transfer))

    def next_done_s(self) -> float | None:
        """Return when the next copy ends, or None."""
        return min((transfer.done_s for transfer in self._moving), default=None)


def _ranges(by_tier: Mapping[TierKind, int], start: int, size: int, computed: int) -> list[tuple[str, int, int]]:
    """Return (tier, first token, end token) of a hit, in the order in which the tiers are named."""
    ranges: list[tuple[str, int, int]] = []
    at = start
    for kind, count in by_tier.items():
        if count:
            ranges.append((kind.value, max(computed, at * size), (at + count) * size))
            at += count
    return ranges
