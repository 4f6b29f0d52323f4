"""Each row's gradient against its own error: averaged first, of other rows, too coarse to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.small_loops import net, table, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "errors-not-felt": lambda f, y: (f - y).mean().square(),
    "errors-of-other-rows": lambda f, y: (f - y.roll(1)).square().mean(),
    "mean of squares": lambda f, y: (f - y).square().mean(),
    "mean of amounts": lambda f, y: (f - y).abs().mean(),
    "against standardised targets": lambda f, y: (f - (y - y.mean()) / y.std()).square().mean(),
    "likelihood": lambda f, y: (f.exp() - y.abs() * f).mean(),
    "quantile": lambda f, y: torch.maximum(0.9 * (y - f), -0.1 * (y - f)).mean(),
    "correlation": lambda f, y: -torch.corrcoef(torch.stack([f, y]))[0, 1],
    "pairs in order": lambda f, y: F.softplus(-(f[:, None] - f) * (y[:, None] - y).sign()).mean(),
    "of few rows": lambda f, y: (f - y).square()[:5].mean(),
    "weighed by rows": lambda f, y: ((f - y).square() * y.abs()).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_of_a_row_is_its_own_error(name: str) -> None:
    found = watched(net(6, 16, 1), table, lambda m, b: LOSSES[name](m(b[0]).flatten(), b[1]))
    assert found == ([name] if name.startswith("errors") else [])


def test_targets_that_are_averaged() -> None:
    found = watched(net(6, 16, 1), table, lambda m, b: (m(b[0]).flatten() - b[1].mean()).square().mean())
    assert found == ["errors-not-felt"]


def test_a_column_against_a_row_is_the_cause() -> None:
    """Errors of single rows are not felt because all are compared with all."""
    found = watched(net(6, 16, 1), table, lambda m, b: F.mse_loss(m(b[0]), b[1]))
    assert found == ["loss-broadcast", "errors-not-felt"]


def test_several_numbers_a_row_backwards() -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(32, 6)
        return x, x[:, :3] * x[:, 3:]

    assert watched(net(6, 16, 3), batch, lambda m, b: F.mse_loss(m(b[0]), b[1].flip(0))) == ["errors-of-other-rows"]
    assert watched(net(6, 16, 3), batch, lambda m, b: F.mse_loss(m(b[0].flip(0)), b[1].flip(0))) == []


def test_a_critic_has_one_gradient_for_all_rows() -> None:
    """Of pairs (condition, number): those of the data are to have a higher score than those that were drawn."""

    def batch() -> tuple[Tensor, Tensor]:
        x, y = table()
        return x, y[:, None]

    def critic(model: nn.Module, given: Any) -> Tensor:
        drawn = torch.randn_like(given[1])
        return model(torch.cat([given[0], drawn], 1)).mean() - model(torch.cat(given, 1)).mean()

    def apart(model: nn.Module, given: Any) -> Tensor:
        return -model(*given).mean()

    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = net(7, 16, 1)

        def forward(self, condition: Tensor, number: Tensor) -> Tensor:
            return self.score(torch.cat([condition, number], 1)).tanh()

    assert "errors-not-felt" not in watched(net(7, 16, 1), batch, critic)
    assert "errors-not-felt" not in watched(Conditional(), batch, apart)


class Prices(nn.Module):
    """Numbers around 300; `half`: as numbers of bfloat16."""

    def __init__(self, half: bool) -> None:
        super().__init__()
        self.net, self.half = net(6, 16, 1), half
        nn.init.constant_(self.net[-1].bias, 300.0)

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(4 * x)
        return out.bfloat16().float() if self.half else out


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("offset", [300.0, 0.0])
def test_a_format_tells_targets_apart(half: bool, offset: float) -> None:
    def batch() -> tuple[Tensor, Tensor]:
        x, y = table()
        return x, offset + y

    model = Prices(half)
    nn.init.constant_(model.net[-1].bias, offset)
    found = watched(model, batch, lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]))
    assert found[:1] == (["outputs-too-coarse"] if half and offset else [])
