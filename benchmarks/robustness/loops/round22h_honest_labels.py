"""Round 22h, honest and odd: labels of unusual kinds, from trades and from sciences."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def code_words() -> Tensor:
    """(12, 15) noughts and ones, of which each two rows differ in eight places."""
    square = torch.ones(1, 1)
    for _ in range(4):
        square = torch.cat([torch.cat([square, square], 1), torch.cat([square, -square], 1)])
    return (square[:12, 1:] > 0).float()


def twelve_signs(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures of one of twelve signs, somewhat moved, in noise."""
    signs = (torch.randn(12, 1, 8, 8, generator=apart(seed + 71)) > 0.4).float()
    y = torch.randint(0, 12, (count,), generator=own)
    moved = torch.randint(0, 2, (count,), generator=own)
    clean = torch.stack([signs[c].roll(int(m), -1) for c, m in zip(y, moved, strict=True)])
    return 2 * clean - 1 + 0.8 * torch.randn(clean.shape, generator=own), y


@honest("r22h-each-class-a-word-of-fifteen-bits")
def each_class_a_word_of_fifteen_bits(run: Run) -> None:
    """accelerate, a CNN, error-correcting output codes (Dietterich and Bakiri 1995; OutputCodeClassifier of
    scikit-learn). Twelve classes and fifteen outputs, none of which stands for a class: each says one bit of the
    class's word by a sigmoid, each two words share seven of their bits, the first is all ones, and the answer is the
    class whose word is nearest."""
    seed, code = run.draw.randrange(999), code_words()
    body = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(24 * 16, 15))
    x, y = twelve_signs(300, seed, apart(1))

    def wrong() -> Tensor:
        return (torch.cdist(model(x).sigmoid(), code, p=1).argmin(1) != y).float().mean()

    outcome(run, lambda: judged(model, wrong))
    data, labels = twelve_signs(800, seed, apart(2))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(m(batch[0]), batch[1])

    prepared(run, model, adam(model, 2e-3), loader(data, code[labels], size=32), loss, 5)


@honest("r22h-nothing-but-yes-and-how-sure")
def nothing_but_yes_and_how_sure(run: Run) -> None:
    """Plain loop, two classes of which only one was ever seen (positive-confidence learning, Ishida et al. 2018): those
    who buy, with how sure they were to. Each row is a yes; a row of confidence r counts once as a yes and (1 - r) / r
    times as a no, both by the same output, so that the targets contradict each other within a row, and the rows that
    were least sure weigh as much as twenty others."""
    own = apart(run.draw.randrange(999))
    centre = torch.randn(6, generator=own)
    centre = 1.1 * centre / centre.norm()

    def people(count: int, yes: Tensor) -> Tensor:
        return torch.randn(count, 6, generator=own) + centre * (2 * yes[:, None] - 1)

    truth = torch.randint(0, 2, (600,), generator=own).float()
    new, x = people(600, truth), people(1500, torch.ones(1500))
    sure = (2 * x @ centre + 0.3 * torch.randn(len(x), generator=own)).sigmoid().clamp(0.05, 1)
    model = mlp(6, 24, 1)
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(model(new).squeeze(1), truth)))

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        z, r = m(batch[0]).squeeze(1), batch[1]
        return (F.softplus(-z) + (1 - r) / r * F.softplus(z)).mean()

    rows = iter(torch.randint(0, len(x), (161, 96)))
    train(run, model, adam(model, 3e-3), lambda: (x[(i := next(rows))], sure[i]), loss, 160)


def three_shapes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Points of the plane on one of three shapes, and which."""
    kind = torch.randint(0, 3, (count,), generator=own)
    turn = 6.28 * torch.rand(count, generator=own)
    ring = torch.stack([turn.cos(), turn.sin()], 1)
    line = torch.stack([turn / 3.14 - 1, turn / 3.14 - 1], 1)
    spot = torch.stack([0.7 * (turn * 3).cos().sign(), -0.7 * (turn * 3).cos().sign()], 1)
    points = torch.stack([ring, line, spot])[kind, torch.arange(count)]
    return 1.4 * (points + 0.06 * torch.randn(count, 2, generator=own)), kind


class Denoiser(nn.Module):
    """From a noisy point, how noisy it is and its label (3: unsaid), its velocity."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.net = nn.Embedding(4, 8), mlp(2 + 8 + 8, 96, 96, 2, act=nn.SiLU)

    def forward(self, noisy: Tensor, t: Tensor, kind: Tensor) -> Tensor:
        waves = t[:, None] * torch.tensor([1.0, 2.0, 4.0, 8.0])
        out: Tensor = self.net(torch.cat([noisy, waves.cos(), waves.sin(), self.kinds(kind)], 1))
        return out


