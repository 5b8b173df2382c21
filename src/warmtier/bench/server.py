"""Start and stop a server for a measurement: loopback, free port, own process group, log kept for failures."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from warmtier.core.errors import RequirementError

HOST: Final = "127.0.0.1"
_POLL_S: Final = 0.2
_TAIL_LINES: Final = 30
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent dies by whatever means. Runs between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process. ``with Server(command, log) as server:`` starts it and waits until it is healthy.

    ``command`` gets ``--host 127.0.0.1 --port N`` appended. Stopping signals only the process group made here.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.port = free_port()
        self.command = [*command, "--host", HOST, "--port", str(self.port)]
        self.log = log
        self.start_seconds: float | None = None
        self._environment = {**os.environ, **(environment or {})}
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self.grace_s = (30.0, 5.0, 5.0)
        """How long SIGINT, SIGTERM and SIGKILL are given, in this order."""

    @property
    def base_url(self) -> str:
        """Where the server listens."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process that was started."""
        if self._process is None:
            raise RequirementError("the server was not started")
        return self._process.pid

    def running(self) -> bool:
        """Return whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        """Start and wait. Raises RequirementError with the end of the log when it does not come up."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        started_s = time.monotonic()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        try:
            self._wait_until_healthy(started_s + self._start_timeout_s)
        except BaseException:
            self.stop()
            raise
        self.start_seconds = time.monotonic() - started_s
        return self

    def __exit__(self, *error: object) -> None:
        """Stop the server."""
        self.stop()

    def _wait_until_healthy(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            if not self.running():
                code = self._process.returncode if self._process else None
                raise RequirementError(f"the server ended with {code} before it was ready", why=self.log_tail())
            try:
                with urllib.request.urlopen(f"{self.base_url}/health", timeout=5) as response:  # noqa: S310 - loopback
                    if response.status == 200:
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(_POLL_S)
        raise RequirementError(
            f"the server was not ready after {self._start_timeout_s:.0f} s", why=self.log_tail(), fix=f"see {self.log}"
        )

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """Return the end of the log."""
        text = self.log.read_text(errors="replace").splitlines()
        return f"the end of {self.log}:\n    " + "\n    ".join(text[-lines:])

    def stop(self) -> None:
        """End the process group, politely first. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        for number, grace_s in zip((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), self.grace_s, strict=True):
            if _group_gone(process, number, grace_s):
                return


def _group_gone(process: subprocess.Popen[bytes], number: signal.Signals, grace_s: float) -> bool:
    """Signal the group that ``process`` leads; return whether all of it ended in time."""
    group = process.pid  # start_new_session made it the leader
    try:
        # Ctrl-C reaches only the parent: vLLM's children are told by it, and a second signal would cut them short.
        if number is signal.SIGINT:
            process.send_signal(number)
        else:
            os.killpg(group, number)
    except ProcessLookupError:
        process.poll()
        return True
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s:
        process.poll()
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return True
        time.sleep(0.05)
    return False
