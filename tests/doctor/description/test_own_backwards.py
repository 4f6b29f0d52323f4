"""Backward passes of one's own on the page, each beside the numerical derivative of its forward pass."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import limpid
from doctor.small_loops import net

SEEN: collections.Counter[str] = collections.Counter()


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: bool) -> Tensor:
        made = x.softmax(-1)
        ctx.save_for_backward(made)
        ctx.whole = whole
        SEEN["forward"] += 1
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        (made,) = ctx.saved_tensors
        within = (made * given).sum(-1, keepdim=True) if ctx.whole else 0
        return made * (given - within), None


class Squared(torch.autograd.Function):
    """Set up apart, with a second result that has no gradient."""

    @staticmethod
    def forward(x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        return x.square(), x > 0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.mark_non_differentiable(output[1])
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, given: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * given * ctx.saved_tensors[0], None


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (8 * x).round() / 8

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return given


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> Tensor:
        return -given


def page(function: Any, *given: Any) -> str:
    """What is told of a loop with such a Function; its weights end as they do without a doctor."""
    ends, told = [], ""
    for watching in (False, True):
        torch.manual_seed(0)
        SEEN.clear()
        model = Used(function, *given)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        doctor = limpid.watch(model, optimizer, say=False) if watching else None
        for _ in range(3):
            x = torch.randn(16, 4)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.step(loss, x)
        ends.append([*model.parameters(), torch.tensor(SEEN["forward"])])
        if doctor is not None:
            doctor.close()
            assert dict(doctor.skipped) == {}
            assert doctor.description is not None
            told = "\n".join(doctor.description.of("gradient"))
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
    return told


class Used(nn.Module):
    def __init__(self, function: Any, *given: Any) -> None:
        super().__init__()
        self.body, self.head, self.function, self.given = net(4, 8, 6), nn.Linear(6, 1), function, given

    def forward(self, x: Tensor) -> Any:
        made = self.function.apply(self.body(x), *self.given)
        return self.head(made[0] if isinstance(made, tuple) else made)


@pytest.mark.parametrize("whole", [True, False])
def test_a_softmax_with_and_without_its_sum(whole: bool) -> None:
    told = page(Softmax, whole)
    assert "the backward pass of Softmax (own, test_own_backwards.py:" in told
    assert (" agrees with the numerical derivative along random directions, within " in told) is whole
    assert ("does not give the numerical derivative: in x it gives " in told) is not whole
    assert ("of that along random directions (3 of 3 differ)" in told) is not whole


@pytest.mark.parametrize(("factor", "says"), [(2.0, ""), (1.0, "0.5 times"), (-2.0, "minus")])
def test_a_factor(factor: float, says: str) -> None:
    told = page(Squared, factor)
    wrong = f"does not give the numerical derivative: in x it gives {says} that along 3 of 3 random directions"
    assert (wrong if says else "agrees with the numerical derivative") in told


@pytest.mark.parametrize(
    ("function", "why"),
    [(Rounded, "its forward pass is constant between steps"), (Reversed, "minus that along 3 of 3 random directions")],
)
def test_another_gradient_on_purpose(function: Any, why: str) -> None:
    told = page(function)
    assert "as of a surrogate" in told
    assert why in told


def test_nothing_is_told_of_operations_of_torch() -> None:
    class Plain:
        apply = staticmethod(torch.tanh)

    assert "numerical derivative" not in page(Plain)
