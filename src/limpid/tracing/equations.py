"""The equations of this model: as its operations compute, on its own sizes, with what it has and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from limpid.maths.linear import Linear
from limpid.maths.operation import Operation, Shape

TABLE = "embed.tokens.weight"
"""The matrix E of the embedding, which gives the logits too where the two are tied."""


def forward(operation: Operation, inputs: Sequence[str], shapes: Sequence[Shape]) -> str:
    """How a quantity was made, LaTeX."""
    return _named(operation, inputs, operation.as_used(*shapes))


def backward(
    operation: Operation, inputs: Sequence[str], shapes: Sequence[Shape], untrained: Collection[str] = ()
) -> tuple[str, ...]:
    """What it passes back to each input, LaTeX; empty where nothing is: to ids, masks and what is not trained."""
    lines = operation.adjoint_as_used(*shapes)
    named = (_named(operation, inputs, line) for line in lines)
    return tuple("" if name in untrained else line for name, line in zip(inputs, named, strict=False))


def _named(operation: Operation, inputs: Sequence[str], line: str) -> str:
    tied = isinstance(operation, Linear) and TABLE in inputs
    return line.replace("W", "E") if tied else line
