"""Monte Carlo arithmetic: a computation repeated with every operation rounded at random, and the bound that follows.

It serves operations without an error analysis of their own. Source: Parker 1997, UCLA CSD-970002.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray

UNIT = 2.0**-26
"""The u of the disturbed passes: far above float64's own rounding, and so small that errors stay proportional to u."""
PASSES = 32
FALSE_ALARM = 1e-9
"""How often an honest computation may leave the bound: the probability that any entry of an array does."""

EXACT = frozenset({"negative", "positive", "absolute", "fabs", "sign", "maximum", "minimum", "fmax", "fmin", "clip",
                   "copysign", "floor", "ceil", "trunc", "rint", "conjugate", "ldexp"})  # fmt: skip
"""Functions of NumPy whose results need no rounding."""


class RandomlyRounded(np.ndarray):
    """An array whose every arithmetic result is multiplied by 1 + u ξ, with ξ uniform between -1 and 1."""

    rng: np.random.Generator

    def __array_finalize__(self, parent: Any) -> None:
        self.rng = getattr(parent, "rng", None)  # type: ignore[assignment]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        plain = tuple(_plain(x) for x in inputs)
        into = None if out is None else tuple(_plain(x) for x in out)
        result = getattr(ufunc, method)(*plain, **options, **({} if into is None else {"out": into}))
        if method == "at" or isinstance(result, tuple) or np.asarray(result).dtype.kind != "f":
            return result
        error = np.where(np.isfinite(result), self._error(ufunc, method, plain, result, options), 0.0)
        disturbed = np.asarray(result + UNIT * error * self.rng.uniform(-1, 1, np.shape(result)))
        if out is not None:
            into[0][...] = disturbed  # type: ignore[index]
            return out[0]
        return rounded_at_random(disturbed, self.rng)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Functions that select and arrange, such as `where`, give plain arrays: theirs go on being disturbed."""
        result = super().__array_function__(function, types, args, kwargs)
        if type(result) is np.ndarray and result.dtype.kind == "f":
            return rounded_at_random(result, self.rng)
        return result

    @staticmethod
    def _error(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], result: Any, options: Any) -> Any:
        """What the u of this result is multiplied by: its size; of n terms, √n partial sums of at most Σ |terms|."""
        if ufunc.__name__ in EXACT:
            return 0.0
        if ufunc is np.matmul:
            return math.sqrt(inputs[0].shape[-1]) * (np.abs(inputs[0]) @ np.abs(inputs[1]))
        if method in ("reduce", "accumulate") and ufunc is np.add:
            options = {name: value for name, value in options.items() if name != "out"}
            size = getattr(np.add, method)(np.abs(inputs[0]), **options)
            return math.sqrt(inputs[0].size / max(1, np.size(result))) * size
        return np.abs(result)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, RandomlyRounded) else x


def rounded_at_random(x: Array, rng: np.random.Generator) -> RandomlyRounded:
    """The array, to be computed with in disturbed arithmetic."""
    view = np.asarray(x).view(RandomlyRounded)
    view.rng = rng
    return view


def random_rounding(
    compute: Callable[..., Sequence[Array | None]], inputs: Sequence[Any], passes: int = PASSES
) -> tuple[Array | None, ...]:
    """How far honest rounding may move each entry of each result of `compute(*inputs)`, in units of u.

    Each pass rounds the inputs and every operation on them at random. The root mean square departure of an entry over
    the passes estimates its standard error, times Student's t at which an array's worst entry leaves it with
    probability FALSE_ALARM.
    """
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        exact = compute(*inputs)
        squares = [None if y is None else np.zeros(np.shape(y)) for y in exact]
        for _ in range(passes):
            results = compute(*(_disturbed(x, rng) for x in inputs))
            for square, y, disturbed in zip(squares, exact, results, strict=True):
                if square is not None and y is not None:
                    square += np.square(np.asarray(disturbed, dtype=np.float64) - y) / UNIT**2
    return tuple(
        None if square is None else student(passes, square.size) * np.sqrt(square / passes) for square in squares
    )


def student(passes: int, entries: int, false_alarm: float = FALSE_ALARM) -> float:
    """How many estimated standard errors the worst of so many entries leaves with this probability."""
    from scipy.special import stdtrit  # the inverse of Student's distribution function

    return -float(stdtrit(passes, false_alarm / (2 * max(1, entries))))


def _disturbed(x: Any, rng: np.random.Generator) -> Any:
    """One rounding of an input; ids and masks, which no format rounds, stay as they are."""
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        return rounded_at_random(x * (1 + UNIT * rng.uniform(-1, 1, x.shape)), rng)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_disturbed(part, rng) for part in x))
    return tuple(_disturbed(part, rng) for part in x) if isinstance(x, tuple) else x
