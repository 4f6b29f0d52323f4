"""A scaling law fitted to runs, with intervals: Huber loss on logarithms, L-BFGS from a grid, bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Float

from limpid.config.options import require
from limpid.errors import ConfigError
from limpid.planning.laws.scaling import Law
from limpid.reporter import Report
from limpid.terminal import counted

Array = np.ndarray[Any, np.dtype[np.float64]]
NAMES = ("E", "A", "B", "alpha", "beta")
FEWEST = len(NAMES) + 1
"""Runs that tell the constants apart."""
DELTA = 1e-3
"""Where the Huber loss turns from square to straight, in log loss. Source: Hoffmann et al. 2022, section D.2."""
SOURCE = "fitted here; method: Hoffmann et al. 2022, section D.2, arXiv:2203.15556"
LOGARITHMS = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
GRID = {"e": (-1.0, -0.5, 0.0, 0.5, 1.0), "a": LOGARITHMS, "b": LOGARITHMS,
        "alpha": (0.0, 0.5, 1.0, 1.5, 2.0), "beta": (0.0, 0.5, 1.0, 1.5, 2.0)}  # fmt: skip
"""Where the search starts: logarithms of E, A, B, and the exponents. Source: as above."""
BOUNDS = ((-50.0, 20.0), (-50.0, 50.0), (-50.0, 50.0), (1e-4, 10.0), (1e-4, 10.0))
"""Of the logarithms of the three terms at the middle of the data, and of the exponents: a loss falls with size."""
WIDEST_INTERVAL, LEAST_EFFECT = 30, 0.01
"""A constant is undetermined when the ends of its interval have a larger ratio, or its term varies by a smaller share
of what the losses do.
"""
FEWEST_FOR_INTERVALS = 9
"""Runs from which most samples with replacement hold six different ones, as five constants and a residual need: 66 % of
samples of 9, 38 % of 8. Of fewer runs the samples that remain are nearly the data, and their intervals of 95 % held the
truth in 72 to 83 % of trials of 7; benchmarks/scaling_fit.py repeats them.
"""
NUM_STARTS = 6
"""Best points of the grid that are followed, each with other exponents."""


@dataclass(frozen=True)
class Points:
    """What was trained: parameters, tokens, and the loss reached, nats per token."""

    parameters: Float[Array, " run"]
    tokens: Float[Array, " run"]
    loss: Float[Array, " run"]

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, rows: Any) -> Points:
        return Points(self.parameters[rows], self.tokens[rows], self.loss[rows])


@dataclass(frozen=True)
class Fit:
    """The law, the objective it reached, and the laws of resampled runs that its intervals come from, where there are
    runs enough to resample.
    """

    law: Law
    objective: float
    points: Points
    resampled: Float[Array, "draw 5"]
    """Constants in the order of NAMES."""
    level: float

    def interval(self, value: Callable[[Law], float]) -> tuple[float, float] | None:
        """Where a function of the law lies with probability `level`: percentiles over the resampled laws, if any."""
        if not len(self.resampled):
            return None
        drawn = [value(Law.of(row)) for row in self.resampled]
        low, high = np.quantile(drawn, [(1 - self.level) / 2, (1 + self.level) / 2])
        return float(low), float(high)

    def document(self, compute: float | None = None) -> dict[str, Any]:
        """The fit as JSON: constants with their intervals, the runs, and a prediction where compute is given."""
        columns = {**vars(self.points), "fitted": self.law.loss(self.points.parameters, self.points.tokens)}
        document: dict[str, Any] = {
            "constants": self.law.constants,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "intervals_need": FEWEST_FOR_INTERVALS,
            "exponent": self.law.exponent,
            "level": self.level,
            "undetermined": self.undetermined,
            "objective": self.objective,
            "resamples": len(self.resampled),
            "source": self.law.source,
            "runs": [{name: float(column[row]) for name, column in columns.items()} for row in range(len(self.points))],
        }
        if compute is not None:
            n, d = self.law.optimum(compute)
            document["prediction"] = {
                "compute": compute, "parameters": n, "tokens": d, "loss": self.law.loss(n, d),
                "parameters_interval": self.interval(lambda law: law.optimum(compute)[0]),
                "tokens_interval": self.interval(lambda law: law.optimum(compute)[1]),
                "loss_interval": self.interval(lambda law: law.loss(*law.optimum(compute))),
            }  # fmt: skip
        return document

    @property
    def undetermined(self) -> list[str]:
        """Constants that these runs say little about: wide intervals, or a term that losses hardly show."""
        loose = {name for name, (low, high) in self.intervals.items() if high > WIDEST_INTERVAL * low}
        loss_range = np.ptp(self.points.loss)
        loose |= {"E"} if LEAST_EFFECT * self.points.loss.min() > self.law.E else set()
        for factor, exponent, axis in (("A", "alpha", self.points.parameters), ("B", "beta", self.points.tokens)):
            term = self.law.constants[factor] / axis ** self.law.constants[exponent]
            loose |= {factor, exponent} if np.ptp(term) < LEAST_EFFECT * loss_range else set()
        return [name for name in NAMES if name in loose]

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Interval of every constant; none of so few runs that resampling says nothing."""
        found = {name: self.interval(attrgetter(name)) for name in NAMES}
        return {name: ends for name, ends in found.items() if ends is not None}


