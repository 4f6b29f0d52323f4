"""The account of an error is complete: what has no gradient of its own is in it, and it is what is measured."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limpid
from limpid.errors import ConfigError
from limpid.operations.account import Account
from operations.models import step_of


def accounted(model: nn.Module, loss: Callable[[], Tensor], form: str = "fp32") -> Account:
    """Of one step, with what is measured."""

    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=form == "autocast"):
            return loss()

    with limpid.recording(model) as recorded:
        run().backward()
    return recorded.verify().error_of("loss", recorded.in_float64(run))


@pytest.mark.parametrize("form", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("name", ["Llama", "T5", "recurrent"])
def test_the_account_is_the_deviation_from_float64(name: str, form: str) -> None:
    model, loss_of = step_of(name)
    torch.manual_seed(3)
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    model = model.eval().bfloat16() if form == "bf16" else model.eval()
    found = accounted(model, lambda: loss_of(model), form)
    assert found.measured is not None
    assert found.remainder is not None
    assert found.cancels or abs(found.remainder) < 0.05 * abs(found.measured), str(found)
    assert found.total == pytest.approx(sum(one.error + one.inherited for one in found.by_module))
    assert found.total == pytest.approx(sum(one.error + one.inherited for one in found.by_operation))


class Turned(nn.Module):
    """Products with a table that is formed from a constant, and takes no part in the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
        self.table = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(6, dtype=x.dtype)[:, None] * torch.arange(6, dtype=x.dtype) / 7
        table = self.table(torch.cat([angles.cos(), angles.sin()], -1).chunk(2, -1)[0].t())
        return (x @ self.weight * table).tanh()


def test_a_table_without_a_gradient_enters_where_it_meets_one() -> None:
    model = Turned().bfloat16()
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = accounted(model, lambda: model(x).float().square().sum())
    assert found.measured is not None
    assert abs(found.inherited) > 0.02 * abs(found.measured)
    assert abs(found.measured - found.total) < 0.05 * abs(found.measured), str(found)


class Curved(torch.autograd.Function):
    """1.1 exp(x / 3), with its backward pass by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        made = (x / 3).exp() * 1.1
        ctx.save_for_backward(made)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (made,) = ctx.saved_tensors
        return grads[0] * made / 3


def test_the_inner_steps_of_a_custom_function_are_accounted_for() -> None:
    weight = nn.Parameter(torch.randn(64, generator=torch.Generator().manual_seed(2)).bfloat16())
    found = accounted(nn.Identity(), lambda: (Curved.apply(weight) * 1.0).float().sum())
    assert found.measured is not None
    assert abs(found.inherited) > 0.1 * abs(found.measured)
    assert abs(found.measured - found.total) < 0.05 * abs(found.measured), str(found)


def test_random_masks_are_the_same_in_float64_and_nothing_is_left_changed() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 1)).bfloat16()
    x = torch.randn(16, 8).bfloat16()
    with limpid.recording(model) as recorded:
        model(x).float().square().mean().backward()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    exact = recorded.in_float64(lambda: model(x).float().square().mean())
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in before.items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() is torch.float32
    found = recorded.verify().error_of("loss", exact)
    assert found.measured is not None
    assert abs(found.measured) < 0.05 * exact
    assert found.cancels or abs(found.measured - found.total) < 0.2 * abs(found.measured), str(found)


def test_in_float64_inside_of_the_recording_is_no_part_of_it() -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with limpid.recording(model) as recorded:
        model(x).sum().backward()
        count = len(recorded.calls)
        exact = recorded.in_float64(lambda: model(x).sum())
    assert len(recorded.calls) == count
    assert exact == pytest.approx((x.double() @ model.weight.double().T + model.bias.double()).sum().item(), rel=1e-14)


def test_experts_whose_products_pytorch_has_in_no_float64_are_accounted_for() -> None:
    model, loss_of = step_of("Mixtral")
    found = accounted(model, lambda: loss_of(model))
    assert found.measured is not None
    assert abs(found.measured - found.total) < 0.01 * abs(found.measured), str(found)


def test_what_pytorch_wants_in_one_format_is_in_float64_throughout() -> None:
    model = nn.Conv2d(3, 4, 3)
    x = torch.randn(2, 3, 8, 8)
    found = accounted(model, lambda: model(x).square().mean())
    assert found.measured is not None
    assert abs(found.measured - found.total) < 0.05 * abs(found.measured) + 1e-12


def test_what_is_no_number_in_float64_is_said_in_one_line() -> None:
    model = nn.Linear(4, 4)
    x = torch.randn(2, 4)
    with limpid.recording(model) as recorded:
        model(x).sum().backward()
    with pytest.raises(ConfigError, match=r"the loss in float64 is a tensor of shape \[2, 4\], expected"):
        recorded.in_float64(lambda: model(x))
    with pytest.raises(ConfigError, match="the loss cannot be computed in float64: mat1 and mat2 shapes"):
        recorded.in_float64(lambda: model(x.T).sum())


def test_calls_that_are_not_done_again_are_said_to_be_missing() -> None:
    weight = nn.Parameter(torch.full((3,), 2.5))
    with limpid.recording(nn.Identity()) as recorded:
        torch.special.zeta(weight.detach() + 1, torch.full((3,), 2.0))
        functional.silu(weight).sum().backward()
    found = recorded.verify().error_of("loss")
    assert found.unknown == 1
    assert "1 calls were not done again" in str(found)
    assert found.measured is None
