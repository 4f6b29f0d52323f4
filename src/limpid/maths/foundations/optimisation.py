"""Optimisation piece by piece: learning-rate schedules, gradient steps, momentum, initialisation."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from limpid import schedule
from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.matrices import polar_factor
from limpid.maths.muon import newton_schulz
from limpid.maths.operation import Array, Branch

WARMUP = "Goyal et al. 2017, section 2.2, arXiv:1706.02677"
RESTARTS = "Loshchilov & Hutter 2017, eq. 5, arXiv:1608.03983"

warmup = formula(r"\min(1, s / W)", Branch.OPTIMISATION, WARMUP)(schedule.warmup)
constant_schedule = formula(r"1", Branch.OPTIMISATION, "Robbins & Monro 1951, doi:10.1214/aoms/1177729586")(
    schedule.constant_schedule
)
linear_schedule = formula(r"1 - t", Branch.OPTIMISATION, "Devlin et al. 2019, appendix A.2, arXiv:1810.04805")(
    schedule.linear_schedule
)
polynomial_schedule = formula(r"(1 - t)^k", Branch.OPTIMISATION, "Chen et al. 2018, section 4.1, arXiv:1606.00915")(
    schedule.polynomial_schedule
)
cosine_schedule = formula(r"\tfrac12 (1 + \cos 2 \pi w t)", Branch.OPTIMISATION, RESTARTS)(schedule.cosine_schedule)
cosine_restarts = formula(r"\tfrac12 (1 + \cos \pi (c t \bmod 1))", Branch.OPTIMISATION, RESTARTS)(
    schedule.cosine_restarts
)
warmup_stable_decay = formula(r"\min(1, (1 - t) / f)", Branch.OPTIMISATION, "Hu et al. 2024, eq. 1, arXiv:2404.06395")(
    schedule.warmup_stable_decay
)


@formula(
    r"\varepsilon_t = \hat\varepsilon / \sqrt{1 - \beta_2^t}",
    Branch.OPTIMISATION,
    "Kingma & Ba 2015, section 2, arXiv:1412.6980",
)
def adam_epsilon(epsilon_hat: float, beta2: float = 0.999, number: int = 1) -> float:
    """The ε of Adam that an update with ε̂ has: α √(1 - β₂ᵗ)/(1 - β₁ᵗ) m / (√v + ε̂), as TensorFlow and Keras write it.

    Takes   epsilon_hat  ε̂, at least 0
            beta2        decay of the second moment, in [0, 1)
            number       t, counted from 1
    Gives   ε, at least ε̂
    Raises  DomainError outside these intervals
    """
    if epsilon_hat < 0 or not 0 <= beta2 < 1 or number < 1:
        raise DomainError(
            f"epsilon_hat is {epsilon_hat}, beta2 {beta2}, number {number}: "
            "expected at least 0, a number in [0, 1), and an update from 1"
        )
    return float(epsilon_hat / np.sqrt(1 - beta2**number))


@formula(
    r"\theta \leftarrow \theta - \eta g",
    Branch.OPTIMISATION,
    "Robbins & Monro 1951, eq. 8, doi:10.1214/aoms/1177729586",
)
def gradient_step(
    parameter: Float[Array, "..."], gradient: Float[Array, "..."], learning_rate: float
) -> Float[Array, "..."]:
    """One step against the gradient.

    Takes   parameter, gradient  (...)
            learning_rate        η
    Gives   parameter            (...)
    Raises  ShapeError when the two differ in shape
    """
    parameter, gradient = floats(parameter), floats(gradient)
    if parameter.shape != gradient.shape:
        raise ShapeError(f"parameter has shape {parameter.shape}, gradient {gradient.shape}: one entry each")
    return parameter - learning_rate * gradient


@formula(
    r"v_t = (1 - \beta) \sum_{k \ge 0} \beta^k g_{t-k}, \quad \text{window} = \frac{1}{1 - \beta}",
    Branch.OPTIMISATION,
    "Polyak 1964, doi:10.1016/0041-5553(64)90137-5; the window, Kingma & Ba 2015, section 3",
)
def momentum_window(beta: float) -> float:
    """Over how many steps a running mean remembers: the mean age of what it holds, counted from 1.

    Takes   beta  β in [0, 1)
    Gives   steps; after so many, a gradient's weight has fallen to about 1/e
    Raises  DomainError for a β outside [0, 1)
    """
    if not 0 <= beta < 1:
        raise DomainError(f"beta is {beta}: it must lie in [0, 1)")
    return 1 / (1 - beta)


@formula(
    r"m \leftarrow \beta m + (1 - \beta) g, \quad \tilde m = (1 - \beta) g + \beta m, \quad "
    r"\theta \leftarrow (1 - \eta \lambda) \theta - \eta \sqrt{\max(1, \tfrac{rows}{columns})}\, "
    r"\operatorname{polar}(\tilde m)",
    Branch.OPTIMISATION,
    "Jordan et al. 2024 (Muon); decay, Liu et al. 2025, arXiv:2502.16982",
)
def muon_step(
    parameter: Float[Array, "m n"],
    gradient: Float[Array, "m n"],
    momentum: Float[Array, "m n"],
    learning_rate: float = 0.02,
    beta: float = 0.95,
    weight_decay: float = 0.0,
    steps: int | None = 5,
) -> tuple[Array, Array]:
    """Step against the momentum with every singular value set to 1: all directions move alike.

    Takes   parameter, gradient, momentum  (m, n)  a hidden matrix; embeddings and vectors are for AdamW
            steps                          of Newton–Schulz; None takes the exact polar factor UVᵀ from the SVD
    Gives   the new parameter and the new momentum
    Raises  ShapeError when the shapes differ or are no matrices
    """
    parameter, gradient, momentum = floats(parameter), floats(gradient), floats(momentum)
    if parameter.ndim != 2 or not parameter.shape == gradient.shape == momentum.shape:
        raise ShapeError(f"shapes are {parameter.shape}, {gradient.shape}, {momentum.shape}: three alike matrices")
    momentum = beta * momentum + (1 - beta) * gradient
    ahead = (1 - beta) * gradient + beta * momentum
    direction = polar_factor(ahead) if steps is None else newton_schulz(ahead, steps)
    rate = learning_rate * np.sqrt(max(1.0, parameter.shape[0] / parameter.shape[1]))
    return (1 - learning_rate * weight_decay) * parameter - rate * direction, momentum


@formula(
    r"\operatorname{Var}(\theta) = \frac{2}{n_{in}}, \quad \frac{2}{n_{in} + n_{out}}, \quad \frac{\sigma^2}{2L}",
    Branch.PROBABILITY,
    "He et al. 2015, eq. 10, arXiv:1502.01852; Glorot & Bengio 2010, eq. 16; Radford et al. 2019, section 2.3",
)
def initial_std(kind: str, fan_in: int, fan_out: int = 0, std: float = 0.02, num_layers: int = 1) -> float:
    """How large to draw weights so that neither values nor gradients grow from layer to layer.

    Takes   kind        he (for ReLU), xavier (for tanh), or scaled_residual (for what is added to the stream)
            fan_in …    inputs and outputs of the layer
            std         of the other matrices, for scaled_residual
            num_layers  L; two sums per layer
    Gives   standard deviation
    Raises  DomainError for another kind, or sizes that are not above 0
    """
    sizes = {"he": fan_in, "xavier": fan_in + fan_out, "scaled_residual": num_layers}
    if kind in sizes and not sizes[kind] > 0:
        raise DomainError(f"fan_in is {fan_in}, fan_out {fan_out}, num_layers {num_layers}: {kind} needs them above 0")
    match kind:
        case "he":
            return float(np.sqrt(2 / fan_in))
        case "xavier":
            return float(np.sqrt(2 / (fan_in + fan_out)))
        case "scaled_residual":
            return float(std / np.sqrt(2 * num_layers))
    raise DomainError(f"kind is {kind!r}: choose one of he, xavier, scaled_residual")
