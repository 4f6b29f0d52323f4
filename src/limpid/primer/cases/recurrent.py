"""How far back a gradient reaches: through the state of an LSTM, and through attention, both untrained."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from limpid.maths.foundations import lstm, multi_head_attention
from limpid.maths.operation import Array

WIDTH, LENGTH, MODELS = 16, 100, 20


@cache
def lstm_reach(forget_bias: float) -> Array:
    """By how many tokens it lies back, what is left of the gradient with respect to a token; 1 for the last but one.

    Weights as PyTorch draws them, 20 models, their geometric mean.
    """
    return _mean_reach(lambda rng: _lstm_gradient(rng, forget_bias))


@cache
def attention_reach() -> Array:
    """The same through one head of causal attention."""
    return _mean_reach(_attention_gradient)


def _mean_reach(gradient: Callable[[np.random.Generator], Array]) -> Array:
    rngs = (np.random.Generator(np.random.PCG64(seed)) for seed in range(MODELS))
    sizes = np.mean([np.log(np.linalg.norm(gradient(rng), axis=1)) for rng in rngs], 0)[::-1]
    return np.asarray(np.exp(sizes - sizes[1]))


def _text(rng: np.random.Generator) -> tuple[Array, Array]:
    """Tokens' vectors, and a gradient that comes in at the last of them alone."""
    y_bar = np.zeros((LENGTH, WIDTH))
    y_bar[-1] = rng.standard_normal(WIDTH)
    return rng.standard_normal((LENGTH, WIDTH)), y_bar


def _lstm_gradient(rng: np.random.Generator, forget_bias: float) -> Array:
    bound = WIDTH**-0.5
    shapes = ((4 * WIDTH, WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,))
    weights = [rng.uniform(-bound, bound, shape) for shape in shapes]
    offset = np.zeros(4 * WIDTH)
    offset[WIDTH : 2 * WIDTH] = forget_bias
    x, y_bar = _text(rng)
    return np.asarray(lstm.backward(y_bar, x, *weights, offset)[0])


def _attention_gradient(rng: np.random.Generator) -> Array:
    weights = [WIDTH**-0.5 * rng.standard_normal((WIDTH, WIDTH)) for _ in range(4)]
    x, y_bar = _text(rng)
    return np.asarray(multi_head_attention.backward(y_bar, x, *weights, num_heads=1)[0])
