"""What an operation of PyTorch gives in exact arithmetic, and how far its own rounding may lead; the table of those."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from limpid.maths.operation import Array

INDEPENDENT = 6.0
"""Roundings of n terms that know nothing of each other add up to this many times √n u at most, but once in 10⁷ sums
(Higham and Mary 2019, A new approach to probabilistic rounding error analysis, theorem 2.4)."""


@dataclass(frozen=True)
class Exact:
    """A result of float64 arithmetic.

    rounding  errors that an engine may make on the way, in units of u of the format it adds up in; its last rounding,
              to the format of the result, is not among them
    storage   results on the way that are rounded to the format of the result, in units of its u; None is the result
    stored    that format, where it is not the result's: a kernel may add up in 16 bits what it gives in 32
    held      what is held against the value, where that is no result but what a relation of results is to come to
    solution  then the result, where it is determined: the account of the error asks for it
    """

    value: Array
    rounding: Array | float = 0.0
    storage: Array | None = None
    stored: Any = None
    held: Array | None = None
    solution: Array | None = None


Result = Exact | None | list["Exact | None"] | dict[str, list["Exact"]]
"""Of one output, of several, or of arguments that are written to; None where it cannot be told, as of a seed."""
EXACT: dict[str, Callable[..., Result]] = {}
"""Arithmetic: from arguments in float64, by ATen's names of them."""
MOVED: dict[str, Callable[..., Any]] = {}
"""Movement of data, comparisons, constants: from arguments as they are; results are equal to the bit."""


Entered = TypeVar("Entered", bound=Callable[..., Any])


def arithmetic(*names: str) -> Callable[[Entered], Entered]:
    """Enter a function under names of ATen."""

    def enter(function: Entered) -> Entered:
        EXACT.update(dict.fromkeys(names, function))
        return function

    return enter


def movement(*names: str) -> Callable[[Entered], Entered]:
    """Enter a function under names of ATen."""

    def enter(function: Entered) -> Entered:
        MOVED.update(dict.fromkeys(names, function))
        return function

    return enter


def growth(terms: int) -> float:
    """Roundings of a sum of so many terms, in units of u times the sum of their magnitudes."""
    return min(float(terms), INDEPENDENT * math.sqrt(terms) + INDEPENDENT)


def summed(terms: Array, axes: int | tuple[int, ...] | None, keep: bool = False) -> Exact:
    """A sum over axes."""
    own = [axes] if isinstance(axes, int) else axes
    count = terms.size if own is None or not terms.ndim else math.prod(terms.shape[axis] for axis in own)
    magnitude = np.abs(terms).sum(axes, keepdims=keep)
    return Exact(np.asarray(terms.sum(axes, keepdims=keep)), growth(count) * magnitude)


def all_axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """Axes as ATen gives them: one, several, none for all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    return tuple(axis % max(ndim, 1) for axis in ([dim] if isinstance(dim, int) else dim))[: max(ndim, 0)]
