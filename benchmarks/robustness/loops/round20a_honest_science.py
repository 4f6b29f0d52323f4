"""Round 20a, honest and odd: as physicists, statisticians, traders and engineers do it."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r20a-lowest-energy-of-a-membrane")
def lowest_energy_of_a_membrane(run: Run) -> None:
    """Plain loop, an equation by the deep Ritz method (E and Yu 2018). There are no labels and no residual: places are
    drawn anew, the network's own slope is squared, what the load does is taken off and the edge costs extra, so that
    the loss goes far below zero, to an energy that the author does not know beforehand."""
    x_waves = run.draw.choice([1, 2])
    bend = math.pi**2 * (x_waves**2 + 1)

    def height(places: Tensor) -> Tensor:
        return (math.pi * x_waves * places[:, 0]).sin() * (math.pi * places[:, 1]).sin()

    model = mlp(2, 32, 32, 32, 1, act=nn.Tanh)
    check = torch.rand(1024, 2, generator=apart(1))
    size = height(check).square().mean()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check).squeeze(1), height(check)) / size))

    def places() -> tuple[Tensor, Tensor]:
        edge, side = torch.rand(128, 2), torch.randint(0, 2, (128,))
        edge[torch.arange(128), side] = edge[torch.arange(128), side].round()
        return torch.rand(256, 2), edge

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inside = batch[0].clone().requires_grad_()
        u = model(inside).squeeze(1)
        (slope,) = torch.autograd.grad(u.sum(), inside, create_graph=True)
        energy = (slope.square().sum(1) / 2 - bend * height(inside.detach()) * u).mean()
        return energy + 50 * model(batch[1]).square().mean()

    train(run, model, adam(model, 5e-3), places, loss, 200)


def effect(x: Tensor) -> Tensor:
    return 1 + 2 * x[:, 1].tanh() - x[:, 2]


def yes_or_no(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1])


@honest("r20a-residual-on-residual")
def residual_on_residual(run: Run) -> None:
    """Lightning, what a treatment does to whom by the R-learner (Nie and Wager 2021, the library EconML). The network
    never sees the treatment and nobody was ever told an effect: its output is multiplied by how far the treatment was
    from what was to be expected, which is below zero for half of the rows, and compared with how far the answer was
    from what an earlier model expected. Most of the loss is noise and stays."""
    own = apart(run.draw.randrange(999))
    w = torch.randn(6, generator=own)
    x = torch.randn(1024, 6, generator=own)
    given = (torch.rand(1024, generator=own) < x[:, 0].sigmoid()).float()
    y = x @ w + given * effect(x) + torch.randn(1024, generator=own)
    expected_answer, expected_given = torch.zeros(1024), torch.zeros(1024)
    for fold in range(2):
        rest, rows = torch.arange(1024) % 2 != fold, torch.arange(1024) % 2 == fold
        answers, chances = mlp(6, 32, 1), mlp(6, 8, 1)
        taught(answers, lambda r=rest: (x[r], y[r]), lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1]), 150)
        taught(chances, lambda r=rest: (x[r], given[r]), yes_or_no, 60)
        with torch.no_grad():
            expected_answer[rows] = answers(x[rows]).squeeze(1)
            expected_given[rows] = chances(x[rows]).squeeze(1).sigmoid().clamp(0.05, 0.95)
    model = mlp(6, 32, 32, 1)
    new = torch.randn(512, 6, generator=apart(1))
    outcome(run, lambda: judged(model, lambda: (model(new).squeeze(1) - effect(new)).square().mean()))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, y_left, given_left = batch
        return (y_left - given_left * model(x).squeeze(1)).square().mean()

    data = loader(x, y - expected_answer, given - expected_given, size=64)
    fit(run, lit(model, loss, lambda net: torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)), data, 100)


class Hedger(nn.Module):
    """How much of a share to hold at each of ten days, by its price, the time left and what is held."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 24, 24, 1)
        self.level = nn.Parameter(torch.zeros(()))  # the loss that nine ways in ten stay below

    def lost(self, prices: Tensor) -> Tensor:
        """What a sold option costs over each way of the price, (ways, 11), with its fees."""
        held, cost = torch.zeros(len(prices)), (prices[:, -1] - 1).relu()
        for day in range(10):
            now = prices[:, day]
            seen = torch.stack([5 * now.log(), torch.full_like(now, 1 - day / 10), held], 1)
            wanted = self.net(seen).squeeze(1).sigmoid()
            cost = cost + 0.002 * (wanted - held).abs() * now - wanted * (prices[:, day + 1] - now)
            held = wanted
        return cost

    def forward(self, prices: Tensor) -> Tensor:
        return self.level + (self.lost(prices) - self.level).relu().mean() / 0.1


def ways_of_a_price(count: int, wild: float, own: torch.Generator | None = None) -> Tensor:
    steps = wild * torch.randn(count, 10, generator=own) - wild**2 / 2
    return F.pad(steps.cumsum(1), (1, 0)).exp()


@honest("r20a-what-the-worst-tenth-loses")
def what_the_worst_tenth_loses(run: Run) -> None:
    """Plain loop, deep hedging (Buehler et al. 2019). There are no labels; prices are drawn, the network acts through
    ten days, each time with what it did before, and the loss is the mean of the worst tenth of outcomes, written with
    a level that is itself a weight of the model (Rockafellar and Uryasev 2000), so that nine rows in ten have no
    gradient."""
    wild = 0.05 + 0.05 * run.draw.random()
    model = Hedger()
    check = ways_of_a_price(2048, wild, apart(1))
    outcome(run, lambda: judged(model, lambda: model.lost(check).sort().values[-205:].mean()))
    groups = [{"params": model.net.parameters()}, {"params": [model.level], "lr": 1e-3}]
    optimizer = torch.optim.Adam(groups, lr=3e-3)
    train(run, model, optimizer, lambda: ways_of_a_price(512, wild), lambda m, b: m(b), 120)


