"""The mark of tests that are too slow for every run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import pytest

F = TypeVar("F", bound=Callable[..., object])


def slow(function: F) -> F:
    """Run this test only when WARMTIER_SLOW is set."""
    skip = pytest.mark.skipif(not os.environ.get("WARMTIER_SLOW"), reason="slow; set WARMTIER_SLOW=1 to run it")
    marked: F = pytest.mark.slow(skip(function))
    return marked
