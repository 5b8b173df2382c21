"""Every production policy against the shipped conformance suite."""

from __future__ import annotations

from typing import Any

import pytest

from warmtier.policy.arc import ArcPolicy
from warmtier.policy.base import EvictionPolicy
from warmtier.policy.evidence import EvidencePolicy
from warmtier.policy.index import IndexConfig, IndexPolicy, Rule
from warmtier.policy.lru import LruPolicy
from warmtier.policy.registry import create_policy, production_names
from warmtier.testing.policy_suite import PolicySuite, SuiteKey, policy_machine

EAGER = IndexConfig(ghosts_min=12, ghosts_per_chunk=1.0, rebuild_first=2, rebuild_every=3)
"""Few ghosts and a table from the second request on: reaches trims and bypasses in short runs."""


def eager_index(capacity: int) -> EvictionPolicy[Any]:
    return IndexPolicy(capacity, EAGER)


def touch2(capacity: int) -> EvictionPolicy[Any]:
    return IndexPolicy(capacity, EAGER, Rule.TOUCH2)


@pytest.mark.parametrize("name", production_names())
class TestEveryPolicy(PolicySuite):
    @pytest.fixture(autouse=True)
    def _named(self, name: str) -> None:
        self.name = name

    def make_policy(self, capacity: int) -> EvictionPolicy[SuiteKey]:
        return create_policy(self.name, capacity)


TestLruMachine = policy_machine(LruPolicy).TestCase
TestArcMachine = policy_machine(ArcPolicy).TestCase
TestIndexMachine = policy_machine(IndexPolicy).TestCase
TestEagerIndexMachine = policy_machine(eager_index).TestCase
TestTouch2Machine = policy_machine(touch2).TestCase
TestEvidenceMachine = policy_machine(EvidencePolicy, examples=25).TestCase
