"""``warmtier trace profile``: what a trace looks like, what caching could save at most, and the admission questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from warmtier.core.model import ModelShape
from warmtier.trace import reuse
from warmtier.trace.columns import MAX_ACCESSES, Columns, Floats, Ints, read_columns
from warmtier.trace.prefixes import SharedPrefix, cross_session_share, shared_prefixes
from warmtier.trace.reuse import Quantiles, quantiles
from warmtier.trace.schema import Trace
from warmtier.trace.stack import find_runs, miss_ratio_curve, standard_errors

CURVE_POINTS: Final = 14
CHUNK_FACTORS: Final = (1, 2, 4, 8, 16, 32)
CEILING_TOLERANCE: Final = 0.01
EVICT_BELOW: Final = 0.10
PEAK_WINDOW_S: Final = 10.0


class Ceiling(msgspec.Struct, frozen=True):
    """Hit ratios of an infinite cache that starts empty. ``flop`` and the like need a model, exact reading too.

    ``chunk`` counts partial tails as chunks; ``token`` and ``flop`` take lengths as they are, ``flop_whole_chunks``
    takes a partial tail for a whole chunk.
    """

    chunk: float
    token: float
    flop: float | None = None
    flop_whole_chunks: float | None = None


class CurvePoint(msgspec.Struct, frozen=True):
    """LRU with room for ``chunks``: its hit ratio, and its standard error if the trace was sampled."""

    chunks: int
    size_bytes: int | None
    hit_ratio: float
    standard_error: float | None


class ChunkSize(msgspec.Struct, frozen=True):
    """What chunks of ``tokens`` would do: ceiling (tokens), bytes of one, and the time to move one."""

    tokens: int
    size_bytes: int | None
    token_ceiling: float
    transfer_s: float | None


class Transfers(msgspec.Struct, frozen=True):
    """Bytes per second that an infinite cache would load and store: mean, and the busiest PEAK_WINDOW_S."""

    load_mean: float
    load_peak: float
    store_mean: float
    store_peak: float
    bandwidth: float | None


class SharedAnswer(msgspec.Struct, frozen=True):
    """Which prefixes are shared: the best stretches, and how much of all is known from other sessions only."""

    prefixes: list[SharedPrefix]
    known_from_other_sessions: float | None


class ReuseAnswer(msgspec.Struct, frozen=True):
    """How long after creation chunks are reused: share ever reused, time to the first reuse, all gaps between uses."""

    reused_share: float
    first_reuse_s: Quantiles
    gap_s: Quantiles


class ChunkAnswer(msgspec.Struct, frozen=True):
    """How large a useful chunk is: the largest that loses at most a point of the ceiling, beside the budget."""

    sizes: list[ChunkSize]
    largest_useful_tokens: int | None
    transfers: Transfers | None


class EvictAnswer(msgspec.Struct, frozen=True):
    """What should be evicted outright: classes of chunks that are reused less than EVICT_BELOW, and their share."""

    classes: list[reuse.ChunkClass]
    share_of_chunks: float
    saved_tokens_lost: float


class Admission(msgspec.Struct, frozen=True):
    """The four questions to ask before admitting anything to a tier."""

    which_prefixes_are_shared: SharedAnswer
    how_long_until_reuse: ReuseAnswer
    how_large_is_a_useful_chunk: ChunkAnswer
    what_to_evict_outright: EvictAnswer


class Profile(msgspec.Struct, frozen=True):
    """The whole profile. ``rate`` below 1.0: keys were sampled, and ratios carry a standard error."""

    requests: int
    chunk_tokens: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    chunks: int
    unique_chunks: int
    rate: float
    prompt_lengths: Quantiles
    output_lengths: Quantiles
    ceiling: Ceiling
    ceiling_error: float | None
    one_hit_share: float
    working_set_chunks: int
    working_set_bytes: int | None
    reuse_chunks: Quantiles
    reuse_bytes: Quantiles | None
    reuse_s: Quantiles
    by_use_count: list[reuse.UseCount]
    by_position: list[reuse.Position]
    by_tenant: list[reuse.Group]
    sessions: reuse.SessionFacts | None
    sessions_inferred: bool
    classes: list[reuse.ChunkClass]
    curve: list[CurvePoint]
    admission: Admission


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What to assume. ``kv_bytes_per_token`` overrides the model's; ``capacities`` in chunks override the curve's."""

    model: ModelShape | None = None
    kv_bytes_per_token: int | None = None
    bandwidth: float | None = None
    fixed_s: float = 0.0
    rate: float = 1.0
    seed: int = 0
    max_accesses: int = MAX_ACCESSES
    capacities: Sequence[int] = ()
    top: int = 10

    @property
    def token_bytes(self) -> int | None:
        """KV bytes per token, if known."""
        if self.kv_bytes_per_token is not None:
            return self.kv_bytes_per_token
        return None if self.model is None else self.model.kv_bytes_per_token


