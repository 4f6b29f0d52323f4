"""Functions of one and two numbers whose slopes chapters speak of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid.maths.foundations import definiteness, eigen, finite_difference, gradient, gradient_step, hessian
from limpid.maths.operation import Array

Function = Callable[[Any], Any]


def square(x: Any) -> Any:
    """x²."""
    return x * x


def cube(x: Any) -> Any:
    """x³."""
    return x * x * x


def tilted(at: Any) -> Any:
    """x² + 3 x y."""
    return at[0] ** 2 + 3 * at[0] * at[1]


def valley(at: Any) -> Any:
    """Half of x² + 10 y²: ten times as steep across as along."""
    return (at[0] ** 2 + 10 * at[1] ** 2) / 2


def saddle(at: Any) -> Any:
    """x² − y²: up along x, down along y."""
    return at[0] ** 2 - at[1] ** 2


def levelled(x: Any) -> Any:
    """The hyperbolic tangent: it levels off at −1 and 1."""
    return np.tanh(x)


def flat(at: Any) -> Any:
    """tanh x + tanh y."""
    return np.tanh(at[0]) + np.tanh(at[1])


def one_example(at: Any) -> Any:
    """Half of (x + 2 y − 5)²: one equation for two numbers."""
    return (at[0] + 2 * at[1] - 5) ** 2 / 2


def plateau(at: Any) -> Any:
    """x² / (1 + x²): nearly level far from its minimum at zero."""
    return at[0] ** 2 / (1 + at[0] ** 2)


def two_hollows(at: Any) -> Any:
    """(x² − 1)² + 0.3 x: a high hollow near one, and a lower one near minus one."""
    return (at[0] ** 2 - 1) ** 2 + 0.3 * at[0]


def off_the_saddle(at: Array) -> bool:
    """Whether y is beyond 1."""
    return bool(abs(at[1]) > 1)


def over_the_plateau(at: Array) -> bool:
    """Whether x is within a tenth of the minimum."""
    return bool(abs(at[0]) < 0.1)


def bends(f: Function, at: Any) -> Array:
    """Eigenvalues of the Hessian, the smallest first."""
    return np.sort(eigen(hessian(f, np.asarray(at, dtype=np.float64))).values)


def one_sided(f: Function, x: float, h: float) -> float:
    """How much f rises for each step of x, from x to x + h."""
    return float((f(x + h) - f(x)) / h)


def both_sided(f: Function, x: float, h: float) -> float:
    """The same from x − h to x + h."""
    return float(finite_difference(f, np.array(x), h))


def slope(f: Function, x: float) -> float:
    """The derivative of f at x, exact."""
    return float(gradient(f, np.array(x)))


def kind(f: Function, at: Any) -> str:
    """What a place without slope is: minimum, maximum or saddle."""
    return definiteness(hessian(f, np.asarray(at, dtype=np.float64)))


def descended(f: Function, start: Any, rate: float, steps: int) -> Array:
    """Every place on the way of so many steps of gradient descent, the start among them."""
    way = [np.asarray(start, dtype=np.float64)]
    for _ in range(steps):
        way.append(gradient_step(way[-1], gradient(f, way[-1]), rate))
    return np.array(way)
