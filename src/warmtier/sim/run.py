"""One simulation from settings and a trace to a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from warmtier.core.errors import UsageError
from warmtier.core.types import Key
from warmtier.policy.admission import Admitter, NthTouch
from warmtier.policy.registry import create_policy
from warmtier.sim.connector import Connector
from warmtier.sim.engine import Engine
from warmtier.sim.loop import Loop
from warmtier.sim.measure import Measures
from warmtier.sim.media import Media
from warmtier.sim.requests import SimRequest, chunk_keys
from warmtier.sim.result import SimResult, make_result
from warmtier.sim.settings import ColdModel, HostModel, SimSettings
from warmtier.tiering.cache import TieredCache
from warmtier.tiering.settings import CacheConfig, ColdTier, HostTier
from warmtier.trace.schema import TraceRequest


def build_cache(settings: SimSettings, host: HostModel) -> TieredCache:
    """Return the production cache for these settings."""
    config = CacheConfig(
        part_bytes=settings.chunk_bytes,
        tokens_per_chunk=settings.chunk_tokens,
        offload_prompt_only=False,  # the engine offers prompts only
        events=False,
        **settings.cache,  # type: ignore[arg-type]
    )
    tier = HostTier(create_policy(host.policy, host.chunks), host.chunks, admit=_admitter(host.touches, host.chunks))
    cold = [_cold_tier(model) for model in settings.cold]
    return TieredCache(config, tier, cold, calibration=settings.calibration)


def _cold_tier(model: ColdModel) -> ColdTier:
    return ColdTier(
        model.name,
        model.kind,
        create_policy(model.policy, model.chunks),
        model.placement,
        admit=_admitter(model.touches, model.chunks),
        deadline_cap_s=model.deadline_cap_s,
    )


def _admitter(touches: int, chunks: int) -> Admitter[Key] | None:
    return NthTouch(touches, remember=max(20_000, 4 * chunks)) if touches > 1 else None


class Simulation:
    """One run. ``cache``: a cache that was built elsewhere, instead of one of the settings' own."""

    def __init__(self, settings: SimSettings, cache: TieredCache | None = None) -> None:
        self.settings = settings
        self.loop = Loop()
        self.measures = Measures(settings.engine.block_tokens, settings.engine.prefill, settings.model)
        self.connector: Connector | None = None
        if settings.host is not None:
            cache = cache or build_cache(settings, settings.host)
            media = Media(self.loop, settings.cold, settings.chunk_bytes)
            self.connector = Connector(
                self.loop, cache, media, settings.host, settings.chunk_tokens, settings.chunk_bytes
            )
        self.engine = Engine(self.loop, settings.engine, self.connector, self.measures, self._done)
        self.requests: list[SimRequest] = []
        self.keep_requests = False
        self._source: Iterator[TraceRequest] = iter(())
        self._count = 0

    def run(self, trace: Iterable[TraceRequest]) -> SimResult:
        """Play ``trace`` to its end and return what was measured. Raises UsageError if its chunks do not fit."""
        self._source = iter(trace)
        for _ in range(self.settings.concurrency or 1):
            self._next()
        self.loop.run()
        return make_result(self.settings, self.measures, self.engine, self.connector, self.loop.now)

    def _next(self) -> None:
        """Take the next request of the trace: when it arrived, or at once where so many are kept in flight."""
        request = next(self._source, None)
        if request is None:
            return
        if request.chunk_tokens != self.settings.engine.block_tokens:
            fix = f"give the engine blocks of {request.chunk_tokens} tokens"
            raise UsageError(f"the trace has chunks of {request.chunk_tokens} tokens, not the engine's blocks", fix=fix)
        in_turn = self.settings.concurrency is not None
        first = self._count < (self.settings.concurrency or 0)
        asked_s = self.loop.now + (0.0 if first else self.settings.pause_s)
        if not in_turn:
            asked_s = max(self.loop.now, request.arrival_s)
        keys = chunk_keys(request.full_keys, self.settings.blocks_per_chunk)
        made = SimRequest(self._count, request, asked_s, keys, max(1, request.output_tokens), request.prompt_tokens)
        self._count += 1
        if self.keep_requests:
            self.requests.append(made)

        def arrive() -> None:
            refused = not self.engine.arrive(made)
            self.measures.refused += refused
            if not in_turn or refused:
                self._next()

        self.loop.at(asked_s + self.settings.engine.front_s, arrive)

    def _done(self, request: SimRequest) -> None:
        self.measures.done(request)
        if self.settings.concurrency is not None:
            self._next()


def simulate(settings: SimSettings, trace: Iterable[TraceRequest]) -> SimResult:
    """Run one simulation. Same settings and trace, same result."""
    return Simulation(settings).run(trace)
