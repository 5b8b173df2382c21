"""Read a server's Prometheus page. A series that is absent is None, never 0."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from warmtier.core.errors import TargetError
from warmtier.core.extras import require

_TIMEOUT_S: Final = 10.0

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """All samples of one moment, by name (counters end in ``_total``) and labels."""

    samples: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum over every series of ``name`` that carries ``labels``; None when there is none."""
        wanted = set(labels.items())
        found = [value for have, value in self.samples.get(name, {}).items() if wanted <= have]
        return sum(found) if found else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of ``name`` by the values of ``label``."""
        sums: dict[str, float] = {}
        for have, value in self.samples.get(name, {}).items():
            key = dict(have).get(label)
            if key is not None:
                sums[key] = sums.get(key, 0.0) + value
        return sums


def parse(text: str) -> Scrape:
    """Parse a page in the Prometheus text format."""
    parser = require("prometheus_client.parser", extra="bench", purpose="reading /metrics")
    samples: dict[str, dict[Labels, float]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return Scrape(samples)


def scrape(base_url: str) -> Scrape:
    """Fetch and parse ``base_url``/metrics. Blocks. Raises TargetError."""
    url = f"{base_url}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the caller's own server
            return parse(response.read().decode())
    except (OSError, urllib.error.URLError) as error:
        raise TargetError(f"{url} cannot be read", why=str(error), fix="is the server up?") from error


def growth(before: Scrape, after: Scrape, name: str, **labels: str) -> float | None:
    """Return how much a counter grew between two scrapes. A series born in between grew from 0."""
    end = after.total(name, **labels)
    return None if end is None else end - (before.total(name, **labels) or 0.0)
