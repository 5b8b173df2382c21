"""A tiny OpenAI-compatible server with a prefix cache of its own, for tests of the measuring side.

``python fake_openai.py --host H --port P [--device TOKENS] [--tier] [--garble] [--die] [--slow SECONDS]``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import ClassVar

BLOCK = 128
METRICS = """# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{{model_name="m",engine="0",source="local_compute"}} {computed}
vllm:prompt_tokens_by_source_total{{model_name="m",engine="0",source="local_cache_hit"}} {device}
vllm:prompt_tokens_by_source_total{{model_name="m",engine="0",source="external_kv_transfer"}} {host}
# TYPE vllm:prompt_tokens_cached_by_source counter
vllm:prompt_tokens_cached_by_source_total{{model_name="m",engine="0",source="device"}} {device}
vllm:prompt_tokens_cached_by_source_total{{model_name="m",engine="0",source="host"}} {host}
"""
TRANSFERS = """# TYPE vllm:kv_offload_store_bytes counter
vllm:kv_offload_store_bytes_total{{engine="0"}} {stored}
# TYPE vllm:kv_offload_store_time counter
vllm:kv_offload_store_time_total{{engine="0"}} 0.5
"""


class Cache:
    """Counts tokens by source as an engine with an LRU device cache and an unbounded host tier would."""

    def __init__(self, device_blocks: int, *, tier: bool) -> None:
        self.device: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self.host: set[tuple[int, ...]] = set()
        self.device_blocks = device_blocks
        self.tier = tier
        self.counts: Counter[str] = Counter()
        self.lock = Lock()

    def serve(self, tokens: list[int]) -> str:
        with self.lock:
            blocks = [tuple(tokens[: (i + 1) * BLOCK]) for i in range((len(tokens) - 1) // BLOCK)]
            device = self._prefix(blocks, self.device)
            host = self._prefix(blocks[device:], self.host) if self.tier else 0
            self.counts["device"] += device * BLOCK
            self.counts["host"] += host * BLOCK
            self.counts["computed"] += len(tokens) - (device + host) * BLOCK
            for block in blocks:
                self.device[block] = None
                self.device.move_to_end(block)
                if self.tier:
                    self.host.add(block)
                    self.counts["stored"] += 1000
            while len(self.device) > self.device_blocks:
                self.device.popitem(last=False)
            return "host" if host else "device"

    @staticmethod
    def _prefix(blocks: list[tuple[int, ...]], held: object) -> int:
        count = 0
        for block in blocks:
            if block not in held:  # type: ignore[operator]
                break
            count += 1
        return count

    def metrics(self) -> str:
        with self.lock:
            known = {name: self.counts[name] for name in ("computed", "device", "host", "stored")}
        return METRICS.format(**known) + (TRANSFERS.format(**known) if self.tier else "")


class Handler(BaseHTTPRequestHandler):
    cache: ClassVar[Cache]
    garble: ClassVar[bool] = False
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        self._answer(self.cache.metrics().encode() if self.path == "/metrics" else b"ok")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer(json.dumps({"tokens": [ord(c) for c in body["prompt"]]}).encode())
        elif body["prompt"] == "refuse":
            self._answer(b'{"error": "no"}', 400)
        else:
            self._stream(body)

    def _stream(self, body: dict[str, list[int]]) -> None:
        source = self.cache.serve(body["prompt"])
        word = "!" if self.garble and source == "host" else "a"
        lines: list[dict[str, object]] = [{"choices": [{"text": word, "finish_reason": None}]}] * 3
        if body["prompt"][:1] == [0]:
            lines = [{"error": {"message": "engine dead"}}]
        elif body["prompt"][:1] != [1]:
            lines = [*lines, {"choices": [{"text": "", "finish_reason": "length"}]}]
            lines.append({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": 3}})
        text = "".join(f"data: {json.dumps(line)}\n\n" for line in lines) + "data: [DONE]\n\n"
        self._answer(text.encode())

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", type=int, default=18)
    parser.add_argument("--tier", action="store_true")
    parser.add_argument("--garble", action="store_true")
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0)
    arguments = parser.parse_args()
    print("fake server starting", flush=True)
    if arguments.die:
        sys.exit("fake: out of memory")
    time.sleep(arguments.slow)
    Handler.cache = Cache(arguments.device, tier=arguments.tier)
    Handler.garble = arguments.garble
    ThreadingHTTPServer((arguments.host, arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
