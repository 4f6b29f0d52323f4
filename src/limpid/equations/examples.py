"""One table links each operation to PyTorch's way to the same numbers, with inputs to try both on."""

from __future__ import annotations

import math
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


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-5)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, 1e-5)


def scores(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    key = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
    return torch.einsum("bihf,bjhf->bhij", query, key) / math.sqrt(query.shape[-1])


def mix(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    value = value.repeat_interleave(weights.shape[1] // value.shape[2], 2)
    return torch.einsum("bhij,bjhf->bihf", weights, value)


def causal_softmax(window: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    def twin(scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if window is not None:
            visible &= ~torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries - window)
        return scores.masked_fill(~visible, -math.inf).softmax(-1)

    return twin


def sinusoidal(length: int, d_model: int) -> torch.Tensor:
    position = torch.arange(length, dtype=torch.float64)[:, None]
    wavelength = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    table = torch.zeros(length, d_model, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = torch.sin(position * wavelength), torch.cos(position * wavelength)
    return table


def interleaved(x: torch.Tensor) -> torch.Tensor:
    """The paper's pairs as complex numbers."""
    d_head = x.shape[-1]
    theta = 10000.0 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * theta
    turned = torch.view_as_complex(x.to(torch.float64).reshape(*x.shape[:-1], -1, 2)) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def rotated(
    theta: Callable[[torch.Tensor], torch.Tensor], scale: float = 1.0
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Halves turned as one complex number each, by frequencies written out for the case (plain ones: base 500)."""

    def twin(x: torch.Tensor) -> torch.Tensor:
        d_head = x.shape[-1]
        plain = 500.0 ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None, None] * theta(plain)
        pairs = torch.complex(*x.to(torch.float64).chunk(2, -1)) * torch.polar(scale * torch.ones_like(angles), angles)
        return torch.cat((pairs.real, pairs.imag), -1).to(x.dtype)

    return twin


def llama3(theta: torch.Tensor) -> torch.Tensor:
    """Factor 8 over an original context of 64: kept above 4 rotations, divided below 1, blended between."""
    rotations = 64 * theta / (2 * math.pi)
    blend = (rotations - 1) / 3 * theta + (1 - (rotations - 1) / 3) * theta / 8
    return torch.where(rotations > 4, theta, torch.where(rotations < 1, theta / 8, blend))


def yarn(theta: torch.Tensor) -> torch.Tensor:
    """Factor 4 over an original context of 64, beta 32 and 1, five pairs: the ramp runs from pair 0 to pair 2."""
    ramp = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0], dtype=torch.float64)
    return theta * (1 - ramp) + theta / 4 * ramp


def examples() -> list[Example]:
    rng = np.random.default_rng(7)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape)

    tokens = rng.integers(0, 13, (3, 5))
    targets = np.where(rng.random((3, 5)) < 0.3, -100, rng.integers(0, 13, (3, 5)))
    ties = np.round(normal(2, 3, 7, 7))
    tails = np.array([-40.0, -9.0, -3.0, -1.278, -1e-8, 0.0, 1e-8, 0.5, 3.0, 9.0, 40.0])
    return [
        Example("rms norm", maths.RMSNorm(1e-5), (normal(3, 5, 11), normal(11)), rms_norm),
        Example("rms norm of zeros", maths.RMSNorm(1e-5), (np.zeros((3, 11)), normal(11)), rms_norm),
        Example("layer norm", maths.LayerNorm(1e-5), (normal(3, 5, 11) + 4, normal(11), normal(11)), layer_norm),
        Example(
            "layer norm of constants",
            maths.LayerNorm(1e-5),
            (np.full((3, 11), 7.0), normal(11), normal(11)),
            layer_norm,
        ),
        Example("linear", maths.Linear(), (normal(3, 5, 7), normal(11, 7)), F.linear),
        Example("linear with bias", maths.Linear(), (normal(3, 5, 7), normal(11, 7), normal(11)), F.linear),
        Example(
            "linear into heads",
            maths.Linear(heads_out=3),
            (normal(2, 5, 7), normal(33, 7), normal(33)),
            lambda x, w, b: F.linear(x, w, b).unflatten(-1, (3, 11)),
        ),
        Example(
            "linear from heads",
            maths.Linear(heads_in=3),
            (normal(2, 5, 3, 7), normal(11, 21)),
            lambda x, w: F.linear(x.flatten(-2), w),
        ),
        Example("linear, long sums", maths.Linear(), (normal(2, 3, 1021), normal(5, 1021), normal(5)), F.linear),
        Example("add", maths.Add(), (normal(3, 5, 7), normal(3, 5, 7)), torch.add),
        Example("add positions", maths.Add(), (normal(3, 5, 7), normal(5, 7)), torch.add),
        Example(
            "add scaled",
            maths.AddScaled(0.75),
            (normal(3, 5, 7), normal(3, 5, 7)),
            lambda x, y: torch.add(x, y, alpha=0.75),
        ),
        Example(
            "row length",
            maths.RowLength(0.75),
            (normal(7, 5), normal(3, 5), normal(7, 3)),
            lambda w, a, b: torch.linalg.vector_norm(w + 0.75 * (b @ a), dim=-1),
        ),
        Example(
            "magnitude",
            maths.Magnitude(),
            (normal(2, 3, 7), normal(7), 1 + normal(7) ** 2, normal(7)),
            lambda z, m, n, b: z * (m / n) + b,
        ),
        Example(
            "magnitude of heads",
            maths.Magnitude(),
            (normal(2, 3, 4, 5), normal(20), 1 + normal(20) ** 2),
            lambda z, m, n: z * (m / n).unflatten(0, (4, 5)),
        ),
        Example("embedding", maths.Embedding(), (tokens, normal(13, 7)), F.embedding),
        Example("learned positions", maths.LearnedPositions(5), (normal(11, 7),), lambda table: table[:5]),
        Example("sinusoidal positions", maths.SinusoidalPositions(11, 6), (), lambda: sinusoidal(11, 6)),
        Example("rotary", maths.Rotary(500.0), (normal(2, 13, 3, 10),), rotated(lambda theta: theta)),
        Example("rotary, interleaved", maths.Rotary(layout="interleaved"), (normal(2, 13, 3, 10),), interleaved),
        Example(
            "rotary, linear",
            maths.Rotary(500.0, scaling="linear", factor=3.0),
            (normal(2, 13, 3, 10),),
            rotated(lambda theta: theta / 3),
        ),
        Example(
            "rotary, llama3",
            maths.Rotary(500.0, scaling="llama3", factor=8.0, original_context=64),
            (normal(2, 13, 3, 10),),
            rotated(llama3),
        ),
        Example(
            "rotary, yarn",
            maths.Rotary(500.0, scaling="yarn", factor=4.0, original_context=64, low=1.0, high=32.0),
            (normal(2, 13, 3, 10),),
            rotated(yarn, 0.1 * math.log(4) + 1),
        ),
        Example("scores", maths.Scores(1 / math.sqrt(7)), (normal(2, 5, 3, 7), normal(2, 5, 3, 7)), scores),
        Example(
            "scores, shared keys", maths.Scores(1 / math.sqrt(7)), (normal(2, 5, 6, 7), normal(2, 5, 2, 7)), scores
        ),
        Example("softmax", maths.CausalSoftmax(), (normal(2, 3, 7, 7, scale=5),), causal_softmax(None)),
        Example("softmax of ties", maths.CausalSoftmax(), (ties,), causal_softmax(None)),
        Example("softmax of extremes", maths.CausalSoftmax(), (normal(2, 3, 7, 7, scale=300),), causal_softmax(None)),
        Example("softmax in a window", maths.CausalSoftmax(3), (normal(2, 3, 7, 7),), causal_softmax(3)),
        Example("softmax in a window of one", maths.CausalSoftmax(1), (normal(2, 3, 7, 7),), causal_softmax(1)),
        Example("softmax of long rows", maths.CausalSoftmax(), (normal(2, 211, 211, scale=3),), causal_softmax(None)),
        Example("softmax, later queries", maths.CausalSoftmax(4), (normal(2, 3, 5, 11),), causal_softmax(4)),
        Example(
            "softmax of everything", maths.CausalSoftmax(causal=False), (normal(2, 3, 7, 7),), lambda s: s.softmax(-1)
        ),
        Example("mix", maths.Mix(), (rng.random((2, 3, 5, 5)), normal(2, 5, 3, 7)), mix),
        Example("mix, shared values", maths.Mix(), (rng.random((2, 6, 5, 5)), normal(2, 5, 2, 7)), mix),
        Example("relu", maths.ReLU(), (normal(5, 7),), F.relu),
        Example("squared relu", maths.SquaredReLU(), (normal(5, 7),), lambda x: F.relu(x).square()),
        Example("silu", maths.SiLU(), (tails,), F.silu),
        Example("gelu", maths.GELU(), (tails,), F.gelu),
        Example("gelu, tanh", maths.GELUTanh(), (tails,), lambda x: F.gelu(x, approximate="tanh")),
        Example("swiglu", maths.Gated(), (normal(3, 5, 7), normal(3, 5, 7)), lambda g, u: F.silu(g) * u),
        Example("geglu", maths.Gated(maths.GELU()), (normal(3, 7), normal(3, 7)), lambda g, u: F.gelu(g) * u),
        Example("sigmoid", maths.Sigmoid(), (tails,), torch.sigmoid),
        Example("tanh", maths.Tanh(), (tails,), torch.tanh),
        Example(
            "batch norm, training",
            maths.BatchNorm(1e-5),
            (normal(7, 5) + 2, normal(5), normal(5)),
            lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-5),
        ),
        Example(
            "batch norm, evaluating",
            maths.BatchNorm(1e-5),
            (normal(7, 5) + 2, normal(5), normal(5), np.arange(5), np.arange(1, 6)),
            lambda x, w, b, mean, var: F.batch_norm(x, mean.to(x), var.to(x), w, b, False, 0.1, 1e-5),
        ),
        Example("dropout", maths.Dropout(0.25), (normal(5, 7), rng.integers(0, 2, (5, 7))), lambda x, k: x * k / 0.75),
        Example("log softmax", maths.LogSoftmax(), (normal(3, 5, 13, scale=4),), lambda z: z.log_softmax(-1)),
        Example(
            "log softmax of extremes", maths.LogSoftmax(), (normal(3, 13, scale=1e4),), lambda z: z.log_softmax(-1)
        ),
        Example(
            "negative log-likelihood",
            maths.NegativeLogLikelihood(),
            (-5 * rng.random((3, 5, 13)), targets),
            lambda y, t: F.nll_loss(y.flatten(0, 1), t.flatten(), ignore_index=-100),
        ),
    ]
