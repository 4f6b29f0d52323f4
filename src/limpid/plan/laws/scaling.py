"""Scaling laws: the loss that a size and a number of tokens reach, and how compute is best divided between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from limpid.errors import ConfigError
from limpid.plan.figure import Figure, figure, given

HOFFMANN = "Hoffmann et al. 2022, {}, arXiv:2203.15556"
SIX_N_D = "Kaplan et al. 2020, section 2.1, arXiv:2001.08361"
LOSS = "E + A / N ** alpha + B / D ** beta"


def six_n_d(parameters: float, tokens: float) -> float:
    """FLOPs of training N parameters on D tokens: 2 N D forward, twice that backward."""
    return 6 * parameters * tokens


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^α + B / D^β, in nats per token of the text and vocabulary that it was fitted on.

    Source: Hoffmann et al. 2022, eq. 2 and 4, arXiv:2203.15556.
    """

    name: str
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
        parameters = self.ratio * (compute / 6) ** self.exponent
        return parameters, compute / 6 / parameters

    def compute_for(self, parameters: float | None = None, tokens: float | None = None) -> float:
        """FLOPs for which this size, or this number of tokens, is the best one."""
        if parameters is not None:
            return 6 * (parameters / self.ratio) ** (1 / self.exponent)
        return 6 * ((tokens or 0.0) * self.ratio) ** (1 / (1 - self.exponent))


@dataclass(frozen=True)
class Power:
    """N = k C^a by itself, without a loss: what reading off minima gives."""

    name: str
    k: float
    a: float
    source: str

    def optimum(self, compute: float) -> tuple[float, float]:
        parameters = self.k * compute**self.a
        return parameters, compute / 6 / parameters

    def compute_for(self, parameters: float | None = None, tokens: float | None = None) -> float:
        if parameters is not None:
            return (parameters / self.k) ** (1 / self.a)
        return (6 * (tokens or 0.0) * self.k) ** (1 / (1 - self.a))


