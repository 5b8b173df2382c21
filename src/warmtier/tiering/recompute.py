"""Load or recompute: is loading the next chunks clearly faster than computing them again?

Times come from the best source there is: measured online, else the calibration file, else (static) a bound of tokens
below which a load from a cold tier is not worth its fixed cost. Formula: Mooncake (FAST'25) break-even, per position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from warmtier.core.types import MissReason, Source
from warmtier.tiering.calibration import Calibration, LinkSpeed, PrefillSpeed

_DECAY: Final = 0.98
_ENOUGH: Final = 8
_RATIOS: Final = 64
_PROBE_EVERY: Final = 32


class Line:
    """Exponentially weighted least squares of ``y = a u + b v`` with a, b >= 0."""

    def __init__(self) -> None:
        self.samples = 0
        self._uu = self._uv = self._vv = self._uy = self._vy = 0.0

    def add(self, u: float, v: float, y: float) -> None:
        """Note one observation."""
        self.samples += 1
        self._uu = _DECAY * self._uu + u * u
        self._uv = _DECAY * self._uv + u * v
        self._vv = _DECAY * self._vv + v * v
        self._uy = _DECAY * self._uy + u * y
        self._vy = _DECAY * self._vy + v * y

    def solve(self) -> tuple[float, float]:
        """Return (a, b); what cannot be told apart is given to ``a``."""
        det = self._uu * self._vv - self._uv * self._uv
        alone = self._uy / self._uu if self._uu else 0.0
        if det <= 1e-9 * self._uu * self._vv:
            return alone, 0.0
        a = (self._uy * self._vv - self._vy * self._uv) / det
        b = (self._vy * self._uu - self._uy * self._uv) / det
        if b < 0:
            return alone, 0.0
        return (0.0, self._vy / self._vv) if a < 0 else (a, b)


class LinkEstimate:
    """What was measured of one link: bandwidth, fixed cost, and how much slower than that the slow loads are."""

    def __init__(self) -> None:
        self._line = Line()
        self._ratios: deque[float] = deque(maxlen=_RATIOS)

    def add(self, size_bytes: int, seconds: float) -> None:
        """Note one load."""
        if size_bytes <= 0 or seconds <= 0:
            return
        speed = self.speed()
        if speed is not None:
            self._ratios.append(seconds / speed.seconds(size_bytes))
        # In MiB, so that both unknowns have a like size.
        self._line.add(size_bytes / 2**20, 1.0, seconds)

    def speed(self) -> LinkSpeed | None:
        """Return the estimate, or None before enough was seen."""
        if self._line.samples < _ENOUGH:
            return None
        per_mib, fixed_s = self._line.solve()
        return LinkSpeed(2**20 / max(per_mib, 1e-12), fixed_s)

    def p95_ratio(self) -> float | None:
        """Return the 95th percentile of measured over expected time, or None before enough was seen."""
        if len(self._ratios) < _ENOUGH:
            return None
        ordered = sorted(self._ratios)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


class Segment(NamedTuple):
    """Consecutive usable tokens [start, stop) that come from one tier."""

    tier: str
    cold: bool
    start: int
    stop: int
    size_bytes: int
    queued_bytes: int = 0


class Decision(NamedTuple):
    """Load the first ``segments``; ``reason`` says why not the rest (None: all)."""

    segments: int
    reason: MissReason | None
    source: Source


class Costs:
    """All speeds known, and the decisions made of them."""

    def __init__(self, host: str, calibration: Calibration | None, *, margin: float, static_min_tokens: int) -> None:
        self.calibration = calibration
        self.margin = margin
        self.static_min_tokens = static_min_tokens
        self._host = host
        self._links: dict[str, LinkEstimate] = {}
        self._prefill = Line()
        self._refused = 0  # decisions in a row to compute what could be loaded

    @property
    def informed(self) -> bool:
        """Whether there are figures to compare a load from the host with recomputing."""
        return self.prefill() is not None and self.link(self._host) is not None

    def observe_load(self, tier: str, size_bytes: int, seconds: float) -> None:
        """Note a measured load from ``tier`` (the host tier's is to the device)."""
        self._links.setdefault(tier, LinkEstimate()).add(size_bytes, seconds)

    def observe_prefill(self, start: int, stop: int, seconds: float) -> None:
        """Note that computing tokens [start, stop) took ``seconds``."""
        if stop > start and seconds > 0:
            self._prefill.add(float(stop - start), (stop * stop - start * start) / 2, seconds)

    def link(self, tier: str) -> tuple[LinkSpeed, Source] | None:
        """Return the speed of a tier's link and where it comes from, or None if nothing is known."""
        estimate = self._links.get(tier)
        speed = None if estimate is None else estimate.speed()
        if speed is not None:
            return speed, Source.ONLINE
        if self.calibration is not None and tier in self.calibration.links:
            return self.calibration.links[tier], Source.CALIBRATION
        return None

    def prefill(self) -> tuple[PrefillSpeed, Source] | None:
        """Return the prefill speed and where it comes from, or None if nothing is known."""
        if self._prefill.samples >= _ENOUGH:
            per_token, per_position = self._prefill.solve()
            return PrefillSpeed(per_token, per_position), Source.ONLINE
        return None if self.calibration is None else (self.calibration.prefill, Source.CALIBRATION)

    def deadline_s(self, tier: str, size_bytes: int, queued_bytes: int, *, floor_s: float, cap_s: float) -> float:
        """Return how long a load may take: the measured 95th percentile, within hard bounds."""
        estimate, known = self._links.get(tier), self.link(tier)
        ratio = None if estimate is None else estimate.p95_ratio()
        if known is None or ratio is None:
            return cap_s
        return min(cap_s, max(floor_s, ratio * known[0].seconds(size_bytes + queued_bytes)))

    def decide(self, segments: Sequence[Segment]) -> Decision:
        """Return how many leading segments to load."""
        prefill = self.prefill()
        speeds = {segment.tier: self.link(segment.tier) for segment in segments}
        if prefill is None or any(speeds[s.tier] is None for s in segments if s.cold):
            return self._static(segments)
        sources = {prefill[1], *(known[1] for known in speeds.values() if known is not None)}
        source = Source.CALIBRATION if Source.CALIBRATION in sources else Source.ONLINE
        best, chosen = 0.0, 0
        for count in range(1, len(segments) + 1):
            saved_s = prefill[0].seconds(segments[0].start, segments[count - 1].stop)
            gain_s = saved_s - self.margin * self._load_s(segments[:count], speeds)
            if gain_s > best:
                best, chosen = gain_s, count
        if chosen == len(segments):
            self._refused = 0
            return Decision(chosen, None, source)
        self._refused += 1
        if self._refused >= _PROBE_EVERY:  # what is never loaded is never measured again, however fast it has become
            self._refused = 0
            return Decision(len(segments), None, source)
        return Decision(chosen, MissReason.RECOMPUTE_CHEAPER, source)

    def _load_s(self, segments: Sequence[Segment], speeds: dict[str, tuple[LinkSpeed, Source] | None]) -> float:
        """Cold links work side by side, then everything goes to the device; unknown host links cost nothing."""
        cold: dict[str, float] = {}
        for segment in segments:
            if segment.cold:
                waiting = 0 if segment.tier in cold else segment.queued_bytes
                cold[segment.tier] = cold.get(segment.tier, 0.0) + segment.size_bytes + waiting
        waited_s = max((speeds[tier][0].seconds(size) for tier, size in cold.items()), default=0.0)  # type: ignore[index]
        host = self.link(self._host)
        total = sum(segment.size_bytes for segment in segments)
        return waited_s + (0.0 if host is None else host[0].seconds(total))

    def _static(self, segments: Sequence[Segment]) -> Decision:
        """Without figures: all from the host; from colder tiers only if that is at least the static minimum."""
        cold_tokens = sum(segment.stop - segment.start for segment in segments if segment.cold)
        if cold_tokens == 0 or cold_tokens >= self.static_min_tokens:
            return Decision(len(segments), None, Source.STATIC)
        first = next(i for i, segment in enumerate(segments) if segment.cold)
        return Decision(first, MissReason.BELOW_MINIMUM, Source.STATIC)
