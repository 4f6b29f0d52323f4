"""A network of two layers whose every number can be followed by hand, forwards and backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from limpid.maths.activation import ReLU
from limpid.maths.foundations import (
    back_propagate,
    chain_rule,
    finite_difference,
    gradient,
    norm,
    perceptron,
    softmax_cross_entropy,
)
from limpid.maths.operation import Array

RELU = ReLU()


class Passed(NamedTuple):
    """Values on the way forwards, and what the loss gains from each on the way back."""

    z: Array  # (hidden,)
    h: Array  # (hidden,)
    y: float
    loss: float
    y_bar: float
    h_bar: Array  # (hidden,)
    z_bar: Array  # (hidden,)
    v_bar: Array  # (hidden,)
    w_bar: Array  # (hidden, input)


def passed(x: Sequence[float], w: Array, v: Sequence[float] | Array, target: float) -> Passed:
    """z = W x, h = relu(z), y = v · h, and half the square of what y misses."""
    row, first, second = np.atleast_2d(x), np.asarray(w, dtype=np.float64), np.atleast_2d(v).astype(np.float64)
    biases = [np.zeros(len(first)), np.zeros(1)]
    layers = perceptron(row, [first, second], biases, RELU)
    missed = layers.z[1] - target
    (w_bar, v_bar), (z_bar, _), _ = back_propagate(missed, layers, [first, second], RELU)

    return Passed(
        z=layers.z[0][0], h=layers.h[1][0], y=layers.z[1].item(), loss=float(np.square(missed).item() / 2),
        y_bar=missed.item(), h_bar=(missed @ second)[0], z_bar=z_bar, v_bar=v_bar[0], w_bar=w_bar,
    )  # fmt: skip


def measured(x: Sequence[float], w: Array, v: Sequence[float], target: float) -> tuple[Array, Array]:
    """How the loss changes with v (hidden,) and with W (hidden, input), by finite differences."""
    first, second = np.asarray(w, dtype=np.float64), np.asarray(v, dtype=np.float64)
    return (
        finite_difference(lambda moved: passed(x, first, moved, target).loss, second),
        finite_difference(lambda moved: passed(x, moved, second, target).loss, first),
    )


def logits_gradient(logits: Sequence[float], came: int) -> Array:
    """How the loss changes with each logit when this token came."""
    return gradient(lambda z: softmax_cross_entropy(z, came), np.array(logits, dtype=np.float64))


def through_layers(gain: float, layers: int, width: int = 64, seed: int = 0) -> list[float]:
    """How long a gradient is after each of so many random layers, having had the length 1."""
    rng = np.random.Generator(np.random.PCG64(seed))
    found = [np.full((1, width), width**-0.5)]
    for _ in range(layers):
        found.append(chain_rule(found[-1], gain * width**-0.5 * rng.standard_normal((width, width))))
    return [norm(one) for one in found]
