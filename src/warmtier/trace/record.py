"""``warmtier trace record``: follow a running vLLM's KV events into a log. Reads only; the engine notices nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from warmtier.core.errors import TargetError, UsageError
from warmtier.core.extras import require
from warmtier.trace.kv_events import log_batch
from warmtier.trace.lines import BadLine

POLL_MS: Final = 200
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(slots=True)
class Recording:
    """What a recording has seen. ``lost``: messages missing between two received ones, by their sequence numbers."""

    messages: int = 0
    events: int = 0
    malformed: int = 0
    lost: int = 0
    size_bytes: int = 0


def record(
    endpoint: str,
    output: Path,
    seen: Recording,
    *,
    topic: str = "",
    duration_s: float | None = None,
    max_bytes: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[Recording], None] | None = None,
) -> None:
    """Subscribe to ``endpoint`` (``tcp://127.0.0.1:5557``) and append events to ``output`` (0600) until told to stop.

    ``seen`` counts as it goes, so that an interrupted recording can be reported. Ends after ``duration_s``, at
    ``max_bytes``, or when ``stop`` answers true (asked at least every POLL_MS). Blocks.
    Raises UsageError for a bad endpoint, TargetError if the socket fails.
    """
    zmq = require("zmq", extra="trace", purpose="recording KV events")
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    try:
        socket.setsockopt(zmq.RCVHWM, 100_000)
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(0)
        context.term()
        raise UsageError(f"{endpoint!r} cannot be subscribed to: {error}", fix="such as tcp://127.0.0.1:5557") from None
    try:
        _follow(zmq, socket, output, seen, duration_s, max_bytes, stop, progress)
    except zmq.ZMQError as error:
        raise TargetError(f"{endpoint}: {error}") from None
    finally:
        socket.close(0)
        context.term()


def _follow(
    zmq: Any,  # noqa: ANN401 - an optional package
    socket: Any,  # noqa: ANN401
    output: Path,
    seen: Recording,
    duration_s: float | None,
    max_bytes: int | None,
    stop: Callable[[], bool],
    progress: Callable[[Recording], None] | None,
) -> None:
    expected = None
    end_s = None if duration_s is None else time.monotonic() + duration_s
    output.touch(mode=0o600)
    with output.open("ab") as stream:
        while not stop() and (end_s is None or time.monotonic() < end_s):
            if socket.poll(POLL_MS, zmq.POLLIN):
                parts = socket.recv_multipart()
                expected = _write(stream.write, parts, expected, seen)
                if progress is not None:
                    progress(seen)
            else:
                stream.flush()
            if max_bytes is not None and seen.size_bytes >= max_bytes:
                break


def _write(write: Callable[[bytes], object], parts: list[bytes], expected: int | None, seen: Recording) -> int | None:
    """Append the events of one message (topic, sequence number, payload); return the next sequence number."""
    seen.messages += 1
    try:
        if len(parts) != 3:
            raise BadLine(f"{len(parts)} parts instead of topic, sequence number and payload")
        events = log_batch(parts[2])
    except BadLine:
        seen.malformed += 1
        return expected
    number = int.from_bytes(parts[1], "big")
    if expected is not None and number > expected:
        seen.lost += number - expected
    for event in events:
        line = _ENCODER.encode(event) + b"\n"
        write(line)
        seen.size_bytes += len(line)
    seen.events += len(events)
    return number + 1
