"""Functions of single numbers and of single vectors: the exponential, activations, norm, rotation, copies."""

from __future__ import annotations

import math

import numpy as np

from limpid.generation.cpu.kernels.compiled import SOURCES, cached_jit, jit
from limpid.generation.cpu.kernels.tile import product_of_row

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
LOG2_E = 1 / math.log(2)
LN_2, LN_2_REST = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2, the first part so short that n times it is exact."""
DEGREE = 13


@jit
def exp(x):
    """eˣ in float64 to about one unit in the last place, x clamped to ±708: libraries differ in the last bit.

    Cody & Waite 1980, chapter 6: eˣ = 2ⁿ eʳ with |r| ≤ ln 2 / 2, by the series of eʳ until its terms vanish.
    """
    wide = np.float64(x)
    wide = 708.0 if wide > 708.0 else wide
    wide = -708.0 if wide < -708.0 else wide
    n = np.rint(wide * LOG2_E)
    r = (wide - n * LN_2) - n * LN_2_REST
    series = 1.0
    for k in range(DEGREE, 0, -1):
        series = 1.0 + series * r * (1.0 / k)
    return series * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


# Each activation is a loop of its own, which is compiled to vectors; a function of one number is not always.


@jit
def silu(x, y):
    for i in range(y.size):
        y[i] = x[i] / (1 + exp(-x[i]))


@jit
def gelu(x, y):
    for i in range(y.size):
        y[i] = x[i] * (1 + math.erf(np.float64(x[i]) / math.sqrt(2))) / 2


@jit
def gelu_tanh(x, y):
    for i in range(y.size):
        one = x[i]  # (1 + tanh a)/2 = σ(2a)
        y[i] = one / (1 + exp(-math.sqrt(8 / math.pi) * (one + 0.044715 * one * one * one)))


@jit
def activate(x, activation, y):
    """The MLP's nonlinearity of one vector."""
    if activation == 0:
        silu(x, y)
    elif activation == 1:
        gelu(x, y)
    elif activation == 2:
        gelu_tanh(x, y)
    else:
        for i in range(y.size):
            y[i] = max(x[i], 0.0)
            y[i] = y[i] if activation == 3 else y[i] ** 2


@jit
def norm(x, weight, bias, eps, centred, y):
    """RMSNorm, or LayerNorm when centred, of one vector."""
    mean = 0.0
    if centred:
        for i in range(x.size):
            mean += x[i]
    for i in range(x.size):
        y[i] = x[i] - mean / x.size
    row = y.reshape((1, y.size))
    inverse = 1 / math.sqrt(product_of_row(row, 0, row, 0)[0] / x.size + eps)
    for i in range(x.size):
        value = y[i] * inverse * weight[i]
        y[i] = value + bias[i] if bias.size else value


@jit
def rotate(head, cos, sin, halves):
    """Rotate the pairs of one head in place."""
    pairs = cos.size
    for i in range(pairs):
        a, b = (i, i + pairs) if halves else (2 * i, 2 * i + 1)
        first, second = head[a], head[b]
        head[a] = first * cos[i] - second * sin[i]
        head[b] = first * sin[i] + second * cos[i]


# Entry by entry: for whole arrays numba compiles the words of an error too, which took it a third of all its time.


@jit
def copy(made, place):
    """One vector to another place."""
    for i in range(made.size):
        place[i] = made[i]


@jit
def keep(room, block, made):
    """Copy what a kernel made, where there is room for it."""
    if room.size:
        copy(made.reshape(-1), room[block].reshape(-1))


def _relative_probabilities(sources):
    @cached_jit
    def relative_probabilities(logits):
        """Each token's probability over the likeliest one's."""
        _ = sources
        relative, largest = np.empty_like(logits), logits.max()
        for i in range(logits.size):
            relative[i] = exp(logits[i] - largest)
        return relative

    return relative_probabilities


relative_probabilities = _relative_probabilities(SOURCES)
