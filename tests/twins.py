"""One table links each hand-derived operation to somebody else's implementation, with inputs to try both on."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from limpid import maths
from limpid.maths import Operation


@dataclass(frozen=True)
class Example:
    """An operation, its inputs (sizes are different primes), and the PyTorch function it must equal."""

    name: str
    operation: Operation
    inputs: tuple[np.ndarray, ...]
    twin: Callable[..., torch.Tensor]


def examples() -> list[Example]:
    rng = np.random.default_rng(7)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    return [
        Example(
            "rms norm",
            maths.RMSNorm(1e-5),
            (normal(3, 5, 11), normal(11)),
            lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5),
        ),
        Example(
            "rms norm of zeros",
            maths.RMSNorm(1e-5),
            (np.zeros((3, 11)), normal(11)),
            lambda x, weight: F.rms_norm(x, weight.shape, weight, 1e-5),
        ),
        Example(
            "layer norm",
            maths.LayerNorm(1e-5),
            (normal(3, 5, 11) + 4, normal(11), normal(11)),
            lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias, 1e-5),
        ),
    ]
