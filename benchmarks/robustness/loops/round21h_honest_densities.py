"""Round 21h, honest and odd: densities, codes and pictures that are parameters."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def moons(count: int, own: torch.Generator) -> Tensor:
    """(count, 2) points on two half circles, in noise."""
    angle = math.pi * torch.rand(count, generator=own)
    upper = torch.rand(count, generator=own) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos()) - 0.5
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin()) - 0.25
    return 1.5 * torch.stack([x, y], 1) + 0.1 * torch.randn(count, 2, generator=own)


class Flows(nn.Module):
    """A speed for each place and time, which carries points to a Gaussian."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = mlp(3, 40, 40, 2, act=nn.Tanh)

    def change(self, x: Tensor, time: float, probe: Tensor) -> tuple[Tensor, Tensor]:
        """The speed, and the trace of its slope as far as the probe tells."""
        speed = self.speed(torch.cat([x, x.new_full((len(x), 1), time)], 1))
        along = torch.autograd.grad(speed, x, probe, create_graph=True)[0]
        return speed, (along * probe).sum(1)

    def forward(self, points: Tensor) -> Tensor:
        """Minus the log density of each point, by eight steps of the midpoint rule."""
        with torch.enable_grad():
            x, grown = points.clone().requires_grad_(), points.new_zeros(len(points))
            probe = torch.randint(0, 2, points.shape) * 2.0 - 1
            for k in range(8):
                half = x + self.change(x, k / 8, probe)[0] / 16
                speed, trace = self.change(half, (k + 0.5) / 8, probe)
                x, grown = x + speed / 8, grown + trace / 8
        return x.square().sum(1) / 2 + math.log(2 * math.pi) - grown


@honest("r21h-a-trace-by-one-random-vector")
def a_trace_by_one_random_vector(run: Run) -> None:
    """Lightning, the density of points by a continuous flow (FFJORD, Grathwohl et al. 2019). The loss needs the trace
    of a matrix and has a guess of it by one random vector of signs for each row, kept through the integration, so that
    two passes over the same rows differ; gradients are taken within the forward pass, in evaluation as well."""
    net = Flows()
    check = moons(400, apart(1))
    outcome(run, lambda: judged(net, lambda: net(check).mean()))
    data = loader(moons(1200, apart(run.draw.randrange(999))), size=96)
    module = lit(net, lambda model, batch: model(batch[0]).mean(), lambda m: torch.optim.Adam(m.parameters(), lr=6e-3))
    fit(run, module, data, 110)


class Sums(nn.Module):
    """Sums of products of sums of leaves, over eight columns of four values: a density with all its marginals."""

    def __init__(self, nodes: int = 8) -> None:
        super().__init__()
        self.leaves = nn.Parameter(torch.randn(8, nodes, 4))
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(k, nodes, nodes)) for k in (8, 4, 2))
        self.root = nn.Parameter(torch.randn(nodes))

    def forward(self, rows: Tensor) -> Tensor:
        """(rows,) log densities; a value of -1 is missing and is summed over."""
        values = self.leaves.log_softmax(2).transpose(1, 2)
        said = values[torch.arange(8), rows.clamp_min(0)].masked_fill((rows < 0)[..., None], 0.0)
        for weights in self.layers:
            mixed = torch.logsumexp(said[:, :, None] + weights.log_softmax(2), 3)
            said = mixed.view(len(rows), -1, 2, mixed.shape[2]).sum(2)
        out: Tensor = torch.logsumexp(said[:, 0] + self.root.log_softmax(0), 1)
        return out


@honest("r21h-sums-of-products-of-leaves")
def sums_of_products_of_leaves(run: Run) -> None:
    """Plain loop, the density of a table by a probabilistic circuit (sum-product networks, Poon and Domingos 2011,
    Einsum networks, Peharz et al. 2020). It has no activation and no bias; each weight is a logit of a mixture, so that
    all of a node may be moved together without any effect, and a fifth of the values, dropped at random in each batch,
    are told as -1 and summed over."""
    language = Language(run.draw.randrange(999), words=4)
    rows, check = language.rows(1500, 8, apart(2)), language.rows(400, 8, apart(1))
    model = Sums()
    outcome(run, lambda: judged(model, lambda: -model(check).mean()))

    def batch() -> Tensor:
        picked = rows[torch.randint(0, len(rows), (64,))]
        return torch.where(torch.rand(picked.shape) < 0.2, -1, picked)

    train(run, model, adam(model, 5e-2), batch, lambda m, batch: -m(batch).mean(), 150)


