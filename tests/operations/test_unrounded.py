"""The account of the loss follows memory however it is written, and has what is beyond the first order too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import limpid
from limpid.operations.account import Account
from limpid.operations.gradients.memory import Exact

NEAR = 1e-4
"""The share of what is measured that is left over, where gradients are rounded as those of fp32."""


def accounted(model: nn.Module, loss: Callable[[], Tensor]) -> Account:
    """Of one step, with what is measured."""
    with limpid.recording(model) as recorded:
        loss().backward()
    return recorded.verify().error_of("loss", recorded.in_float64(loss))


def assert_near(found: Account, near: float = NEAR) -> None:
    assert found.measured
    assert found.remainder is not None
    assert abs(found.remainder) < near * abs(found.measured), str(found)


def turns() -> Tensor:
    return torch.arange(6.0)[:, None] * torch.arange(8.0) / 7


def by_slices() -> Tensor:
    """Into views, one of them a second time."""
    table = torch.zeros(6, 8)
    table[:, :4] = turns()[:, :4].cos()
    table[:, 4:] = turns()[:, :4].sin()
    table[:, 2:5].mul_(1 / 3)
    return table


def by_places() -> Tensor:
    """Where indices say."""
    table = torch.ones(6, 8)
    rows = torch.tensor([0, 2, 4])
    table[rows] = turns()[rows].exp() / 11
    return table.index_copy_(0, torch.tensor([1]), turns()[:1].cos() / 3)


def by_out() -> Tensor:
    """As what operations are given for their results."""
    table = torch.empty(6, 8)
    torch.cos(turns(), out=table[:])
    torch.div(table[:, :4], 3, out=table[:, :4])
    return table


def by_rows() -> Tensor:
    """One after the other, each from the one before: what the memory held is read between."""
    table = torch.zeros(6, 8)
    table[0] = turns()[1].cos()
    for row in range(1, 6):
        table[row] = table[row - 1] / 1.1 + turns()[row].sin()
    return table


@pytest.mark.parametrize("table", [by_slices, by_places, by_out, by_rows])
def test_a_table_that_is_written_piece_by_piece_is_inherited(table: Callable[[], Tensor]) -> None:
    model = nn.Linear(8, 8, bias=False)
    nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    found = accounted(model, lambda: (model(x) * table()).tanh().sum())
    assert_near(found)
    assert abs(found.inherited) > 10 * NEAR * abs(found.measured or 0)


class Held(nn.Module):
    """Memory that gradients go through, written piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))

    def slices(self, x: Tensor) -> Tensor:
        held = torch.zeros(6, 12, dtype=x.dtype)
        held[:, :6] = x @ self.weight
        held[:, 3:9] += (x * self.weight).exp() / 7
        held[:, 8:].t().add_(self.weight[:4].tanh())
        held.mul_(1 / 3)
        return held.tanh()

    def places(self, x: Tensor) -> Tensor:
        held = torch.full((6, 6), 1 / 3, dtype=x.dtype)
        held[torch.tensor([5, 0])] = (x @ self.weight)[:2].exp()
        return held.index_add(0, torch.tensor([0, 0, 3]), self.weight[:3] / 3).tanh()

    def cast(self, x: Tensor) -> Tensor:
        held = torch.zeros(2, 6, 6)
        held[0] = (x.double() @ self.weight.double()) / 3
        held[1] = held[0].clone() * self.weight
        return held.tanh()


@pytest.mark.parametrize("way", ["slices", "places", "cast"])
def test_what_is_written_to_views_is_weighed_with_its_part_of_the_gradient(way: str) -> None:
    model = Held()
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    assert_near(accounted(model, lambda: getattr(model, way)(x).square().sum()))


def test_units_that_rounding_switches_are_beyond_the_first_order_and_named() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)).bfloat16()
    x = torch.randn(256, 16).bfloat16()
    found = accounted(model, lambda: model(x).float().square().mean())
    assert_near(found, 0.05)
    relu = [one.error for one in found.bent if one.name.startswith("aten.relu")]
    assert sum(map(abs, relu)) > 0.01 * abs(found.measured or 0)
    assert found.beyond == pytest.approx(sum(one.error for one in found.bent))
    assert "beyond first order" in str(found)


class Routed(nn.Module):
    """Each row by the expert whose score is largest: two of them nearly alike."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        first = torch.randn(8, 1, generator=draw)
        self.router = nn.Parameter(torch.cat([first, first + 1e-3 * torch.randn(8, 1, generator=draw)], 1).bfloat16())
        self.experts = nn.Parameter(torch.randn(2, 8, 8, generator=draw))

    def forward(self, x: Tensor) -> Tensor:
        score, chosen = (x.bfloat16() @ self.router).float().softmax(-1).topk(1)
        return torch.bmm(x[:, None], self.experts[chosen[:, 0]])[:, 0].tanh() * score


def test_an_expert_that_rounding_chose_is_accounted_for() -> None:
    model = Routed()
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    found = accounted(model, lambda: model(x).square().sum())
    assert_near(found)
    assert abs(found.beyond) > abs(found.total)


def test_what_goes_on_without_its_gradient_is_beyond_the_first_order() -> None:
    model = nn.Linear(8, 8)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(3))

    def loss() -> Tensor:
        made = model(x)
        return (made / made.detach().square().mean().sqrt()).tanh().sum()

    found = accounted(model, loss)
    assert_near(found)
    assert abs(found.beyond) > 0.01 * abs(found.measured or 0)


def test_memory_that_is_let_go_of_is_not_held() -> None:
    exact = Exact()
    held = [torch.zeros(100) for _ in range(3)]
    for one in held:
        exact.write(one[10:], torch.ones(90, dtype=torch.float64))
    assert exact.size == 3 * 800
    view = held[0][:5]
    del one
    held.clear()
    exact.sweep()
    assert exact.size == 800
    assert exact.has(view)
    exact.forget(view)
    assert (exact.size, exact.has(view)) == (0, False)


def test_an_update_that_the_recording_does_not_know_is_no_part_of_the_next_loss() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    x = torch.randn(16, 8)
    with limpid.recording(model) as recorded:
        for _ in range(2):
            model.zero_grad()
            model(x).tanh().mean().backward()
            for one in model.parameters():
                one.data.addcdiv_(one.grad, one.detach().abs() + 0.3, value=-0.1)
    assert all(call.inherited_error == 0 for call in recorded.verify().calls)


@pytest.mark.parametrize("errors_of", [[], ["grad"]])
def test_a_step_partly_in_float64_is_the_same_to_the_bit(errors_of: list[str]) -> None:
    model = Held()
    x = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))

    def taken() -> tuple[Tensor, Tensor]:
        model.weight.grad = None
        loss = model.cast(x).double().exp().sum() * model.slices(x).double().exp().sum()
        loss.backward()
        assert model.weight.grad is not None
        return loss.detach(), model.weight.grad

    loss, gradient = taken()
    with limpid.recording(model, errors_of=errors_of):
        recorded = taken()
    assert torch.equal(loss, recorded[0])
    assert torch.equal(gradient, recorded[1])


def test_an_update_inside_of_the_recording_begins_anew_from_the_engines_weights() -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    x, optimizer = torch.randn(16, 8), torch.optim.AdamW(model.parameters(), lr=0.1)
    with limpid.recording(model, optimizer) as recorded:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).tanh().mean().backward()
            optimizer.step()
    assert not recorded.unrounded.whole.has(model.weight)
    assert not recorded.verify().wrong
