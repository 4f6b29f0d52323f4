"""Axes read in another order, copies as targets, latents that say nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from doctor.bench import Decoder, batch, mean_loss
from doctor.small_loops import net, watched


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Tagger(nn.Module):
    """A tag for each place, (row, tag, place)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(12, 16), nn.Conv1d(16, 5, 3, padding=1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.tokens(ids).transpose(1, 2))


@pytest.mark.parametrize("transposed", [False, True])
def test_classes_in_the_middle(transposed: bool) -> None:
    def loss(model: nn.Module, given: tuple[Tensor, Tensor]) -> Tensor:
        out = model(given[0])
        rows = out.transpose(1, 2).reshape(-1, 5) if transposed else out.reshape(-1, 5)
        return F.cross_entropy(rows, given[1].flatten())

    found = watched(Tagger(), lambda: (torch.randint(0, 12, (8, 14)), torch.randint(0, 5, (8, 14))), loss, 2)
    assert ("classes-mixed-with-places" in found) != transposed


class Summed(nn.Module):
    """An LSTM, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][-1])


@pytest.mark.parametrize("viewed", [True, False])
def test_axes_that_a_view_exchanges(viewed: bool) -> None:
    def rows() -> tuple[Tensor, Tensor]:
        x = torch.randn(12, 8, 4)
        return (x.view(8, 12, 4) if viewed else x.transpose(0, 1)), x[:, :, 0].sum(1)

    found = watched(Summed(), rows, lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1]), 3)
    assert found == (["axes-scrambled-by-view"] if viewed else [])


class Translator(nn.Module):
    """Two tables, a decoder that reads the sum of what it is given so far, and of the source's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target, self.head = nn.Embedding(40, 16), nn.Embedding(40, 16), nn.Linear(16, 40)

    def forward(self, source: Tensor, given: Tensor) -> Tensor:
        return self.head(self.target(given).cumsum(1) / 4 + self.source(source).mean(1, keepdim=True))


@pytest.mark.parametrize("shifted", [False, True])
def test_a_decoder_that_is_given_its_target(shifted: bool) -> None:
    def rows() -> tuple[Tensor, Tensor]:
        source = torch.randint(1, 40, (8, 9))
        return source, source.flip(1) % 39 + 1

    def loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
        source, target = pair
        given = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1) if shifted else target
        return F.cross_entropy(model(source, given).flatten(0, 1), target.flatten())

    assert watched(Translator(), rows, loss, 2)[:1] == ([] if shifted else ["labels-not-shifted"])


class Vae(nn.Module):
    """A variational autoencoder of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = net(8, 16, 4), net(2, 16, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.read(x).chunk(2, 1)
        return self.write(mean + (0.5 * spread).exp() * torch.randn_like(mean)), mean, spread


@pytest.mark.parametrize("weight", [0.01, 5.0])
def test_latents_that_say_nothing(weight: float) -> None:
    basis = torch.randn(2, 8)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        out, mean, spread = model(x)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1).mean()
        return (out - x).square().mean() + weight * divergence

    found = watched(Vae(), lambda: torch.randn(32, 2) @ basis, loss, 101)
    assert ("posterior-collapsed" in found) == (weight == 5.0)


@pytest.mark.parametrize(("rate", "named"), [(1e-8, True), (1e-3, False)])
def test_a_rate_that_does_nothing_and_has_no_plan(rate: float, named: bool) -> None:
    model, steps = Decoder(), iter(range(1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    found = watched(model, lambda: batch(next(steps)), mean_loss, 51, optimizer=optimizer)
    assert ("learning-rate-too-low" in found) == named


def test_one_token_for_most_words() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.tokens(ids).mean(1))

    def rows(known: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(0, 20, (32, 12))
        return ids.where(ids < known, 19), torch.randint(0, 3, (32,))

    def loss(model: nn.Module, given: Any) -> Tensor:
        return F.cross_entropy(model(given[0]), given[1])

    assert watched(Bag(), lambda: rows(5), loss) == ["one-token-dominates"]
    assert watched(Bag(), lambda: rows(20), loss) == []
