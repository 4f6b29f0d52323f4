"""What an operation is: forward, backward, equation, cost, and how far rounding may take it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from limpid.errors import DomainError, ShapeError
from limpid.maths.catalogue import register
from limpid.maths.dual import has_duals, through
from limpid.maths.given import hold_fields, numbers
from limpid.maths.random_rounding import random_rounding

if TYPE_CHECKING:
    Array = np.ndarray
else:
    Array = np.ndarray | np.generic  # NumPy gives numbers where an array has no axis left


class Branch(Enum):
    """The branch of mathematics that an operation belongs to."""

    LINEAR_ALGEBRA = "linear algebra"
    PROBABILITY = "probability"
    CALCULUS = "calculus"
    OPTIMISATION = "optimisation"
    INFORMATION = "information theory"


Shape = tuple[int, ...]


def in_latex(number: float) -> str:
    """A number of an equation, LaTeX, to six digits."""
    digits, _, power = f"{number:.6g}".partition("e")
    if not power:
        return digits
    return f"10^{{{int(power)}}}" if digits == "1" else rf"{digits} \cdot 10^{{{int(power)}}}"


def described(text: str | None, equation: str, adjoint: Sequence[str], branch: Branch, source: str) -> str:
    """A docstring with the facts that are kept beside it, so that `help` shows all of them."""
    lines = [inspect.cleandoc(text or ""), "", f"{FACTS}{equation}"]
    lines += [f"{'Adjoint' if number == 0 else '':<9}{line}" for number, line in enumerate(filter(None, adjoint))]
    return "\n".join([*lines, f"Branch   {branch.value}", f"Source   {source}"])


FACTS = "Equation "
"""Where the facts begin in a docstring."""


class Operation(ABC):
    """One step of mathematics, frozen: it holds hyperparameters only.

    `forward` returns what `backward` needs instead of keeping it, so one operation may run in every block, twice, or
    in a replay. `rounding` and `backward_rounding` say how far an honest computation may stray: the error of each
    entry is at most u · rounding, with u the unit round-off of the arithmetic that sums (first order; Higham 2002,
    section 3.1). Rounding to the storage format comes on top, `roundings` times.
    """

    equation: ClassVar[str]
    """Forward, LaTeX, in the source's letters."""
    adjoint: ClassVar[tuple[str, ...]]
    """Gradient of the loss with respect to each input, LaTeX, one line per input; empty where there is none."""
    source: ClassVar[str]
    """Authors, year, equation number, identifier."""
    branch: ClassVar[Branch]
    roundings: ClassVar[int] = 1
    """How often an engine may round an intermediate result to its storage format, forward."""
    backward_roundings: ClassVar[int] = 1
    """The same for each gradient."""

    def __init_subclass__(cls) -> None:
        if "equation" in vars(cls):
            cls.__doc__ = described(cls.__doc__, cls.equation, cls.adjoint, cls.branch, cls.source)
            register(cls.__name__, cls)

    def __post_init__(self) -> None:
        """Hold hyperparameters against their annotations, as options are held."""
        hold_fields(self)

    @property
    def name(self) -> str:
        """What the catalogue knows it by."""
        return type(self).__name__

    def as_used(self, *shapes: Shape) -> str:
        """The equation of this very operation, LaTeX: on inputs of these shapes, with its own hyperparameters."""
        return self._own(self.equation, shapes)

    def adjoint_as_used(self, *shapes: Shape) -> tuple[str, ...]:
        """The same of the gradient, a line per input."""
        return tuple(self._own(line, shapes) for line in self.adjoint[: len(shapes)])

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        """A line of the general equation as this operation computes it: numbers for letters, no term that it lacks."""
        return line

    @abstractmethod
    def forward(self, *inputs: Any) -> tuple[Array, Any]:
        """The output, and what the backward pass needs."""

    @abstractmethod
    def backward(self, y_bar: Array, saved: Any) -> tuple[Array | None, ...]:
        """The gradient of the loss with respect to each input (None where there is none), given that of the output."""

    def rounding(self, *inputs: Any) -> Array:
        """Error bound of each entry of the output, in units of the round-off u of the summing arithmetic.

        Estimated by rounding at random, unless the operation has an analysis of its own.
        """
        (bound,) = random_rounding(lambda *disturbed: (self.forward(*disturbed)[0],), inputs)
        assert bound is not None
        return bound

    def backward_rounding(self, y_bar: Array, saved: Any) -> tuple[Array | None, ...]:
        """Error bound of each entry of each gradient, in units of u.

        Estimated by rounding at random, what was saved counting as rounded once: an operation whose forward pass
        amplifies errors on the way to what it saves needs an analysis of its own.
        """
        return random_rounding(self.backward, (y_bar, saved))

    def on_the_way(self, saved: Any) -> Array | float:
        """How large a number is formed on the way to an entry, forward and backward, where its bound does not tell."""
        return 0.0

    def formed_backward(self, y_bar: Array) -> Array | None:
        """Magnitudes formed on the way to a gradient of this shape, in its own format, where they exceed it."""
        return None

    def storage(self, y: Array, *inputs: Any) -> Array:
        """The same for what an engine rounds to its storage format on the way, in units of that format's u."""
        return self.roundings * np.abs(y)

    def backward_storage(self, bars: Sequence[Array | None], y_bar: Array, saved: Any) -> tuple[Array | None, ...]:
        """The same for each gradient."""
        return tuple(None if bar is None else self.backward_roundings * np.abs(bar) for bar in bars)

    def flops(self, *inputs: Any) -> int:
        """Floating-point operations of the forward matrix products; a multiply-add counts as two. Others count 0."""
        return 0

    def __call__(self, *inputs: Any) -> Array:
        """The output alone, for a Python prompt: lists will do, and a number that is none is refused."""
        if any(has_duals(value) for value in inputs):
            return through(
                self.name, self, lambda y_bar, *values: self.backward(y_bar, self.forward(*values)[1]), inputs
            )
        arrays = [numbers(array, f"input {i} of {self.name}") for i, array in enumerate(inputs)]
        arrays = [array.astype(np.float64) if array.dtype.kind == "f" or self._real(i) else array
                  for i, array in enumerate(arrays)]  # fmt: skip
        with np.errstate(all="ignore"):
            y = self.forward(*arrays)[0]
        if np.isnan(y).any() and not any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays):
            raise DomainError(f"{type(self).__name__} has no value there: an entry is not a number")
        return y

    def _real(self, position: int) -> bool:
        """Whether an input holds numbers, not ids: it then has a gradient."""
        return position < len(self.adjoint) and bool(self.adjoint[position])


