"""moto: S3 in a Python process. Quick to start; checks no signatures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from server_process import Daemon, ServerUnavailableError, await_condition, free_port, listens


class MotoServer:
    """One moto server, its output below ``home``."""

    def __init__(self, home: Path) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise ServerUnavailableError("moto is not installed: pip install 'moto[server]'")
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.daemon = Daemon(command, home / "moto.out")

    @property
    def endpoint(self) -> str:
        """The URL of the S3 service."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str = "") -> str:
        """Return the URL of an object tier in ``bucket``."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.daemon.start()
        await_condition(lambda: listens(self.port), 30, "the start of moto")

    def stop(self) -> None:
        """End it."""
        self.daemon.stop()
