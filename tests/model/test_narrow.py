"""Frozen matrices in one or two bytes an entry: what is lost once, and that nothing is lost or kept after it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from limpid.model.linear import Linear
from limpid.model.narrow import Narrow, narrow

FORMATS = pytest.mark.parametrize("precision", ["bf16", "int8"])


def matrix(rows: int = 300, width: int = 40) -> torch.Tensor:
    """Rows of every size that float32 has, one of zeros, one that is not a number."""
    sizes = torch.logspace(-44, 36, rows)[:, None]
    drawn = torch.randn(rows, width, generator=torch.Generator().manual_seed(0)) * sizes
    drawn[3], drawn[5, 2] = 0, torch.nan
    return drawn


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return (tensor + 0).numpy()


@FORMATS
def test_what_was_read_comes_back_to_the_same_bits(precision: str) -> None:
    once = Narrow.of(matrix(), precision)
    again = Narrow.of(once.widened(), precision)
    np.testing.assert_array_equal(once.entries.float(), again.entries.float())
    assert once.scale is None or np.array_equal(once.scale, again.scale, equal_nan=True)
    exact = once.entries.double() * (1 if once.scale is None else once.scale.double())
    np.testing.assert_array_equal(numbers(once.double())[:5], exact[:5])
    assert torch.isnan(once.widened()[5]).any()


def test_an_entry_of_int8_is_off_by_half_a_unit_at_most() -> None:
    """A unit is a 127th of the row's largest entry, 2^-15 more at most."""
    weight = matrix()[100:]
    unit = weight.abs().amax(1, keepdim=True).double() / 127 * (1 + 2**-15)
    assert ((Narrow.of(weight, "int8").widened().double() - weight.double()).abs() <= unit / 2 * (1 + 2**-23)).all()


@FORMATS
def test_modules_move_load_and_copy_it_as_it_is(precision: str) -> None:
    linear, weight = Linear(40, 300, bias=False), matrix()
    narrow(linear, precision)
    linear.load_state_dict({"weight": weight})
    for one in (linear, copy.deepcopy(linear), copy.deepcopy(linear).to("cpu", torch.float32)):
        assert isinstance(one.weight, nn.Parameter)
        assert isinstance(one.weight, Narrow)
        np.testing.assert_array_equal(numbers(one.weight), Narrow.of(weight, precision).widened())
    with pytest.raises(TypeError, match="would change a frozen matrix"):
        linear.weight.zero_()


@FORMATS
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_product_is_that_of_the_widened_matrix_and_keeps_no_copy(precision: str, compute: torch.dtype) -> None:
    plain, held = Linear(256, 512, bias=True), Linear(256, 512, bias=True)
    generator = torch.Generator().manual_seed(1)
    drawn = {"weight": torch.randn(512, 256, generator=generator), "bias": torch.randn(512, generator=generator)}
    narrow(held, precision)
    held.load_state_dict(drawn)
    plain.load_state_dict({"weight": held.weight + 0, "bias": drawn["bias"]})
    outputs = []
    for one in (plain, held):
        x = torch.randn(3, 256, generator=torch.Generator().manual_seed(2)).to(compute).requires_grad_()
        y = one.requires_grad_(False)(x)
        (x_bar,) = torch.autograd.grad(y.float().square().sum(), x)
        outputs.append((y.detach(), x_bar))
    for ours, theirs in zip(*outputs, strict=True):
        np.testing.assert_array_equal(ours.double(), theirs.double())
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved) or saved, lambda saved: saved):
        held(x)
    assert not kept
