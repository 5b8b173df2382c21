"""Hints: what is understood, what is refused, and that nothing a client sends can raise anything else."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmtier.core.errors import UsageError
from warmtier.core.types import TierKind
from warmtier.engines.vllm.hints import TTL_PRIORITY, parse_hints
from warmtier.policy.ranges import RetentionRange
from warmtier.tiering.types import NO_HINTS, RequestHints


def test_no_hints_are_none() -> None:
    assert parse_hints(None) is NO_HINTS
    assert parse_hints({"max_load_tokens": 0}) is NO_HINTS
    kinds = frozenset({TierKind.HOST})
    assert parse_hints(None, kinds) == RequestHints(load_kinds=kinds)


def test_every_field_arrives() -> None:
    found = parse_hints(
        {
            "warmtier": {
                "ranges": [{"start": 64, "priority": 10}, {"end": 64, "priority": 90, "duration": "10min"}],
                "tenant": "a",
                "session": "s",
                "no_store": True,
                "no_load": True,
                "decode_priority": 20,
                "decode_duration": "5s",
            }
        }
    )
    assert found == RequestHints(
        ranges=(RetentionRange(0, 64, 90, 600.0), RetentionRange(64, None, 10, None)),
        decode_priority=20,
        decode_duration_s=5.0,
        tenant="a",
        session="s",
        no_store=True,
        no_load=True,
    )


def test_a_ttl_is_one_open_range() -> None:
    assert parse_hints({"warmtier": {"ttl": "1h"}}).ranges == (RetentionRange(0, None, TTL_PRIORITY, 3600.0),)


@pytest.mark.parametrize(
    "hints",
    [
        7,
        [],
        {"tenent": "a"},
        {"tenant": 7},
        {"no_store": "yes"},
        {"ttl": "soon"},
        {"ttl": "0s"},
        {"ttl": 5},
        {"ttl": "1h", "ranges": [{"priority": 1}]},
        {"ranges": [{"priority": 101}]},
        {"ranges": [{"start": -1, "priority": 1}]},
        {"ranges": [{"start": 5, "end": 5, "priority": 1}]},
        {"ranges": [{"priority": 1}, {"start": 5, "priority": 1}]},
        {"ranges": [{"start": i, "end": i + 1, "priority": 1} for i in range(300)]},
        {"decode_priority": -1},
        {"decode_duration": "-5s"},
    ],
)
def test_what_is_wrong_is_a_usage_error(hints: Any) -> None:
    with pytest.raises(UsageError):
        parse_hints({"warmtier": hints})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ranges", "ttl", "tenant", "start", "end", "priority", "duration", "no_load", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(_JSON)
def test_nothing_that_is_json_raises_anything_else(value: Any) -> None:
    with contextlib.suppress(UsageError):
        parse_hints({"warmtier": value})
