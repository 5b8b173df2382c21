"""Real servers for tests and benchmarks: on loopback, on free ports, stopped by their process ids."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class ServerUnavailableError(Exception):
    """The server is not installed here, or did not start; the message says how to get it."""


def free_port() -> int:
    """Return a TCP port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return whether something accepts connections on ``port`` of loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
        return True
    return False


def await_condition(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until ``condition`` holds. Raises ServerUnavailableError."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise ServerUnavailableError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(0.05)


def make_certificate(home: Path) -> tuple[Path, Path]:
    """Write a certificate for 127.0.0.1 and its key, PEM, below ``home``. Raises ServerUnavailableError."""
    certificate, key = home / "cert.pem", home / "key.pem"
    if shutil.which("openssl") is None:
        raise ServerUnavailableError("openssl is not installed: apt-get install openssl")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", str(key), "-out", str(certificate),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return certificate, key


class Daemon:
    """One child process with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environment
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise ServerUnavailableError(f"{self.command[0]} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """Return the end of its output."""
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""

    def pause(self) -> None:
        """SIGSTOP: it neither answers nor closes anything."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL."""
        if self._process is None or not self.alive:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
