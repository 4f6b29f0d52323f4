"""The norm of a sum in limpid's own kernel is PyTorch's sum, norm and gradients, where the kernel is there."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.model.kernels import native_norm
from limpid.model.norm import rms_norm
from limpid.native import build

D, EPS = 48, 1e-5


def drawn(centred: bool) -> tuple[list[Tensor], list[Tensor]]:
    """A stream, what is written to it, gain and bias; gradients of the sum and of its norm."""
    torch.manual_seed(0)
    given = [torch.randn(2, 70, D), torch.randn(2, 70, D).bfloat16(), torch.randn(D), *([torch.randn(D)] * centred)]
    return [one.requires_grad_() for one in given], [torch.randn(2, 70, D), torch.randn(2, 70, D).bfloat16()]


def written_out(x: Tensor, written: Tensor, weight: Tensor, bias: Tensor | None = None) -> list[Tensor]:
    stream = x.double() + written.double()
    weight, bias = weight.double(), None if bias is None else bias.double()
    y = rms_norm(stream, weight, EPS) if bias is None else F.layer_norm(stream, (D,), weight, bias, EPS)
    return [stream, y]


@pytest.mark.parametrize("centred", [True, False])
def test_a_joined_norm_is_pytorchs_within_its_roundings(centred: bool) -> None:
    given, bars = drawn(centred)
    if build.library() is None:
        assert not native_norm.serves(given[0], torch.bfloat16)
        return
    found = native_norm.native_joined_norm(*given, *([] if centred else [None]), EPS)
    expected = written_out(*given)
    ours = torch.autograd.grad(found, given, bars)
    theirs = torch.autograd.grad(expected, given, [bar.double() for bar in bars])
    for one, other in [*zip(found, expected, strict=True), *zip(ours, theirs, strict=True)]:
        eps = 2**-8 if one.dtype == torch.bfloat16 else 2**-22  # a rounding; several of float32
        assert (one.double() - other).norm() <= eps * other.double().norm()


@pytest.mark.parametrize("centred", [True, False])
def test_it_gives_the_bits_of_sum_and_norm_by_themselves(centred: bool) -> None:
    if build.library() is None:
        return
    (x, written, *learned), bars = drawn(centred)
    parameters = [*learned, *([] if centred else [None])]
    for given in ([x, written], [x]):
        joined = native_norm.native_joined_norm(x, written if len(given) == 2 else None, *parameters, EPS)
        stream = x + written if len(given) == 2 else x * 1
        alone = stream, native_norm.native_norm(stream, *parameters, EPS)
        gradients = [torch.autograd.grad(made, [*given, *learned], bars) for made in (joined, alone)]
        pairs = [*zip(joined, alone, strict=True), *zip(*gradients, strict=True)]
        assert all(torch.equal(one, other) for one, other in pairs)
