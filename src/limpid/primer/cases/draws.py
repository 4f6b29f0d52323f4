"""Numbers drawn by chance, from a seed that is always the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import numpy as np

from limpid.maths.foundations import gaussian_maximum_likelihood, softmax
from limpid.maths.operation import Array

DIE = (1, 2, 3, 4, 5, 6)
NORMAL = 1.96
"""Standard deviations on each side that hold 95 of 100 draws of a bell curve."""


def mean(values: Sequence[float] | Array) -> float:
    return gaussian_maximum_likelihood(np.asarray(values, dtype=np.float64)).mean


def deviation(values: Sequence[float] | Array) -> float:
    """The standard deviation, divided by n."""
    return gaussian_maximum_likelihood(np.asarray(values, dtype=np.float64)).std


def variance(values: Sequence[float] | Array) -> float:
    return deviation(values) ** 2


def sums(dice: int) -> list[int]:
    """The sum of so many dice in each case that there is."""
    return [sum(faces) for faces in itertools.product(DIE, repeat=dice)]


@cache
def means(n: int, times: int = 4000, seed: int = 0) -> tuple[float, ...]:
    """The mean of n dice, thrown so many times."""
    rng = np.random.Generator(np.random.PCG64(seed))
    return tuple(map(float, rng.integers(1, 7, (times, n)).mean(1)))


@cache
def estimated(n: int, divisor: int, times: int = 40_000, seed: int = 0) -> float:
    """What n dice say of the variance on average, their squared distances from their own mean added and divided."""
    rng = np.random.Generator(np.random.PCG64(seed))
    thrown = rng.integers(1, 7, (times, n))
    return float(np.square(thrown - thrown.mean(1, keepdims=True)).sum(1).mean() / divisor)


@cache
def covered(n: int, times: int = 4000, seed: int = 0) -> float:
    """The share of intervals of n dice each that hold the die's mean."""
    rng = np.random.Generator(np.random.PCG64(seed))
    thrown = rng.integers(1, 7, (times, n))
    half = NORMAL * thrown.std(1, ddof=1) / n**0.5
    return float((np.abs(thrown.mean(1) - mean(DIE)) <= half).mean())


@cache
def products(d: int, times: int = 4000, seed: int = 0) -> Array:
    """Dot products of two vectors of d entries, each of mean 0 and variance 1."""
    rng = np.random.Generator(np.random.PCG64(seed))
    q, k = rng.standard_normal((2, times, d))
    return np.asarray((q * k).sum(1))


@cache
def largest_weight(d: int, divided: bool, keys: int = 10) -> float:
    """How much softmax gives the largest of ten such products, on average."""
    scores = products(d, 40_000).reshape(-1, keys) / (d**0.5 if divided else 1.0)
    return float(softmax(scores).max(-1).mean())
