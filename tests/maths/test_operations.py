"""Every operation: against PyTorch, against its own directional derivative, against pencil and paper."""

import numpy as np
import pytest
import torch

from limpid.maths import LayerNorm, Operation, RMSNorm, catalogue
from limpid.maths.rounding import bound
from twins import Example, examples

EXAMPLES = examples()
every_operation = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def assert_within(ours: np.ndarray, theirs: np.ndarray, rounding: np.ndarray, storage: np.ndarray) -> None:
    """Both sides round in float64, so twice the bound."""
    limit = 2 * bound(ours, rounding, stored=np.float64, summed=np.float64, storage=storage)
    finite = np.isfinite(ours)
    assert np.array_equal(finite, np.isfinite(theirs))
    assert (np.abs(ours - theirs)[finite] <= np.broadcast_to(limit, ours.shape)[finite]).all()


def test_every_operation_has_an_example() -> None:
    assert {type(example.operation) for example in EXAMPLES} == set(catalogue())


@pytest.mark.parametrize("kind", catalogue(), ids=lambda kind: kind.__name__)
def test_every_operation_says_what_it_is(kind: type[Operation]) -> None:
    assert kind.equation.count("{") == kind.equation.count("}")
    assert all(line.count("{") == line.count("}") for line in kind.adjoint)
    assert kind.source
    assert kind.branch
    assert kind.__doc__
    assert "Takes" in kind.__doc__
    assert "Gives" in kind.__doc__


@every_operation
def test_output_and_gradients_equal_pytorch(example: Example, rng: np.random.Generator) -> None:
    y, saved = example.operation.forward(*example.inputs)
    y_bar = np.asarray(rng.standard_normal(y.shape))
    bars = example.operation.backward(y_bar, saved)

    tensors = [torch.tensor(array, requires_grad=is_float(array)) for array in example.inputs]
    twin = example.twin(*tensors)
    operation = example.operation
    assert_within(y, twin.detach().numpy(), operation.rounding(*example.inputs), operation.storage(y, *example.inputs))
    if not any(tensor.requires_grad for tensor in tensors):
        return
    twin.backward(torch.tensor(y_bar))
    limits = operation.backward_rounding(y_bar, saved)
    stored = operation.backward_storage(bars, y_bar, saved)
    for bar, limit, kept, tensor in zip(bars, limits, stored, tensors, strict=True):
        assert (bar is None) == (limit is None) == (kept is None)
        if bar is not None and tensor.grad is not None:
            assert_within(bar, tensor.grad.numpy(), limit, kept)


@every_operation
def test_backward_belongs_to_forward(example: Example, rng: np.random.Generator) -> None:
    """〈Jᵀ ȳ, v〉 = 〈ȳ, J v〉 along a random direction v, J v by central differences."""
    inputs = example.inputs
    y, saved = example.operation.forward(*inputs)
    finite = np.isfinite(y)
    y_bar = np.where(finite, rng.standard_normal(y.shape), 0.0)
    bars = example.operation.backward(y_bar, saved)
    directions = [
        rng.standard_normal(array.shape) if bar is not None else None for array, bar in zip(inputs, bars, strict=True)
    ]

    def at(step: float) -> np.ndarray:
        moved = (x if v is None else x + step * v for x, v in zip(inputs, directions, strict=True))
        return np.where(finite, example.operation.forward(*moved)[0], 0.0)

    h = 1e-5
    along = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)  # fourth order
    backward = sum(
        np.vdot(bar, v) for bar, v in zip(bars, directions, strict=True) if v is not None and bar is not None
    )
    scale = sum(
        np.abs(bar * v).sum() for bar, v in zip(bars, directions, strict=True) if v is not None and bar is not None
    )
    assert abs(backward - np.vdot(y_bar, along)) <= 1e-7 * max(scale, 1e-3)


def test_rms_norm_by_hand() -> None:
    y = RMSNorm(eps=0)(np.array([3.0, 4.0]), np.ones(2))
    assert y == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5])


def test_layer_norm_by_hand() -> None:
    y = LayerNorm(eps=0)(np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([0.5, 0.5]))
    assert y == pytest.approx([-1.5, 2.5])