def swings(count: int, own: torch.Generator, length: int = 32) -> Tensor:
    """(count, length) readings of something that swings, is pushed at random, and is read in noise."""
    turn = torch.tensor([[math.cos(0.5), -math.sin(0.5)], [math.sin(0.5), math.cos(0.5)]])
    state, out = torch.randn(count, 2, generator=own), []
    for _ in range(length):
        state = 0.97 * state @ turn.T + 0.2 * torch.randn(count, 2, generator=own)
        out.append(state[:, 0] + 0.4 * torch.randn(count, generator=own))
    return torch.stack(out, 1)


class Filter(nn.Module):
    """Kalman's filter with weights for how a state goes on, how it is read, and how much noise there is in both."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.on = nn.Parameter(0.9 * torch.eye(size) + 0.1 * torch.randn(size, size))
        self.read = nn.Parameter(torch.randn(size) / math.sqrt(size))
        self.pushed, self.blurred = nn.Parameter(torch.full((size,), -1.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, readings: Tensor) -> Tensor:
        """(rows, times) minus the log density of each reading after those before it."""
        eye = torch.eye(len(self.read))
        state, spread, out = readings.new_zeros(len(readings), len(eye)), 5 * eye, []
        for y in readings.unbind(1):
            state, spread = state @ self.on.T, self.on @ spread @ self.on.T + self.pushed.exp().diag()
            seen = spread @ self.read
            size = self.read @ seen + self.blurred.exp()
            missed = y - state @ self.read
            out.append(0.5 * (missed.square() / size + size.log() + math.log(2 * math.pi)))
            gain = seen / size
            state = state + missed[:, None] * gain
            spread = spread - gain[:, None] * seen
            spread = (spread + spread.T) / 2
        return torch.stack(out, 1)


@honest("r21h-a-filter-whose-misses-are-the-loss")
def a_filter_whose_misses_are_the_loss(run: Run) -> None:
    """Plain loop, a state-space model by gradients through Kalman's filter (Durbin and Koopman 2012, Rangapuram et al.
    2018, as in statsmodels and GluonTS). The first eight readings of a row are filtered and left out of
    the loss, since the start is not known (a burn-in); the sixteen weights have no layer around them, and any turn of
    the state that is made in all of them together changes nothing."""
    model = Filter()
    rows, check = swings(300, apart(run.draw.randrange(999))), swings(200, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check)[:, 8:].mean()))
    batches = endless(loader(rows, size=30))
    train(run, model, adam(model, 3e-2), lambda: next(batches)[0], lambda m, y: m(y)[:, 8:].mean(), 80, clip=5.0)


class Spots(nn.Module):
    """A picture as a sum of spots, each with a place, two radii, a brightness, and how much of it there is."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.rand(count, 2))
        self.radii = nn.Parameter(torch.full((count, 2), math.log(0.1)))
        self.bright = nn.Parameter(torch.zeros(count))
        self.there = nn.Parameter(torch.zeros(count))

    def forward(self, at: Tensor) -> Tensor:
        """Brightness at places (points, 2)."""
        apart_by = ((at[:, None] - self.places) / self.radii.exp()).square().sum(2)
        out: Tensor = (-apart_by / 2).exp() @ (self.there.sigmoid() * self.bright.tanh())
        return out


