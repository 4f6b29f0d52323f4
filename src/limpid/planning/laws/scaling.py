"""Scaling laws: the loss that a size and a number of tokens reach, and how compute is best divided between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from limpid.config.options import require
from limpid.errors import ConfigError

HOFFMANN = "Hoffmann et al. 2022, {}, arXiv:2203.15556"
SIX_N_D = "Kaplan et al. 2020, section 2.1, arXiv:2001.08361"


def six_n_d(parameters: float, tokens: float) -> float:
    """FLOPs of training N parameters on D tokens: 2 N D forward, twice that backward."""
    return 6 * parameters * tokens


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^α + B / D^β, in nats per token of the text and vocabulary that it was fitted on.

    Source: Hoffmann et al. 2022, eq. 2 and 4, arXiv:2203.15556.
    """

    name: str
    """Who published it, and which of their fits."""
    E: float
    A: float
    B: float
    alpha: float
    beta: float
    source: str

    def __post_init__(self) -> None:
        for name in ("A", "B", "alpha", "beta"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: a scaling law needs it above 0")

    @staticmethod
    def of(constants: Iterable[float], name: str = "", source: str = "") -> Law:
        """A law from E, A, B, α, β in that order."""
        E, A, B, alpha, beta = (float(constant) for constant in constants)
        return Law(name, E, A, B, alpha, beta, source)

    @property
    def constants(self) -> dict[str, float]:
        return {"E": self.E, "A": self.A, "B": self.B, "alpha": self.alpha, "beta": self.beta}

    @property
    def exponent(self) -> float:
        """a = β / (α + β): how the best size grows with compute."""
        return self.beta / (self.alpha + self.beta)

    @property
    def ratio(self) -> float:
        """G: the best size is G (C/6)^a, the best number of tokens (C/6)^(1-a) / G."""
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """Nats per token, of numbers or of arrays."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    def optimum(self, compute: float) -> tuple[float, float]:
        """Parameters and tokens with the least loss for this many FLOPs."""
        require(compute > 0, f"compute is {compute}: FLOPs, above 0")
        parameters = self.ratio * (compute / 6) ** self.exponent
        return parameters, compute / 6 / parameters


@dataclass(frozen=True)
class PowerLaw:
    """The best size alone, N = k C^a, without a loss: what reading minima off curves gives."""

    name: str
    k: float
    a: float
    source: str

    def optimum(self, compute: float) -> tuple[float, float]:
        """Parameters and tokens with the least loss for this many FLOPs."""
        require(compute > 0, f"compute is {compute}: FLOPs, above 0")
        parameters = self.k * compute**self.a
        return parameters, compute / 6 / parameters


TABLE_3 = (  # parameters, FLOPs: minima over training curves
    (400e6, 1.92e19), (1e9, 1.21e20), (10e9, 1.23e22), (67e9, 5.76e23), (175e9, 3.85e24), (280e9, 9.90e24),
    (520e9, 3.43e25), (1e12, 1.27e26), (10e12, 1.30e28),
)  # fmt: skip
TABLE_A3 = (  # parameters, tokens: minima of iso-FLOP profiles
    (400e6, 7.7e9), (1e9, 20.0e9), (10e9, 219.5e9), (67e9, 1.7e12), (175e9, 4.3e12), (280e9, 7.1e12), (520e9, 13.4e12),
    (1e12, 26.5e12), (10e12, 292.0e12),
)  # fmt: skip


def least_squares_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line."""
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle_x) ** 2 for a in x)
    if not spread:
        raise ConfigError(f"a line through {len(x)} points needs at least two different places: all are {x[0]}")
    slope = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread
    return slope, middle_y - slope * middle_x


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """k and a of the y = k x^a that is the straightest line through the logarithms.

    Raises  ConfigError for a number that has no logarithm
    """
    for value in (*x, *y):
        require(value > 0, f"{value} is among the points of a power law: it has no logarithm, so leave it out")
    slope, intercept = least_squares_line([math.log10(value) for value in x], [math.log10(value) for value in y])
    return 10**intercept, slope


def _read_off(name: str, points: tuple[tuple[float, float], ...], where: str) -> PowerLaw:
    k, a = power_law([compute for _, compute in points], [parameters for parameters, _ in points])
    return PowerLaw(name, k, a, HOFFMANN.format(where))


APPROACH_1 = _read_off("Hoffmann, approach 1", TABLE_3, "table 3")
APPROACH_2 = _read_off("Hoffmann, approach 2", tuple((n, six_n_d(n, d)) for n, d in TABLE_A3), "table A3")
APPROACH_3 = Law(
    "Hoffmann, approach 3", math.exp(0.5267228), math.exp(6.0073404), math.exp(6.0179186), 0.33917084, 0.2849083,
    HOFFMANN.format("eq. 10; unrounded by Besiroglu et al. 2024, arXiv:2404.10102"),
)  # fmt: skip
REFIT = Law("Besiroglu, re-fit", 1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024, arXiv:2404.10102")
LAWS: tuple[Law | PowerLaw, ...] = (APPROACH_1, APPROACH_2, APPROACH_3, REFIT)
KAPLAN_ALPHA = 0.076
"""Exponent of L ∝ N^-α. Source: Kaplan et al. 2020, eq. 1.1, arXiv:2001.08361."""


KAPLAN_LOSS = {"N_c": 8.8e13, "alpha_N": KAPLAN_ALPHA, "D_c": 5.4e13, "alpha_D": 0.095}
"""Of the loss of a size alone and of data alone. Source: Kaplan et al. 2020, eq. 1.1 and 1.2, arXiv:2001.08361."""
KAPLAN_JOINT = {"N_c": 6.4e13, "alpha_N": KAPLAN_ALPHA, "D_c": 1.8e13, "alpha_D": 0.103}
"""Of the loss of both. Source: Kaplan et al. 2020, table 2, arXiv:2001.08361."""
KAPLAN_TOKENS = 5e3, 0.74
"""Constants of D ≥ 5,000 N^0.74. Source: Kaplan et al. 2020, eq. 4.4, arXiv:2001.08361."""


def kaplan_loss(parameters: float = math.inf, tokens: float = math.inf) -> float:
    """Loss (nats) of N parameters outside the tables on D tokens: one of them is no limit when it is left out.

    (N_c/N)^α_N, (D_c/D)^α_D, or [(N_c/N)^(α_N/α_D) + D_c/D]^α_D.
    Source: Kaplan et al. 2020, eq. 1.1, 1.2 and 1.5, arXiv:2001.08361.
    """
    require(parameters > 0 and tokens > 0, f"parameters is {parameters}, tokens {tokens}: both must be above 0")
    law = KAPLAN_JOINT if math.isfinite(parameters) and math.isfinite(tokens) else KAPLAN_LOSS
    size = (law["N_c"] / parameters) ** (law["alpha_N"] / law["alpha_D"])
    return float((size + law["D_c"] / tokens) ** law["alpha_D"])


def tokens_without_overfitting(parameters: float) -> float:
    """Fewest tokens that a model of this size can be trained on again and again without overfitting much.

    Source: Kaplan et al. 2020, eq. 4.4, arXiv:2001.08361.
    """
    require(parameters > 0, f"parameters is {parameters}: it must be above 0")
    return KAPLAN_TOKENS[0] * parameters ** KAPLAN_TOKENS[1]


def kaplan_factor(factor: float, alpha: float = KAPLAN_ALPHA) -> float:
    """By what the loss is multiplied when there are `factor` times as many parameters."""
    require(factor > 0, f"factor is {factor}: it must be above 0")
    return factor**-alpha
