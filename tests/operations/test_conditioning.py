"""How much an operation amplifies what came in; wrong, badly conditioned and low precision are told apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import limpid
from limpid.operations import Report
from limpid.operations.terminal import lines
from operations.models import step_of

X = torch.rand(8, 64, generator=torch.Generator().manual_seed(0)) + 0.5


def recorded(function: Callable[[Tensor], Tensor], x: Tensor = X) -> Report:
    weight = nn.Parameter(x.clone())
    with limpid.recording(nn.Identity()) as step:
        function(weight).float().sum().backward()
    return step.verify()


def of(report: Report, name: str) -> float:
    return next(call.condition for call in report.calls if name in call.operation and call.phase == "forward")


@pytest.mark.parametrize(("name", "function", "expected"), [
    ("exp", lambda x: (x * 0 + 20).exp(), 20.0),
    ("pow", lambda x: x**3, 3.0),
    ("sqrt", lambda x: x.sqrt(), 0.5),
    ("mul", lambda x: x * 3, 1.0),
    ("sub", lambda x: x.detach() + 1000 - (x + 999), 1414.0),
    ("layer_norm", lambda x: functional.layer_norm(x / x.std() + 1000, (64,)), 1000.0),
])  # fmt: skip
def test_conditions_are_those_of_the_textbook(name: str, function: Callable[[Tensor], Tensor], expected: float) -> None:
    assert of(recorded(function), name) == pytest.approx(expected, rel=0.1)


def test_a_products_condition_is_that_of_its_jacobian() -> None:
    other = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    root = (X.square() @ other.square()).mul(2).sum().sqrt() / (X @ other).norm()
    assert of(recorded(lambda x: x @ other), "mm") == pytest.approx(root.item(), rel=0.1)


def test_a_difference_of_near_numbers_is_badly_conditioned_and_a_rounded_sum_of_low_precision() -> None:
    report = recorded(lambda x: (x + 1000) * 1.0 - 1000)
    causes = {call.operation: call.cause for call in report.calls if call.phase == "forward"}
    assert causes["aten.sub.Tensor"] == "badly conditioned"
    assert causes["aten.add.Tensor"] == "low precision"
    assert [call.operation for call in report.amplifying()] == ["aten.sub.Tensor"]
    assert "relative errors of what came in are amplified ten times or more by 1:" in str(report)
    assert any("badly conditioned" in str(line) for line in lines(report.document()))


def test_a_model_at_its_beginning_is_well_conditioned_but_where_it_cancels() -> None:
    model, loss_of = step_of("Llama")
    with limpid.recording(model) as step:
        loss_of(model).backward()
    calls = [call for call in step.verify().calls if call.condition]
    assert len(calls) > 40
    assert sum(call.condition < 3 for call in calls) > 0.9 * len(calls)
    assert all(call.condition == 0 for call in step.calls if call.phase != "forward")


def test_masks_and_infinities_have_no_say() -> None:
    mask = torch.zeros(8, 64).masked_fill(torch.arange(64) > 40, -torch.inf)
    assert 0 < of(recorded(lambda x: (x + mask).softmax(-1)), "_softmax") < 3
