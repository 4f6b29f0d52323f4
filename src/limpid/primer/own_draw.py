"""What an exercise takes from a recorded step: numbers as a question prints them, and the entry that has the answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from limpid.errors import ConfigError
from limpid.maths.operation import Array
from limpid.primer.exercise import Numbers
from limpid.tracing.trace import Trace

DIGITS = 6
"""Significant digits of a recorded number in a question."""
BY_HAND = 8
"""Most entries of a vector that one multiplies by hand."""


class Own(NamedTuple):
    """Numbers of a step, and the entry that holds what was asked for."""

    numbers: Numbers
    where: str


def rounded(value: Array | float) -> Array:
    """To as many digits as a question prints."""
    array = np.asarray(value, dtype=np.float64)
    return np.array([float(f"{one:.{DIGITS}g}") for one in array.ravel()]).reshape(array.shape)


def place(trace: Trace, rng: np.random.Generator, sees: int = 3) -> tuple[int, int, int]:
    """A block whose tokens see so many, a row of the batch, and a head."""
    model = trace.record.config.model
    rows, tokens = trace.array("tokens").shape
    blocks = [block for block in range(model.num_layers) if (model.window(block) or sees) >= sees]
    if not blocks or tokens < sees:
        raise ConfigError(f"of this step no token sees {sees} tokens: take a run with a longer context or window")
    return int(rng.choice(blocks)), int(rng.integers(rows)), int(rng.integers(model.num_heads))


def head_size(trace: Trace) -> int:
    return trace.record.config.model.sizes.d_head