TABLE_3 = (  # parameters, FLOPs: minima over training curves
    (400e6, 1.92e19), (1e9, 1.21e20), (10e9, 1.23e22), (67e9, 5.76e23), (175e9, 3.85e24), (280e9, 9.90e24),
    (520e9, 3.43e25), (1e12, 1.27e26), (10e12, 1.30e28),
)  # fmt: skip
TABLE_A3 = (  # parameters, tokens: minima of iso-FLOP profiles
    (400e6, 7.7e9), (1e9, 20.0e9), (10e9, 219.5e9), (67e9, 1.7e12), (175e9, 4.3e12), (280e9, 7.1e12), (520e9, 13.4e12),
    (1e12, 26.5e12), (10e12, 292.0e12),
)  # fmt: skip


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and intercept of the least-squares line."""
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((a - middle_x) ** 2 for a in x)
    if not spread:
        raise ConfigError(f"a line through {len(x)} points needs at least two different places: all are {x[0]}")
    slope = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True)) / spread
    return slope, middle_y - slope * middle_x


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """k and a of the y = k x^a that is the straightest line through the logarithms."""
    slope, intercept = line([math.log10(value) for value in x], [math.log10(value) for value in y])
    return 10**intercept, slope


def _read_off(name: str, points: tuple[tuple[float, float], ...], where: str) -> Power:
    k, a = power_law([compute for _, compute in points], [parameters for parameters, _ in points])
    return Power(name, k, a, HOFFMANN.format(where))


APPROACH_1 = _read_off("Hoffmann, approach 1", TABLE_3, "table 3")
APPROACH_2 = _read_off("Hoffmann, approach 2", tuple((n, six_n_d(n, d)) for n, d in TABLE_A3), "table A3")
APPROACH_3 = Law(
    "Hoffmann, approach 3", math.exp(0.5267228), math.exp(6.0073404), math.exp(6.0179186), 0.33917084, 0.2849083,
    HOFFMANN.format("eq. 10; unrounded by Besiroglu et al. 2024, arXiv:2404.10102"),
)  # fmt: skip
REFIT = Law("Besiroglu, re-fit", 1.8172, 482.01, 2085.43, 0.3478, 0.3658, "Besiroglu et al. 2024, arXiv:2404.10102")
LAWS: tuple[Law | Power, ...] = (APPROACH_1, APPROACH_2, APPROACH_3, REFIT)
KAPLAN_ALPHA = 0.076
"""Exponent of L ∝ N^-α. Source: Kaplan et al. 2020, eq. 1.1, arXiv:2001.08361."""


def kaplan_factor(factor: float, alpha: float = KAPLAN_ALPHA) -> float:
    """By what the loss is multiplied when there are `factor` times as many parameters."""
    return factor**-alpha


def allocate(
    law: Law | Power, compute: float | None = None, parameters: float | None = None, tokens: float | None = None
) -> list[Figure]:
    """The compute-optimal partner of whichever of the three is given, under one law."""
    short = law.name.split(", ")[1].replace(" ", "_").replace("-", "")
    name = f"scaling.{short}"
    if isinstance(law, Law):
        numbers = {**law.constants, "G": law.ratio, "a": law.exponent}
        forms = ("G * (C / 6) ** a", "6 * (N / G) ** (1 / a)", "6 * (D * G) ** (1 / (1 - a))")
        note = "G = (α A / β B)^(1/(α+β)), a = β/(α+β)"
    else:
        numbers = {"k": law.k, "a": law.a}
        forms = ("k * C ** a", "(N / k) ** (1 / a)", "(6 * D * k) ** (1 / (1 - a))")
        note = "k and a: the line through the logarithms of the published table"
    if compute is not None:
        c = given(f"{name}.compute", compute, "FLOP")
    elif parameters is not None:
        c = figure(f"{name}.compute", "FLOP", forms[1], {**numbers, "N": parameters}, law.source, note)
    else:
        c = figure(f"{name}.compute", "FLOP", forms[2], {**numbers, "D": tokens or 0.0}, law.source, note)
    n = figure(f"{name}.parameters", "parameters", forms[0], {**numbers, "C": c}, law.source, note)
    d = figure(f"{name}.tokens", "tokens", "C / (6 * N)", {"C": c, "N": n}, SIX_N_D)
    found = [c, n, d, figure(f"{name}.tokens_per_parameter", "", "D / N", {"D": d, "N": n})]
    if isinstance(law, Law):
        found.append(figure(f"{name}.loss", "nats/token", LOSS, {**law.constants, "N": n, "D": d}, law.source))
    return found


def judge(law: Law, parameters: float, tokens: float) -> list[Figure]:
    """How far a run lies from the best use of its compute: how under- or over-trained it is, and what that loses."""
    name = f"scaling.{law.name.split(', ')[1].replace(' ', '_').replace('-', '')}"
    source, c = law.source, figure("scaling.compute", "FLOP", "6 * N * D", {"N": parameters, "D": tokens}, SIX_N_D)
    best = {one.name.rpartition(".")[2]: one for one in allocate(law, compute=float(c.value))}
    own = {one.name.rpartition(".")[2]: one for one in allocate(law, parameters=parameters)}
    best_n = best["parameters"]
    loss = figure(f"{name}.loss", "nats/token", LOSS, {**law.constants, "N": parameters, "D": tokens}, source)
    return [
        c,
        loss,
        figure(f"{name}.best_parameters", "parameters", best_n.equation, best_n.numbers, source),
        figure(f"{name}.best_tokens", "tokens", "C / (6 * N)", {"C": c, "N": best_n}, SIX_N_D),
        figure(f"{name}.best_loss", "nats/token", LOSS, best["loss"].numbers, source),
        figure(f"{name}.loss_lost", "nats/token", "loss - best_loss", {"loss": loss, "best_loss": best["loss"]},
               note="against the best size for the same compute"),
        figure(f"{name}.training", "", "D / D_best", {"D": tokens, "D_best": own["tokens"]},
               note="tokens over those for which this size is the best one: below 1 under-trained, above over-trained"),
    ]  # fmt: skip
