"""Which entries of attention the mask hides: scores that are formed and that nothing reads."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from limpid.maths.attention import CausalSoftmax
from limpid.maths.operation import Array
from limpid.tracing.record import Record


def visible(record: Record, name: str, shape: tuple[int, ...]) -> Bool[Array, "query key"] | None:
    """Which keys each query sees in scores or weights of this shape; None for every other quantity."""
    if not name.endswith(("attention.scores", "attention.weights")):
        return None
    block = int(name.split(".")[1])
    return np.asarray(CausalSoftmax(record.config.model.window(block)).visible(*shape[-2:]))
