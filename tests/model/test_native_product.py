"""Products with matrices that limpid's own kernel packs are PyTorch's to the bit, where the kernel is there."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from limpid import kernel_limits
from limpid.model.kernels import native_product as packed
from limpid.model.narrow import product
from limpid.model.observe import Mode
from limpid.native import build

ROWS = 64
HERE = build.library() is not None
SIZES = [(64, 32), (768, 768), (344, 128), (65, 384), (100, 36), (33, 51), (1, 16), (192, 7)]
"""Outputs and inputs, in whole blocks and not."""


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_limits, "PACKED_PRODUCT", 1)


def drawn(d_out: int, d_in: int, biased: bool) -> tuple[list[Tensor], Tensor]:
    """x, W and b, and a gradient of the result."""
    torch.manual_seed(d_out)
    x, bar = torch.randn(2, ROWS, d_in).bfloat16(), torch.randn(2, ROWS, d_out).bfloat16()
    learned = [torch.randn(d_out, d_in), *([torch.randn(d_out)] if biased else [])]
    return [one.requires_grad_() for one in (x, *learned)], bar


def cast(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight.bfloat16(), None if bias is None else bias.bfloat16())


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("d_out", "d_in"), SIZES)
def test_results_and_gradients_are_pytorchs(d_out: int, d_in: int, biased: bool) -> None:
    """But for the order of sums: the same numbers rounded to 8 bits once."""
    if not HERE:
        assert build.missing()
        return
    given, bar = drawn(d_out, d_in, biased)
    assert packed.serves(*given[:2])
    found, expected = packed.native_product(*given, *([] if biased else [None])), cast(*given)
    gradients = (torch.autograd.grad(one, given, bar) for one in (found, expected))
    for ours, theirs in [(found, expected), *zip(*gradients, strict=True)]:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        distance = (ours.double() - theirs.double()).norm()
        assert distance <= 2**-8 * theirs.double().norm()


def test_a_matrix_in_onednns_layout_is_onednns() -> None:
    if not HERE:
        return
    torch.manual_seed(0)
    for d_out, d_in in SIZES:
        weight = torch.randn(d_out, d_in)
        for kernel, turned in (("pack_rows", weight), ("pack_columns", weight.T.contiguous())):
            ours = packed._filled(kernel, weight, tuple(turned.shape))
            theirs = torch.ops.mkldnn._reorder_linear_weight(turned.bfloat16())
            assert torch.equal(ours.matrix.to_dense(), theirs.to_dense())


def test_every_product_reads_the_matrix_as_it_is_then() -> None:
    """Room is kept between calls, a packed matrix is not: whatever changes the weights is seen."""
    (x, weight), _ = drawn(64, 32, biased=False)
    for change in (lambda: None, lambda: weight.data.mul_(2), lambda: weight.detach().numpy().fill(3)):
        change()
        assert torch.equal(product(x, weight, None), cast(x, weight))


def test_threads_have_rooms_of_their_own() -> None:
    if not HERE:
        return
    sides = [drawn(96, 64, biased=False)[0] for _ in range(2)]
    sides[1][1].data.neg_()
    wrong: list[int] = []

    def many(x: Tensor, weight: Tensor) -> None:
        expected = cast(x, weight)
        wrong.extend(i for i in range(200) if not torch.equal(packed.native_product(x, weight, None), expected))

    threads = [threading.Thread(target=many, args=side) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_serves_large_products_of_plain_masters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(ROWS, 32).bfloat16(), nn.Parameter(torch.randn(64, 32))
    monkeypatch.setattr(kernel_limits, "PACKED_PRODUCT", ROWS * 32 * 64)
    assert packed.serves(x, weight) == HERE
    assert not packed.serves(x[1:], weight)
    assert not packed.serves(x.float(), weight)
    assert not packed.serves(x, nn.Parameter(weight.detach().double()))
    assert not packed.serves(x, nn.Parameter(torch.randn(32, 64).T))
    assert not packed.serves(x, nn.Parameter(torch.empty(1 << 20, 64)))


def test_who_sees_operations_sees_pytorchs() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.add(str(func))
            return func(*args, **(kwargs or {}))

    (x, weight), _ = drawn(64, 32, biased=False)
    with Seen() as seen:
        product(x, weight, None)
    assert not any("packed" in name for name in seen.names)
    (slope,) = torch.autograd.grad(product(x, weight, None, Mode("plain")).sum(), x, create_graph=True)
    assert slope.requires_grad  # the plain path may be differentiated again
