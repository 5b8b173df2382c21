"""Servers for measurements: started on a free loopback port, awaited, and ended with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from warmtier.bench.scrape import scrape
from warmtier.bench.server import Server, free_port
from warmtier.core.errors import RequirementError, TargetError

StartFake = Callable[..., Server]
FAKE = Path(__file__).with_name("fake_openai.py")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_server_comes_up_and_goes_down(start_fake: StartFake) -> None:
    server = start_fake()
    assert server.base_url.startswith("http://127.0.0.1:")
    assert server.start_seconds is not None
    pid = server.pid
    assert scrape(server.base_url).total("vllm:prompt_tokens_by_source_total") == 0
    server.stop()
    server.stop()
    assert not alive(pid)
    with pytest.raises(TargetError):
        scrape(server.base_url)


def test_a_server_that_dies_is_an_error_with_the_end_of_its_log(start_fake: StartFake) -> None:
    with pytest.raises(RequirementError, match="ended with 1 before it was ready") as caught:
        start_fake("--die")
    assert "fake: out of memory" in str(caught.value.why)


def test_a_server_that_never_answers_is_stopped_at_the_deadline(start_fake: StartFake) -> None:
    with pytest.raises(RequirementError, match="was not ready after 1 s"):
        start_fake("--slow", "600", timeout_s=1.0)


def test_children_that_ignore_the_polite_signals_are_ended_too(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, signal, runpy; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print('CHILD', child.pid, flush=True); sys.argv = ['x', *sys.argv[1:]];"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')"
    )
    log = tmp_path / "log"
    server = Server([sys.executable, "-c", code], log)
    server.grace_s = (0.2, 0.2, 5.0)
    with server:
        child = int(log.read_text().split("CHILD ")[1].split()[0])
        assert alive(child)
    assert not alive(child)


def test_a_killed_parent_takes_its_server_along(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from warmtier.bench.server import Server\n"
        f"with Server([sys.executable, {str(FAKE)!r}], Path({str(tmp_path / 'log')!r})) as server:\n"
        "    print(server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=30)
    deadline_s = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not alive(pid)


def test_free_ports_are_real_ports() -> None:
    assert 1024 <= free_port() <= 65535
