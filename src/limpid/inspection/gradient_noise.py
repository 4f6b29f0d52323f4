"""How noisy mini-batch gradients are, and whether averaging b of them divides the variance by b."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from limpid.inspection.hessian import DifferentiableLoss
from limpid.maths.foundations import gradient_noise_scale
from limpid.reporter import SILENT, Reporter

Array = np.ndarray
SIZES = (1, 2, 4, 8)
SHUFFLES = 200
"""Random orders in which the sequences are put into batches, for each batch size."""


@dataclass(frozen=True)
class BatchVariance:
    """The gradient's variance in batches of one size."""

    batch_size: int  # sequences
    shuffled: float  # measured over random batches that share no sequence
    consecutive: float  # measured over batches of sequences that follow one another in the text
    predicted: float  # variance of one sequence / batch size


@dataclass(frozen=True)
class GradientNoise:
    """The gradient noise scale, and the law behind it measured."""

    scale: float  # sequences: batch size at which noise and signal are equal
    tokens: float  # `scale` in tokens
    gradient_squared: float  # |G|² of the true gradient, unbiased; may come out negative
    variance: float  # of one sequence's gradient, summed over parameters
    sequences: int  # that it is estimated from
    length: int  # tokens of each
    averaged: tuple[BatchVariance, ...]


def gradient_noise(loss: DifferentiableLoss, seed: int = 0, reporter: Reporter = SILENT) -> GradientNoise:
    """Measured from the gradient of each row by itself."""
    count, length = loss.inputs.shape
    gradients = []
    for row in range(count):
        gradients.append(loss.gradient(slice(row, row + 1)))
        reporter.progress("gradients one by one", row + 1, count)
    reduced = within_span(torch.stack(gradients))
    measured = gradient_noise_scale(reduced, 1)
    rng = np.random.default_rng(seed)
    averaged = tuple(
        BatchVariance(
            size, shuffled_variance(reduced, size, rng), variance_of_means(reduced, size), measured.variance / size
        )
        for size in SIZES
        if count // size >= 2
    )
    return GradientNoise(
        measured.scale,
        measured.scale * length,
        measured.gradient_squared,
        measured.variance,
        count,
        length,
        averaged,
    )


def within_span(gradients: Float[Tensor, "sequence parameter"]) -> Float[Array, "sequence sequence"]:
    """The same vectors in the space that they span: every length, angle and mean is kept, and they fit anywhere."""
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for some in gradients.split(1 << 20, dim=1):
        gram += some.double() @ some.double().T
    values, vectors = np.linalg.eigh(gram.numpy())
    reduced: Array = vectors * np.sqrt(np.maximum(values, 0.0))
    return reduced


def shuffled_variance(gradients: Float[Array, "sequence d"], size: int, rng: np.random.Generator) -> float:
    """`variance_of_means` averaged over many random orders; a random order makes the sequences independent."""
    return float(np.mean([variance_of_means(rng.permutation(gradients), size) for _ in range(SHUFFLES)]))


def variance_of_means(gradients: Float[Array, "sequence d"], size: int) -> float:
    """Sample variance, summed over within_span, of the means of batches of `size` in the order given."""
    batches = len(gradients) // size
    means = gradients[: batches * size].reshape(batches, size, -1).mean(1)
    return float(np.square(means - means.mean(0)).sum() / (batches - 1))
