from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.bench.calibrate_engine import _figures
from warmtier.bench.calibrate_local import line, measure_copy, measure_file
from warmtier.bench.fit import fit, median
from warmtier.bench.sim_validate import Outcome, compare
from warmtier.core.errors import TargetError

positive = st.floats(1e-6, 1.0)


@given(a=positive, b=positive, c=positive)
def test_fit_finds_what_made_the_times(a: float, b: float, c: float) -> None:
    rows = [[1.0, n, n * n / 2] for n in (10, 40, 90, 200, 500)]
    times = [a + b * n + c * n * n / 2 for n in (10, 40, 90, 200, 500)]
    assert [row @ np.array(fit(rows, times)) for row in np.array(rows)] == pytest.approx(times, rel=1e-4)


def test_fit_leaves_out_what_would_be_negative() -> None:
    rows = [[1.0, n] for n in (1, 2, 3, 4)]
    found = fit(rows, [1.0, 0.9, 0.8, 0.7])
    assert found[1] == 0.0
    assert 0.7 < found[0] < 1.0
    with pytest.raises(ValueError, match="above 0"):
        fit(rows, [1.0, 0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_engine_figures_from_exact_points() -> None:
    prefill = [(n, 0.05 + 0.001 * n + 1e-6 * n * n / 2) for n in (64, 256, 1024) for _ in range(3)]
    decode = [(b, b * c, 0.02 + 0.003 * b + 1e-6 * b * c) for b in (1, 2, 4) for c in (100.0, 1000.0)]
    found = _figures(prefill, decode, [(1e6, 0.001), (3e6, 0.003)])
    assert found.prefill.seconds_per_token == pytest.approx(0.001, rel=1e-4)
    assert found.prefill.seconds_per_token_per_position == pytest.approx(1e-6, rel=1e-3)
    assert found.engine.step_seconds == pytest.approx(0.02, rel=1e-4)
    assert found.engine.front_seconds == pytest.approx(0.03, rel=1e-3)
    assert found.engine.seconds_per_sequence == pytest.approx(0.003, rel=1e-3)
    assert found.host is not None
    assert found.host.bytes_per_second == pytest.approx(1e9)
    with pytest.raises(TargetError, match="two lengths"):
        _figures(prefill[:3], [], [])


def test_line_through_transfers() -> None:
    speed = line([(n, 0.5 + n / 1000) for n in (100, 1000, 5000)])
    assert speed.fixed_seconds == pytest.approx(0.5, rel=1e-4)
    assert speed.bytes_per_second == pytest.approx(1000, rel=1e-4)
    assert line([(100, 1.0), (200, 1.0)]).bytes_per_second > 0


def test_local_measurements_leave_nothing_behind(tmp_path: Path) -> None:
    assert measure_copy(1 << 16).speed.bytes_per_second > 1e6
    read, written = measure_file(tmp_path, 1 << 16, budget_bytes=8 << 20)
    assert read.speed.bytes_per_second > 0
    assert written.speed.bytes_per_second > 0
    assert len(read.points) == len(written.points) == 9
    assert list(tmp_path.iterdir()) == []


def outcome(host: int, p50: float, p99: float) -> Outcome:
    return Outcome({"device": 100, "host": host, "file": 0}, p50, p99, p50, 1.0)


def test_comparison_allows_what_the_issue_allows_and_no_more() -> None:
    server = [outcome(1000, 1.0, 2.0), outcome(1000, 1.1, 2.2)]
    assert compare(8, server, outcome(1015, 1.12, 2.3)).failures == []
    failures = compare(8, server, outcome(1030, 1.3, 3.0)).failures
    assert len(failures) == 3
    assert "hits of host differ by 3.00%" in failures[0]
    one = compare(1, server[:1], outcome(1001, 1.05, 2.1))
    assert len(one.failures) == 1, "one by one, hits are equal or wrong"
    assert compare(8, [outcome(1000, 1.0, 2.0), outcome(1000, 2.0, 2.0)], outcome(1000, 1.1, 2.0)).failures == []
