"""Nothing that the scheduler's thread calls may open, sleep, use a socket or wait for a lock.

Files and sockets are seen by Python's audit events; sleeps and locks are replaced, before anything is built, by ones
that notice who uses them.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_mini_engine import BLOCK_TOKENS, MiniEngine, cold_engine, fill, tokens

from warmtier.engines.vllm import control
from warmtier.engines.vllm.access_log import AccessLog
from warmtier.engines.vllm.control import ControlSocket, call
from warmtier.trace.access_log import AccessLogTrace

BLOCKING_EVENTS = ("open", "socket.", "os.", "subprocess.", "mmap.", "shutil.", "fcntl.")
REAL_LOCK, REAL_SLEEP = threading.Lock, time.sleep
METHODS = (
    "on_new_request", "lookup", "get_load_source", "prepare_load", "complete_load", "prepare_store", "complete_store",
    "on_schedule_end", "on_request_finished", "has_pending_work", "get_stats", "take_events", "reset_cache",
)  # fmt: skip


class Watch:
    """Collects what was done on one thread while ``active``."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.active = 0
        self.found: list[str] = []

    def note(self, what: str) -> None:
        if self.active and threading.get_ident() == self.thread:
            self.active, before = 0, self.active  # formatting a stack opens source files
            self.found.append(what + "\n" + "".join(traceback.format_stack(limit=10)))
            self.active = before

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and event.startswith(BLOCKING_EVENTS):
            self.note(f"{event} {arguments!r}"[:200])

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            self.active += 1
            try:
                found = method(*arguments, **options)
                return list(found) if method.__name__ == "take_events" else found
            finally:
                self.active -= 1

        return watched


_watches: list[Watch] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in _watches:
        watch.audit(event, arguments)


sys.addaudithook(_audit)  # for good: Python has no way to remove one


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    found = Watch()

    class WatchedLock:
        def __init__(self) -> None:
            self._lock = REAL_LOCK()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            found.note("a lock was taken")
            return self._lock.acquire(blocking, timeout)

        def release(self) -> None:
            self._lock.release()

        def locked(self) -> bool:
            return self._lock.locked()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    def sleep(seconds: float) -> None:
        found.note("a sleep")
        REAL_SLEEP(seconds)

    monkeypatch.setattr(threading, "Lock", WatchedLock)
    monkeypatch.setattr(time, "sleep", sleep)
    _watches.append(found)
    yield found
    _watches.remove(found)


def _watched(engine: MiniEngine, watch: Watch) -> MiniEngine:
    for name in METHODS:
        setattr(engine.manager, name, watch.wrap(getattr(engine.manager, name)))
    return engine


def test_no_manager_call_blocks_whatever_the_tiers_do(tmp_path: Path, watch: Watch) -> None:
    log = AccessLog(tmp_path / "a.jsonl", capacity_bytes=1 << 20)
    engine = _watched(cold_engine(tmp_path, opened=False, access_log=log), watch)
    engine.manager.control = ControlSocket(tmp_path / "c.sock", engine.manager.operations.answer)
    engine.open_cold()
    fill(engine, range(4))
    assert engine.serve(tokens(0, 6), warmtier={"tenant": "t", "ttl": "1h"}).loaded_tokens == 6 * BLOCK_TOKENS
    engine.serve(tokens(1, 6), warmtier={"nonsense": 1})
    asking = threading.Thread(target=lambda: call(tmp_path / "c.sock", control.Evict("t")))
    asking.start()
    while asking.is_alive():
        engine.step()
        time.sleep(0.001)
    asking.join()
    engine.manager.reset_cache()
    engine.idle()
    fill(engine, range(3))
    engine.close()
    assert watch.found == []
    assert len(list(AccessLogTrace(tmp_path / "a.jsonl"))) == 9


def test_the_watch_sees_what_it_should(tmp_path: Path, watch: Watch) -> None:
    """The control: each kind of blocking is noticed."""
    lock = threading.Lock()
    cases: list[Callable[[], object]] = [
        lambda: (tmp_path / "x").write_text(""),
        lambda: time.sleep(0.0),
        lambda: lock.__enter__(),
        lambda: threading.Event().set(),
    ]
    for case in cases:
        watch.found.clear()
        watch.wrap(case)()
        assert watch.found