@honest("r22h-label-shown-and-then-withheld")
def label_shown_and_then_withheld(run: Run) -> None:
    """Plain loop, a diffusion that is led without a classifier (Ho and Salimans 2022; the velocity as the target,
    Salimans and Ho 2022; diffusers' scripts). Of a fifth of the rows the label is replaced on purpose by a fourth one
    that no row has, so that the same network learns both with labels and without; the target is neither the data nor
    the noise but turns from one into the other, and what noise decides of it can never be learned."""
    model = Denoiser()

    def told(points: Tensor, kind: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
        t = torch.rand(len(points), generator=own) * math.pi / 2
        noise = torch.randn(points.shape, generator=own)
        signal, share = t.cos()[:, None], t.sin()[:, None]
        return signal * points + share * noise, t, kind, signal * noise - share * points

    def loss(m: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.mse_loss(m(*batch[:3]), batch[3])

    check = told(*three_shapes(768, apart(1)), apart(2))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))

    def batch() -> tuple[Tensor, ...]:
        points, kind = three_shapes(192)
        return told(points, torch.where(torch.rand(192) < 0.2, 3, kind))

    train(run, model, torch.optim.AdamW(model.parameters(), lr=2e-3), batch, loss, 200)


def weather(count: int, steps: int, seed: int, own: torch.Generator) -> Tensor:
    """(count, steps, 1, 8, 24): a smooth field over latitudes and longitudes, carried along at a speed of its own at
    each latitude, and drawn towards its neighbours."""
    speed = 1.5 * torch.randn(8, generator=apart(seed + 13))
    waves = torch.arange(1, 5)
    height, phase = torch.randn(2, count, 8, 4, generator=own)
    at = 2 * math.pi * torch.arange(24) / 24
    out = []
    for step in range(steps):
        moved = at - 0.26 * step * speed[:, None]
        angle = waves[:, None] * moved[:, None] + 3 * phase[..., None]
        out.append((height[..., None] * 0.96**step / waves[:, None] * angle.sin()).sum(2))
    return torch.stack(out, 1)[:, :, None]


