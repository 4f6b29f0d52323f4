"""Ways of the gradient, parts of a loss and functions of one's own, as they are meant and as they are mistaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import net


def page(model: nn.Module, loss: Callable[[Tensor], Tensor], steps: int = 3) -> dict[str, str]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for _ in range(steps):
            x = torch.randn(16, 4)
            value = loss(x)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, x)
    assert dict(doctor.skipped) == {}
    assert doctor.description is not None
    return {part: "\n".join(doctor.description.of(part)) for part in ("loss", "gradient")}


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.predict = net(4, 8, 6), nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("detached", [True, False])
def test_a_target_branch(detached: bool) -> None:
    torch.manual_seed(0)
    model = Views()

    def loss(x: Tensor) -> Tensor:
        one, two = model(x), model(x + 0.1 * torch.randn_like(x))
        target = two.detach() if detached else two
        return -F.cosine_similarity(model.predict(one), target).mean()

    told = page(model, loss)["gradient"]
    assert "through predict.*" in told
    assert "predict.*.weight" in told
    assert ("none straight from the loss" in told) is detached
    assert (": none, " in told) is not detached  # the second pass alone has one straight from the loss


def test_a_plain_loss_has_no_ways_to_tell() -> None:
    model = net(4, 8, 1)
    told = page(model, lambda x: F.mse_loss(model(x)[:, 0], x[:, 0]))
    assert "by forward pass" not in told["gradient"]
    assert "parts of the loss" not in told["loss"]
    assert "times its factor" not in told["loss"]


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_penalty_that_is_a_number_alone_leaves_the_rest_of_the_loss(weight: float) -> None:
    torch.manual_seed(0)
    model = net(4, 8, 1)

    def loss(x: Tensor) -> Tensor:
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(at).sum(), at)  # without create_graph
        return weight * F.mse_loss(model(x)[:, 0], x[:, 0]) + 3 * (slope[:, 0] - 1).square().mean()

    told = page(model, loss)["loss"]
    assert f"what a function of torch's has in it, times its factor in the gradient: {weight:g} × mse_loss " in told


class Fused(torch.autograd.Function):
    """The mean of squares, whose gradient is made on the way forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ignores: bool) -> Tensor:
        ctx.save_for_backward(2 * x / x.numel())
        ctx.ignores = ignores
        return x.square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        return made if ctx.ignores else made * gradient, None


@pytest.mark.parametrize(("ignores", "times"), [(False, "2 times"), (True, "1 times")])
def test_a_factor_that_a_backward_pass_ignores(ignores: bool, times: str) -> None:
    torch.manual_seed(0)
    model = net(4, 8, 3)
    told = page(model, lambda x: model(x).mean() + 0.1 * Fused.apply(model(x), ignores))["gradient"]
    assert "Fused is an autograd function of one's own: 0.1 comes into its backward pass" in told
    assert f"if twice as much came in, {times} as much would go out" in told
    assert "the backward pass of Fused (own) was not held against the numerical derivative: not the model's" in told


@pytest.mark.parametrize("weight", [0.1, 10.0])
def test_parts_of_a_loss(weight: float) -> None:
    torch.manual_seed(0)
    model = net(4, 8, 3)

    def loss(x: Tensor) -> Tensor:
        made = model(x)
        aims = F.cross_entropy(made, torch.zeros(len(x), dtype=torch.long))
        return aims + weight * F.kl_div(made.log_softmax(1), torch.full_like(made, 1 / 3), reduction="batchmean")

    told = page(model, loss)["loss"]
    assert "parts of the loss, each times its factor in the gradient: 1 × cross_entropy" in told
    assert f"{weight:.3g} × kl_div" in told
    assert "(batchmean), gradient " in told
    first, second = (float(part[:4]) for part in told.split("(cosine to the whole's ")[1:3])
    assert (first > second) is (weight < 1)  # the larger part is nearer to the whole's direction


@pytest.mark.parametrize("axis", [0, -1])
def test_a_part_that_balances_experts(axis: int) -> None:
    """A mean over the experts, not over the rows, is 1 over their number whatever the gate says."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 3) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            self.shares = self.gate(x).softmax(-1)
            return (torch.stack([one(x) for one in self.experts], -1) * self.shares[:, None]).sum(-1)

    torch.manual_seed(0)
    model = Experts()

    def loss(x: Tensor) -> Tensor:
        aims = F.cross_entropy(model(x), torch.zeros(len(x), dtype=torch.long))
        return aims + 0.02 * model.shares.mean(axis).square().sum()

    told = page(model, loss)["loss"]
    assert "; 0.02 × sum of pow of mean, no gradient at the outputs, " in told
    before = told.partition(" at gate.weight")[0].split()
    assert float(before[-1]) > 1e-3  # of the whole
    assert (float(before[-3]) > 1e-6) is (axis == 0)


def test_parts_of_two_outputs() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.say, self.value = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.tanh(self.body(x))
            return self.say(h), self.value(h)[:, 0]

    torch.manual_seed(0)
    model = Both()

    def loss(x: Tensor) -> Tensor:
        said, value = model(x)
        return F.cross_entropy(said, torch.zeros(len(x), dtype=torch.long)) + 0.5 * F.mse_loss(value, x[:, 0])

    told = page(model, loss)["loss"]
    assert "(mean), gradient " in told.partition("0.5 × mse_loss")[2]
    assert "no gradient at the outputs" not in told


def test_no_part_is_looked_at_where_somebody_counts_gradients() -> None:
    torch.manual_seed(0)
    model, seen = net(4, 8, 3), [0]

    def count(gradient: Tensor) -> None:
        seen[0] += 1

    def loss(x: Tensor) -> Tensor:
        made = model(x).square()
        made.register_hook(count)
        return made.mean() + 0.1 * made.exp().mean()

    assert "parts of the loss" not in page(model, loss)["loss"]
    assert seen == [3]


def test_parts_that_are_added_place_by_place() -> None:
    torch.manual_seed(0)
    model = net(4, 8, 3)

    def loss(x: Tensor) -> Tensor:
        said = model(x).log_softmax(1)[:, 0]
        return (-said * 0.5 + 0.1 * (said - said.detach()).exp()).mean()

    told = page(model, loss)["loss"]
    assert "parts of the loss, each times its factor in the gradient: 1 × " in told
    assert "(cosine to the whole's -1.00)" in told