def points_of(parameters: Sequence[float], tokens: Sequence[float], loss: Sequence[float]) -> Points:
    """Runs as points, checked to be positive, finite, and different enough to determine five constants.

    Raises  ConfigError naming what is missing
    """
    arrays = [np.asarray(column, dtype=np.float64) for column in (parameters, tokens, loss)]
    for name, column in zip(("parameters", "tokens", "loss"), arrays, strict=True):
        if not (np.isfinite(column).all() and (column > 0).all()):
            odd = column[~(np.isfinite(column) & (column > 0))][0]
            raise ConfigError(f"{name} {odd} among the runs: expected numbers above 0")
    points = Points(*arrays)
    if len(points) < FEWEST:
        raise ConfigError(f"{counted(len(points), 'run')} cannot tell five constants apart: give at least {FEWEST}")
    for name, column in (("sizes", arrays[0]), ("numbers of tokens", arrays[1])):
        if len(np.unique(np.round(np.log(column), 6))) < 3:
            raise ConfigError(
                f"the runs have {len(np.unique(column))} different {name}: an exponent needs at least 3, "
                "as from `limpid plan sweep`"
            )
    if np.ptp(points.loss) <= 1e-6 * points.loss.max():
        raise ConfigError(f"every run reached the loss {points.loss[0]:g}: there is nothing to fit")
    return points


class Objective:
    """Sum of Huber losses of log L̂ - log L, and its gradient, in coordinates that are nearly independent.

    log L̂ = LSE(e, a - α log N, b - β log D). a and α are correlated; with log N measured from the middle of the
    data they are not, which makes L-BFGS fast.
    """

    def __init__(self, points: Points, delta: float) -> None:
        log_n, log_d = np.log(points.parameters), np.log(points.tokens)
        self.middle = float(log_n.mean()), float(log_d.mean())
        self.log_n, self.log_d, self.log_loss = log_n - self.middle[0], log_d - self.middle[1], np.log(points.loss)
        self.delta = delta

    def terms(self, theta: Float[Array, "*start 5"]) -> Float[Array, "*start 3 run"]:
        """Logarithms of the three terms. theta: e, a and b at the middle, α, β."""
        e, a, b, alpha, beta = np.moveaxis(theta, -1, 0)[..., None]
        return np.stack((e + 0 * self.log_n, a - alpha * self.log_n, b - beta * self.log_d), axis=-2)

    def values(self, theta: Float[Array, "start 5"]) -> Float[Array, " start"]:
        """The objective at many points at once."""
        terms = self.terms(theta)
        largest = terms.max(-2, keepdims=True)
        residual = largest[..., 0, :] + np.log(np.exp(terms - largest).sum(-2)) - self.log_loss
        size = np.abs(residual)
        return np.where(size <= self.delta, residual**2 / 2, self.delta * (size - self.delta / 2)).sum(-1)

    def with_gradient(self, theta: Float[Array, " 5"]) -> tuple[float, Float[Array, " 5"]]:
        """Value and gradient, both over δ², so that tolerances mean the same for every δ."""
        terms = self.terms(theta)
        largest = terms.max(-2)
        weights = np.exp(terms - largest)
        total = weights.sum(0)
        residual = largest + np.log(total) - self.log_loss
        size = np.abs(residual)
        slope = np.clip(residual, -self.delta, self.delta)
        value = np.where(size <= self.delta, residual**2 / 2, self.delta * (size - self.delta / 2)).sum()
        e, a, b = weights / total * slope
        gradient = np.array([e.sum(), a.sum(), b.sum(), -(a @ self.log_n), -(b @ self.log_d)])
        return float(value) / self.delta**2, gradient / self.delta**2

    def constants(self, theta: Float[Array, " 5"]) -> Float[Array, " 5"]:
        """E, A, B, α, β at a point of the search."""
        e, a, b, alpha, beta = theta
        return np.array(
            [math.exp(e), math.exp(a + alpha * self.middle[0]), math.exp(b + beta * self.middle[1]), alpha, beta]
        )

    def theta(self, constants: Float[Array, " 5"]) -> Float[Array, " 5"]:
        """The point of the search where the constants are E, A, B, α, β."""
        E, A, B, alpha, beta = constants
        return np.array(
            [math.log(E), math.log(A) - alpha * self.middle[0], math.log(B) - beta * self.middle[1], alpha, beta]
        )


