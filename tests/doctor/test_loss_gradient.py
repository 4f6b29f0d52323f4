"""The loss read back from the gradient of the logits, where two readings lie close together."""

import pytest
import torch
import torch.nn.functional as F

from limpid.doctor.loss_gradient import LossGradient, read


def reading(vocab: int, spread: float, shared: int, room: int, twice: bool) -> LossGradient:
    """Of a mean cross-entropy divided by `shared`, logits of this standard deviation."""
    generator = torch.Generator().manual_seed(vocab)
    logits = (spread * torch.randn(8, 32, vocab, generator=generator)).requires_grad_()
    targets = torch.randint(0, vocab, (256,), generator=generator)
    given = logits.softmax(-1) if twice else logits
    (gradient,) = torch.autograd.grad(F.cross_entropy(given.flatten(0, 1), targets) / shared, logits)
    found = read(logits, gradient, targets.view(8, 32), room)
    assert found is not None
    return found


@pytest.mark.parametrize("room", [2**22, 2**14])
@pytest.mark.parametrize("shared", [1, 16, 64])
@pytest.mark.parametrize("spread", [1e-3, 0.02, 1.0])
@pytest.mark.parametrize("vocab", [65, 4096])
def test_logits_of_a_fresh_model_are_not_taken_for_probabilities(
    vocab: int, spread: float, shared: int, room: int
) -> None:
    assert reading(vocab, spread, shared, room, twice=False).squashed == ""


@pytest.mark.parametrize("room", [2**22, 2**14])
@pytest.mark.parametrize("shared", [1, 16])
@pytest.mark.parametrize(("vocab", "spread"), [(65, 0.02), (65, 1.0), (4096, 1.0)])
def test_probabilities_given_as_logits_are_seen(vocab: int, spread: float, shared: int, room: int) -> None:
    assert reading(vocab, spread, shared, room, twice=True).squashed == "softmax"


@pytest.mark.parametrize(("vocab", "epsilon"), [(65, 0.9), (65, 0.1), (4096, 0.5), (65, 0.0)])
def test_how_far_labels_are_smoothed(vocab: int, epsilon: float) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(8, 32, vocab, generator=generator).mul(0.2).requires_grad_()
    targets = torch.randint(0, vocab, (256,), generator=generator)
    loss = F.cross_entropy(logits.flatten(0, 1), targets, label_smoothing=epsilon)
    reading = read(logits, torch.autograd.grad(loss, logits)[0], targets.view(8, 32))
    assert reading is not None
    assert reading.smoothing == pytest.approx(epsilon, abs=1e-4)


def test_where_probabilities_are_nearly_equal_both_formulas_fit_and_none_is_accused() -> None:
    assert reading(4096, 1e-3, 1, 2**22, twice=True).squashed == ""
