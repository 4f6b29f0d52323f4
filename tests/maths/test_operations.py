"""Every operation: against PyTorch in three formats, against its own directional derivative, and against its faults."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from faults import FAULTS, broken
from limpid import maths
from limpid.equations.examples import Example, examples
from limpid.maths import Operation, catalogue
from limpid.maths.rounding import FORMATS, bound, rounded

EXAMPLES = examples()
every_operation = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.__base__.__name__}: {fault.__name__}")

TORCH = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
SUMMED = {"fp64": np.float64, "fp32": np.float32, "bf16": np.float32}
WIDENED = (
    maths.LayerNorm,
    maths.BatchNorm,
    maths.Rotary,
    maths.CausalSoftmax,
    maths.LogSoftmax,
    maths.NegativeLogLikelihood,
    maths.RowLength,
    maths.Magnitude,
)
"""What autocast and our engine compute in float32 even where its input and output are bf16."""


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def farthest(example: Example, operation: Operation, precision: str) -> float:
    """The largest distance between `operation` and PyTorch at `precision`, in units of what rounding allows.

    Over every entry of the output and of every gradient; both sides get the same inputs, rounded beforehand.
    """
    inputs = [rounded(array, FORMATS[precision]) if is_float(array) else array for array in example.inputs]
    y, saved = operation.forward(*inputs)
    y_bar = rounded(np.asarray(np.random.default_rng(1).standard_normal(y.shape)), FORMATS[precision])
    bars = operation.backward(y_bar, saved)

    tensors = [
        torch.tensor(array, dtype=TORCH[precision], requires_grad=True) if is_float(array) else torch.tensor(array)
        for array in inputs
    ]
    widened = precision == "bf16" and isinstance(operation, WIDENED)
    twin = example.twin(*(t.float() if widened and t.requires_grad else t for t in tensors)).to(TORCH[precision])
    found = [excess(y, twin, operation.rounding(*inputs), operation.storage(y, *inputs), precision)]
    if any(tensor.requires_grad for tensor in tensors):
        twin.backward(torch.tensor(y_bar, dtype=twin.dtype))
        roundings = operation.backward_rounding(y_bar, saved)
        storages = operation.backward_storage(bars, y_bar, saved)
        for tensor, bar, rounding, storage in zip(tensors, bars, roundings, storages, strict=True):
            assert (bar is None) == (rounding is None) == (storage is None) == (not tensor.requires_grad)
            if bar is not None:
                found.append(excess(bar, tensor.grad, rounding, storage, precision))
    return max(found)


def excess(ours: np.ndarray, twin: torch.Tensor, rounding: np.ndarray, storage: np.ndarray, precision: str) -> float:
    """|ours - theirs| / bound of the worst entry; infinite where one is finite and the other is not."""
    theirs = twin.detach().double().numpy()
    assert theirs.shape == ours.shape
    limit = bound(ours, rounding, stored=FORMATS[precision], summed=SUMMED[precision], storage=storage)
    finite = np.isfinite(ours)
    if not np.array_equal(finite, np.isfinite(theirs)):
        return np.inf
    return float((np.abs(ours - theirs)[finite] / np.broadcast_to(limit, ours.shape)[finite]).max(initial=0.0))


def test_every_operation_has_an_example_and_a_fault() -> None:
    assert {type(example.operation) for example in EXAMPLES} == set(catalogue(Operation))
    assert {fault.__base__ for fault in FAULTS} == set(catalogue(Operation))


@pytest.mark.parametrize("kind", catalogue(Operation), ids=lambda kind: kind.__name__)
def test_every_operation_says_what_it_is(kind: type[Operation]) -> None:
    assert kind.equation.count("{") == kind.equation.count("}")
    assert all(line.count("{") == line.count("}") for line in kind.adjoint)
    assert kind.source
    assert kind.branch
    assert kind.__doc__
    for section in ("Takes", "Gives", "Saves", "Limits", "Equation", "Branch", "Source"):
        assert section in kind.__doc__


@pytest.mark.parametrize("precision", TORCH)
@every_operation
def test_output_and_gradients_equal_pytorch_but_for_rounding(example: Example, precision: str) -> None:
    assert farthest(example, example.operation, precision) <= 1


@pytest.mark.parametrize("precision", TORCH)
@every_fault
def test_a_fault_is_no_rounding(fault: type[Operation], precision: str) -> None:
    whole = [example for example in EXAMPLES if type(example.operation) is fault.__base__]
    found = [farthest(example, broken(fault, example.operation), precision) for example in whole]
    assert np.isfinite(found).all()
    assert max(found) > 10


@every_operation
def test_backward_belongs_to_forward(example: Example) -> None:
    assert misfit(example, example.operation) <= 1e-7


BACKWARD_FAULTS = [fault for fault in FAULTS if "backward" in vars(fault) or "slope" in vars(fault)]


@pytest.mark.parametrize("fault", BACKWARD_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_backward_pass_shows_without_pytorch(fault: type[Operation]) -> None:
    whole = [example for example in EXAMPLES if type(example.operation) is fault.__base__]
    assert max(misfit(example, broken(fault, example.operation)) for example in whole) > 1e-3


def misfit(example: Example, operation: Operation) -> float:
    """〈Jᵀ ȳ, v〉 = 〈ȳ, J v〉 along a random direction v, J v by central differences: their distance, relative."""
    rng, inputs = np.random.default_rng(2), example.inputs
    y, saved = operation.forward(*inputs)
    finite = np.isfinite(y)
    y_bar = np.where(finite, rng.standard_normal(y.shape), 0.0)
    bars = operation.backward(y_bar, saved)
    directions = [
        rng.standard_normal(array.shape) if bar is not None else None for array, bar in zip(inputs, bars, strict=True)
    ]

    def at(step: float) -> np.ndarray:
        moved = (x if v is None else x + step * v for x, v in zip(inputs, directions, strict=True))
        return np.where(finite, operation.forward(*moved)[0], 0.0)

    h = 1e-5
    along = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)  # fourth order
    terms = [bar * v for bar, v in zip(bars, directions, strict=True) if v is not None and bar is not None]
    scale = max(sum(np.abs(term).sum() for term in terms), 1e-3)
    return float(abs(sum(term.sum() for term in terms) - np.vdot(y_bar, along)) / scale)


@every_operation
def test_flops_are_those_pytorch_counts(example: Example) -> None:
    tensors = [torch.tensor(array) for array in example.inputs]
    with FlopCounterMode(display=False) as counter:
        example.twin(*tensors)
    assert example.operation.flops(*example.inputs) == counter.get_total_flops()