class Painter:
    """The training of one picture: spots that are pulled at most are divided, those that have faded are removed, and
    the optimizer's moments go with them."""

    def __init__(self, run: Run, model: Spots) -> None:
        self.run, self.model = run, model
        rates = {"places": 4e-3, "radii": 2e-2, "bright": 3e-2, "there": 5e-2}
        groups = [{"params": [getattr(model, n)], "lr": rate, "name": n} for n, rate in rates.items()]
        self.optimizer = torch.optim.Adam(groups, eps=1e-15)
        self.pulled, self.doctor = torch.zeros(len(model.there)), run.watch(model, self.optimizer)

    def replace(self, kept: Tensor, twice: Tensor) -> None:
        """Put new parameters in the model's and the optimizer's place; those that are new have no moments yet."""
        for group in self.optimizer.param_groups:
            name, (old,) = group["name"], group["params"]
            added = old.detach()[twice].clone()
            if name == "places":
                added += self.model.radii.detach()[twice].exp() * torch.randn_like(added)
            new = nn.Parameter(torch.cat([old.detach()[kept], added]))
            state = self.optimizer.state.pop(old)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.cat([state[key][kept], torch.zeros_like(added)])
            self.optimizer.state[new], group["params"] = state, [new]
            setattr(self.model, name, new)

    def fit(self, at: Tensor, picture: Tensor, steps: int) -> None:
        for step in range(1, steps + 1):
            loss = (self.model(at) - picture).abs().mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.pulled += self.model.places.grad.norm(dim=1)
            self.optimizer.step()
            self.doctor.step(loss, (at, picture))
            self.run.note(loss)
            if step % 30 == 0 and step <= 120:
                self.replace(self.model.there.sigmoid() > 0.1, self.pulled.topk(6).indices)
                self.pulled = torch.zeros(len(self.model.there))


@honest("r21h-spots-that-divide")
def spots_that_divide(run: Run) -> None:
    """A class of the user's, one picture by spots that are all there is of a model (Gaussian splatting, Kerbl et al.
    2023, gsplat). Each thirtieth step the spots with the largest gradients are doubled and those that have faded are
    taken out: all parameters are replaced by others of another length, in the model and in the optimizer, whose moments
    are cut and filled up with zeros. There is one example, and it is not to be generalised."""
    own = apart(run.draw.randrange(999))
    grid = torch.arange(28.0) / 28
    at = torch.cartesian_prod(grid, grid)
    centres, angles = torch.rand(7, 2, generator=own), math.pi * torch.rand(7, generator=own)
    turned = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], 1).view(7, 2, 2)
    off = torch.einsum("kij,pkj->pki", turned, at[:, None] - centres) / (0.06 + 0.2 * torch.rand(7, 2, generator=own))
    picture = ((3 * (1 - off.square().sum(2))).sigmoid() * torch.rand(7, generator=own)).sum(1).clamp_max(1)
    model = Spots(16)
    outcome(run, lambda: judged(model, lambda: (model(at) - picture).square().mean()))
    Painter(run, model).fit(at, picture, 170)


class Coder(nn.Module):
    """A picture as eight numbers, which are rounded in use and have noise in training, and what they cost in bits."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.write, self.read = mlp(64, 64, width, act=nn.GELU), mlp(width, 64, 64, act=nn.GELU)
        self.middle, self.width = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = 8 * self.write(x.flatten(1) - 0.5)
        codes = codes + torch.rand_like(codes) - 0.5 if self.training else codes.round()
        above, below = ((codes - self.middle + by) / self.width.exp() for by in (0.5, -0.5))
        bits = -(above.sigmoid() - below.sigmoid()).clamp_min(1e-9).log2().sum(1)
        return self.read(codes / 8).view_as(x) + 0.5, bits


@honest("r21h-noise-now-and-rounding-later")
def noise_now_and_rounding_later(run: Run) -> None:
    """accelerate's loop, pictures are packed by a learned code (Ballé et al. 2017, CompressAI). The loss is a number of
    bits plus twenty times the squared error, summed over the picture's eight by eight; codes get noise in
    training, even in [-1/2, 1/2], and are rounded in evaluation, where there is no gradient. Bits are dear at first and
    become fewer by what the prior learns, so that both parts pull against each other to the end."""
    seed = run.draw.randrange(999)
    net = Coder()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        out, bits = model(batch[0])
        return (bits + 20 * F.mse_loss(out, batch[0], reduction="none").sum((1, 2, 3))).mean()

    check = pictures(200, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    data = loader(pictures(960, seed, own=apart(2))[0], size=48)
    optimizer = adam(net, 2e-3)
    prepared(run, net, optimizer, data, loss, 7)
