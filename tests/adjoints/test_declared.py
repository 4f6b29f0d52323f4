"""Backward passes that their authors declare to be another gradient: said with their size, and no fault."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import limpid
from limpid.adjoints import declared
from limpid.adjoints.adjoint import Verdict
from limpid.errors import ConfigError
from limpid.operations.report import Report


class Clamp(Function):
    """A clamp that passes all of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class WrittenOver(Function):
    """What it keeps is changed behind its back."""

    times = 3.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.detach()
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return WrittenOver.times * ctx.kept**2 * gradient


@torch.library.custom_op("limpid_tests::clamped", mutates_args=())
def clamped(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


clamped.register_autograd(lambda ctx, gradient: gradient * 1)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    declared.FUNCTIONS.clear()
    declared.OPERATIONS.clear()


def step(function: Any, change: bool = False) -> Report:
    x = torch.linspace(-2, 2, 40).requires_grad_()
    with limpid.recording(nn.Identity()) as found:
        given = x * 1
        made = function(given)
        if change:
            given.data.mul_(2)
        (made * torch.linspace(1, 3, 40)).sum().backward()
    return found.verify()


def test_a_declared_one_is_said_with_its_size_and_is_no_fault() -> None:
    assert [one.verdict for one in step(Clamp.apply).not_adjoint] == [Verdict.WRONG]
    assert limpid.surrogate(Clamp) is Clamp
    report = step(Clamp.apply)
    [one] = report.adjoints
    assert one.verdict is Verdict.SURROGATE
    assert "a surrogate (as declared): the gradient of x is another, off by " in one.said
    assert "⟨x̄, v⟩ = " in one.said
    assert report.document().verdict == "holds"
    assert report.document().adjoints[0].verdict == "surrogate"


def test_a_decorator_says_why() -> None:
    @limpid.surrogate(why="a clamp passes all of it")
    class Own(Clamp):
        pass

    assert "(declared: a clamp passes all of it)" in step(Own.apply).adjoints[0].said
    assert step(Clamp.apply).not_adjoint


@pytest.mark.parametrize("what", [clamped, "limpid_tests::clamped", torch.ops.limpid_tests.clamped])
def test_an_operation_of_another_library_is_declared_by_itself_or_its_name(what: object) -> None:
    assert step(clamped).not_adjoint
    limpid.surrogate(what)
    [one] = step(clamped).adjoints
    assert (one.verdict, one.why) == (Verdict.SURROGATE, "as declared")


@pytest.mark.parametrize(("times", "verdict"), [(3.0, Verdict.HOLDS), (2.0, Verdict.SURROGATE)])
def test_what_was_written_over_is_a_fault_of_a_declared_one_too(
    times: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WrittenOver, "times", times)
    limpid.surrogate(WrittenOver)
    assert step(WrittenOver.apply).adjoints[0].verdict is verdict
    [one] = step(WrittenOver.apply, change=True).not_adjoint
    assert "what it kept was changed in between" in one.said


@pytest.mark.parametrize("what", [nn.Linear, Function, 3, "relu", torch.relu])
def test_what_has_no_backward_pass_of_its_own_is_refused(what: object) -> None:
    with pytest.raises(ConfigError, match=r"has no backward pass of its own: limpid\.surrogate expected a class"):
        limpid.surrogate(what)
