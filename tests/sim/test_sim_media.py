from __future__ import annotations

import heapq

import pytest

from warmtier.core.errors import InternalError
from warmtier.core.types import JobId, Key, TierKind
from warmtier.sim.loop import Loop
from warmtier.sim.measure import Histogram
from warmtier.sim.media import Link, Media
from warmtier.sim.settings import ColdModel
from warmtier.tiering.calibration import LinkSpeed
from warmtier.tiering.types import Clear, Delete, Demote, JobResult, Migrate, Promote

KEYS = [Key(bytes([i]) * 8) for i in range(6)]


def media(loop: Loop, **changes: object) -> Media:
    model = ColdModel("file", TierKind.FILE, 100, read=LinkSpeed(1000.0, 0.1), write=LinkSpeed(500.0, 0.0), **changes)  # type: ignore[arg-type]
    far = ColdModel("object", TierKind.OBJECT, 100, read=LinkSpeed(100.0, 1.0), write=LinkSpeed(100.0, 1.0))
    return Media(loop, (model, far), chunk_bytes=100)


def results(loop: Loop, made: Media) -> list[tuple[float, JobResult]]:
    """Run to the end and return what came when."""
    found: list[tuple[float, JobResult]] = []
    while loop._heap:
        loop.now, _, callback = heapq.heappop(loop._heap)
        callback()
        found += [(loop.now, result) for result in made.take_results()]
    return found


def test_loop_keeps_time_and_order() -> None:
    loop, seen = Loop(), []
    for at, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        loop.at(at, lambda name=name: seen.append((loop.now, name)))  # type: ignore[misc]
    loop.run()
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c")]
    with pytest.raises(InternalError):
        loop.at(1.0, loop.run)


def test_transfers_share_the_stream_and_overlap_in_fixed_costs() -> None:
    link = Link(LinkSpeed(100.0, 1.0), parallel=2)
    assert link.submit(100, 0.0) == pytest.approx(2.0)  # 1 s fixed, 1 s of bytes
    assert link.submit(100, 0.0) == pytest.approx(3.0)  # its fixed cost overlaps, its bytes wait
    assert link.submit(100, 0.0) == pytest.approx(4.0)  # waits for a place at 2.0
    assert link.submit(100, 10.0) == pytest.approx(12.0)
    assert (link.bytes_moved, link.requests) == (400, 4)
    assert link.busy_s == pytest.approx(4.0)


def test_what_was_written_can_be_read_after_it_took_its_time() -> None:
    loop = Loop()
    made = media(loop)
    made.perform([Demote(JobId(1), "file", KEYS[:2], [0, 1])])
    assert made.in_flight == 1
    ((at, result),) = results(loop, made)
    assert at == pytest.approx(0.4)
    assert result.ok == [True, True]
    made.perform([Promote(JobId(2), "file", None, KEYS[:3], [0, 1, 2], deadline_s=100.0)])
    ((at, result),) = results(loop, made)
    assert at == pytest.approx(0.4 + 0.1 + 0.2)
    assert result.ok == [True, True, False], "the third was never written"
    assert result.size_bytes == 200
    assert result.seconds == pytest.approx(0.3)


def test_reads_that_cannot_start_in_time_are_not_done() -> None:
    loop = Loop()
    made = media(loop, parallel=1)
    made.tiers["file"].held.update(KEYS)
    made.perform(
        [
            Promote(JobId(1), "file", None, KEYS[:5], range(5), deadline_s=9.0),
            Promote(JobId(2), "file", None, KEYS[5:], [5], deadline_s=0.2),
        ]
    )
    found = {result.job_id: (at, result) for at, result in results(loop, made)}
    assert found[JobId(2)][1].timed_out
    assert found[JobId(2)][1].ok == [False]
    assert not found[JobId(1)][1].timed_out
    assert made.tiers["file"].read.requests == 1


def test_deletions_keep_their_place_behind_writes() -> None:
    loop = Loop()
    made = media(loop)
    made.perform([Demote(JobId(1), "file", KEYS[:1], [0]), Delete("file", KEYS[:1])])
    results(loop, made)
    assert not made.tiers["file"].held
    made.tiers["file"].held.update(KEYS)
    made.perform([Clear("file", KEYS)])
    assert not made.tiers["file"].held


def test_migration_reads_then_writes() -> None:
    loop = Loop()
    made = media(loop)
    made.tiers["file"].held.update(KEYS[:1])
    made.perform([Migrate(JobId(1), "file", "object", KEYS[:1])])
    ((at, result),) = results(loop, made)
    assert at == pytest.approx(0.2 + 1.0 + 1.0)
    assert result.ok == [True]
    assert made.tiers["object"].held == set(KEYS[:1])


def test_histogram_quantiles_are_within_half_a_percent() -> None:
    histogram = Histogram()
    values = [0.001 * (i + 1) for i in range(2000)]
    for value in values:
        histogram.add(value)
    for share in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        assert histogram.quantile(share) == pytest.approx(values[round(share * 1999)], rel=0.006)
    assert histogram.summary()["mean"] == pytest.approx(sum(values) / 2000)
    assert histogram.summary()["max"] == 2.0
    assert Histogram().quantile(0.5) is None
