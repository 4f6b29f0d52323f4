"""Honest loops whose choices look like mistakes: turns, deviations, lists, looks at inputs, labels made anew."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.bench import VOCAB, Decoder, batch
from doctor.small_loops import alarms, classes, net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def squared(model: nn.Module, given: Any) -> Tensor:
    return F.mse_loss(model(given[0]).flatten(), given[1])


@pytest.mark.parametrize("in_turn", [True, False])
def test_layers_that_learn_in_turn(in_turn: bool) -> None:
    model = net(6, 16, 16, 1)
    layers = [module for module in model if isinstance(module, nn.Linear)]
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(60):
            for i, layer in enumerate(layers):
                layer.requires_grad_(i == step // 10 % 3 if in_turn else step < 10 or i == 2)
            given = table()
            loss = squared(model, given)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, given)
    assert alarms(doctor) == ([] if in_turn else ["frozen-on-the-way"])


class Noisy(nn.Module):
    """A linear map whose weights are drawn at each pass; `drawn`: whether their means are different at the start."""

    def __init__(self, inputs: int, outputs: int, drawn: bool) -> None:
        super().__init__()
        first = torch.randn(outputs, inputs) / math.sqrt(inputs) if drawn else torch.full((outputs, inputs), 0.1)
        self.mean, self.sigma = nn.Parameter(first), nn.Parameter(torch.full((outputs, inputs), 0.02))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.mean + self.sigma * torch.randn_like(self.sigma)).T


@pytest.mark.parametrize("drawn", [True, False])
def test_deviations_that_start_alike(drawn: bool) -> None:
    model = nn.Sequential(Noisy(6, 16, drawn), nn.Tanh(), nn.Linear(16, 1))
    found = watched(model, table, squared)
    assert ("initialisation-degenerate" in found) != drawn


def test_a_list_of_scores_of_one_number_each() -> None:
    def listed(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]).squeeze(2), given[1])

    def rows() -> tuple[Tensor, Tensor]:
        x = torch.randn(16, 10, 5)
        return x, (x[..., 0] + x[..., 1]).softmax(1)

    assert watched(net(5, 16, 1), rows, listed) == []


def attacked(model: nn.Module, given: Any) -> Tensor:
    change = torch.zeros_like(given[0])
    for _ in range(3):
        change.requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(F.cross_entropy(model(given[0] + change), given[1]), change)
        change = (change.detach() + 0.02 * slope.sign()).clamp(-0.05, 0.05)
    return F.cross_entropy(model(given[0] + change), given[1])


@pytest.mark.parametrize(("scale", "named"), [(1, []), (16, ["loss-summed"])])
def test_gradients_for_an_input_are_none_of_the_loss(scale: float, named: list[str]) -> None:
    """Three looks up the loss before the pass that teaches; beside it a sum over the 16 rows."""
    assert watched(net(3, 16, 3), lambda: classes(16), lambda m, b: scale * attacked(m, b)) == named
    model = net(3, 16, 3)
    doctor = limpid.watch(model, torch.optim.SGD(model.parameters(), 1e-2), say=False)
    doctor.preflight(classes(16), loss=lambda m, b: scale * attacked(m, b))
    doctor.close()
    assert alarms(doctor) == named


@pytest.mark.parametrize("kind", ["a term", "viewed", "transposed"])
def test_a_term_on_the_logits_is_no_softmax_over_another_axis(kind: str) -> None:
    """Logits that are held near others, beside a cross-entropy; and a softmax over classes and positions mixed up."""

    def loss(model: nn.Module, given: Any) -> Tensor:
        logits = model(given[0])
        if kind == "viewed":
            return F.cross_entropy(logits.reshape(len(logits), logits.shape[-1], -1), given[1])
        if kind == "transposed":
            return F.cross_entropy(logits.transpose(1, 2).reshape(-1, logits.shape[-1]), given[1].flatten())
        return F.cross_entropy(logits.flatten(0, 1), given[1].flatten()) + F.mse_loss(logits, held)

    given = batch(0)
    held = 20 * torch.randn(*given[0].shape, VOCAB)
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters())
    with limpid.watch(model, optimizer, say=False) as doctor:
        value = loss(model, given)
        value.backward()
        optimizer.step()
        doctor.step(value, given)
    found = [finding.severity for finding in doctor.findings if finding.rule == "loss-formula-unusual"]
    assert found == (["notice"] if kind == "a term" else ["warning"])


@pytest.mark.parametrize("anew", [True, False])
def test_labels_that_the_run_makes_anew(anew: bool) -> None:
    """Clusters get other numbers at step 25, the inputs stay as they are; or the rows come sorted."""
    model, corners = net(6, 16, 3), torch.eye(3, 6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(70):
            late = step >= 25
            shares = torch.tensor([0.1, 0.3, 0.6] if late and not anew else [0.6, 0.3, 0.1])
            y = torch.multinomial(shares, 48, replacement=True)
            x = 2 * corners[y] + 0.3 * torch.randn(48, 6)
            y = 2 - y if late and anew else y
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
    assert ("data-sorted" in alarms(doctor)) != anew
    assert "data-sorted" in [finding.rule for finding in doctor.findings]


class Feedback(torch.autograd.Function):
    """Errors go back through fixed weights; or, by mistake, through the layer's own with a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor | float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.back = back
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        back = ctx.back if isinstance(ctx.back, Tensor) else ctx.back * weight
        return given[0] @ back, given[0].T @ x, None


@pytest.mark.parametrize("fixed", [True, False])
def test_errors_that_go_back_through_fixed_weights(fixed: bool) -> None:
    class Aligned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(6, 16), nn.Parameter(torch.randn(1, 16) / 4)
            self.register_buffer("back", torch.randn(1, 16) / 4)

        def forward(self, x: Tensor) -> Tensor:
            return Feedback.apply(self.first(x).tanh(), self.weight, self.back if fixed else 2.5)

    model = Aligned()
    doctor = limpid.watch(model, torch.optim.SGD(model.parameters(), 1e-2), say=False)
    doctor.preflight(table(), loss=squared)
    doctor.close()
    assert ("backward-not-adjoint" in alarms(doctor)) != fixed
    assert fixed <= (alarms(doctor) == [])


def test_a_loss_that_cancels_to_nothing_has_no_slope_to_be_seen() -> None:
    """A ratio of probabilities that begins at 1, of advantages with mean 0."""

    def ratio(model: nn.Module, given: Any) -> Tensor:
        now = model(given[0]).log_softmax(1)[:, 0]
        gained = given[0][:, 0] - given[0][:, 0].mean()
        return -((now - now.detach()).exp() * gained).mean()

    model = net(6, 16, 3)
    doctor = limpid.watch(model, torch.optim.SGD(model.parameters(), 1e-2), say=False)
    doctor.preflight(table(), loss=ratio)
    doctor.close()
    assert alarms(doctor) == []
