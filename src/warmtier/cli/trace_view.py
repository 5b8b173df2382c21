"""A trace's profile for people: one sentence, then tables."""

from __future__ import annotations

from collections.abc import Sequence

from warmtier.cli.output import Table
from warmtier.core.units import format_duration, format_size
from warmtier.trace.profile import Profile
from warmtier.trace.reuse import Quantiles


def headline(name: str, found: Profile, notes: Sequence[str]) -> str:
    """Return the first lines: what an infinite cache would save."""
    token = found.ceiling.token
    error = "" if found.ceiling_error is None else f" (+- {found.ceiling_error:.3f}, {found.rate:.3g} of the keys read)"
    flop = "" if found.ceiling.flop is None else f", {found.ceiling.flop:.1%} of their FLOPs"
    lengths = f"{found.prompt_tokens} prompt tokens, {found.output_tokens} output tokens"
    once = f"{found.unique_chunks} distinct, {found.one_hit_share:.1%} of them used once"
    lines = [
        f"{name}: an infinite cache would save {token:.1%} of the prompt tokens{flop}{error}.",
        f"{found.requests} requests in {format_duration(found.duration_s)}, {lengths}.",
        f"{found.chunks} chunks of {found.chunk_tokens} tokens, {once}.",
    ]
    if found.sessions_inferred:
        lines.append("note: the trace tells no sessions; they are inferred from prompts that go on from earlier ones.")
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines)


def tables(found: Profile) -> list[Table]:
    """Return the profile's tables, the decisive ones first."""
    return [
        _curve(found),
        *_admission(found),
        _distributions(found),
        _uses(found),
        _positions(found),
        *_tenants(found),
        *_sessions(found),
    ]


def _percent(value: float | None, digits: int = 1) -> str | None:
    return None if value is None else f"{100 * value:.{digits}f}%"


def _size(value: float | None) -> str | None:
    return None if value is None else format_size(round(value))


def _curve(found: Profile) -> Table:
    rows = [
        [point.chunks, _size(point.size_bytes), _percent(point.hit_ratio, 2), _percent(point.standard_error, 2)]
        for point in found.curve
    ]
    note = f"ceiling {found.ceiling.chunk:.2%} of the chunks; working set {found.working_set_chunks} chunks"
    return Table(["chunks", "size", "LRU hits", "+-"], rows, "Hits by capacity (exact unless +- is given)", [note])


def _admission(found: Profile) -> list[Table]:
    answers = found.admission
    shared, reuse = answers.which_prefixes_are_shared, answers.how_long_until_reuse
    chunk, evict = answers.how_large_is_a_useful_chunk, answers.what_to_evict_outright
    other = _percent(shared.known_from_other_sessions)
    prefixes = Table(
        ["behind", "tokens", "uses", "sessions", "saves tokens", "of all", "median gap", "first in request"],
        [
            [
                p.start_tokens,
                p.tokens,
                p.uses,
                p.sessions,
                p.saved_tokens,
                _percent(p.saved_share, 2),
                format_duration(p.median_gap_s),
                p.request,
            ]
            for p in shared.prefixes
        ],
        "Which prefixes are shared",
        [f"known from other sessions: {other or '-'} of all chunks"],
    )
    times = Table(
        ["", "p10", "p25", "p50", "p75", "p90", "p99"],
        [_durations("creation to first reuse", reuse.first_reuse_s), _durations("between uses", reuse.gap_s)],
        "How long until reuse",
        [f"{reuse.reused_share:.1%} of the chunks are reused at all"],
    )
    useful = Table(
        ["tokens", "size", "ceiling", "transfer"],
        [[s.tokens, _size(s.size_bytes), _percent(s.token_ceiling), _duration(s.transfer_s)] for s in chunk.sizes],
        "How large is a useful chunk",
        _chunk_notes(found),
    )
    outright = Table(
        ["request", "from token", "chunks", "reused", "saves tokens each"],
        [
            [c.request, c.from_tokens, c.chunks, _percent(c.reused, 2), round(c.saved_tokens_per_chunk, 1)]
            for c in evict.classes
        ],
        "What to evict outright (or never store)",
        [f"{evict.share_of_chunks:.1%} of the chunks; without them {evict.saved_tokens_lost:.2%} fewer tokens saved"],
    )
    return [prefixes, times, useful, outright]


def _chunk_notes(found: Profile) -> list[str]:
    answer = found.admission.how_large_is_a_useful_chunk
    notes = []
    if answer.largest_useful_tokens is not None:
        notes.append(f"largest that loses at most a point: {answer.largest_useful_tokens} tokens")
    if answer.transfers is None:
        notes.append("give --model for bytes and --bandwidth for times")
        return notes
    moved = answer.transfers
    budget = "" if moved.bandwidth is None else f"; the link carries {_size(moved.bandwidth)}/s"
    notes.append(
        f"an infinite cache loads {_size(moved.load_mean)}/s (busiest 10 s: {_size(moved.load_peak)}/s), "
        f"stores {_size(moved.store_mean)}/s ({_size(moved.store_peak)}/s){budget}"
    )
    return notes


def _duration(value: float | None) -> str | None:
    return None if value is None else format_duration(value)


def _durations(name: str, q: Quantiles) -> list[object]:
    return [name, *(_duration(value) for value in (q.p10, q.p25, q.p50, q.p75, q.p90, q.p99))]


def _counts(name: str, q: Quantiles) -> list[object]:
    values = (q.p10, q.p25, q.p50, q.p75, q.p90, q.p99)
    return [name, *(None if value is None else round(value) for value in values)]


def _distributions(found: Profile) -> Table:
    rows = [
        _counts("prompt tokens", found.prompt_lengths),
        _counts("output tokens", found.output_lengths),
        _counts("reuse distance, chunks", found.reuse_chunks),
        _durations("reuse distance, time", found.reuse_s),
    ]
    if found.reuse_bytes is not None:
        q = found.reuse_bytes
        sizes = [_size(value) for value in (q.p10, q.p25, q.p50, q.p75, q.p90, q.p99)]
        rows.append(["reuse distance, bytes", *sizes])
    return Table(["", "p10", "p25", "p50", "p75", "p90", "p99"], rows, "Distributions")


def _uses(found: Profile) -> Table:
    rows = [[row.uses, row.chunks, _percent(row.used_again)] for row in found.by_use_count]
    return Table(["uses", "chunks", "used again"], rows, "Reuse by use count")


def _positions(found: Profile) -> Table:
    rows = [[row.from_tokens, row.chunks, _percent(row.known)] for row in found.by_position]
    return Table(["from token", "chunks", "known"], rows, "Reuse by position in the prompt")


def _tenants(found: Profile) -> list[Table]:
    if not found.by_tenant:
        return []
    rows = [[row.name, row.requests, row.prompt_tokens, _percent(row.known)] for row in found.by_tenant]
    return [Table(["tenant", "requests", "prompt tokens", "known"], rows, "Reuse by tenant")]


def _sessions(found: Profile) -> list[Table]:
    facts = found.sessions
    if facts is None:
        return []
    rows = [_counts("requests", facts.requests_per_session), _durations("pause", facts.pause_s)]
    notes = [
        f"{facts.sessions} sessions; known from the own session {facts.known_own:.1%}, other {facts.known_other:.1%}"
    ]
    return [Table(["per session", "p10", "p25", "p50", "p75", "p90", "p99"], rows, "Sessions", notes)]
