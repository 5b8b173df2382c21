from __future__ import annotations

import pytest
from trace_helpers import random_requests

from warmtier.trace.schema import TraceRequest, check, coarsen


def test_tail_is_what_full_chunks_leave() -> None:
    request = TraceRequest(0.0, 10, 1, [1, 2, 3], 4, partial_tail=True)
    assert request.full_keys == [1, 2]
    assert request.tail_tokens == 2
    assert check(request) is None


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (TraceRequest(0.0, 7, 1, [1, 2], 4), "do not fit"),
        (TraceRequest(0.0, 8, 1, [1, 2, 3], 4, partial_tail=True), "no token"),
        (TraceRequest(0.0, 8, -1, [1, 2], 4), "negative"),
        (TraceRequest(0.0, 8, 1, [1, 2**63], 4), "keys"),
        (TraceRequest(0.0, 8, 1, [1], 0), "chunk_tokens"),
    ],
)
def test_check_names_what_is_wrong(request_: TraceRequest, reason: str) -> None:
    found = check(request_)
    assert found is not None
    assert reason in found


def test_coarse_chunks_hit_exactly_where_all_their_blocks_do() -> None:
    requests = random_requests(3, 200)
    coarse = [coarsen(request, 12) for request in requests]
    assert all(check(request) is None for request in coarse)
    seen_fine: set[int] = set()
    seen_coarse: set[int] = set()
    for fine, joined in zip(requests, coarse, strict=True):
        known = next((i for i, key in enumerate(fine.full_keys) if key not in seen_fine), len(fine.full_keys))
        hits = next((i for i, key in enumerate(joined.full_keys) if key not in seen_coarse), len(joined.full_keys))
        assert hits == known // 3
        seen_fine.update(fine.full_keys)
        seen_coarse.update(joined.full_keys)


def test_coarsen_refuses_what_does_not_divide() -> None:
    with pytest.raises(ValueError, match="not a multiple"):
        coarsen(TraceRequest(0.0, 8, 1, [1, 2], 4), 6)
