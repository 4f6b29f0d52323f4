"""What a loop writes, makes or freezes without effect, and loops that do so on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from doctor.small_loops import alarms, net, table

Step = Callable[[int], None]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def run(
    model: nn.Module,
    optimizers: list[Any],
    each: Step = lambda step: None,
    steps: int = 30,
    stepped: Callable[[int], list[int]] = lambda step: [0],
    schedules: list[Any] | None = None,
    keep: bool = False,
    loss_of: Callable[[nn.Module, Any], Tensor] | None = None,
) -> list[str]:
    """Alarms of a loop with several optimizers; `each` is called before every step, `keep` leaves gradients there."""
    loss_of = loss_of or (lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]))
    with limpid.watch(model, optimizers, scheduler=(schedules or [])[:1], say=False) as doctor:
        for step in range(steps):
            each(step)
            batch = table()
            loss = loss_of(model, batch)
            for number, optimizer in enumerate(optimizers):
                if not keep or number == 0:
                    optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for number in stepped(step):
                optimizers[number].step()
            for schedule in schedules or []:
                schedule.step()
            doctor.step(loss, batch)
    assert dict(doctor.skipped) == {}
    return alarms(doctor)


@pytest.mark.parametrize("read", [False, True])
def test_a_rate_that_is_set_on_the_optimizer(read: bool) -> None:
    model = net(6, 16, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.02)

    def cut(step: int) -> None:
        if step == 10 and read:
            optimizer.param_groups[0]["lr"] = 0.01
        elif step == 10:
            optimizer.lr = 0.01

    assert ("optimizer-attribute-not-read" in run(model, [optimizer], cut)) != read


class Own(torch.optim.SGD):
    """Keeps its own rate, and reads it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.lr = lr / 2

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["lr"] = 2 * self.lr
        return super().step(closure)


def test_an_optimizer_that_reads_its_own_attributes() -> None:
    model = net(6, 16, 1)
    assert "optimizer-attribute-not-read" not in run(model, [Own(model.parameters(), 0.02)])


@pytest.mark.parametrize("name", [n for n in dir(torch.optim) if isinstance(getattr(torch.optim, n), type)])
def test_optimizers_of_torch_keep_no_settings_beside_their_groups(name: str) -> None:
    from limpid.doctor.rules.attributes import _unread

    if name in ("Optimizer", "LBFGS", "Muon"):
        return
    assert list(_unread(getattr(torch.optim, name)(net(2, 1).parameters()))) == []


@pytest.mark.parametrize("called", [False, True])
def test_a_module_that_is_frozen_by_an_attribute(called: bool) -> None:
    model = net(6, 16, 16, 1)
    if called:
        model[0].requires_grad_(False)
    else:
        model[0].requires_grad = False  # type: ignore[assignment]
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    assert ("module-attribute-not-read" in run(model, [optimizer], steps=4)) != called


class Declared(nn.Linear):
    """A layer that notes whether it is trained, and does what it notes."""

    def __init__(self, requires_grad: bool) -> None:
        super().__init__(16, 16)
        self.requires_grad = requires_grad
        self.weight.requires_grad_(requires_grad)


def test_a_layer_that_notes_whether_it_is_trained() -> None:
    model = nn.Sequential(nn.Linear(6, 16), Declared(False), nn.Linear(16, 1))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    assert "module-attribute-not-read" not in run(model, [optimizer], steps=4)


@pytest.mark.parametrize("to_none", [False, True])
def test_what_is_frozen_and_moves(to_none: bool) -> None:
    model = net(6, 16, 16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    with limpid.watch(model, optimizer, say=False) as doctor:
        for step in range(60):
            if step == 15:
                model[0].requires_grad_(False)
            batch = table()
            optimizer.zero_grad(set_to_none=to_none)
            loss = F.mse_loss(model(batch[0]).flatten(), batch[1])
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
    assert ("frozen-yet-moved" in alarms(doctor)) != to_none


def two(model: nn.Module) -> list[Any]:
    return [torch.optim.Adam(model[0].parameters(), lr=1e-2), torch.optim.Adam(model[2].parameters(), lr=1e-2)]


def test_an_optimizer_that_is_never_stepped() -> None:
    both = net(6, 16, 1)
    assert "optimizer-never-steps" in run(both, two(both), steps=120)


@pytest.mark.parametrize(
    ("stepped", "keep"),
    [
        (lambda step: [0, 1], False),  # both
        (lambda step: [step % 2], False),  # in turn
        (lambda step: [0, 1] if step > 60 else [0], False),  # the second later
        (lambda step: [0], True),  # gradients that wait for a step to come
    ],
)
def test_optimizers_that_are_stepped_sometime(stepped: Callable[[int], list[int]], keep: bool) -> None:
    both = net(6, 16, 1)
    assert "optimizer-never-steps" not in run(both, two(both), steps=120, stepped=stepped, keep=keep)


def test_an_optimizer_for_what_has_no_gradient_yet() -> None:
    both = net(6, 16, 1)
    both[0].requires_grad_(False)
    assert "optimizer-never-steps" not in run(both, two(both), steps=120, stepped=lambda step: [1])


def schedules(optimizer: Any, kind: str) -> list[Any]:
    kinds = torch.optim.lr_scheduler
    cosine = kinds.CosineAnnealingLR(optimizer, 200)
    if kind == "overwritten":
        return [cosine, kinds.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))]
    if kind == "scaled":  # what multiplies the rate keeps what the other has set
        return [cosine, kinds.MultiplicativeLR(optimizer, lambda step: 0.999)]
    if kind == "in turn":
        return [kinds.SequentialLR(optimizer, [kinds.LinearLR(optimizer, 0.1, 1.0, 10), cosine], [10])]
    return [kinds.ExponentialLR(optimizer, 0.9)]


@pytest.mark.parametrize("kind", ["overwritten", "scaled", "in turn", "clamped"])
def test_a_schedule_that_is_overwritten(kind: str) -> None:
    model = net(6, 16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    def clamp(step: int) -> None:
        if kind == "clamped":
            group = optimizer.param_groups[0]
            group["lr"] = max(group["lr"], 5e-3)

    found = run(model, [optimizer], clamp, 80, schedules=schedules(optimizer, kind))
    assert ("schedule-overwritten" in found) == (kind == "overwritten")


@pytest.mark.parametrize(("along", "late"), [(1, False), (-1, False), (1, True)])
def test_a_softmax_along_the_places_of_rows(along: int, late: bool) -> None:
    """`late`: the classes stand in the middle, and are brought to the end before rows are laid one after the other."""
    model = nn.Sequential(nn.Linear(6, 5 * 7), nn.Unflatten(1, (5, 7)))

    def loss_of(m: nn.Module, b: Any) -> Tensor:
        scores = m(b[0]).log_softmax(along)
        scores = scores.transpose(1, 2) if late else scores
        classes = scores.shape[-1]
        return F.nll_loss(scores.flatten(0, 1), torch.arange(len(b[0]) * scores.shape[1]) % classes)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = run(model, [optimizer], steps=4, loss_of=loss_of)
    assert ("normalised-over-another-axis" in found) == (along == 1 and not late)
