"""What a formula is: a plain function of arrays that carries its equation, its derivative and its source."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import numpy as np

from limpid.errors import DomainError
from limpid.maths.catalogue import register
from limpid.maths.dual import has_duals, through
from limpid.maths.given import floats as floats
from limpid.maths.given import held
from limpid.maths.operation import Array, Branch, Operation, Shape, described

R = TypeVar("R")


class Formula(Generic[R]):
    """A function that says what it is; where it is differentiable, `backward` gives the gradient of each input.

    A formula stands by itself; `operation` makes it a link of a chain.
    """

    equation: str
    adjoint: tuple[str, ...]
    source: str
    branch: Branch

    def __init__(
        self, function: Callable[..., R], equation: str, branch: Branch, source: str, adjoint: tuple[str, ...]
    ) -> None:
        functools.update_wrapper(self, function)
        self.name: str = function.__name__
        self.function = function
        self.equation, self.branch, self.source, self.adjoint = equation, branch, source, adjoint
        self.__doc__ = described(function.__doc__, equation, adjoint, branch, source)
        self._backward: Callable[..., Any] | None = None
        self._written: Callable[..., tuple[str, tuple[str, ...]]] | None = None
        self._signature = inspect.signature(function)
        register(self.name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """The value; lists will do for arrays.

        Raises  DomainError where inputs that are numbers would give a result that is none
        """
        if any(has_duals(value) for value in args):
            return cast(R, self._dual(args, kwargs))
        given = self.given(*args, **kwargs)
        with np.errstate(all="ignore"):
            result = self.function(*given.args, **given.kwargs)
        if _has_nan(result) and not any(_has_nan(value) for value in (*args, *kwargs.values())):
            raise DomainError(f"{self.name} has no value there: the result is not a number (0/0, ∞ - ∞ or 0·∞ inside)")
        return result

    def _dual(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The value with its slope, by the hand-derived gradient."""
        return through(
            self.name,
            lambda *values: self(*values, **kwargs),
            lambda y_bar, *values: self.backward(y_bar, *values, **kwargs),
            tuple(args),
        )

    def given(self, *inputs: Any, **options: Any) -> inspect.BoundArguments:
        """Arguments as the function wants them: lists and numbers will do for arrays.

        Raises  DomainError, ShapeError naming what is no number, or does not fit; TypeError for another signature
        """
        try:
            given = self._signature.bind(*inputs, **options)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        given.arguments.update(held(self.function, self.name, given))
        return given

    def derivative(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the function (y_bar, *inputs) that gives the gradient of each input."""
        self._backward = backward
        return backward

    def written(self, write: Callable[..., tuple[str, tuple[str, ...]]]) -> Callable[..., Any]:
        """Decorates the function of the options that says what is left of equation and adjoint where they are given."""
        self._written = write
        return write

    def lines(self, **options: Any) -> tuple[str, tuple[str, ...]]:
        """Equation and adjoint with these options, LaTeX: of several cases the one that holds, numbers for letters."""
        return (self.equation, self.adjoint) if self._written is None else self._written(**options)

    @property
    def differentiable(self) -> bool:
        return self._backward is not None

    def backward(self, y_bar: Any, *inputs: Any, **options: Any) -> tuple[Array | None, ...]:
        """Gradient of the loss with respect to each input, given `y_bar`, that of the value."""
        if self._backward is None:
            raise DomainError(f"{self.name} comes without a hand-derived gradient")
        given = self.given(*inputs, **options)
        with np.errstate(all="ignore"):
            bars = self._backward(floats(y_bar, f"{self.name}: y_bar"), *given.args, **given.kwargs)
        return bars if isinstance(bars, tuple) else (bars,)

    def operation(self, **options: Any) -> FormulaOperation:
        """The formula as an operation, for a chain: `chain.apply(name, dpo.operation(beta=0.1), …)`.

        Raises  DomainError for a formula without a gradient
        """
        if self._backward is None:
            raise DomainError(
                f"{self.name} comes without a hand-derived gradient: a chain could not go back through it"
            )
        return FormulaOperation(self, tuple(sorted(options.items())))

    def __repr__(self) -> str:
        return f"<formula {self.name}: {self.equation}>"


@dataclass(frozen=True)
class FormulaOperation(Operation):
    """A formula with its options, as an operation: forward and backward are the formula's, bounds come from passes that
    are rounded at random.
    """

    formula: Formula[Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("equation", "adjoint", "source", "branch", "__doc__"):
            object.__setattr__(self, name, getattr(self.formula, name))

    @property
    def name(self) -> str:
        return self.formula.name

    def as_used(self, *shapes: Shape) -> str:
        return self.formula.lines(**dict(self.options))[0]

    def adjoint_as_used(self, *shapes: Shape) -> tuple[str, ...]:
        return self.formula.lines(**dict(self.options))[1][: len(shapes)]

    def forward(self, *inputs: Array) -> tuple[Array, tuple[Array, ...]]:
        arrays = self.formula.given(*inputs, **dict(self.options)).args[: len(inputs)]
        return np.asanyarray(self.formula.function(*arrays, **dict(self.options)), dtype=np.float64), arrays

    def backward(self, y_bar: Array, saved: tuple[Array, ...]) -> tuple[Array | None, ...]:
        return self.formula.backward(y_bar, *saved, **dict(self.options))


def formula(
    equation: str, branch: Branch, source: str, adjoint: tuple[str, ...] = ()
) -> Callable[[Callable[..., R]], Formula[R]]:
    """Makes a function a formula."""
    return lambda function: Formula(function, equation, branch, source, adjoint)


def _has_nan(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_has_nan(part) for part in value)
    array = np.asarray(value) if isinstance(value, int | float | np.ndarray | np.generic) else None
    return array is not None and array.dtype.kind in "fc" and bool(np.isnan(array).any())
