"""Passages are real text, long enough, different, and the same for everyone with this Python."""

from __future__ import annotations

import pytest

from warmtier.bench.corpus import load_text, passages
from warmtier.bench.machine import machine_facts, package_versions
from warmtier.core.errors import RequirementError


def test_passages_are_long_different_and_stable() -> None:
    found = passages(16, 11_200)
    assert [len(text) for text in found] == [11_200] * 16
    assert len({text[:100] for text in found}) == 16
    assert found == passages(16, 11_200)
    words = found[3].lower().split()
    assert sum(word in {"the", "a", "is", "of", "to", "and"} for word in words) > len(words) * 0.08


def test_more_than_the_text_holds_is_refused() -> None:
    with pytest.raises(RequirementError, match="are wanted, the text has"):
        passages(1000, 10_000)
    assert len(load_text()) > 300_000


def test_machine_facts_name_no_host_and_no_user() -> None:
    facts = machine_facts()
    assert isinstance(facts["memory_bytes"], int)
    assert set(facts) == {"processor", "cores", "memory_bytes", "system", "load_average"}
    assert "warmtier" in package_versions()
