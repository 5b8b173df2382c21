"""Names of policies: what exists, in which mode, with which settings."""

from __future__ import annotations

import pytest

from warmtier.core.errors import ConfigError
from warmtier.policy.evidence import EvidencePolicy
from warmtier.policy.registry import DEFAULT_POLICY, create_policy, create_raw, modes_of, production_names


def test_the_default_is_the_evidence_policy() -> None:
    assert production_names()[0] == DEFAULT_POLICY == "evidence"
    assert isinstance(create_policy(DEFAULT_POLICY, 10), EvidencePolicy)


@pytest.mark.parametrize("name", production_names())
def test_a_policy_knows_its_own_name(name: str) -> None:
    policy = create_policy(name, 7)
    assert (policy.name, policy.explain()["policy"], policy.capacity) == (name, name, 7)


def test_modes() -> None:
    assert modes_of("lru") == ("production", "raw")
    assert modes_of("2touch") == ("raw",)
    assert modes_of("evidence") == ("production",)
    assert modes_of("opt") == ("production", "raw")


def test_settings_reach_the_policy() -> None:
    policy = create_policy("evidence", 10, {"sigmas": 9.0})
    assert isinstance(policy, EvidencePolicy)
    assert policy.settings.sigmas == 9.0


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("evidense", None, "did you mean 'evidence'"),
        ("zzz", None, "known: "),
        ("evidence", {"sigma": 1.0}, "did you mean 'sigmas'"),
        ("lru", {"x": 1}, "has no settings"),
    ],
)
def test_unknown_words_are_errors_with_the_nearest(name: str, settings: dict[str, object] | None, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_policy(name, 10, settings)
    assert words in str(caught.value)


def test_unknown_raw_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="sieve"):
        create_raw("seive", 10)
    with pytest.raises(ConfigError, match="nonsense"):
        modes_of("nonsense")
    with pytest.raises(ValueError, match="capacity"):
        create_raw("lru", 0)
