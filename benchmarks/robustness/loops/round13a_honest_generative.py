"""Round 13a, honest and odd: diffusion, energies, voices and ensembles."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Language,
    apart,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round12a_tools import Separator, duets
from torch import Tensor, nn
from torch.nn import functional as F


class Bits(nn.Module):
    """From noisy bits, the time and an earlier guess to a guess of the bits: (rows, places, 4)."""

    def __init__(self, places: int, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(9, width), nn.Linear(width, 4)
        self.places = nn.Parameter(0.1 * torch.randn(places, width))
        self.blocks, self.norm = nn.ModuleList(Block(width, causal=False) for _ in range(1)), nn.LayerNorm(width)

    def forward(self, noisy: Tensor, time: Tensor, guess: Tensor) -> Tensor:
        x = self.enter(torch.cat([noisy, guess, time.expand(-1, noisy.shape[1], 1)], 2)) + self.places
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.leave(self.norm(x))
        return out


@honest("r13a-words-as-analog-bits")
def words_as_analog_bits(run: Run) -> None:
    """Lightning, diffusion of texts as analog bits. A word's number is written in four bits, plus or minus one, and
    learned by a squared error as if it were a measurement: there is no embedding and no softmax. In half of the steps a
    first pass without gradient gives a guess that the second pass reads; in the other half that input is zero."""
    language = Language(run.draw.randrange(999), words=16, sharp=3.0)

    def bits(rows: Tensor) -> Tensor:
        return 2.0 * (rows[..., None] >> torch.arange(4) & 1) - 1

    def spoilt(clean: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        time = torch.rand(len(clean), 1, 1, generator=own)
        angle = time * math.pi / 2
        return angle.cos() * clean + angle.sin() * torch.randn(clean.shape, generator=own), time

    def loss(net: Any, batch: Any) -> Tensor:
        clean = bits(batch[0])
        noisy, time = spoilt(clean)
        guess = torch.zeros_like(clean)
        if torch.rand(()) < 0.5:
            with torch.no_grad():
                guess = net(noisy, time, guess)
        return F.mse_loss(net(noisy, time, guess), clean)

    model, clean = Bits(10), bits(language.rows(128, 10, apart(1)))
    noisy, time = spoilt(clean, apart(2))
    zero = torch.zeros_like(clean)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(noisy, time, model(noisy, time, zero)), clean)))
    rows = loader(language.rows(640, 10), size=32)
    fit(run, lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3)), rows, 160)


class Potential(nn.Module):
    """The energy of some atoms, a sum over pairs of a network on distances, and the forces, minus its gradient."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pair = mlp(12, width, width, 1, act=nn.SiLU)
        self.register_buffer("centres", torch.linspace(0.5, 3.5, 12))

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, atoms, 3) to (rows,) and (rows, atoms, 3)."""
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            away = distances(places)
            energy = self.pair((-8 * (away[..., None] - self.centres).square()).exp()).sum((1, 2))
            (slope,) = torch.autograd.grad(energy.sum(), places, create_graph=self.training)
        return energy, -slope


def distances(places: Tensor) -> Tensor:
    """Of all pairs: (rows, pairs)."""
    first, second = torch.triu_indices(places.shape[1], places.shape[1], 1)
    return (places[:, first] - places[:, second]).norm(dim=2)


@honest("r13a-forces-are-a-slope")
def forces_are_a_slope(run: Run) -> None:
    """Plain loop, a potential for four atoms. Forces are minus the gradient of the energy for the places, taken inside
    of the forward pass, and backward() goes through that gradient; they weigh a hundred times as much as the energy,
    whose level nobody needs, and evaluation needs gradients too. The last bias has nearly none."""

    def atoms(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        corners = 1.1 * torch.tensor([[0.0, 0, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
        places = (corners + 0.2 * torch.randn(count, 4, 3, generator=own)).requires_grad_()
        energy = (1 - (-1.5 * (distances(places) - 1.3)).exp()).square().sum(1)
        (slope,) = torch.autograd.grad(energy.sum(), places)
        return places.detach(), energy.detach(), -slope

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        energy, forces = m(batch[0])
        return 0.01 * F.mse_loss(energy, batch[1]) + F.mse_loss(forces, batch[2])

    model, check = Potential(), atoms(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check[0])[1], check[2])))
    train(run, model, adam(model), lambda: atoms(24), loss, 350)


@honest("r13a-decibels-of-two-voices")
def decibels_of_two_voices(run: Run) -> None:
    """Plain loop, two voices from their sum. The loss is minus the signal's decibels over what is wrong (SI-SDR), so
    that it begins above zero and ends far below; how loud the output is means nothing and may drift, and of the two
    ways to pair outputs with voices the better one is taken for each row, so that labels change places."""

    def decibels(said: Tensor, true: Tensor) -> Tensor:
        said, true = said - said.mean(-1, keepdim=True), true - true.mean(-1, keepdim=True)
        part = (said * true).sum(-1, keepdim=True) / true.square().sum(-1, keepdim=True) * true
        return 10 * (part.square().sum(-1) / ((said - part).square().sum(-1) + 1e-6)).log10()

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        said = m(batch[0])
        both = torch.stack([decibels(said, true).mean(1) for true in (batch[1], batch[1].flip(1))])
        return -both.amax(0).mean()

    model, check, own = Separator(32), duets(128, apart(1)), apart(run.draw.randrange(2, 999))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: duets(32, own), loss, 150, clip=5.0)


@honest("r13a-two-members-pushed-apart")
def two_members_pushed_apart(run: Run) -> None:
    """Plain loop, a forecast as an ensemble, as weather models learn it. For each row the network is run twice with
    noise among its inputs, and the loss (the fair CRPS) draws both members to what came true and pushes them from each
    other with half of that strength, since a forecast whose members agree is too sure of itself."""

    def weather(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 4, generator=own)
        spread = (0.3 + x[:, 1].relu()) * torch.randn(count, generator=own)
        y = 2 * x[:, 0] + x[:, 2] * x[:, 3] + spread * (1 + torch.rand(count, generator=own).round())
        return x, y, torch.randn(2, count, 4, generator=own)

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, noise = batch
        members = m(torch.cat([x.expand(2, -1, -1), noise], 2)).squeeze(2)
        return ((members - y).abs().mean(0) - 0.5 * (members[0] - members[1]).abs()).mean()

    model, check = mlp(8, 48, 48, 1, act=nn.SiLU), weather(1024, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: weather(64), loss, 800)
