"""Round 21h, honest and odd: where the truth is never seen, as in measuring, pricing and forecasting."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn


def blobs(count: int, own: torch.Generator, side: int = 16) -> Tensor:
    """(count, 1, side, side) smooth pictures: three bright ellipses each."""
    grid = torch.arange(float(side))
    centre = side * torch.rand(count, 3, 2, 1, 1, generator=own)
    radii = side * (0.1 + 0.2 * torch.rand(count, 3, 2, 1, 1, generator=own))
    height = 0.4 + 0.6 * torch.rand(count, 3, 1, 1, generator=own)
    down, right = (grid[:, None] - centre[:, :, 0]) / radii[:, :, 0], (grid - centre[:, :, 1]) / radii[:, :, 1]
    return (height * (2 * (1 - down.square() - right.square())).sigmoid()).sum(1, keepdim=True)


class Cleans(nn.Module):
    """Convolutions that say the noise, which is taken off."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()),
            nn.Conv2d(16, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x - self.net(x)
        return out


@honest("r21h-risk-without-the-truth")
def risk_without_the_truth(run: Run) -> None:
    """Plain loop, noise is taken off pictures by Stein's unbiased estimate of the risk (Stein 1981, Soltanayev and Chun
    2018, Metzler et al. 2018, DeepInverse's SureGaussianLoss). A clean picture is never seen: the loss is the distance
    from the noisy input itself, less the noise's variance, plus how much the output follows the input, which a second
    pass with a thousandth of noise more tells. Single batches may come out below zero."""
    sigma = 0.3
    clean = blobs(240, apart(run.draw.randrange(999)))
    noisy = clean + sigma * torch.randn(clean.shape, generator=apart(2))
    truth = blobs(64, apart(1))
    shown = truth + sigma * torch.randn(truth.shape, generator=apart(3))
    model = Cleans()
    outcome(run, lambda: judged(model, lambda: (model(shown) - truth).square().mean()))

    def loss(model: nn.Module, y: Tensor) -> Tensor:
        said, by = model(y), torch.randn_like(y)
        follows = (by * (model(y + 1e-3 * by) - said)).mean() / 1e-3
        return (said - y).square().mean() - sigma**2 + 2 * sigma**2 * follows

    train(run, model, adam(model, 3e-3), lambda: noisy[torch.randint(0, 240, (16,))], loss, 130)


def treated(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Four columns, who was treated, and the chance of it."""
    x = torch.randn(count, 4, generator=own)
    chance = 0.15 + 0.7 * (x[:, 0] + 0.7 * x[:, 1] * x[:, 2]).sigmoid()
    return x, (torch.rand(count, generator=own) < chance).float(), chance


class Weigher(nn.Module):
    """A weight for a row under a treatment."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(5, 48, 48, 1, act=nn.ELU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x, t[:, None]], 1)).squeeze(1)
        return out


@honest("r21h-weights-learned-without-a-label")
def weights_learned_without_a_label(run: Run) -> None:
    """accelerate's loop, the weights of a debiased effect of a treatment are learned by their Riesz loss (Chernozhukov
    et al. 2022, RieszNet). There is no label and no outcome in it: the mean square of a row's weight, less twice the
    difference of the weights that the same row would have treated and not. It begins near zero and goes far below,
    towards a floor that nobody knows; each row goes through the network three times."""
    net = Weigher()
    x, t, chance = treated(1000, apart(1))
    truth = t / chance - (1 - t) / (1 - chance)
    outcome(run, lambda: judged(net, lambda: (net(x, t) - truth).square().mean() / truth.square().mean()))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        x, t = batch
        one = torch.ones_like(t)
        return (model(x, t).square() - 2 * (model(x, one) - model(x, 0 * one))).mean()

    data = loader(*treated(2000, apart(run.draw.randrange(999)))[:2], size=100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    prepared(run, net, optimizer, data, loss, 7)


class Price(nn.Module):
    """What an option costs today, and how much of each share is held at each date."""

    def __init__(self, shares: int = 4, dates: int = 10) -> None:
        super().__init__()
        self.today = nn.Parameter(torch.tensor(0.05))
        self.first = nn.Parameter(torch.zeros(shares))
        self.later = nn.ModuleList(mlp(shares, 16, 16, shares) for _ in range(dates - 1))

    def forward(self, steps: Tensor) -> Tensor:
        """How far what was held is from what is owed in the end; steps (rows, dates, shares) of standard noise."""
        dates = steps.shape[1]
        x, owned = torch.ones_like(steps[:, 0]), self.today.expand(len(steps))
        for date in range(dates):
            held = self.first.expand(len(steps), -1) if date == 0 else self.later[date - 1](4 * (x - 1))
            new = x * torch.exp(-0.02 / dates + 0.2 / math.sqrt(dates) * steps[:, date])
            owned = owned + (held * (new - x)).sum(1)
            x = new
        return owned - (x.mean(1) - 1).relu()


@honest("r21h-price-of-today-is-one-weight")
def price_of_today_is_one_weight(run: Run) -> None:
    """Plain loop, an option on four shares by a backward equation (deep BSDE, Han et al. 2018). The price that is asked
    for is no output but one weight of the model; ten small parts, one for each date and none shared, say what is
    held. The paths are drawn anew in each step and have no labels: what was gained has to be what is owed in the
    end, of which a part cannot be reached, since dates are few."""
    model = Price()
    check = torch.randn(20000, 10, 4, generator=apart(1))
    with torch.no_grad():
        ends = torch.exp(-0.02 + 0.2 / math.sqrt(10) * check.sum(1))
        truth = (ends.mean(1) - 1).relu().mean()
    paths = check[:1000]
    outcome(run, lambda: judged(model, lambda: model(paths).square().mean().sqrt() + (model.today - truth).abs()))
    groups = [{"params": [model.today, model.first], "lr": 2e-3}, {"params": model.later.parameters(), "lr": 5e-3}]
    optimizer = torch.optim.Adam(groups)
    train(run, model, optimizer, lambda: torch.randn(64, 10, 4), lambda m, steps: m(steps).square().mean(), 150)


def waves(x: Tensor) -> Tensor:
    return torch.fft.fft2(x, norm="ortho")


class Unrolled(nn.Module):
    """Three times a network and then what was measured put back in."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Cleans(2) for _ in range(3))

    def forward(self, measured: Tensor, where: Tensor) -> Tensor:
        """The picture, complex (rows, side, side)."""
        x = torch.fft.ifft2(measured * where, norm="ortho")
        for part in self.parts:
            both = part(torch.stack([x.real, x.imag], 1))
            k = waves(torch.complex(both[:, 0], both[:, 1]))
            x = torch.fft.ifft2(torch.where(where, measured, k), norm="ortho")
        return x


def scans(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """What was measured, where (every column near the middle, half of the others), and the pictures themselves."""
    truth = blobs(count, own)[:, 0].to(torch.complex64)
    lines = torch.rand(count, 1, 16, generator=own) < 0.5
    lines[:, :, [0, 1, 15]] = True
    where = lines.expand(-1, 16, -1).clone()
    noise = torch.complex(*(0.02 * torch.randn(2, count, 16, 16, generator=own)))
    return (waves(truth) + noise) * where, where, truth


@honest("r21h-half-of-what-was-measured-is-the-label")
def half_of_what_was_measured_is_the_label(run: Run) -> None:
    """Lightning, pictures from few measured lines without any full picture (SSDU, Yaman et al. 2020). What was measured
    is dealt anew in each step: six parts of ten are put in, the rest is the label, in the space of frequencies and as a
    sum of two norms of the difference over those of the label. In use all that was measured is put in, which is more
    than the network ever saw."""
    net = Unrolled()
    measured, where, truth = scans(64, apart(1))

    def missed() -> Tensor:
        return (net(measured, where) - truth).abs().square().sum() / truth.abs().square().sum()

    outcome(run, lambda: judged(net, missed))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        measured, where = batch
        shown = where & (torch.rand(where.shape) < 0.6)
        shown[:, :2, :2] = where[:, :2, :2]
        asked = where & ~shown
        apart_by, size = (asked * (waves(model(measured, shown)) - measured)).flatten(), measured[asked]
        return apart_by.norm() / size.norm() + apart_by.abs().sum() / size.abs().sum()

    data = loader(*scans(240, apart(run.draw.randrange(999)))[:2], size=12)
    fit(run, lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=2e-3)), data, 110)


def burgers(u: Tensor, substeps: int = 10, time: float = 0.6) -> Tensor:
    """Waves on a ring of 32 places, some time later."""
    for _ in range(substeps):
        before, behind = u.roll(1, 1), u.roll(-1, 1)
        u = u + time / substeps * (0.25 * (before.square() - behind.square()) + 0.3 * (before - 2 * u + behind))
    return u


def histories(count: int, own: torch.Generator, length: int = 10) -> Tensor:
    """(count, length, 32) waves from one time to the next."""
    x = torch.arange(32) * 2 * math.pi / 32
    sizes, phases = torch.randn(count, 3, 1, generator=own), 2 * math.pi * torch.rand(count, 3, 1, generator=own)
    u = (sizes * torch.sin(torch.arange(1, 4)[:, None] * x + phases)).sum(1)
    out = [u]
    for _ in range(length - 1):
        out.append(burgers(out[-1]))
    return torch.stack(out, 1)


class Ring(nn.Module):
    """Convolutions around a ring, added to what is."""

    def __init__(self) -> None:
        super().__init__()
        around = {"padding": 2, "padding_mode": "circular"}
        self.net = nn.Sequential(
            *(nn.Conv1d(1, 24, 5, **around), nn.SiLU(), nn.Conv1d(24, 24, 5, **around), nn.SiLU()),
            nn.Conv1d(24, 1, 5, **around),
        )

    def forward(self, u: Tensor) -> Tensor:
        out: Tensor = u + self.net(u[:, None])[:, 0]
        return out


class SolverTraining:
    """What a user wrote around a solver: how many steps are gone without gradients grows with time."""

    def __init__(self, run: Run, model: Ring, data: Tensor, steps: int) -> None:
        self.run, self.model, self.data, self.steps = run, model, data, steps
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [steps // 2, 4 * steps // 5], 0.4)
        self.doctor = run.watch(model, self.optimizer, scheduler=self.schedule)

    def batch(self, ahead: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(self.data), (32,))
        start = torch.randint(0, self.data.shape[1] - ahead - 1, (32,))
        return self.data[rows, start], self.data[rows, start + ahead + 1]

    def loss(self, u: Tensor, wanted: Tensor, ahead: int) -> Tensor:
        with torch.no_grad():
            for _ in range(ahead):
                u = self.model(u)
        return (self.model(u) - wanted).square().mean()

    def fit(self) -> None:
        for step in range(self.steps):
            ahead = int(torch.randint(0, 1 + min(2, step // 40), (1,)))
            batch = self.batch(ahead)
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(*batch, ahead)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.doctor.step(loss, batch)
            self.run.note(loss)


@honest("r21h-begins-from-its-own-mistake")
def begins_from_its_own_mistake(run: Run) -> None:
    """A class of the user's, a network goes on with waves in time by pushing forward (Brandstetter et al. 2022). It
    takes up to two steps without gradients before the one that is taught, so that it is shown states that are its own
    work and no data, and one batch's label is one, two or three times away; how many is drawn, and the most grows."""
    model = Ring()
    check = histories(48, apart(1))

    def off() -> Tensor:
        u = check[:, 0]
        for _ in range(6):
            u = model(u)
        return (u - check[:, 6]).square().mean() / check[:, 6].var()

    outcome(run, lambda: judged(model, off))
    SolverTraining(run, model, histories(96, apart(run.draw.randrange(999))), 150).fit()
