"""What can be derived: an operation of limpid, the quantities that are at hand, the right gradient, likely slips."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from limpid.maths.operation import Array

Values = Mapping[str, Array]


class Slip(NamedTuple):
    """A wrong gradient, as the expression that gives it."""

    note: str
    way: str
    says: str
    """Names what is missing, without the solution."""


class Pass(NamedTuple):
    """A computation and its derivative, both limpid's own."""

    forward: Callable[[Values], Array]
    backward: Callable[[Values], dict[str, Array]]
    """Gradients of all inputs, by name; the output's own is among the values."""


@dataclass(frozen=True)
class Case:
    """One operation, to be derived by one of its inputs."""

    name: str
    says: str
    """The forward pass in words and letters."""
    out: str
    of: str
    """The input by which it is derived."""
    draw: Callable[[np.random.Generator], dict[str, Any]]
    done: Pass
    known: Callable[[Values], dict[str, Any]]
    """Further quantities that a backward pass has at hand."""
    right: str
    slips: tuple[Slip, ...]
    steps: str
    """How one comes to it."""
    hints: tuple[str, ...]
    bar: str = "g"
    """What the output's gradient is called; empty where the output is the loss itself."""
    opens: str = ""
    """The entry of a recorded step where the same is done; nothing where there is none."""


def operation(op: Any, *inputs: str, bar: str = "g") -> Pass:
    """An operation of the catalogue on these inputs."""

    def forward(of: Values) -> Array:
        made: Array = op.forward(*(of[name] for name in inputs))[0]
        return made

    def backward(of: Values) -> dict[str, Array]:
        _, saved = op.forward(*(of[name] for name in inputs))
        return dict(zip(inputs, op.backward(of[bar], saved), strict=True))

    return Pass(forward, backward)


def formula(function: Any, *inputs: str, bar: str = "g", **options: Any) -> Pass:
    """A formula of the catalogue on these inputs; `temperature="T"` takes the value of T."""

    def taken(of: Values) -> dict[str, Any]:
        return {name: float(of[value]) for name, value in options.items()}

    def forward(of: Values) -> Array:
        return np.asarray(function.function(*(of[name] for name in inputs), **taken(of)))

    def backward(of: Values) -> dict[str, Array]:
        bars = function.backward(of[bar], *(of[name] for name in inputs), **taken(of))
        return dict(zip(inputs, bars, strict=True))

    return Pass(forward, backward)
