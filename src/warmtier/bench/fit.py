"""Straight lines through measured times: ``y = sum of c_i x_i`` with no negative coefficient, by relative error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def fit(rows: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Return the coefficients. Columns whose coefficient would be negative are left out, the worst first.

    Each row counts by its relative error, so that short times matter as much as long ones.
    """
    y = np.array(times, dtype=np.float64)
    if not len(y) or (y <= 0).any():
        raise ValueError("times must be above 0, and there must be some")
    matrix = np.array(rows, dtype=np.float64) / y[:, None]
    scale = np.abs(matrix).max(axis=0)
    kept = [i for i in range(matrix.shape[1]) if scale[i] > 0]
    found = np.zeros(matrix.shape[1])
    while kept:
        solved, *_ = np.linalg.lstsq(matrix[:, kept] / scale[kept], np.ones(len(y)), rcond=None)
        values: NDArray[np.float64] = solved / scale[kept]
        worst = int(np.argmin(solved))
        if solved[worst] >= 0:
            found[kept] = values
            break
        del kept[worst]
    coefficients: list[float] = found.tolist()
    return coefficients


def median(values: Sequence[float]) -> float:
    """Return the median. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    return float(np.median(np.array(values)))
