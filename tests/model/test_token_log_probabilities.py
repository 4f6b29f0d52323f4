"""Log-probabilities straight from the hidden state equal those of all logits, and so do their gradients."""

import pytest
import torch

from limpid import kernel_limits
from limpid.model.kernels.token_log_probabilities import token_log_probabilities
from limpid.objectives import losses
from limpid.quantities import NO_LABEL

VOCAB, WIDTH, POSITIONS = 31, 13, 97
LABELLED = (torch.arange(3 * POSITIONS) % 3 > 0).view(3, POSITIONS)


def drawn(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stream, output matrix (float32 at least, as masters are), targets, a third without a label, and a gradient."""
    generator = torch.Generator().manual_seed(3)
    hidden = 2 * torch.randn(3, POSITIONS, WIDTH, generator=generator, dtype=torch.float64)
    matrix = torch.randn(VOCAB, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, (3, POSITIONS), generator=generator).where(LABELLED, NO_LABEL)
    masters = torch.promote_types(dtype, torch.float32)
    bar = torch.randn(3, POSITIONS, generator=generator, dtype=torch.float64).to(masters)
    return hidden.to(dtype).requires_grad_(), matrix.to(masters).requires_grad_(), targets, bar


@pytest.fixture(params=[1, 4000, 1 << 26])
def logits_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of one row at a time, of some, of all."""
    monkeypatch.setattr(kernel_limits, "LOGITS_BYTES", request.param)
    monkeypatch.setattr(kernel_limits, "CHUNK_ROWS", 7)
    monkeypatch.setattr(kernel_limits, "CHUNK_LOGITS", 1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("logits_at_a_time")
def test_from_the_hidden_state_equals_step_by_step(dtype: torch.dtype, temperature: float) -> None:
    hidden, matrix, targets, bar = drawn(dtype)
    scores = token_log_probabilities(hidden, matrix, targets, temperature, with_entropy=True)
    scores.log_probabilities.backward(bar)

    again, same, targets, bar = drawn(dtype)
    logits = again @ same.to(again.dtype).T
    whole = (logits.to(bar.dtype) / temperature).log_softmax(-1)
    expected = losses.token_log_probabilities(whole, targets)
    expected.backward(bar)

    round_off = torch.finfo(bar.dtype).eps
    torch.testing.assert_close(scores.log_probabilities, expected, rtol=0, atol=128 * round_off)
    entropy = -(whole.exp() * whole).sum(-1).where(LABELLED, 0)
    torch.testing.assert_close(scores.entropy, entropy.detach(), rtol=0, atol=128 * round_off)
    for found, twin in ((hidden, again), (matrix, same)):
        distance = (found.grad.double() - twin.grad.double()).norm() / twin.grad.double().norm()
        assert distance <= 4 * torch.finfo(dtype).eps + 64 * round_off


def test_a_frozen_matrix_and_no_target_at_all() -> None:
    hidden, matrix, targets, bar = drawn(torch.float32)
    matrix.requires_grad_(False)
    scores = token_log_probabilities(hidden, matrix, torch.full_like(targets, NO_LABEL))
    scores.log_probabilities.backward(bar)
    assert scores.entropy is None
    assert not scores.log_probabilities.any()
    assert not hidden.grad.any()
    assert matrix.grad is None


def test_all_logits_are_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory grows by less than a quarter of what the logits alone would take."""
    monkeypatch.setattr(kernel_limits, "LOGITS_BYTES", 1 << 20)
    hidden, matrix = torch.randn(1, 2048, 16, requires_grad=True), torch.randn(8192, 16, requires_grad=True)
    targets = torch.randint(0, 8192, (1, 2048))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        token_log_probabilities(hidden, matrix, targets).log_probabilities.sum().backward()
    held, peak = 0, 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert 0 < peak < 2048 * 8192 * 4 / 4