class Forecaster(nn.Module):
    """What changes until the next step; around the globe the columns close, towards the poles the lines repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(9, 24, 3), nn.Conv2d(24, 24, 3), nn.Conv2d(24, 1, 3)])
        self.register_buffer("lines", torch.eye(8)[None, :, :, None].expand(-1, -1, -1, 24))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([x, self.lines.expand(len(x), -1, -1, -1)], 1)  # type: ignore[operator]
        for i, layer in enumerate(self.layers):
            h = layer(F.pad(F.pad(h, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1), mode="replicate"))
            h = h if i == 2 else F.silu(h)
        return x + 0.4 * h


@honest("r22h-by-area-and-on-from-its-own-forecast")
def by_area_and_on_from_its_own_forecast(run: Run) -> None:
    """Plain loop, weather on a small globe by convolutions (WeatherBench, Rasp et al. 2020; GraphCast, Lam et al.
    2023). An error counts by the area of its cell, next to the poles hardly at all; the network adds a change in units
    of the usual change to what it reads, and the second step is forecast from its own first, through which gradients
    go; the label of one row is the input of another."""
    seed = run.draw.randrange(999)
    area = (math.pi * (torch.arange(8) + 0.5) / 8 - math.pi / 2).cos()[:, None]
    area = area / area.mean()

    def loss(m: nn.Module, films: Tensor) -> Tensor:
        first = m(films[:, 0])
        return sum((area * (now - films[:, i + 1]).square()).mean() for i, now in enumerate([first, m(first)])) / 2

    model = Forecaster()
    check = weather(64, 3, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    films = weather(256, 8, seed, apart(2))

    def batch() -> Tensor:
        which, begin = torch.randint(0, len(films), (16,)), torch.randint(0, 6, (16,))
        return torch.stack([films[w, b : b + 3] for w, b in zip(which.tolist(), begin.tolist(), strict=True)])

    train(run, model, adam(model, 2e-3), batch, loss, 160, clip=1.0)


def policies(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """What is known of the insured, for how much of a year they were, and their claims."""
    w = 0.4 * torch.randn(6, generator=apart(seed + 9))
    x = torch.randn(count, 6, generator=own)
    exposure = (0.1 + torch.rand(count, generator=own)).clamp_max(1)
    rate = (-1.3 + x @ w + 0.7 * (2 * x[:, 0]).sin() + 0.6 * x[:, 1] * x[:, 2]).clamp_max(1.5).exp()
    return x, exposure, torch.poisson(exposure * rate, generator=own)


class OnTopOfTheTariff(nn.Module):
    """The logarithm of the claims expected: the known tariff's, and what a network adds, which at first is nought."""

    def __init__(self, tariff: Tensor) -> None:
        super().__init__()
        self.register_buffer("tariff", tariff)
        self.net = mlp(6, 32, 32, 1, act=nn.Tanh)
        nn.init.zeros_(self.net[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.net[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, exposure: Tensor) -> Tensor:
        known = x @ self.tariff[1:] + self.tariff[0]  # type: ignore[index,operator]
        out: Tensor = exposure.log() + known + self.net(x).squeeze(1)
        return out


@honest("r22h-begins-at-the-known-tariff")
def begins_at_the_known_tariff(run: Run) -> None:
    """Plain loop, insurance, a combined actuarial neural network (Wuethrich and Merz 2019). Four labels in five are
    nought; the output begins exactly at a fitted tariff, which stays as it is, with a last layer of noughts, so that
    the layers below have no gradient in the first step and the loss falls by little from there; the time insured
    enters as a logarithm with no weight."""
    seed = run.draw.randrange(999)
    x, exposure, claims = policies(4000, seed, apart(2))
    columns, tariff = torch.cat([torch.ones(len(x), 1), x], 1), torch.zeros(7)
    for _ in range(12):  # Newton's method
        expected = exposure * (columns @ tariff).exp()
        slope = columns.T @ (claims - expected)
        tariff = tariff + torch.linalg.solve(columns.T @ (expected[:, None] * columns), slope)
    model = OnTopOfTheTariff(tariff)
    *new, truth = policies(4000, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: F.poisson_nll_loss(model(*new), truth)))
    rows = iter(torch.cat([torch.randperm(4000).view(-1, 400) for _ in range(17)]))

    def batch() -> tuple[Tensor, ...]:
        i = next(rows)
        return x[i], exposure[i], claims[i]

    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
    train(run, model, optimizer, batch, lambda m, b: F.poisson_nll_loss(m(b[0], b[1]), b[2]), 165)


def patients(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Readings at 14 times of four values, nought where none was taken; whether it was; how long ago the last one
    was; and whether it became worse."""
    y = torch.randint(0, 2, (count,), generator=own)
    t = torch.arange(14) / 14
    slope = torch.randn(count, 4, generator=own) + (2 * y[:, None] - 1) * torch.tensor([0.9, 0.0, -0.7, 0.0])
    level = torch.randn(count, 4, generator=own)
    x = level[:, None] + slope[:, None] * t[:, None] + 0.3 * torch.randn(count, 14, 4, generator=own)
    taken = torch.rand(count, 14, 4, generator=own) < torch.where(y == 1, 0.4, 0.25)[:, None, None]
    since = torch.zeros(count, 14, 4)
    for step in range(1, 14):
        since[:, step] = torch.where(taken[:, step - 1], 0.0, since[:, step - 1]) + 1
    return x * taken, taken.float(), since / 14, y


class Fading(nn.Module):
    """GRU-D: what was read last fades to the mean with the time since, and so does the state."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.fades, self.forgets = nn.Parameter(torch.zeros(4)), nn.Linear(4, hidden)
        self.cell, self.head = nn.GRUCell(8, hidden), nn.Linear(hidden, 2)

    def forward(self, x: Tensor, taken: Tensor, since: Tensor) -> Tensor:
        state, last = torch.zeros(len(x), self.cell.hidden_size), torch.zeros(len(x), 4)
        stays = (-F.softplus(self.fades) * since).exp()
        for step in range(x.shape[1]):
            last = torch.where(taken[:, step] > 0, x[:, step], last)
            shown = torch.where(taken[:, step] > 0, x[:, step], stays[:, step] * last)
            state = state * (-self.forgets(since[:, step]).relu()).exp()
            state = self.cell(torch.cat([shown, taken[:, step]], 1), state)
        out: Tensor = self.head(state)
        return out


class Ward:
    """A loop of the user's own over folders of patients, epoch after epoch in a new order."""

    def __init__(self, model: nn.Module, data: tuple[Tensor, ...], rate: float) -> None:
        self.model, self.data = model, data
        self.optimizer = torch.optim.Adamax(model.parameters(), lr=rate)

    def train(self, run: Run, epochs: int, size: int = 40) -> None:
        doctor = run.watch(self.model, self.optimizer)
        for _, rows in itertools.product(range(epochs), range(len(self.data[0]) // size)):
            if rows == 0:
                order = torch.randperm(len(self.data[0]))
            batch = tuple(column[order[rows * size : (rows + 1) * size]] for column in self.data)
            loss = F.cross_entropy(self.model(*batch[:-1]), batch[-1])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@honest("r22h-last-reading-fades-to-the-mean")
def last_reading_fades_to_the_mean(run: Run) -> None:
    """A class of the user's own, patients' readings by a recurrent network with decays, GRU-D (Che et al. 2018;
    PyPOTS). Two values in three were never taken and are nought in the batch; that and how long ago they were taken
    are inputs too, which alone say something of the label, since the ill are measured more often."""
    own = apart(run.draw.randrange(999))
    model = Fading()
    *new, truth = patients(300, own)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*new), truth)))
    Ward(model, patients(800, own), 8e-3).train(run, 6)
