"""The loss straight from the hidden state equals the loss step by step, and both equal PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from limpid import kernel_limits
from limpid.model.kernels.linear_cross_entropy import LinearCrossEntropy
from limpid.objectives.losses import log_probabilities, next_token_loss
from limpid.quantities import NO_LABEL

VOCAB, WIDTH = 31, 13


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stream, output matrix (float32 at least, as masters are) and targets, some without a label."""
    generator = torch.Generator().manual_seed(3)
    hidden = 2 * torch.randn(3, 97, WIDTH, generator=generator, dtype=torch.float64)
    matrix = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, (3, 97), generator=generator)
    targets[0, :5] = NO_LABEL
    masters = torch.promote_types(dtype, torch.float32)
    return hidden.to(dtype).requires_grad_(), matrix.to(masters).requires_grad_(), targets


def stepwise(hidden: torch.Tensor, matrix: torch.Tensor, targets: torch.Tensor, labels: int) -> torch.Tensor:
    return next_token_loss(log_probabilities(hidden @ matrix.to(hidden.dtype).T), targets, labels)


def both(dtype: torch.dtype):
    """Loss and gradients of the two forms."""
    for form in (LinearCrossEntropy.apply, stepwise):
        hidden, matrix, targets = drawn(dtype)
        loss = form(hidden, matrix, targets, int((targets != NO_LABEL).sum()))
        loss.backward()
        yield loss.detach(), hidden.grad, matrix.grad


@pytest.fixture(params=[(1, 7), (4000, 1), (1 << 26, 7), (1 << 26, 1 << 12)])
def logits_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of one row at a time, of some, of all; the matrix's gradient in pieces, and whole."""
    for name, value in zip(("LOGITS_BYTES", "MATRIX_ROWS"), request.param, strict=True):
        monkeypatch.setattr(kernel_limits, name, value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("logits_at_a_time")
def test_from_the_hidden_state_equals_step_by_step(dtype: torch.dtype) -> None:
    (fast, *fast_bars), (plain, *plain_bars) = both(dtype)
    round_off = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    assert fast.item() == pytest.approx(plain.item(), rel=64 * round_off)
    for bar, expected in zip(fast_bars, plain_bars, strict=True):
        assert bar.dtype == expected.dtype
        distance = (bar.double() - expected.double()).norm() / expected.double().norm()
        assert distance <= 4 * torch.finfo(dtype).eps + 64 * round_off


@pytest.mark.usefixtures("logits_at_a_time")
def test_equals_pytorch_in_float64() -> None:
    hidden, matrix, targets = drawn(torch.float64)
    logits = hidden @ matrix.T
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NO_LABEL)
    expected.backward()
    (fast, hidden_bar, matrix_bar), _ = both(torch.float64)
    assert fast.item() == pytest.approx(expected.item(), rel=1e-14)
    torch.testing.assert_close(hidden_bar, hidden.grad, rtol=1e-11, atol=1e-16)
    torch.testing.assert_close(matrix_bar, matrix.grad, rtol=1e-11, atol=1e-16)


def test_the_loss_scale_is_applied_before_rounding_to_half_precision() -> None:
    """A gradient of 1e-9 is zero in float16, but not once multiplied by 2¹⁶."""
    hidden = torch.tensor([[[1.0, 0.0]]], dtype=torch.float16, requires_grad=True)
    matrix = torch.tensor([[0.0, 0.0], [-18.0, 1.0]], dtype=torch.float16, requires_grad=True)
    loss = LinearCrossEntropy.apply(hidden, matrix, torch.tensor([[0]]), 1, 65536.0)
    (65536 * loss).backward()
    assert hidden.grad[0, 0, 1].item() == pytest.approx(65536 * torch.tensor(-18.0).exp().item(), rel=1e-3)


def test_a_loss_multiplied_by_something_else_than_announced_has_its_gradient_multiplied() -> None:
    hidden, matrix, targets = drawn(torch.float64)
    (3 * LinearCrossEntropy.apply(hidden, matrix, targets, 7, 4.0)).backward()
    again, same, _ = drawn(torch.float64)
    stepwise(again, same, targets, 7).backward()
    torch.testing.assert_close(hidden.grad, 3 * again.grad)
    torch.testing.assert_close(matrix.grad, 3 * same.grad)


def test_micro_batches_with_uneven_labels_add_up_to_the_mean_over_all_labels() -> None:
    hidden, matrix, targets = drawn(torch.float64)
    labels = int((targets != NO_LABEL).sum())
    parts = [LinearCrossEntropy.apply(hidden[i : i + 1], matrix, targets[i : i + 1], labels) for i in range(3)]
    whole = LinearCrossEntropy.apply(hidden, matrix, targets, labels)
    assert sum(part.item() for part in parts) == pytest.approx(whole.item(), rel=1e-14)


def test_no_label_at_all_is_a_loss_of_zero_without_gradient() -> None:
    hidden, matrix, targets = drawn(torch.float32)
    loss = LinearCrossEntropy.apply(hidden, matrix, torch.full_like(targets, NO_LABEL), 1)
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()
    assert not matrix.grad.any()


def test_a_value_that_is_not_a_number_is_not_hidden() -> None:
    hidden, matrix, targets = drawn(torch.float32)
    with torch.no_grad():
        hidden[1, 2, 3] = float("nan")
    assert LinearCrossEntropy.apply(hidden, matrix, targets, 7).isnan()


def test_a_frozen_output_matrix_gets_no_gradient_and_the_rest_the_same() -> None:
    hidden, matrix, targets = drawn(torch.float64)
    bars = []
    for trained in (True, False):
        x = hidden.detach().requires_grad_()
        (2 * LinearCrossEntropy.apply(x, matrix.detach().requires_grad_(trained), targets, 7)).backward()
        bars.append(x.grad)
    assert torch.equal(*bars)


def test_all_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory grows by less than a quarter of what the logits alone would take."""
    monkeypatch.setattr(kernel_limits, "LOGITS_BYTES", 1 << 20)
    hidden, matrix = torch.randn(1, 2048, 16, requires_grad=True), torch.randn(8192, 16, requires_grad=True)
    targets = torch.randint(0, 8192, (1, 2048))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        LinearCrossEntropy.apply(hidden, matrix, targets, 2048).backward()
    held, peak = 0, 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 0 < peak < 2048 * 8192 * 4 / 4
