"""Robust statistics of what comes in step by step: median and MAD over a window, and what stays outside."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import deque
from collections.abc import Sequence
from statistics import median

WINDOW = 64


class Stream:
    """One number per step; judged on its logarithm, which is what losses and norms scatter evenly in."""

    def __init__(self, window: int = WINDOW) -> None:
        self.values: deque[float] = deque(maxlen=window)  # logarithms of the past that counted as normal
        self.all = array("d")  # a run may have a million steps
        self.lowest = math.inf
        self.outside = 0  # steps in a row that were outside
        self.z_of_last = 0.0  # robust z of the last value, before it was part of the past

    def add(self, value: float, limit: float) -> float:
        """Take the next value in; its robust z before it is part of the past."""
        z = self.z_of_last = self.z(value)
        self.all.append(value)
        self.lowest = min(self.lowest, value)
        self.outside = self.outside + 1 if z > limit else 0
        if z <= limit or self.outside > WINDOW // 2:  # what stays becomes the new normal
            self.values.append(math.log(max(value, 1e-30)))
        return z

    def z(self, value: float) -> float:
        """(log x - median) / (1.48 MAD); 0 before there are 20 values."""
        if len(self.values) < 20 or not math.isfinite(value):
            return 0.0 if len(self.values) < 20 else math.inf
        middle = median(self.values)
        spread = 1.4826 * median(abs(v - middle) for v in self.values)
        # a falling loss is not scatter: half of the fall across the window would hide the rest, so none is added
        return (math.log(max(value, 1e-30)) - middle) / max(spread, 1e-3)

    def recent(self, count: int) -> Sequence[float]:
        return self.all[-count:]

    @property
    def begins_at_zero(self) -> bool:
        """Whether the first value is less than the first ones differ by: 0 is where it begins, and no level of it."""
        first = self.all[:20]
        return len(first) > 2 and first[0] < median(abs(b - a) for a, b in itertools.pairwise(first))

    def scatter(self, count: int = 32) -> float:
        """Standard deviation of the last values about their trend, from what neighbours differ by (robust)."""
        last = self.all[-count:]
        return 1.4826 * median(abs(b - a) for a, b in itertools.pairwise(last)) / math.sqrt(2) if len(last) > 2 else 0.0


def steady(values: Sequence[float]) -> bool:
    """Whether the second half is neither lower nor higher than the first beyond its own error."""
    half = len(values) // 2
    if half < 10:
        return False
    first, second = values[:half], values[half:]
    means = [sum(part) / len(part) for part in (first, second)]
    errors = [sum((v - m) ** 2 for v in part) / len(part) ** 2 for part, m in zip((first, second), means, strict=True)]
    return abs(means[0] - means[1]) < 2 * math.sqrt(sum(errors))
