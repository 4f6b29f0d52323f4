"""The loss in one pass equals the loss step by step, and both equal PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from limpid.objectives.language_model import NO_LABEL, Surprise, count_labels, language_model, log_probabilities


def logits_and_targets(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(3, 97, 31, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 31, (3, 97), generator=generator)
    targets[0, :5] = NO_LABEL
    return logits.to(dtype).requires_grad_(), targets


def both(dtype: torch.dtype, scale: float = 1.0):
    """Loss and gradient of the one-pass and of the stepwise form."""
    for form in (Surprise.apply, lambda z, y, n: language_model(log_probabilities(z), y, n)):
        logits, targets = logits_and_targets(dtype)
        loss = form(logits, targets, count_labels(targets))
        (scale * loss).backward()
        yield loss.detach(), logits.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_one_pass_equals_step_by_step(dtype: torch.dtype) -> None:
    (fast, fast_bar), (plain, plain_bar) = both(dtype)
    round_off = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert fast.item() == pytest.approx(plain.item(), rel=32 * round_off)
    spread = 64  # eˣ carries the error of x, relative to 1: logits spread over about 32
    limit = (4 * torch.finfo(dtype).eps + spread * round_off) * plain_bar.abs().max().item()
    assert (fast_bar - plain_bar).abs().max().item() <= limit


def test_equals_pytorch_in_float64() -> None:
    logits, targets = logits_and_targets(torch.float64)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_LABEL)
    expected.backward()
    (fast, fast_bar), _ = both(torch.float64)
    assert fast.item() == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(fast_bar, logits.grad, rtol=1e-12, atol=1e-17)


def test_the_loss_scale_is_applied_before_rounding_to_half_precision() -> None:
    """A gradient of 1e-9 is zero in float16, but not once multiplied by 2¹⁶."""
    logits = torch.tensor([[[0.0, -18.0]]], dtype=torch.float16, requires_grad=True)
    loss = Surprise.apply(logits, torch.tensor([[0]]), 1)
    (65536 * loss).backward()
    assert logits.grad[0, 0, 1].item() == pytest.approx(65536 * torch.tensor(-18.0).exp().item(), rel=1e-3)


def test_micro_batches_with_uneven_labels_add_up_to_the_mean_over_all_labels() -> None:
    logits, targets = logits_and_targets(torch.float64)
    labels = count_labels(targets)
    parts = [Surprise.apply(logits[i : i + 1], targets[i : i + 1], labels) for i in range(3)]
    whole = Surprise.apply(logits, targets, labels)
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-14)


def test_no_label_at_all_is_a_loss_of_zero_without_gradient() -> None:
    logits, targets = logits_and_targets(torch.float32)
    loss = Surprise.apply(logits, torch.full_like(targets, NO_LABEL), 1)
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


def test_a_logit_that_is_not_a_number_is_not_hidden() -> None:
    logits, targets = logits_and_targets(torch.float32)
    with torch.no_grad():
        logits[1, 2, 3] = float("nan")
    assert Surprise.apply(logits, targets, 7).isnan()
