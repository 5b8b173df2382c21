"""The default policy against LRU and the optimum on every cell: public traces, and made-up ones that nobody tuned on.

Public traces are read from ``$WARMTIER_SHARED/traces`` and left out, with a note, where absent. The made-up ones are
drawn from seeds: single-turn calls with popular prompts, tool calls, retrieval, chat, coding agents, a mixture.
A cell's share is (policy - LRU) / (optimum - LRU); only cells whose gap is above 3 points count.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from statistics import mean

from common import aim, emit, machine, parser
from warmtier.sim.hits import LoadedTrace, make_cache, run_hits
from warmtier.sim.sweep import load_trace
from warmtier.trace.claude_code import ClaudeCodeTrace, SessionStarts
from warmtier.trace.schema import TraceRequest, coarsen

SHARED = Path(os.environ.get("WARMTIER_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "traces"
GAP_MIN = 0.03
Events = list[tuple[float, list[int]]]

PUBLIC = {
    "conv": ("mooncake_conversation_trace.jsonl.gz", (1_000, 3_000, 10_000, 20_000, 40_000, 80_000)),
    "synth": ("mooncake_synthetic_trace.jsonl.gz", (500, 1_500, 4_000, 8_000, 16_000, 30_000)),
    "magagent": ("lmcache_agent_magagent_blk16.jsonl.gz", (200, 500, 1_000, 2_000, 5_000)),
    "miniswe": ("lmcache_agent_miniswe_blk16.jsonl.gz", (300, 1_000, 2_000, 3_000)),
}
CLAUDE = "claude_code_weka_sessions_blk64_delta.jsonl.gz"
SHARES = (0.01, 0.03, 0.08, 0.2, 0.4)  # sizes of the others, as shares of their distinct blocks


class Ids:
    """Fresh block ids."""

    def __init__(self) -> None:
        self.used = 0

    def new(self, count: int) -> list[int]:
        """Return ``count`` ids never returned before."""
        self.used += count
        return list(range(self.used - count, self.used))


def built(name: str, events: Events, block: int = 512) -> LoadedTrace:
    """Return the events in order as a trace of full blocks."""
    events.sort(key=lambda event: event[0])
    return LoadedTrace(
        name, block, tuple(TraceRequest(at, len(keys) * block + 17, 100, keys, block) for at, keys in events)
    )


def zipf(count: int, slope: float) -> list[float]:
    """Return cumulative weights of a Zipf law."""
    return list(accumulate(1 / (rank + 1) ** slope for rank in range(count)))


def single_calls(seed: int, count: int = 12_000) -> LoadedTrace:
    """Popular prompts of very different length, unique suffixes, batches of near-simultaneous calls, one-shots."""
    rng, ids, at, events = random.Random(seed), Ids(), 0.0, []
    prompts = [ids.new(rng.randint(10, 80)) for _ in range(600)]
    weights = zipf(600, 1.0)
    for _ in range(count):
        at += rng.expovariate(10.0)
        if rng.random() < 0.3:
            events.append((at, ids.new(rng.randint(12, 100))))
            continue
        prompt = rng.choices(prompts, cum_weights=weights)[0]
        events.append((at, prompt + ids.new(rng.randint(2, 20))))
        while rng.random() < 0.3:
            at += 0.02
            events.append((at, prompt + ids.new(rng.randint(2, 20))))
    return built("single_calls", events, 64)


def tool_calls(seed: int, count: int = 9_000) -> LoadedTrace:
    """Many system prompts of mild popularity, each call followed by a short loop of tool steps."""
    rng, ids, at, events = random.Random(seed), Ids(), 0.0, []
    prompts = [ids.new(rng.randint(4, 24)) for _ in range(1_200)]
    weights = zipf(1_200, 0.7)
    for _ in range(count):
        at += rng.expovariate(15.0)
        context = rng.choices(prompts, cum_weights=weights)[0] + ids.new(rng.randint(2, 14))
        step_at = at
        events.append((at, context))
        while rng.random() < 0.35:
            step_at += rng.lognormvariate(1.5, 0.8)
            context = context + ids.new(rng.randint(1, 3))
            events.append((step_at, context))
    return built("tool_calls", events)


def retrieval(seed: int, count: int = 12_000) -> LoadedTrace:
    """A system prompt, one document by popularity that drifts, a question."""
    rng, ids, at, events = random.Random(seed), Ids(), 0.0, []
    head = ids.new(2)
    documents = [ids.new(rng.randint(4, 40)) for _ in range(800)]
    weights = zipf(800, 1.0)
    for number in range(count):
        at += rng.expovariate(8.0)
        if number % 3_000 == 2_999:
            rng.shuffle(documents)
        events.append((at, head + rng.choices(documents, cum_weights=weights)[0] + ids.new(1)))
    return built("retrieval", events)


def chat(seed: int, sessions: int = 2_500) -> LoadedTrace:
    """Sessions below four system prompts; a third begin with a long document; people think for half a minute."""
    rng, ids, start, events = random.Random(seed), Ids(), 0.0, []
    heads = [ids.new(3) for _ in range(4)]
    for _ in range(sessions):
        start += rng.expovariate(2.5)
        at = start
        context = rng.choice(heads) + ids.new(rng.randint(1, 30) if rng.random() < 0.3 else rng.randint(1, 5))
        while True:
            events.append((at, context))
            if rng.random() < 1 / 3:
                break
            at += rng.lognormvariate(math.log(25), 1.0)
            context = context + ids.new(rng.randint(1, 4))
    return built("chat", events)


def coding(seed: int, developers: int = 150) -> LoadedTrace:
    """Agent loops with growing contexts, pauses for people, restarts."""
    rng, ids, events = random.Random(seed), Ids(), []
    head = ids.new(12)
    for _ in range(developers):
        at = rng.uniform(0, 4_000)
        for _ in range(rng.randint(1, 6)):
            context = head + ids.new(rng.randint(2, 10))
            for _ in range(rng.randint(3, 40)):
                events.append((at, context))
                context = context + ids.new(rng.choice((0, 1, 1, 2, 4)))
                at += rng.lognormvariate(1.5, 0.7) if rng.random() < 0.85 else rng.lognormvariate(5, 1)
            at += rng.expovariate(1 / 300)
    return built("coding", events)


def claude_code(seed: int) -> LoadedTrace | None:
    """The public agent sessions, starts drawn at random, in blocks of 1,024 tokens."""
    path = SHARED / CLAUDE
    if not path.exists():
        return None
    trace = ClaudeCodeTrace(path, starts=SessionStarts(mean_gap_s=30.0, seed=seed))
    return LoadedTrace("claude_code", 1_024, tuple(coarsen(item, 1_024) for item in trace))


MADE_UP: dict[str, Callable[[int], LoadedTrace]] = {
    "single_calls": single_calls,
    "tool_calls": tool_calls,
    "retrieval": retrieval,
    "chat": chat,
    "coding": coding,
}


@lru_cache(maxsize=1)
def get_trace(name: str, seed: int) -> LoadedTrace | None:
    """Return a trace by name, None where its file is absent."""
    if name == "claude_code":
        return claude_code(seed)
    if name in MADE_UP:
        return MADE_UP[name](seed)
    path = SHARED / PUBLIC[name][0]
    return load_trace(path) if path.exists() else None


def run_trace(name: str, seed: int, policies: Sequence[str], quick: bool) -> list[dict[str, str | int | float]]:
    """Return one row per size and policy."""
    trace = get_trace(name, seed)
    if trace is None:
        return []
    if name in PUBLIC:
        sizes: Sequence[int] = PUBLIC[name][1]
    else:
        distinct = len({key for item in trace.requests for key in item.full_keys})
        sizes = [max(60, int(share * distinct)) for share in SHARES]
    rows: list[dict[str, str | int | float]] = []
    for chunks in sizes[1:4:2] if quick else sizes:
        ratio = {
            policy: run_hits(trace, make_cache(trace, policy, chunks, "production")).block_hit_ratio
            for policy in ("lru", "opt", *policies)
        }
        gap = ratio["opt"] - ratio["lru"]
        for policy, value in ratio.items():
            row: dict[str, str | int | float] = {"trace": name, "chunks": chunks, "policy": policy}
            row |= {"block_hit_ratio": round(value, 4), "above_lru": round(value - ratio["lru"], 4)}
            row |= {"gap": round(gap, 4), "share_of_gap": round((value - ratio["lru"]) / gap, 3) if gap > 0 else 0.0}
            rows.append(row)
    return rows


def main() -> None:
    """Run and print."""
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=1234, help="seed of the made-up traces")
    options.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = options.parse_args()
    about = machine()
    names = ["synth", "magagent", "single_calls"] if arguments.quick else [*PUBLIC, "claude_code", *MADE_UP]
    policies = ("evidence",) if arguments.quick else ("evidence", "index", "arc")
    with ProcessPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(run_trace, name, arguments.seed, policies, arguments.quick) for name in names]
        rows = [row for future in futures for row in future.result()]
    mine = [row for row in rows if row["policy"] == "evidence"]
    held_out = [row for row in mine if row["trace"] not in PUBLIC and float(row["gap"]) > GAP_MIN]
    aims = [aim("worst cell against LRU, points", 100 * min(float(row["above_lru"]) for row in mine), -0.1, "higher")]
    if held_out:
        share = mean(float(row["share_of_gap"]) for row in held_out)
        aims.append(aim("share of the gap, traces not tuned on", share, 0.40, "higher"))
    emit("policy_sweep", rows, aims, format=arguments.format, about=about)


if __name__ == "__main__":
    main()
