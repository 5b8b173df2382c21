"""The default policy: the evidence index, watched by shadow caches that can put a simpler rule in charge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from warmtier.policy.base import Access, K
from warmtier.policy.index import IndexConfig, IndexPolicy, Rule
from warmtier.policy.shadow import PathSampler, Shadows


@dataclass(frozen=True, slots=True)
class EvidenceConfig:
    """Settings of the evidence policy.

    ``shadow_chunks``: size of a shadow; the sampled share of the traffic follows from it (``share_min`` at least).
    A rule takes over when its hits per chunk lead by more than ``sigmas`` standard errors and ``margin`` (LRU: the
    margin less, once ``half_life`` requests have been compared). ``half_life``: sampled requests after which a hit
    counts half. ``patience``: sampled requests between two looks.
    """

    index: IndexConfig = field(default_factory=IndexConfig)
    shadow_chunks: int = 1_000
    share_min: float = 1 / 64
    margin: float = 0.002
    sigmas: float = 4.0
    half_life: float = 3_000.0
    patience: int = 50


class EvidencePolicy(IndexPolicy[K]):
    """Starts with the index; the shadows of index, 2touch and LRU see a sample of the traffic and switch the rule.

    Switching moves no chunk: all rules share one structure. Without a measured gain LRU is in charge.
    """

    name: ClassVar[str] = "evidence"

    def __init__(self, capacity: int, config: EvidenceConfig | None = None) -> None:
        self.settings = config or EvidenceConfig()
        super().__init__(capacity, self.settings.index)

    def clear(self) -> None:
        """Forget everything, evidence included."""
        super().clear()
        settings = self.settings
        self.rule = Rule.INDEX
        self.switches = 0
        share = min(1.0, max(settings.share_min, settings.shadow_chunks / max(1, self.capacity)))
        size = max(1, round(share * self.capacity))
        self._sampler: PathSampler[K] = PathSampler(share)
        self._shadows: Shadows[K] = Shadows(
            {rule: IndexPolicy(size, self.config, rule) for rule in Rule}, settings.half_life
        )

    def resize(self, capacity: int) -> None:
        """Set a new capacity; the shadows start anew, the rule in charge stays."""
        super().resize(capacity)
        share = min(1.0, max(self.settings.share_min, self.settings.shadow_chunks / max(1, capacity)))
        size = max(1, round(share * capacity))
        self._sampler = PathSampler(share)
        self._shadows = Shadows({rule: IndexPolicy(size, self.config, rule) for rule in Rule}, self.settings.half_life)

    def finish(self, access: Access[K], now: float) -> None:
        """Count the path as used; if it is in the sample, let the shadows serve it."""
        super().finish(access, now)
        if self._sampler.wants(access):
            self._shadows.run(access, now)
            if self._shadows.requests % self.settings.patience == 0:
                self._choose()

    def explain(self) -> dict[str, float | int | str]:
        """Return the rule in charge and what the shadows measure against LRU."""
        shadows = self._shadows
        facts = super().explain()
        facts["switches"] = self.switches
        facts["sampled_requests"] = shadows.requests
        for rule in (Rule.INDEX, Rule.TOUCH2):
            facts[f"gain_{rule}"] = round(shadows.gain(rule, Rule.LRU), 5)
        return facts

    def _choose(self) -> None:
        """Put another rule in charge if it beats the present one beyond doubt; LRU must be beaten by the margin."""
        shadows, settings = self._shadows, self.settings
        best, lead = self.rule, 0.0
        for rule in Rule:
            if rule is self.rule:
                continue
            gain = shadows.gain(rule, self.rule) - settings.sigmas * shadows.doubt(rule, self.rule)
            if rule is not Rule.LRU:
                gain -= settings.margin
            elif shadows.counted >= settings.half_life:
                gain += settings.margin
            if gain > lead:
                best, lead = rule, gain
        if best is not self.rule:
            self.rule = best
            self.switches += 1
