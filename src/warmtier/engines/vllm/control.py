"""The control socket of one engine: a Unix domain socket, 0600, one JSON object per line each way.

A thread accepts and parses; a request is handed to the scheduler's thread, which answers at the end of a step. An idle
engine makes no steps: then what only reads is answered from here (nothing changes meanwhile), and what changes
something stays queued for the next step, which the answer says.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from warmtier.core.errors import RequirementError, UsageError, WarmtierError

MAX_REQUEST_BYTES: Final = 16 * 1024
MAX_ANSWER_BYTES: Final = 256 * 1024
_PATH_BYTES: Final = 107
_CLIENT_TIMEOUT_S: Final = 2.0
_STEP_TIMEOUT_S: Final = 0.5
_MAX_WAITING: Final = 64


class Mode(msgspec.Struct, tag="mode", tag_field="op", forbid_unknown_fields=True):
    """Show the modes, or set one."""

    tier: str | None = None
    mode: str | None = None


class Stats(msgspec.Struct, tag="stats", tag_field="op", forbid_unknown_fields=True):
    """Show sizes and counters."""


class Drain(msgspec.Struct, tag="drain", tag_field="op", forbid_unknown_fields=True):
    """Say whether writes are under way; the client asks until there are none."""


class Evict(msgspec.Struct, tag="evict", tag_field="op", forbid_unknown_fields=True):
    """Give up what a tenant's requests stored, in every tier."""

    tenant: str


class Explain(msgspec.Struct, tag="explain", tag_field="op", forbid_unknown_fields=True):
    """Say what was decided about a request."""

    request: str


Request = Mode | Stats | Drain | Evict | Explain
Answer = dict[str, Any]
_DECODER: Final = msgspec.json.Decoder(Request)


def changes(request: Request) -> bool:
    """Return whether a request changes anything."""
    return isinstance(request, Evict) or (isinstance(request, Mode) and request.mode is not None)


@dataclass(slots=True)
class Waiting:
    """A request on its way to the scheduler's thread."""

    request: Request
    reply: SimpleQueue[Answer] = field(default_factory=SimpleQueue)
    taken: bool = False


class ControlSocket:
    """Listens until ``close``. ``answer`` runs on the scheduler's thread, or here while that makes no steps."""

    def __init__(self, path: Path, answer: Callable[[Request], Answer]) -> None:
        self.path = path
        self._answer = answer
        self._waiting: deque[Waiting] = deque()
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._run, name="warmtier-control", daemon=True)
        self._thread.start()

    def serve(self) -> int:
        """Answer what waits; return how many. Scheduler's thread; never blocks, costs one comparison if none."""
        count = 0
        while self._waiting:
            waiting = self._waiting.popleft()
            waiting.taken = True
            waiting.reply.put(self._say(waiting.request))
            count += 1
        return count

    def close(self) -> None:
        """Stop listening and remove the socket."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
        self._thread.join(2 * _CLIENT_TIMEOUT_S)

    def _say(self, request: Request) -> Answer:
        try:
            return {"ok": True, **self._answer(request)}
        except WarmtierError as error:
            return {"ok": False, "error": error.message, "fix": error.fix}
        except RuntimeError as error:  # read while it changed: only without a step, see ``_ask``
            return {"ok": False, "error": str(error), "fix": "ask again"}

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(_CLIENT_TIMEOUT_S)
                client.sendall(self._bounded(self._handle(_read_line(client))))

    def _handle(self, line: bytes) -> Answer:
        try:
            request = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return {"ok": False, "error": f"not a request: {error}", "fix": "use `warmtier ctl`"}
        return self._ask(request)

    def _ask(self, request: Request) -> Answer:
        if len(self._waiting) >= _MAX_WAITING:
            return {"ok": False, "error": "too many requests wait", "fix": "ask again"}
        waiting = Waiting(request)
        self._waiting.append(waiting)
        try:
            return waiting.reply.get(timeout=_STEP_TIMEOUT_S)
        except Empty:
            pass
        if waiting.taken or changes(request):
            return {"ok": True, "queued": "the engine is idle; this takes effect with its next step"}
        with contextlib.suppress(ValueError):
            self._waiting.remove(waiting)
        return {**self._say(request), "idle": True}

    def _bounded(self, answer: Answer) -> bytes:
        data = msgspec.json.encode(answer)
        if len(data) > MAX_ANSWER_BYTES:
            data = msgspec.json.encode({"ok": False, "error": f"the answer has {len(data)} bytes", "fix": None})
        return data + b"\n"


def call(path: Path, request: Request, timeout_s: float = 10.0) -> Answer:
    """Ask the engine that listens on ``path``. Blocks. Raises OSError, or UsageError for what is no answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        client.connect(str(path))
        client.sendall(msgspec.json.encode(request) + b"\n")
        client.shutdown(socket.SHUT_WR)
        data = b""
        while (more := client.recv(64 * 1024)) and len(data) <= MAX_ANSWER_BYTES:
            data += more
    try:
        found: Answer = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} does not speak warmtier's language", why=str(error)) from None
    return found


def runtime_directory() -> Path:
    """Return the user's directory for sockets."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "warmtier" if base else Path(f"/tmp/warmtier-{os.getuid()}")  # noqa: S108 - made 0700, checked


def default_path(engine_id: str) -> Path:
    """Return where an engine listens unless told otherwise; short enough for a socket's name."""
    return runtime_directory() / f"{engine_id.replace('/', '-')[:48]}.sock"


def _listen(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > _PATH_BYTES:
        raise RequirementError(f"the control socket's path {path} is longer than {_PATH_BYTES} bytes")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, mode=0o700)
        if path.parent == runtime_directory():
            _check_private(path.parent)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(8)
    except RequirementError:
        listener.close()
        raise
    except OSError as error:
        listener.close()
        raise RequirementError(f"cannot listen on {path}", why=str(error)) from error
    return listener


def _check_private(directory: Path) -> None:
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RequirementError(f"{directory} is not this user's alone", fix=f"chmod 700 {directory}, or remove it")


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return  # bind says what is wrong with another kind of file
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CLIENT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise RequirementError(f"another engine listens on {path}", fix="give each engine its own control_socket")


def _read_line(client: socket.socket) -> bytes:
    data = b""
    while b"\n" not in data and len(data) <= MAX_REQUEST_BYTES:
        more = client.recv(4096)
        if not more:
            break
        data += more
    return data.split(b"\n", 1)[0]
