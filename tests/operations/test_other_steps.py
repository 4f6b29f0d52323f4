"""Steps of any optimizer, and what a recording meets in other people's loops: it judges what it can and ends none."""

from typing import Any

import pytest
import torch
import torch.utils.flop_counter
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import limpid
from limpid.operations import Report
from limpid.operations.call import Check

OPTIMIZERS = [
    torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax,
    torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD,
]  # fmt: skip
FUSED: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.Adam, {"weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1, "maximize": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    (torch.optim.SGD, {}),
    (torch.optim.Adagrad, {"weight_decay": 0.1, "lr_decay": 0.1}),
]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def steps_of(optimizer: torch.optim.Optimizer, net: nn.Module, scaler: Any = None, count: int = 3) -> Report:
    with limpid.recording(net, optimizer) as recorded:
        for step in range(count):
            optimizer.zero_grad()
            inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
                loss = net(inputs).square().mean()
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    return recorded.verify()


def is_whole(report: Report) -> bool:
    assert not report.wrong, str(report.wrong[0])
    assert not report.unchecked, str(report.unchecked[0])
    return any(call.phase == "update" and call.check is Check.REDONE for call in report.calls)


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_of_optimizers_are_checked(kind: type[torch.optim.Optimizer], foreach: bool) -> None:
    net = model()
    assert is_whole(steps_of(kind(net.parameters(), lr=1e-2, foreach=foreach), net))  # type: ignore[call-arg]


@pytest.mark.parametrize("form", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("kind", "given"), FUSED)
def test_fused_steps_are_checked(kind: type[torch.optim.Optimizer], given: dict[str, Any], form: torch.dtype) -> None:
    skips = kind is torch.optim.SGD and form is torch.bfloat16  # what fills a register: see below
    net = (nn.Linear(2, 3) if skips else model()).to(form)
    optimizer = kind(net.parameters(), lr=1e-2, fused=True, **given)  # type: ignore[call-arg]
    inputs = torch.linspace(-1, 1, 4 if skips else 10, dtype=form).reshape(2, -1)
    with limpid.recording(net, optimizer) as recorded:
        for _ in range(3):
            net(inputs).square().mean().backward()
            optimizer.step()
    assert is_whole(recorded.verify())


def test_parameters_that_fused_sgd_leaves_out_in_16_bits_are_named() -> None:
    """PyTorch 2.13 on the processor updates none of those that fill a register."""
    net = nn.Linear(64, 1, bias=False).bfloat16()
    before = net.weight.detach().clone()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, fused=True)
    with limpid.recording(net, optimizer) as recorded:
        net(torch.ones(1, 64, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    left_out = bool((net.weight.detach() == before).any())
    assert [call.operation for call in recorded.verify().wrong] == ["aten._fused_sgd_.default"] * left_out


@pytest.mark.parametrize(("kind", "given"), FUSED)
def test_a_fused_step_of_other_numbers_is_found(kind: type[torch.optim.Optimizer], given: dict[str, Any]) -> None:
    net = model()
    optimizer = kind(net.parameters(), lr=1e-2, fused=True, **given)  # type: ignore[call-arg]

    class Planted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if "_fused_" in str(func):
                args[0][0].view(-1)[3] += 1e-5  # a thousandth of the step
            return made

    with Planted(), limpid.recording(net, optimizer) as recorded:
        net(torch.ones(4, 5)).square().mean().backward()
        optimizer.step()
    assert ["_fused_" in call.operation for call in recorded.verify().wrong] == [True]


@pytest.mark.parametrize("scale", [256.0, 2.0**30], ids=["finite", "overflow"])
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_with_a_scaled_loss_is_checked(fused: bool, scale: float) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    report = steps_of(optimizer, net, scaler)
    assert is_whole(report) or scale > 256
    assert any("_amp_update_scale" in call.operation for call in report.calls)


def test_sparse_gradients_are_said_to_be_unchecked() -> None:
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    with limpid.recording(table, optimizer) as recorded:
        table(torch.tensor([1, 1, 4])).square().sum().backward()
        optimizer.step()
    report = recorded.verify()
    assert not report.wrong, str(report.wrong[0])
    assert "a sparse_coo tensor of float32" in {call.why for call in report.unchecked}
    assert "what was checked is within rounding" in str(report)


def test_a_tensor_without_numbers_inside() -> None:
    with limpid.recording(nn.Identity()) as recorded:
        made = torch.ones(2, 3, device="meta").add_(1)
    assert made.is_meta
    assert {call.why for call in recorded.verify().unchecked} == {"a meta tensor of float32, without numbers"}


def test_an_error_of_the_user_passes_and_nothing_is_left_behind() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters())
    recordings = []

    def own() -> None:
        with limpid.recording(net, optimizer) as recorded:
            recordings.append((recorded, net(torch.ones(1, 5)).sum()))
            assert recorded.hooks
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        own()
    [(recorded, made)] = recordings
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not _get_current_dispatch_mode_stack()
    assert not _get_current_function_mode_stack()
    assert all(call.errors == () for call in recorded.calls)
    assert not recorded.hooks
    made.backward()
    assert recorded.verify().error == 0


class Doubled(torch.autograd.Function):
    """2 x with a call inside that is not its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.div(3)
        return x.mul(2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].mul(2)


def test_calls_inside_a_custom_function_are_not_taken_for_its_result() -> None:
    values = torch.linspace(0.1, 0.9, 7, requires_grad=True)
    with limpid.recording(nn.Identity()) as recorded:
        (Doubled.apply(values) / 7).sum().backward()
    inside = [call for call in recorded.calls if call.phase == "forward"][:2]
    assert [call.operation for call in inside] == ["aten.div.Tensor", "aten.mul.Tensor"]
    assert [call.error for call in inside] == [0, 0]
    assert any(call.error for call in recorded.calls)


def test_an_infinity_that_vectorised_gelu_makes_no_number_of_is_named() -> None:
    values = torch.full((16,), torch.inf)
    assert torch.nn.functional.gelu(values[:1]).item() == torch.inf
    with limpid.recording(nn.Identity()) as recorded:
        made = torch.nn.functional.gelu(values)
    assert [call.operation for call in recorded.verify().wrong] == ["aten.gelu.default"] * bool(made.isnan().any())


def test_an_overflow_to_the_other_infinity_is_wrong() -> None:
    class Planted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})).neg()

    values = torch.full((3,), 1e30)
    with limpid.recording(nn.Identity()) as honest:
        values * values
    assert not honest.verify().wrong
    with Planted(), limpid.recording(nn.Identity()) as recorded:
        values * values
    assert [call.operation for call in recorded.verify().wrong] == ["aten.mul.Tensor"]


def test_markup_in_names_is_text() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.exp() / 3

    net = nn.Module()
    net.add_module("<b>bold</b>", Named())
    with limpid.recording(net) as recorded:
        net.get_submodule("<b>bold</b>")(torch.full((3,), 0.1, requires_grad=True)).sum().backward()
    shown = recorded.verify()._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in shown
    assert "<b>bold" not in shown
    assert "moved by" in shown


def test_a_count_that_fails_ends_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise ArithmeticError("no count")

    monkeypatch.setitem(torch.utils.flop_counter.flop_registry, torch.ops.aten.mm, fails)
    with limpid.recording(nn.Identity()) as recorded:
        made = torch.eye(3) @ torch.ones(3, 3)
    assert made.sum() == 9
    assert [call.check for call in recorded.calls if "mm" in call.operation] == [Check.REDONE]