def starts(objective: Objective) -> Float[Array, "start 5"]:
    """The best points of the grid, one per pair of exponents."""
    e, a, b, alpha, beta = (axis.ravel() for axis in np.meshgrid(*GRID.values(), indexing="ij"))
    grid = np.stack((e, a - alpha * objective.middle[0], b - beta * objective.middle[1], alpha, beta), axis=-1)
    value = np.concatenate([objective.values(part) for part in np.array_split(grid, 1 + len(grid) // 500)])
    order = np.argsort(value, kind="stable")
    _, first = np.unique(grid[order][:, 3:], axis=0, return_index=True)
    return grid[order[np.sort(first)[:NUM_STARTS]]]


def descend(objective: Objective, start: Float[Array, " 5"]) -> tuple[float, Float[Array, " 5"]]:
    """L-BFGS from one start: the objective reached, and where."""
    from scipy.optimize import minimize
    from threadpoolctl import threadpool_limits

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 20}
    with threadpool_limits(1):  # on five numbers, threads only wait for each other
        result = minimize(objective.with_gradient, start, jac=True, method="L-BFGS-B", bounds=BOUNDS, options=options)
    return float(result.fun) * objective.delta**2, result.x


def minimum(points: Points, delta: float = DELTA) -> tuple[Float[Array, " 5"], float]:
    """E, A, B, α, β with the least objective, and that objective."""
    objective = Objective(points, delta)
    value, theta = min((descend(objective, start) for start in starts(objective)), key=lambda result: result[0])
    return objective.constants(theta), value


def fit(
    points: Points,
    delta: float = DELTA,
    resamples: int = 200,
    level: float = 0.95,
    seed: int = 0,
    report: Report | None = None,
) -> Fit:
    """The law that fits some runs, with intervals from runs resampled with replacement where there are enough of them.

    A sample of too few different runs cannot determine five constants; another is drawn in its place.
    Source of the intervals: Efron 1979, doi:10.1214/aos/1176344552, percentiles over whole runs.
    """
    require(delta > 0, f"delta is {delta}: it must be above 0")
    require(resamples >= 20, f"resamples is {resamples}: intervals need at least 20")
    require(0 < level < 1, f"level is {level}: it must lie between 0 and 1, for example 0.95")
    require(seed >= 0, f"seed is {seed}: it must be 0 or above")
    constants, objective = minimum(points, delta)
    resamples = resamples if len(points) >= FEWEST_FOR_INTERVALS else 0
    rng, drawn = np.random.default_rng(seed), np.empty((resamples, len(NAMES)))
    for number in range(resamples):
        while True:
            rows = rng.integers(0, len(points), len(points))
            if len(np.unique(rows)) > len(NAMES):
                break
        resampled = Objective(points.take(rows), delta)
        drawn[number] = resampled.constants(descend(resampled, resampled.theta(constants))[1])
        if report is not None:
            report("resampling", number + 1, resamples)
    law = Law.of(constants, "fitted", SOURCE)
    return Fit(law, objective, points, drawn, level)
