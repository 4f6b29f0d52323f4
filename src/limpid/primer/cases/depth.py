"""A pile of random layers, and how long a gradient is after each on its way back through them."""

from __future__ import annotations

import numpy as np

from limpid.maths.activation import relu, sigmoid, tanh
from limpid.maths.foundations import chain_rule, norm
from limpid.maths.operation import Array

BENDS = {"tanh": tanh, "relu": relu, "sigmoid": sigmoid, "nothing": None}
"""What may follow the matrix of a layer."""
FACTOR, MODULUS = 48271, 2**31 - 1


def gradient_norms(bend: str, scale: float, depth: int, added: bool, width: int = 16) -> list[float]:
    """Lengths of a gradient of length 1 before any layer, and after each, from the last layer to the first.

    bend    what is done to each number behind a layer's matrix
    scale   standard deviation of the weights, times the root of the width
    added   whether a layer is added to what it reads, or replaces it
    """
    function, numbers = BENDS[bend], drawn(width + depth * width * width)
    h, jacobians = numbers[:width], list[Array]()
    for weight in scale * width**-0.5 * numbers[width:].reshape(depth, width, width):
        z = weight @ h
        jacobian = weight if function is None else function.slope(z)[:, None] * weight
        made = z if function is None else function.value(z)
        h = h + made if added else made
        jacobians.append(jacobian + np.eye(width) if added else jacobian)
    found = [np.full((1, width), width**-0.5)]
    for jacobian in reversed(jacobians):
        found.append(chain_rule(found[-1], jacobian))
    return [norm(one) for one in found]


def drawn(count: int) -> Array:
    """Numbers of mean 0 and variance 1, uniform; by Park and Miller's generator, which the page has too.

    Source  Park & Miller 1988, doi:10.1145/63039.63042, with the factor of 1993
    """
    state, found = 1, np.empty(count)
    for place in range(count):
        state = FACTOR * state % MODULUS
        found[place] = (2 * state / MODULUS - 1) * 3**0.5
    return found