def profile_trace(trace: Trace, options: ProfileOptions | None = None) -> Profile:
    """Read ``trace`` to its end and return its profile. Blocks; memory is about 40 bytes per key occurrence kept."""
    options = options or ProfileOptions()
    columns = read_columns(
        trace, trace.chunk_tokens, rate=options.rate, seed=options.seed, max_accesses=options.max_accesses
    )
    # A sample keeps too few ends of prompts to tell who goes on from whom.
    infer = not columns.session_names and columns.rate >= 1.0
    if infer:
        reuse.give_sessions(columns)
    return build_profile(columns, options, sessions_inferred=infer)


def build_profile(columns: Columns, options: ProfileOptions, *, sessions_inferred: bool) -> Profile:
    """Return the profile of columns."""
    runs = find_runs(columns)
    curve = miss_ratio_curve(columns)
    capacities = list(options.capacities) or _capacities(curve.working_set)
    distances = reuse.gaps_chunks(runs, columns.rate)
    token_bytes = options.token_bytes
    chunk_bytes = None if token_bytes is None else token_bytes * columns.chunk_tokens
    errors: list[float] | None = None
    if columns.rate < 1.0:
        errors = standard_errors(columns, [*capacities, 2 * curve.working_set])
    uses = reuse.total_uses(columns)
    return Profile(
        requests=columns.requests,
        chunk_tokens=columns.chunk_tokens,
        duration_s=float(columns.arrival_s[-1]) if columns.requests else 0.0,
        prompt_tokens=int(columns.prompt_tokens.sum()),
        output_tokens=int(columns.output_tokens.sum()),
        chunks=columns.total,
        unique_chunks=round(columns.keys / columns.rate),
        rate=columns.rate,
        prompt_lengths=quantiles(columns.prompt_tokens),
        output_lengths=quantiles(columns.output_tokens),
        ceiling=_ceiling(columns, options.model),
        ceiling_error=None if errors is None else errors[-1],
        one_hit_share=float((uses == 1).mean()) if columns.keys else 0.0,
        working_set_chunks=curve.working_set,
        working_set_bytes=None if chunk_bytes is None else curve.working_set * chunk_bytes,
        reuse_chunks=quantiles(distances),
        reuse_bytes=None if chunk_bytes is None else quantiles(distances * chunk_bytes),
        reuse_s=quantiles(reuse.gaps_seconds(columns)),
        by_use_count=reuse.by_use_count(columns),
        by_position=reuse.by_position(columns),
        by_tenant=reuse.by_tenant(columns),
        sessions=reuse.session_facts(columns),
        sessions_inferred=sessions_inferred,
        classes=reuse.by_class(columns),
        curve=[
            CurvePoint(
                size,
                None if chunk_bytes is None else size * chunk_bytes,
                curve.hit_ratio(size),
                None if errors is None else errors[index],
            )
            for index, size in enumerate(capacities)
        ],
        admission=_admission(columns, options),
    )


def _capacities(working_set: int) -> list[int]:
    """Return capacities that double, up to the whole working set."""
    sizes = [working_set >> shift for shift in range(CURVE_POINTS)]
    return sorted({size for size in sizes if size > 0})


def _known_full(columns: Columns) -> Ints:
    known: Ints = np.minimum(columns.known, np.diff(columns.first) - columns.tail)
    return known


