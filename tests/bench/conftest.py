"""Starts the fake server as the real one is started."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from warmtier.bench.server import Server

FAKE = Path(__file__).with_name("fake_openai.py")

StartFake = Callable[..., Server]


@pytest.fixture
def start_fake(tmp_path: Path) -> Iterator[StartFake]:
    with ExitStack() as stack:

        def start(*flags: str, timeout_s: float = 60.0) -> Server:
            command = [sys.executable, str(FAKE), *flags]
            return stack.enter_context(Server(command, tmp_path / "server.log", start_timeout_s=timeout_s))

        yield start
