"""Conversations on real servers: no offload, vLLM's own tiering, warmtier; an ample and a pressured host tier.

Ten sessions of 1,024 tokens grow by 128 a turn; three are in flight; the device cache is six times too small. Scored
is the second half of the turns, when policies can have learned: TTFT, time between tokens, wall time, tokens from a
cache. **ample**: the host tier holds everything. **pressured**: half of it. **no reuse**: fresh prompts only, what a
cache costs where it cannot help. vLLM's own manager gets our CPU copy worker, because it has none (``peers``).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common
from common import Row
from warmtier.bench.corpus import passages
from warmtier.bench.load import Client, Reply
from warmtier.bench.scrape import Scrape, scrape
from warmtier.bench.server import Server

REPOSITORY = Path(__file__).resolve().parent.parent
MODEL = Path(os.environ.get("WARMTIER_MODEL", REPOSITORY / "models" / "SmolLM2-135M-Instruct"))
SESSIONS, FIRST_TOKENS, GROWTH_TOKENS, IN_FLIGHT, OUTPUT_TOKENS = 10, 1024, 128, 3, 8
BLOCK_TOKENS, BLOCKS_PER_CHUNK = 128, 1
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4  # SmolLM2-135M in float32
CACHED = "vllm:prompt_tokens_cached_by_source_total"


@dataclass(frozen=True)
class Workload:
    """How many turns, and what follows from it."""

    turns: int

    @property
    def most_tokens(self) -> int:
        return FIRST_TOKENS + self.turns * GROWTH_TOKENS

    @property
    def set_tokens(self) -> int:
        return SESSIONS * self.most_tokens

    @property
    def device_blocks(self) -> int:
        fits = max(self.set_tokens // 6, self.most_tokens + 2 * BLOCK_TOKENS)
        return -(-fits // BLOCK_TOKENS) + 1

    def host_bytes(self, share: float) -> int:
        return int(share * self.set_tokens * TOKEN_BYTES)


@dataclass
class Score:
    """What one server did in the scored half."""

    replies: list[Reply] = field(default_factory=list)
    wall_s: float = 0.0
    cached: dict[str, float] = field(default_factory=dict)
    no_reuse_s: float = 0.0

    @property
    def ttfts_s(self) -> list[float]:
        return [reply.ttft_s for reply in self.replies if reply.ttft_s is not None]

    @property
    def tier_tokens(self) -> float:
        return sum(count for source, count in self.cached.items() if source != "device")

    def row(self, name: str, regime: str) -> Row:
        ttfts, itls = sorted(self.ttfts_s), [itl for reply in self.replies for itl in reply.itls_s]
        return {
            "server": name,
            "regime": regime,
            "ttft_mean_ms": round(statistics.mean(ttfts) * 1e3, 1),
            "ttft_p50_ms": round(statistics.median(ttfts) * 1e3, 1),
            "ttft_p99_ms": round(ttfts[min(len(ttfts) - 1, int(0.99 * len(ttfts)))] * 1e3, 1),
            "itl_mean_ms": round(statistics.mean(itls) * 1e3, 1) if itls else None,
            "wall_s": round(self.wall_s, 1),
            "device_tokens": int(self.cached.get("device", 0)),
            "tier_tokens": int(self.tier_tokens),
            "no_reuse_s": round(self.no_reuse_s, 1),
        }


def transfer(kind: str, host_bytes: int, directory: Path) -> dict[str, Any] | None:
    """Return the connector's configuration of one contestant."""
    extra: dict[str, Any] = {"blocks_per_chunk": BLOCKS_PER_CHUNK}
    disk = kind.endswith("+file")
    if kind == "none":
        return None
    if kind.startswith("vllm"):
        policy = kind.removesuffix("+file").split()[1]
        extra |= {"spec_name": "PeerSpec", "spec_module_path": "peer_spec", "cpu_bytes_to_use": host_bytes,
                  "eviction_policy": policy}  # fmt: skip
        if disk:
            extra["secondary_tiers"] = [{"type": "fs", "root_dir": str(directory / "fs")}]
    else:
        host = {"capacity": f"{host_bytes}B", **({"policy": kind.split()[1]} if " " in kind else {})}
        settings: dict[str, Any] = {"host": host, "engine": {"memory_headroom": "0B", "control": False}}
        if disk:
            settings["file"] = {"directory": str(directory / "kv"), "capacity": "4GiB", "free_space_floor": "0B"}
        extra |= {"spec_name": "WarmtierSpec", "spec_module_path": "warmtier.engines.vllm.spec", "warmtier": settings}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def server(kind: str, workload: Workload, host_bytes: int, directory: Path) -> Server:
    """Return one contestant's server, not yet started."""
    config = transfer(kind, host_bytes, directory)
    command = [
        sys.executable, "-m", "warmtier.engines.vllm.launch", "serve", str(MODEL), "--dtype", "float32",
        "--enforce-eager", "--max-model-len", str(workload.most_tokens + 2 * BLOCK_TOKENS),
        "--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(workload.device_blocks),
        "--no-enable-log-requests", *(["--kv-transfer-config", json.dumps(config)] if config else []),
    ]  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "PYTHONPATH": str(Path(__file__).resolve().parent / "peers"), "PYTHONHASHSEED": "0",
    }  # fmt: skip
    return Server(command, directory / "server.log", environment=environment, start_timeout_s=600)


