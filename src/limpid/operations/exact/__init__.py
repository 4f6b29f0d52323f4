"""Every operation of PyTorch that a step is made of, in NumPy: its result in float64 and the error it may make."""

from limpid.operations.exact import (
    attention,
    bags,
    choices,
    convolution,
    elementwise,
    fourier,
    indexing,
    linear_algebra,
    losses,
    movement,
    normalization,
    padding,
    pooling,
    products,
    recurrent,
    reductions,
    sampling,
    sequences,
    special,
    spectra,
    stretching,
    updates,
)
from limpid.operations.exact.exact import EXACT, MOVED, Exact

__all__ = ["EXACT", "MOVED", "Exact"]
_ENTERED = (
    attention, bags, choices, convolution, elementwise, fourier, indexing, linear_algebra, losses, movement,
    normalization, padding, pooling, products, recurrent, reductions, sampling, sequences, special, spectra, stretching,
    updates,
)  # fmt: skip
