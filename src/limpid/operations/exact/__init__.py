"""Every operation of PyTorch that a step is made of, in NumPy: its result in float64 and the error it may make."""

from limpid.operations.exact import (
    choices,
    convolution,
    elementwise,
    indexing,
    movement,
    normalization,
    pooling,
    products,
    reductions,
    updates,
)
from limpid.operations.exact.exact import EXACT, MOVED, Exact

__all__ = ["EXACT", "MOVED", "Exact"]
_ENTERED = (
    choices, convolution, elementwise, indexing, movement, normalization, pooling, products, reductions, updates,
)  # fmt: skip