def by_source(page: Scrape) -> dict[str, float]:
    """Return tokens served from each cache so far."""
    sources = ("device", "host", "disk", "external_unspecified")
    return {source: page.total(CACHED, source=source) or 0.0 for source in sources}


async def turn(client: Client, prompts: Sequence[Sequence[int]]) -> list[Reply]:
    """Send every session's prompt, three in flight."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(prompt: Sequence[int]) -> Reply:
        async with gate:
            return await client.complete(prompt, max_tokens=OUTPUT_TOKENS, extra={"ignore_eos": True})

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


async def play(base_url: str, workload: Workload, fresh: int) -> Score:
    """Run the conversations, then the prompts without reuse."""
    score = Score()
    async with Client(base_url) as client:
        texts = passages(SESSIONS + fresh, 8 * (workload.most_tokens + FIRST_TOKENS))
        tokens = [await client.tokenize(text) for text in texts]
        before: dict[str, float] = {}
        started_s = 0.0
        for number in range(workload.turns):
            if number == workload.turns // 2:
                before, started_s = by_source(scrape(base_url)), time.perf_counter()
            length = FIRST_TOKENS + number * GROWTH_TOKENS
            replies = await turn(client, [session[:length] for session in tokens[:SESSIONS]])
            if number >= workload.turns // 2:
                score.replies += replies
        score.wall_s = time.perf_counter() - started_s
        await asyncio.sleep(1.0)  # the last counters come with the next steps
        after = by_source(scrape(base_url))
        score.cached = {source: after[source] - before[source] for source in after}
        started_s = time.perf_counter()
        await turn(client, [prompt[:FIRST_TOKENS] for prompt in tokens[SESSIONS:]])
        score.no_reuse_s = time.perf_counter() - started_s
    return score


def measure(kind: str, workload: Workload, share: float, fresh: int) -> Score:
    """Start a contestant, play, stop it."""
    with (
        tempfile.TemporaryDirectory() as directory,
        server(kind, workload, workload.host_bytes(share), Path(directory)) as up,
    ):
        return asyncio.run(play(up.base_url, workload, fresh))


def judge(scores: dict[tuple[str, str], Score]) -> list[common.Aim]:
    """Return the aims against every peer that ran."""
    aims = []
    peers = sorted({kind for kind, _ in scores if kind.startswith("vllm")})
    for kind in sorted({kind for kind, _ in scores if kind.startswith("warmtier")}):
        ample, pressured = scores[kind, "ample"], scores[kind, "pressured"]
        kept = pressured.tier_tokens / max(1.0, ample.tier_tokens)
        aims.append(common.aim(f"{kind}: pressured / ample tier tokens", kept, 0.35, "higher"))
        for peer in peers:
            for regime, limit, mine in (("ample", 1.05, ample), ("pressured", 0.8, pressured)):
                ratio = statistics.mean(mine.ttfts_s) / statistics.mean(scores[peer, regime].ttfts_s)
                aims.append(common.aim(f"{kind}: {regime} mean TTFT / {peer}", ratio, limit, "lower"))
        tax = pressured.no_reuse_s / scores["none", "none"].no_reuse_s
        aims.append(common.aim(f"{kind}: no-reuse wall / no offload", tax, 1.05, "lower"))
    return aims


def main() -> None:
    options = common.parser(__doc__)
    options.add_argument("--turns", type=int, default=0, help="default: 8, or 12 without --quick")
    options.add_argument("--only", nargs="*", help="contestants, such as 'none' 'vllm lru' 'warmtier' 'warmtier+file'")
    args = options.parse_args()
    about = common.machine()
    workload = Workload(args.turns or (8 if args.quick else 12))
    kinds = args.only or (
        ["none", "vllm lru", "warmtier"]
        if args.quick
        else ["none", "vllm lru", "vllm arc", "vllm lru+file", "warmtier", "warmtier lru", "warmtier+file"]
    )
    scores: dict[tuple[str, str], Score] = {}
    for kind in kinds:
        for regime, share in (("none", 0.0),) if kind == "none" else (("ample", 1.3), ("pressured", 0.5)):
            print(f"{kind}, {regime} ...", file=sys.stderr, flush=True)
            scores[kind, regime] = measure(kind, workload, share, 6 if args.quick else 20)
    rows = [score.row(kind, regime) for (kind, regime), score in scores.items()]
    complete = ("none", "none") in scores
    common.emit("serve_multisession", rows, judge(scores) if complete else [], format=args.format, about=about)


if __name__ == "__main__":
    main()
