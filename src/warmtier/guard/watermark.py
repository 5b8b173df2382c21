"""High and low watermark with hysteresis. Pure."""

from __future__ import annotations


class Watermark:
    """Active from the moment the value reaches ``high`` until it falls to ``low``."""

    def __init__(self, high: float, low: float) -> None:
        if not 0 <= low < high:
            raise ValueError(f"watermarks need 0 <= low < high, got low {low} and high {high}")
        self.high = high
        self.low = low
        self.active = False
        self.activations = 0

    def update(self, value: float) -> bool:
        """Note the value now; return whether the watermark is active."""
        if self.active:
            self.active = value > self.low
        elif value >= self.high:
            self.active = True
            self.activations += 1
        return self.active
