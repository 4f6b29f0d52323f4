"""Bounds found by rounding at random: they hold for PyTorch's float32, and excuse nothing larger than rounding."""

import numpy as np
import pytest
import torch

from limpid.equations.examples import Example, examples
from limpid.equations.formulas import FormulaExample, formula_examples
from limpid.maths import GELU, Formula, FormulaOperation, Operation, catalogue
from limpid.maths.random_rounding import PASSES, UNIT, random_rounding, rounded_at_random, student
from limpid.maths.rounding import FORMATS, bound, rounded

LINKS = [
    example
    for example in formula_examples()
    if all(isinstance(x, np.ndarray) for x in example.inputs) and not example.distributions
]
OPERATIONS = [
    example
    for example in examples()
    if any(example.operation.adjoint) and not isinstance(example.operation, GELU)  # engines form 1 + erf, which cancels
]


def compared(operation: Operation, inputs, twin) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Ours, PyTorch's in float32 and the bound, for the value and each gradient."""
    exact = [rounded(x, np.float32) if x.dtype.kind == "f" else x for x in inputs]
    y, saved = operation.forward(*exact)
    y_bar = rounded(np.random.default_rng(1).standard_normal(y.shape), np.float32)
    bars, bounds = operation.backward(y_bar, saved), Operation.backward_rounding(operation, y_bar, saved)
    moves = [bar is not None for bar in bars]
    tensors = [
        torch.tensor(np.asarray(x, np.float32 if x.dtype.kind == "f" else None), requires_grad=move)
        for x, move in zip(exact, moves, strict=True)
    ]
    theirs = twin(*tensors)
    theirs.backward(torch.tensor(y_bar, dtype=theirs.dtype))
    found = [(y, theirs.detach().numpy(), Operation.rounding(operation, *exact))]
    for bar, tensor, error in zip(bars, tensors, bounds, strict=True):
        assert (bar is None) == (error is None)
        if bar is not None:
            found.append((bar, tensor.grad.numpy(), error))
    return found


@pytest.mark.parametrize("example", LINKS, ids=lambda example: example.name)
def test_pytorchs_float32_stays_within_them(example: FormulaExample) -> None:
    for ours, theirs, error in compared(example.formula.operation(**example.options), example.inputs, example.twin):
        allowed = bound(ours, error, stored=np.float32)
        assert (np.abs(ours - theirs) <= allowed).all()


@pytest.mark.parametrize("example", LINKS, ids=lambda example: example.name)
def test_they_excuse_no_error_of_a_thousandth(example: FormulaExample) -> None:
    for ours, _, error in compared(example.formula.operation(**example.options), example.inputs, example.twin):
        allowed = bound(ours, error, stored=np.float32)
        assert np.median(allowed) <= 1e-3 * np.abs(ours).max() / 10


@pytest.mark.parametrize("example", OPERATIONS, ids=lambda example: example.name)
def test_an_operation_without_an_analysis_of_its_own_gets_one(example: Example) -> None:
    with np.errstate(all="ignore"):
        (ours, theirs, error), *_ = compared(example.operation, example.inputs, example.twin)
    finite = np.isfinite(ours)
    assert (np.abs(ours - theirs)[finite] <= bound(ours, error, stored=np.float32)[finite]).all()


def test_every_formula_with_a_gradient_can_stand_in_a_chain() -> None:
    for formula in catalogue(Formula):
        if formula.differentiable:
            operation = formula.operation()
            assert isinstance(operation, FormulaOperation)
            assert operation.name == formula.name
            assert operation.equation == formula.equation
            assert operation.adjoint == formula.adjoint


def test_a_sum_of_n_terms_strays_as_a_sum_does() -> None:
    """Its n roundings are drawn as one of √n; sequential float32 sums of 4,096 numbers stay inside, by some margin."""
    rng = np.random.default_rng(0)
    x = rounded(rng.standard_normal((200, 4096)), np.float32)
    (error,) = random_rounding(lambda rows: (rows.sum(-1),), (x,))
    sequential = np.cumsum(x.astype(np.float32), -1, dtype=np.float32)[:, -1]
    gap = np.abs(sequential - x.sum(-1))
    assert (gap <= bound(x.sum(-1), error, stored=FORMATS["fp32"])).all()
    assert np.median(error * 2.0**-24) < 1e4 * np.median(gap)


def test_what_selects_and_arranges_is_exact() -> None:
    x = rounded_at_random(np.array([1.0, -2.0, 3.0]), np.random.default_rng(0))
    assert np.array_equal(np.maximum(x, 0.0), [1, 0, 3])
    assert np.array_equal(np.abs(-x), [1, 2, 3])
    assert np.array_equal(np.where(x > 0, x, 0.0), [1, 0, 3])
    disturbed = np.asarray(np.where(x > 0, x, 0.0) * 3)
    assert 0 < np.abs(disturbed - [3, 0, 9]).max() <= 9 * UNIT


def test_the_worst_of_many_entries_is_allowed_farther() -> None:
    assert 6 < student(PASSES, 1) < student(PASSES, 10**6) < 20