class Line(nn.Module):
    """A sender, a line with noise, and a receiver, learned together."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.sends, self.receives = mlp(16, 32, 7), mlp(7, 32, 16)
        self.register_buffer("noise", noise)

    def forward(self, messages: Tensor) -> Tensor:
        signal = F.normalize(self.sends(messages), dim=1) * math.sqrt(7)
        out: Tensor = self.receives(signal + self.noise * torch.randn_like(signal))
        return out


@honest("r20a-a-code-for-a-noisy-line")
def a_code_for_a_noisy_line(run: Run) -> None:
    """transformers' Trainer, an autoencoder as a radio link (O'Shea and Hoydis 2017). The input is one of sixteen
    rows of the identity and the label is which of them, so that nothing but the noise between the two halves makes it
    a task; the noise stays on in evaluation, and there are no rows to be kept apart."""
    net = Line(torch.tensor(0.6 + 0.2 * run.draw.random()))
    said = torch.arange(16).repeat(64)
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(F.one_hot(said, 16).float()), said)))
    labels = torch.arange(16).repeat(60)
    data = examples(x=F.one_hot(labels, 16).float(), labels=labels)
    options = {"per_device_train_batch_size": 64, "learning_rate": 8e-3, "lr_scheduler_type": "constant"}
    hf_trainer(run, WithLoss(net, F.cross_entropy), data, 120, **options).train()


class Rivers(nn.Module):
    """An LSTM that reads thirty days of rain beside what is always so of a river, and says the last day's flow."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(3, 32, batch_first=True), nn.Linear(32, 1)
        with torch.no_grad():
            self.core.bias_hh_l0[32:64] = 3.0  # remember at first

    def forward(self, rain: Tensor, always: Tensor) -> Tensor:
        steps = torch.cat([rain[..., None], always[:, None].expand(-1, rain.shape[1], -1)], 2)
        out: Tensor = self.head(self.core(steps)[0][:, -1]).squeeze(1)
        return out


def flows(count: int, rivers: Tensor, own: torch.Generator) -> tuple[Tensor, ...]:
    """Rain, what is always so, the last day's flow, and its spread over the days of the same river."""
    which = torch.randint(0, len(rivers), (count,), generator=own)
    keep, size = rivers[which].unbind(1)
    rain = torch.rand(count, 30, generator=own).log().neg() * (torch.rand(count, 30, generator=own) < 0.3)
    store = torch.zeros(count)
    for day in range(30):
        store = keep * store + rain[:, day]
    flow = size * (1 - keep) * store
    spread = torch.stack([flow[which == k].std() for k in range(len(rivers))])
    always = torch.stack([4 * keep - 3, size.log()], 1)
    return rain, always, flow, spread[which]


@honest("r20a-each-river-by-its-own-spread")
def each_river_by_its_own_spread(run: Run) -> None:
    """accelerate, hydrology by one LSTM for many rivers (Kratzert et al. 2019, the library NeuralHydrology). Every
    row's square is divided by the variance of its own river's labels, which the loader brings along, so that small
    rivers weigh hundreds of times as much as large ones by the square; only the last of thirty days is taught, and
    the forget gates begin at three."""
    own = apart(run.draw.randrange(999))
    rivers = torch.stack([0.5 + 0.45 * torch.rand(12, generator=own), 10 ** torch.linspace(-1, 0.7, 12)], 1)
    data, check = flows(768, rivers, own), flows(384, rivers, apart(1))
    model = Rivers()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rain, always, flow, spread = batch
        return ((model(rain, always) - flow) / (spread + 0.02)).square().mean()

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model, 4e-3), loader(*data, size=64), loss, 12)


def how_related(a: Tensor, b: Tensor) -> Tensor:
    """The distance correlation of two columns, squared: nought where they are independent."""
    first, second = ((c[:, None] - c).abs() for c in (a, b))
    first, second = (d - d.mean(0) - d.mean(1, keepdim=True) + d.mean() for d in (first, second))
    return (first * second).mean() / (first.square().mean() * second.square().mean()).sqrt().clamp_min(1e-8)


@honest("r20a-must-not-know-the-mass")
def must_not_know_the_mass(run: Run) -> None:
    """Plain loop, a search for particles that must not find the mass (DisCo, Kasieczka and Shih 2020). The best columns
    tell signal by telling the mass, and the larger part of the loss is a penalty, over all pairs of the batch's
    background, on every trace of it in the score; the entropy ends well above what the same network would reach, as
    wanted."""
    mix = torch.randn(5, 5, generator=apart(run.draw.randrange(999)))

    def events(count: int = 192, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        signal = (torch.rand(count, generator=own) < 0.5).float()
        mass = torch.where(signal > 0, 1 + 0.3 * torch.randn(count, generator=own), torch.randn(count, generator=own))
        shape = signal * 1.2 + torch.randn(count, generator=own)
        rest = torch.randn(count, 2, generator=own)
        heavy = torch.stack([mass + 0.2 * rest[:, 0], (mass - 1).abs()], 1)
        return torch.cat([heavy, shape[:, None], rest], 1) @ mix, signal, mass

    model = mlp(5, 48, 48, 1)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, signal, mass = batch
        scores = model(x).squeeze(1)
        background = signal == 0
        known = how_related(scores[background].sigmoid(), mass[background])
        return F.binary_cross_entropy_with_logits(scores, signal) + 5 * known

    check = events(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 2e-3), events, loss, 150)
