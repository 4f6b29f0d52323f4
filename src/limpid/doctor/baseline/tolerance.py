"""How far apart two ways to one number may lie: what rounding explains, by format, terms and depth.

Another order of the same sum, another number of threads, a fused kernel: each operation rounds once more or less.
Errors add up like random ones, so with the root of how many there are; products add up in float32 at least.
Source: Higham & Mary 2019, theorem 2.4, for sums; roots, not counts, for random errors.
"""

from __future__ import annotations

import math

OPERATIONS = 4.0
"""Roundings of a module beside its sums, times the standard deviations that are allowed."""
SINGLE = 2.0**-23
"""Spacing of the format that products are added up in."""
BACKWARD = 8.0
"""How much more a gradient's error is than its forward pass's: it reads activations that are off, at every module."""
FLOOR = 0.1
"""Size of the terms of a gradient, over the rms of all gradients: where they cancel, their rounding stays."""


def forward(eps: float, terms: int, depth: int) -> float:
    """Relative, of an output behind so many modules; eps is the format's spacing at 1."""
    return OPERATIONS * (eps / 2 * math.sqrt(depth + 1) + min(eps, SINGLE) / 2 * math.sqrt(terms))


def gradient(eps: float, terms: int, depth: int) -> float:
    """Relative, of a gradient that went back through so many modules."""
    return BACKWARD * forward(eps, terms, depth)
