"""Lanes: calls that may hang, and memory that a lost call may still write to."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from warmtier.store.shared.lanes import Lanes


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_calls_run_on_the_lanes_own_thread_and_return_or_raise() -> None:
    lanes = Lanes(1, 4096)
    lane = lanes.acquire(soon())
    assert lanes.call(lane, threading.get_ident, soon()) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        lanes.call(lane, lambda: 1 // 0, soon())
    lanes.release(lane)
    lanes.close(5)


def test_a_lost_lane_is_out_of_use_until_its_call_has_ended() -> None:
    lanes = Lanes(2, 4096)
    release = threading.Event()
    lost = lanes.acquire(soon())

    def write_late() -> None:
        release.wait(20)
        lost.view[0] = 7

    with pytest.raises(TimeoutError):
        lanes.call(lost, write_late, soon(0.05))
    assert lanes.lost == 1
    other = lanes.acquire(soon())
    assert other is not lost
    with pytest.raises(TimeoutError):
        lanes.acquire(soon(0.05))
    lanes.release(other)
    for _ in range(3):
        again = lanes.acquire(soon())
        assert again is other
        lanes.release(again)
    release.set()
    deadline_s = soon()
    while lanes.lost and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert lanes.lost == 0
    both = {lanes.acquire(soon()), lanes.acquire(soon())}
    assert both == {lost, other}
    assert lost.view[0] == 7
    lanes.close(0.1)


def test_when_all_lanes_are_lost_calls_fail_at_once() -> None:
    lanes = Lanes(2, 4096)
    release = threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            lanes.call(lanes.acquire(soon()), lambda: release.wait(20), soon(0.02))
    started_s = time.monotonic()
    with pytest.raises(TimeoutError):
        lanes.acquire(soon(10))
    assert time.monotonic() - started_s < 1
    release.set()
    deadline_s = soon()
    while lanes.lost and time.monotonic() < deadline_s:
        time.sleep(0.01)
    lanes.release(lanes.acquire(soon()))
    lanes.close(5)


def test_a_waiter_learns_that_the_last_lane_is_lost() -> None:
    lanes = Lanes(1, 4096)
    release = threading.Event()
    lane = lanes.acquire(soon())
    failed_after_s: list[float] = []

    def wait() -> None:
        started_s = time.monotonic()
        with pytest.raises(TimeoutError):
            lanes.acquire(soon(10))
        failed_after_s.append(time.monotonic() - started_s)

    waiter = threading.Thread(target=wait)
    waiter.start()
    with pytest.raises(TimeoutError):
        lanes.call(lane, lambda: release.wait(20), soon(0.1))
    waiter.join()
    assert failed_after_s[0] < 5
    release.set()
    lanes.close(5)


def test_lanes_do_not_overlap() -> None:
    lanes = Lanes(3, 5000)
    taken = [lanes.acquire(soon()) for _ in range(3)]
    spans = sorted((lane.address, lane.address + len(lane.view)) for lane in taken)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    assert all(lanes.address <= start and stop <= lanes.address + lanes.view.nbytes for start, stop in spans)
    lanes.close(5)
