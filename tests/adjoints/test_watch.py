"""Backward passes by hand: wrong ones are named, right ones are not, and the step stays the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from benchmarks.custom_functions import deliberate, right, wrong
from benchmarks.custom_functions.__main__ import ON_PURPOSE, judged
from benchmarks.custom_functions.steps import NAMES
from torch import Tensor, nn

import limpid
from adjoints.functions import (
    COUNTED,
    INSIDE,
    RIGHT,
    Counting,
    Ended,
    LargerInNumPy,
    MostlyMasked,
    Quantised,
    Relu,
    Softmax,
    SolvedByHalf,
    Squared,
    wrong_cube,
)
from limpid.adjoints.adjoint import Adjoint, Verdict
from limpid.cli import main
from limpid.jsonable import to_json
from limpid.operations.document import recording_from


def recorded(function: Callable[[Tensor], Tensor], form: torch.dtype = torch.float32) -> tuple[list[Adjoint], Tensor]:
    """What is said of a function behind a layer, and that layer's gradient: the same without a recording."""
    torch.manual_seed(0)
    net, target = nn.Linear(8, 8).to(form), torch.linspace(-1, 1, 64, dtype=torch.float64)
    inputs = torch.randn(8, 8).to(form)

    def step() -> Tensor:
        net.zero_grad()
        INSIDE.zero_grad()
        made = function(net(inputs)).double().flatten()
        (made * target[: made.numel()]).sum().backward()
        inside = [one.grad.flatten() for one in INSIDE.parameters() if one.grad is not None]
        assert net.weight.grad is not None
        return torch.cat([net.weight.grad.flatten(), *inside])

    torch.manual_seed(1)
    without = step()
    left = torch.get_rng_state()
    torch.manual_seed(1)
    with limpid.recording(net) as found:
        gradient = step()
    assert torch.equal(torch.get_rng_state(), left)
    assert torch.equal(gradient.nan_to_num(7), without.nan_to_num(7)) or COUNTED
    return found.verify().adjoints, gradient


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_of_every_kind_hold_and_the_step_is_the_same(name: str) -> None:
    found, _ = recorded(RIGHT[name])
    assert [str(one.verdict) for one in found] == ["holds"] * len(found), str(found[0])
    assert found


def test_a_rounding_whose_step_follows_from_its_largest_entry_is_a_surrogate() -> None:
    [found] = recorded(Quantised.apply)[0]
    assert found.verdict is Verdict.SURROGATE


def test_a_mask_is_no_rounding() -> None:
    [found] = recorded(MostlyMasked.apply)[0]
    assert found.verdict is Verdict.WRONG


def test_of_a_symmetric_matrix_symmetric_changes_count() -> None:
    [found] = recorded(lambda x: SolvedByHalf.apply(x.mT @ x + torch.eye(8), x))[0]
    assert found.verdict is Verdict.SURROGATE
    assert found.why == "of a symmetric matrix it is right along symmetric changes"


@pytest.mark.parametrize("form", [torch.bfloat16, torch.float16, torch.float64])
def test_in_other_formats(form: torch.dtype) -> None:
    assert [one.verdict for one in recorded(Softmax.apply, form)[0]] == [Verdict.HOLDS]


@pytest.mark.parametrize("function", [LargerInNumPy.apply, wrong_cube])
def test_wrong_ones_that_nothing_looks_into_are_found(function: Any) -> None:
    [found] = recorded(function)[0]
    assert found.verdict is Verdict.WRONG
    assert found.source.startswith("test_watch.py:")


def test_a_forward_pass_that_is_another_each_time_is_unchecked() -> None:
    [found] = recorded(Counting.apply)[0]
    assert found.verdict is Verdict.UNCHECKED
    assert "gives other numbers" in found.why
    COUNTED.clear()


def test_nan_of_a_number_is_wrong() -> None:
    [found] = recorded(Ended.apply)[0]
    assert found.verdict is Verdict.WRONG


def test_transforms_of_functions_pass_through_a_recording() -> None:
    x = torch.linspace(-1, 1, 12).view(4, 3)
    with limpid.recording(nn.Identity()) as found:
        slopes = torch.func.vmap(torch.func.grad(lambda row: Squared.apply(row).sum()))(x)
        held = x.clone().requires_grad_()
        Squared.apply(held).sum().backward()
    assert torch.equal(slopes, 2 * x)
    assert [one.verdict for one in found.verify().adjoints] == [Verdict.HOLDS]
    assert not found.custom.begun


def test_no_gradient_is_unchecked() -> None:
    [found] = recorded(lambda x: Relu.apply(x) * 0)[0]
    assert found.said == "not checked: the gradient that came to it is 0"


def test_classes_made_in_the_step_are_said_to_be_unchecked_and_none_is_left_changed() -> None:
    held = vars(Relu)["forward"]

    def late(x: Tensor) -> Tensor:
        class Late(Relu):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                return gradient * 2

        return Late.apply(x)

    [found] = recorded(late)[0]
    assert "not there yet" in found.said
    assert vars(Relu)["forward"] is held


@pytest.mark.parametrize("name", NAMES)
def test_each_pair_is_told_apart(name: str) -> None:
    assert judged(right, name, "fp32", 3).verdict is Verdict.HOLDS
    found = judged(wrong, name, "fp32", 3)
    assert found.verdict is Verdict.WRONG, str(found)
    assert found.module == "use"


@pytest.mark.parametrize("name", [name for name in ON_PURPOSE if name != "Kept"])
def test_another_gradient_on_purpose_is_no_fault(name: str) -> None:
    assert judged(deliberate, name, "bf16", 3).verdict is Verdict.SURROGATE


def test_one_that_is_declared_is_no_fault() -> None:
    with limpid.recording(nn.Identity()) as found:
        deliberate.Kept.apply(torch.linspace(1, 2, 5, requires_grad=True)).sum().backward()
    assert [one.verdict for one in found.verify().not_adjoint] == [Verdict.WRONG]
    report = found.verify(surrogates=[deliberate.Kept])
    assert not report.not_adjoint
    assert report.document().verdict == "holds"
    assert "as declared" in str(report)


def test_twice_along_all_directions_is_said() -> None:
    found = judged(deliberate, "Kept", "fp32", 3)
    assert found.ratio == pytest.approx(0.5)
    assert "is 0.5 times that along all directions" in str(found)


STEP = """
import torch
from torch import nn

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 4 * ctx.saved_tensors[0] * gradient

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return Wrong.apply(self.layer(x))

def wrong():
    net = Net()
    return net, None, lambda: net(torch.ones(2, 3)).sum().backward()
"""


def test_it_is_shown_and_ends_a_trace_with_1(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong_step.py").write_text(STEP)
    assert main(["trace", f"{tmp_path / 'wrong_step.py'}:wrong"]) == 1
    shown = capsys.readouterr().out
    assert "not the adjoint: 1 custom Function" in shown
    assert "wrong_step.py:21" in shown
    assert "is 2 times that along all directions" in shown


def test_a_document_of_before_has_none() -> None:
    with limpid.recording(nn.Identity()) as found:
        Relu.apply(torch.linspace(-1, 1, 5, requires_grad=True)).sum().backward()
    report = found.verify()
    plain = to_json(report.document())
    assert recording_from(plain) == report.document()
    assert "of 1 of 1 calls of custom Functions" in str(report)
    assert "Relu" in report._repr_html_()
    del plain["adjoints"]
    assert recording_from(plain).adjoints == ()
