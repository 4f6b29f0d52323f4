"""How noisy mini-batch gradients are, and whether averaging b of them divides the variance by b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from limpid.inspect.hvp import Loss
from limpid.maths.foundations import gradient_noise_scale
from limpid.progress import Report

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 4, 8)
DRAWS = 200
"""Random ways in which the sequences are dealt into batches, for each batch size."""


@dataclass(frozen=True)
class Averaged:
    """The gradient's variance in batches of one size."""

    batch_size: int  # sequences
    dealt: float  # measured over batches that are dealt at random and share no sequence
    neighbours: float  # measured over batches of sequences that follow one another in the text
    predicted: float  # variance of one sequence / batch size


@dataclass(frozen=True)
class Noise:
    """The gradient noise scale, and the law behind it measured."""

    scale: float  # sequences: batch size at which noise and signal are equal
    tokens: float  # the same in tokens
    gradient_squared: float  # |G|² of the true gradient, unbiased; may come out negative
    variance: float  # of one sequence's gradient, summed over parameters
    sequences: int  # that it is estimated from
    length: int  # tokens of each
    averaged: tuple[Averaged, ...]


def noise(loss: Loss, seed: int = 0, report: Report | None = None) -> Noise:
    """From the gradient of each row by itself."""
    count, length = loss.inputs.shape
    gradients = []
    for row in range(count):
        gradients.append(loss.gradient(slice(row, row + 1)))
        if report is not None:
            report("gradients one by one", row + 1, count)
    short = coordinates(torch.stack(gradients))
    found = gradient_noise_scale(short, 1)
    rng = np.random.default_rng(seed)
    averaged = tuple(
        Averaged(size, dealt(short, size, rng), variance_of_means(short, size), found.variance / size)
        for size in SIZES
        if count // size >= 2
    )
    return Noise(found.scale, found.scale * length, found.gradient_squared, found.variance, count, length, averaged)


def coordinates(gradients: Float[Tensor, "sequence parameter"]) -> Float[Array, "sequence sequence"]:
    """The same vectors in the space that they span: every length, angle and mean is kept, and they fit anywhere."""
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for some in gradients.split(1 << 20, dim=1):
        gram += some.double() @ some.double().T
    values, vectors = np.linalg.eigh(gram.numpy())
    short: Array = vectors * np.sqrt(np.maximum(values, 0.0))
    return short


def dealt(gradients: Float[Array, "sequence d"], size: int, rng: np.random.Generator) -> float:
    """`variance_of_means` averaged over many random orders; dealing at random makes the sequences independent."""
    return float(np.mean([variance_of_means(rng.permutation(gradients), size) for _ in range(DRAWS)]))


def variance_of_means(gradients: Float[Array, "sequence d"], size: int) -> float:
    """Sample variance, summed over coordinates, of the means of batches of `size` in the order given."""
    batches = len(gradients) // size
    means = gradients[: batches * size].reshape(batches, size, -1).mean(1)
    return float(np.square(means - means.mean(0)).sum() / (batches - 1))