@dataclass(frozen=True)
class Constant(Operation):
    """An operation whose result is taken as a constant: no gradient goes back through it.

    What it is, its equation and its rounding are those of the operation inside.
    """

    inside: Operation

    def __getattr__(self, name: str) -> Any:
        if name == "inside":  # not made yet
            raise AttributeError(name)
        return getattr(self.inside, name)

    @property
    def name(self) -> str:
        return self.inside.name

    def _own(self, line: str, shapes: Sequence[Shape]) -> str:
        return self.inside._own(line, shapes)

    def adjoint_as_used(self, *shapes: Shape) -> tuple[str, ...]:
        return ()

    def forward(self, *inputs: Any) -> tuple[Array, int]:
        return self.inside.forward(*inputs)[0], len(inputs)

    def backward(self, y_bar: Array, saved: int) -> tuple[None, ...]:
        return (None,) * saved

    def rounding(self, *inputs: Any) -> Array:
        return self.inside.rounding(*inputs)

    def backward_rounding(self, y_bar: Array, saved: int) -> tuple[None, ...]:
        return (None,) * saved

    def storage(self, y: Array, *inputs: Any) -> Array:
        return self.inside.storage(y, *inputs)

    def flops(self, *inputs: Any) -> int:
        return self.inside.flops(*inputs)


def require(holds: bool, what: str) -> None:
    """Raise DomainError with `what`, which names the value and what is allowed, unless it holds."""
    if not holds:
        raise DomainError(what)


def require_shape(name: str, array: Array, expected: Sequence[int], way_out: str) -> None:
    """Raise ShapeError unless `array` has the expected shape."""
    if tuple(array.shape) != tuple(expected):
        raise ShapeError(f"{name} has shape {tuple(array.shape)}, expected {tuple(expected)}: {way_out}")