def _hit_tokens(columns: Columns, factor: int = 1) -> Ints:
    """Return per request the tokens known before, in chunks joined by ``factor``."""
    whole = _known_full(columns) // factor * factor
    tokens: Ints = np.minimum((whole * columns.chunk_tokens / columns.rate).astype(np.int64), columns.prompt_tokens)
    return tokens


def _ceiling(columns: Columns, model: ModelShape | None) -> Ceiling:
    tokens = _hit_tokens(columns)
    prompt = columns.prompt_tokens
    chunk = float(columns.known.sum()) / max(1, columns.accesses)
    token = float(tokens.sum()) / max(1, int(prompt.sum()))
    if model is None or columns.rate < 1.0 or not prompt.any():
        return Ceiling(chunk, token)
    flop = _flops(model, tokens) / _flops(model, prompt)
    size = columns.chunk_tokens
    whole = _flops(model, columns.known * size) / max(1.0, _flops(model, np.diff(columns.first) * size))
    return Ceiling(chunk, token, flop, whole)


def _flops(model: ModelShape, tokens: Ints) -> float:
    """Return the FLOPs of computing the first tokens of many prompts (``ModelShape.flops`` of each, added up)."""
    n = tokens.astype(np.float64)
    return float((2.0 * model.active_parameters * n + 2.0 * model.attention_width * n * (n - 1)).sum())


def _admission(columns: Columns, options: ProfileOptions) -> Admission:
    uses = reuse.total_uses(columns)
    classes = reuse.by_class(columns)
    outright = [row for row in classes if row.reused < EVICT_BELOW]
    saved = sum(row.chunks * row.saved_tokens_per_chunk for row in outright) / columns.rate
    return Admission(
        SharedAnswer(shared_prefixes(columns, options.top), cross_session_share(columns)),
        ReuseAnswer(
            float((uses > 1).mean()) if columns.keys else 0.0,
            quantiles(reuse.first_reuse_seconds(columns)),
            quantiles(reuse.gaps_seconds(columns)),
        ),
        _chunk_answer(columns, options),
        EvictAnswer(
            outright,
            sum(row.chunks for row in outright) / max(1, columns.keys),
            saved / max(1, int(columns.prompt_tokens.sum())),
        ),
    )


def _chunk_answer(columns: Columns, options: ProfileOptions) -> ChunkAnswer:
    token_bytes = options.token_bytes
    sizes = []
    prompt = max(1, int(columns.prompt_tokens.sum()))
    for factor in CHUNK_FACTORS if columns.rate >= 1.0 else ():
        tokens = factor * columns.chunk_tokens
        size_bytes = None if token_bytes is None else tokens * token_bytes
        known = size_bytes is not None and options.bandwidth is not None
        transfer_s = options.fixed_s + size_bytes / options.bandwidth if known else None  # type: ignore[operator]
        sizes.append(ChunkSize(tokens, size_bytes, float(_hit_tokens(columns, factor).sum()) / prompt, transfer_s))
    best = max((row.token_ceiling for row in sizes), default=0.0)
    useful = [row.tokens for row in sizes if row.token_ceiling >= best - CEILING_TOLERANCE]
    return ChunkAnswer(sizes, max(useful, default=None), _transfers(columns, options))


def _transfers(columns: Columns, options: ProfileOptions) -> Transfers | None:
    token_bytes = options.token_bytes
    if token_bytes is None or not columns.requests:
        return None
    duration_s = max(float(columns.arrival_s[-1]), PEAK_WINDOW_S)
    window = (columns.arrival_s // PEAK_WINDOW_S).astype(np.int64)
    loaded = _hit_tokens(columns).astype(np.float64) * token_bytes
    stored = columns.prompt_tokens * float(token_bytes) - loaded

    def peak(amount: Floats) -> float:
        ends = np.flatnonzero(np.append(np.diff(window) != 0, True))
        return float(np.diff(np.cumsum(amount)[ends], prepend=0.0).max()) / PEAK_WINDOW_S

    return Transfers(
        float(loaded.sum()) / duration_s,
        peak(loaded),
        float(stored.sum()) / duration_s,
        peak(stored),
        options.bandwidth,
    )
