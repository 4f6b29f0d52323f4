"""Round 21i, honest and odd: networks that grow by a unit, curves, bits, batches, and rungs of a ladder."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    fit,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    straight,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify, regress
from benchmarks.robustness.loops.round7b_tools import taught
from torch import Tensor, nn
from torch.nn import functional as F


class Cascade(nn.Module):
    """A sum of the inputs and of units, each of which reads the inputs and all units before it."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.units = nn.ModuleList()
        self.top = nn.Linear(inputs, 1)

    def seen(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = torch.cat([x, unit(x).tanh()], 1)
        return x

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.top(self.seen(x))
        return out

    def install(self, weight: Tensor, bias: Tensor) -> None:
        unit = nn.Linear(len(weight), 1)
        unit.load_state_dict({"weight": weight[None], "bias": bias[None]})
        self.units.append(unit.requires_grad_(False))
        wider = nn.Linear(len(weight) + 1, 1)
        with torch.no_grad():
            wider.weight.copy_(F.pad(self.top.weight, (0, 1)))
            wider.bias.copy_(self.top.bias)
        self.top = wider


@honest("r21i-a-unit-that-follows-the-error")
def a_unit_that_follows_the_error(run: Run) -> None:
    """Plain loop, cascade-correlation (Fahlman and Lebiere 1990) on a table. The top layer learns alone; then eight
    units that are not yet part of the network learn to vary with what is still wrong, by a loss below zero, and the
    best is built in and never changed again. So four times: nearly all weights are frozen, and losses change kind."""
    seed = run.draw.randrange(999)
    model = Cascade(6)
    number_outcome(run, model, table(400, seed, apart(1)))
    x, y = table(400, seed, apart(2))

    def top(steps: int) -> None:
        optimizer = torch.optim.Rprop(model.top.parameters(), lr=0.02)
        doctor = run.watch(model, optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = regress(model, (x, y))
            loss.backward()
            optimizer.step()
            doctor.step(loss, (x, y))
            run.note(loss)
        doctor.close()

    def candidates(steps: int) -> None:
        with torch.no_grad():
            seen, wrong = model.seen(x), model(x)[:, 0] - y
        wrong = wrong - wrong.mean()
        pool = nn.Linear(seen.shape[1], 8)
        optimizer = torch.optim.Rprop(pool.parameters(), lr=0.02)
        doctor = run.watch(pool, optimizer)
        for _ in range(steps):
            optimizer.zero_grad()
            felt = (pool(seen).tanh() * wrong[:, None]).mean(0).abs()
            loss = -felt.sum()
            loss.backward()
            optimizer.step()
            doctor.step(loss, (seen, wrong))
            run.note(loss)
        doctor.close()
        best = int(felt.argmax())
        model.install(pool.weight[best].detach(), pool.bias[best].detach())

    for _ in range(4):
        top(16)
        candidates(16)
    top(24)


class Curve(nn.Module):
    """A network somewhere on a Bézier curve between two others: only the middle point can be learned."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.middle = copy.deepcopy(first)
        self.ends = [{name: p.detach().clone() for name, p in network.named_parameters()} for network in (first, last)]
        with torch.no_grad():
            for name, p in self.middle.named_parameters():
                p.copy_((self.ends[0][name] + self.ends[1][name]) / 2)

    def forward(self, x: Tensor, t: float | None = None) -> Tensor:
        t = float(torch.rand(())) if t is None else t
        shares = ((1 - t) ** 2, 2 * t * (1 - t), t**2)
        weights = {
            name: shares[0] * self.ends[0][name] + shares[1] * p + shares[2] * self.ends[1][name]
            for name, p in self.middle.named_parameters()
        }
        out: Tensor = torch.func.functional_call(self.middle, weights, (x,))
        return out


@honest("r21i-a-curve-between-two-solutions")
def a_curve_between_two_solutions(run: Run) -> None:
    """Plain loop, mode connectivity (Garipov et al. 2018): two convolutional networks were trained from other starts,
    and the bend of a curve between them is learned such that every network on it is good. Each batch is answered by
    other weights, drawn along the curve; the loss near the ends is low from the first step and owes nothing to what is
    learned."""
    first, last = cnn(norm=False), cnn(norm=False)
    for network in (first, last):
        taught(network, lambda: pictures(32), classify, 60)
    model = Curve(first, last)
    check = pictures(192, own=apart(1))

    def along() -> float:
        return sum(float(F.cross_entropy(model(check[0], t / 10), check[1])) for t in range(1, 10)) / 9

    outcome(run, lambda: judged(model, along))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        batch = pictures(32)
        optimizer.zero_grad()
        loss = classify(model, batch)
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Coarse(nn.Conv2d):
    """A convolution of weights and inputs rounded to so many bits; gradients pass the rounding."""

    bits = 8

    def rounded(self, x: Tensor) -> Tensor:
        scale = x.detach().abs().max().clamp_min(1e-8) / (2 ** (self.bits - 1) - 1)
        return x + ((x / scale).round() * scale - x).detach()

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(self.rounded(x), self.rounded(self.weight), self.bias)


@honest("r21i-bits-that-rise-and-fall")
def bits_that_rise_and_fall(run: Run) -> None:
    """Lightning, convolutions with cyclic precision (Fu et al. 2021). Weights and activations are rounded to three bits
    at first and to eight bits at the end of a cycle of fifteen steps, eight times over, so that the same network is
    coarse and fine by turns and the loss jumps where a cycle begins anew."""
    net = nn.Sequential(
        *(Coarse(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)),
        *(Coarse(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(96, 4)),
    )
    class_outcome(run, net, pictures(256, own=apart(1)))
    seen = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal seen
        bits = round(3 + 2.5 * (1 - math.cos(math.pi * (seen % 15) / 14)))
        for module in model.modules():
            if isinstance(module, Coarse):
                module.bits = bits
        seen += 1
        return classify(model, batch)

    def optimizers(model: nn.Module) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    fit(run, lit(net, loss, optimizers), loader(*pictures(640, own=apart(run.draw.randrange(999))), size=32), 120)


@honest("r21i-adam-first-and-curvature-at-the-end")
def adam_first_and_curvature_at_the_end(run: Run) -> None:
    """Plain loop, a differential equation's solution by Adam and then by L-BFGS (Raissi et al. 2019; the library
    DeepXDE). One fixed set of points is the batch for ever, there are no targets, and the second optimizer, with a line
    search and a rate of one, takes over the weights in the middle of the run."""
    speed = 1.5 + run.draw.random()
    model = mlp(1, 20, 20, 1, act=nn.Tanh)
    points = torch.linspace(0, 2, 64)[:, None]

    def solution(t: Tensor) -> Tensor:
        """It begins at one with no speed, and the equation sees to that."""
        return 1 + t.square() * model(t)

    def loss_of() -> Tensor:
        t = points.clone().requires_grad_()
        u = solution(t)
        slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        bend = torch.autograd.grad(slope.sum(), t, create_graph=True)[0]
        return (bend + 0.4 * slope + speed**2 * u).square().mean()

    turn = math.sqrt(speed**2 - 0.04)
    truth = (-0.2 * points).exp() * ((turn * points).cos() + 0.2 / turn * (turn * points).sin())
    outcome(run, lambda: judged(model, lambda: F.mse_loss(solution(points), truth)))
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, adam)
    for _ in range(100):
        adam.zero_grad()
        loss = loss_of()
        loss.backward()
        adam.step()
        doctor.step(loss, points)
        run.note(loss)
    doctor.close()
    curved = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8, line_search_fn="strong_wolfe")
    doctor = run.watch(model, curved)

    def closure() -> Tensor:
        curved.zero_grad()
        value = loss_of()
        value.backward()
        return value

    for _ in range(25):
        loss = curved.step(closure)
        doctor.step(loss, points)
        run.note(loss)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(2 + 6, 64, 64, 2, act=nn.SiLU)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angle = t[:, None] * torch.tensor([1.0, 3.0, 9.0])
        out: Tensor = self.net(torch.cat([x, angle.sin(), angle.cos()], 1))
        return out


class Growing:
    """A trainer of a diffusion model (Ho et al. 2020) whose loader is made anew for each stage."""

    def __init__(self, run: Run, points: Tensor) -> None:
        self.run, self.points = run, points
        self.model = Denoiser()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def loss(self, x: Tensor, own: torch.Generator | None = None) -> Tensor:
        t = torch.rand(len(x), generator=own)
        noise = torch.randn(x.shape, generator=own)
        kept = (t * math.pi / 2).cos()[:, None]
        return F.mse_loss(self.model(kept * x + (1 - kept.square()).sqrt() * noise, t), noise)

    def train(self, stages: list[tuple[int, int]]) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for size, epochs in stages:
            data = loader(self.points, size=size)
            for _ in range(epochs):
                for (x,) in data:
                    self.optimizer.zero_grad()
                    loss = self.loss(x)
                    loss.backward()
                    self.optimizer.step()
                    doctor.step(loss, (x,))
                    self.run.note(loss)


@honest("r21i-batches-grow-and-the-rate-stays")
def batches_grow_and_the_rate_stays(run: Run) -> None:
    """A class of one's own, a diffusion model of points on two rings with batches that grow where others would lower
    the rate (Smith et al. 2018). Batches of 16 become 64 and then 256 of the same 1024 points with one rate all along:
    an epoch is 64 steps at first and four at the end."""
    own = apart(run.draw.randrange(999))

    def rings(count: int, draw: torch.Generator) -> Tensor:
        angle = 2 * math.pi * torch.rand(count, generator=draw)
        radius = torch.where(torch.rand(count, generator=draw) < 0.5, 0.5, 1.4)
        return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)

    trainer = Growing(run, rings(1024, own))
    check = rings(1024, apart(1))
    outcome(run, lambda: judged(trainer.model, lambda: trainer.loss(check, apart(4))))
    trainer.train([(16, 1), (64, 4), (256, 10)])


@honest("r21i-half-of-them-stop-at-each-rung")
def half_of_them_stop_at_each_rung(run: Run) -> None:
    """Plain loop, eight perceptrons of drawn settings by successive halving (Jamieson and Talwalkar 2016). All learn
    side by side for fifteen steps; at each rung those that do worse on validation rows stop for good, half-taught as
    they are, and the others go on: four, two, and one for the last sixty steps."""
    seed = run.draw.randrange(999)
    x, y = straight(600, seed, apart(2), 0.5)
    kept = straight(400, seed, apart(1), 0.5)

    def member() -> tuple[Any, ...]:
        model = mlp(6, run.draw.choice([16, 32, 64]), 1, act=run.draw.choice([nn.ReLU, nn.Tanh]))
        rate, decay = 10 ** run.draw.uniform(-2.7, -1.7), 10 ** run.draw.uniform(-4, -2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
        return model, optimizer, run.watch(model, optimizer)

    def validated(one: tuple[Any, ...]) -> float:
        return judged(one[0], lambda: regress(one[0], kept) / kept[1].var())

    alive = [member() for _ in range(8)]
    outcome(run, lambda: min(map(validated, alive)))
    for steps in (15, 15, 30, 60):
        for _ in range(steps):
            at = torch.randint(0, len(x), (64,))
            for model, optimizer, doctor in alive:
                optimizer.zero_grad()
                loss = regress(model, (x[at], y[at]))
                loss.backward()
                optimizer.step()
                doctor.step(loss, (x[at], y[at]))
                run.note(loss)
        alive.sort(key=validated)
        for _, _, doctor in alive[max(1, len(alive) // 2) :]:
            doctor.close()
        del alive[max(1, len(alive) // 2) :]
