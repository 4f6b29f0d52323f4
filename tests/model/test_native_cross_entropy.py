"""Loss and gradient of bfloat16 logits in limpid's own kernel against float64, where the kernel is there."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from limpid.model.kernels import native_cross_entropy
from limpid.model.kernels.linear_cross_entropy import LinearCrossEntropy
from limpid.native import build
from limpid.quantities import NO_LABEL

HERE = native_cross_entropy.serves(torch.zeros(1, dtype=torch.bfloat16))
SIZES = [(1, 1), (3, 2), (7, 15), (5, 16), (4, 17), (9, 63), (12, 65), (8, 129), (40, 4096), (3, 50257)]


def drawn(rows: int, columns: int, spread: float = 4.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(columns)
    targets = torch.randint(0, columns, (rows,))
    targets[rows // 2] = NO_LABEL if rows > 1 else targets[0]
    return torch.randn(rows, columns).mul(spread).bfloat16(), targets


def defined(logits: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    exact = logits.double().requires_grad_()
    losses = F.cross_entropy(exact, targets, reduction="none", ignore_index=NO_LABEL)
    (bars,) = torch.autograd.grad(losses.sum(), exact)
    return losses.detach(), weight * bars


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("spread", [0.1, 4.0, 60.0])
def test_loss_and_gradient_are_those_of_float64_but_for_one_rounding(rows: int, columns: int, spread: float) -> None:
    if not HERE:
        assert build.missing() or build.library() is None
        return
    logits, targets = drawn(rows, columns, spread)
    losses, bars = defined(logits, targets, 0.37)
    found = logits.clone()
    found_losses = native_cross_entropy.row_losses(found, targets, 0.37)
    wide, narrow = torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16)
    error = (8 + columns / 16) * wide * (1 + logits.double().abs().amax(-1, keepdim=True))  # of z - max, and of the sum
    assert bool(((found_losses - losses).abs() <= error[:, 0]).all())
    within = narrow.eps / 2 * bars.abs() + error * 0.37 * logits.double().softmax(-1) + narrow.tiny
    assert bool(((found.double() - bars).abs() <= within).all())


def test_neither_threads_nor_other_rows_change_a_bit() -> None:
    if not HERE:
        return
    logits, targets = drawn(33, 777)
    found, threads = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        own = logits.clone()
        found.append((native_cross_entropy.row_losses(own, targets, 0.5), own))
    torch.set_num_threads(threads)
    apart = logits.clone()
    losses = torch.cat([native_cross_entropy.row_losses(apart[i : i + 1], targets[i : i + 1], 0.5) for i in range(33)])
    assert all(torch.equal(one, losses) and torch.equal(own, apart) for one, own in found)


def test_what_is_no_number_stays_none_and_extremes_are_no_trouble() -> None:
    if not HERE:
        return
    logits = torch.tensor([[0.0, torch.nan, 1.0], [torch.inf, 0.0, 0.0], [-torch.inf, 0.0, 0.0], [-3e38, 3e38, 0.0]])
    losses = native_cross_entropy.row_losses(logits := logits.bfloat16(), torch.tensor([0, 0, 1, 1]), 1.0)
    assert losses[:2].isnan().all()
    assert losses[2:].tolist() == pytest.approx([0.6931472, 0.0])
    assert logits[:2].isnan().any(-1).all()
    assert logits[2:].tolist() == [[0.0, -0.5, 0.5], [0.0, 0.0, 0.0]]


def test_a_target_outside_of_the_vocabulary_is_named() -> None:
    if not HERE:
        return
    with pytest.raises(IndexError, match="1 targets lie outside the vocabulary of 5"):
        native_cross_entropy.row_losses(torch.zeros(3, 5, dtype=torch.bfloat16), torch.tensor([0, 5, NO_LABEL]), 1.0)


def test_the_loss_from_the_stream_is_the_same_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both round once, from float32: hardly a gradient is another."""
    found = []
    for serves in (native_cross_entropy.serves, lambda x: False):
        monkeypatch.setattr(native_cross_entropy, "serves", serves)
        torch.manual_seed(0)
        hidden, matrix = torch.randn(40, 8).bfloat16().requires_grad_(), torch.randn(70, 8).requires_grad_()
        targets = torch.randint(0, 70, (40,))
        loss = LinearCrossEntropy.apply(hidden, matrix, targets, 40)
        found.append((loss.detach(), *torch.autograd.grad(loss, (hidden, matrix))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-7, atol=1e-5)
