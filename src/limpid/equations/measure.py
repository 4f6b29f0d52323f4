"""How well an equation's code holds: its gradient against differences of its value, both against PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from limpid.equations.examples import Example, examples
from limpid.equations.formulas import FormulaExample, formula_examples
from limpid.maths.operation import Array


@dataclass(frozen=True)
class Measured:
    """Deviations, each relative to the largest magnitude that takes part; None where there is nothing to compare."""

    example: str
    difference: float | None  # of the gradient from central differences of the value, along a random direction
    value: float  # of the value from PyTorch's, in float64
    gradient: float | None  # of the gradient from PyTorch's, in float64


def measure(name: str) -> list[Measured]:
    """Every example of one operation or formula, computed now."""
    found = [_operation(example) for example in examples() if type(example.operation).__name__ == name]
    return found + [_formula(example) for example in formula_examples() if example.formula.name == name]


def _operation(example: Example) -> Measured:
    with np.errstate(all="ignore"):
        y, saved = example.operation.forward(*example.inputs)
        y_bar = np.random.default_rng(1).standard_normal(np.shape(y))
        bars = example.operation.backward(y_bar, saved)

    def value(*inputs: Any) -> Array:
        return np.asarray(example.operation.forward(*inputs)[0])

    return _measured(example.name, value, example.twin, example.inputs, y, y_bar, bars)


def _formula(example: FormulaExample) -> Measured:
    def value(*inputs: Any) -> Array:
        return np.asarray(example.formula(*inputs, **example.options), dtype=np.float64)

    y = value(*example.inputs)
    y_bar = np.random.default_rng(1).standard_normal(y.shape)
    bars = example.formula.backward(y_bar, *example.inputs, **example.options)
    return _measured(example.name, value, example.twin, example.inputs, y, y_bar, bars, example.distributions)


def _measured(
    name: str, value: Any, twin: Any, inputs: Any, y: Array, y_bar: Array, bars: Any, distributions: bool = False
) -> Measured:
    learnable = [bar is not None for bar in bars]
    tensors = [
        torch.tensor(np.asarray(array), requires_grad=moves) for array, moves in zip(inputs, learnable, strict=False)
    ]
    theirs = twin(*tensors).double()
    finite = np.isfinite(y)
    gradient = None
    if any(learnable):
        theirs.backward(torch.tensor(np.where(finite, y_bar, 0.0)))
        moved = [
            (bar, tensor.grad.numpy()) for bar, tensor in zip(bars, tensors, strict=True) if tensor.grad is not None
        ]
        gradient = max(_relative(ours, other) for ours, other in moved)
    difference = _misfit(value, inputs, y, y_bar, bars, distributions) if any(learnable) else None
    return Measured(name, difference, _relative(y[finite], theirs.detach().numpy()[finite]), gradient)


def _relative(ours: Array, theirs: Array) -> float:
    size = np.abs(theirs).max(initial=0.0)
    return float(np.abs(ours - theirs).max(initial=0.0) / (size or 1.0))


def _misfit(value: Any, inputs: Any, y: Array, y_bar: Array, bars: Any, distributions: bool) -> float:
    """〈ȳ, J v〉 by fourth-order central differences along a random v, against 〈Jᵀ ȳ, v〉."""
    rng = np.random.default_rng(2)
    finite = np.isfinite(y)
    directions = [
        rng.standard_normal(np.shape(array)) if bar is not None else None
        for array, bar in zip(inputs, bars, strict=False)
    ]
    if distributions:  # along which sums stay as they are
        directions = [None if v is None else v - v.mean(-1, keepdims=True) for v in directions]

    def at(step: float) -> Array:
        moved = (x if v is None else np.asarray(x) + step * v for x, v in zip(inputs, directions, strict=True))
        with np.errstate(all="ignore"):
            return np.where(finite, value(*moved), 0.0)

    h = 1e-5
    along = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    terms = [bar * v for bar, v in zip(bars, directions, strict=True) if v is not None]
    scale = max(sum(float(np.abs(term).sum()) for term in terms), 1e-3)
    y_bar = np.where(finite, y_bar, 0.0)
    return float(abs(sum(float(term.sum()) for term in terms) - np.vdot(y_bar, along)) / scale)
