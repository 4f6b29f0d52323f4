"""Round 25i, honest and odd: beliefs, floods, information, maps, processes, codes and summaries."""

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
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F

WORDS, LENGTH, SURE = 8, 10, 2.0


class Beliefs(nn.Module):
    """Shares of each word at each place and a time in; what is there out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.places = nn.Linear(WORDS + 1, 32), nn.Embedding(LENGTH, 32)
        self.blocks = nn.ModuleList(Block(32, causal=False) for _ in range(2))
        self.leave = nn.Linear(32, WORDS)

    def forward(self, shares: Tensor, time: Tensor) -> Tensor:
        h = self.enter(torch.cat([2 * shares - 1, time.expand(-1, LENGTH, 1)], 2)) + self.places.weight
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.leave(h)
        return out


@honest("r25i-beliefs-instead-of-words")
def beliefs_instead_of_words(run: Run) -> None:
    """A class of its own around the loop, words by a Bayesian flow network (Graves et al. 2023). The model reads no
    ids but shares, a belief that has been moved by noisy hints, so that its inputs say nothing at one end of time and
    nearly everything at the other; its softmax is taught by a squared distance to the right one-hot vector, not by a
    cross-entropy, times the time itself, so that rows of little time count next to nothing."""
    seed = run.draw.randrange(999)
    language = Language(seed, WORDS, sharp=2.5)

    class Flow:
        def __init__(self) -> None:
            self.model = Beliefs()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
            self.doctor = run.watch(self.model, self.optimizer)

        def loss(self, rows: Tensor, own: torch.Generator | None = None) -> Tensor:
            time = torch.rand(len(rows), 1, 1, generator=own)
            known = F.one_hot(rows, WORDS).float()
            sure = SURE * time**2
            noise = torch.randn(known.shape, generator=own)
            shares = (sure * (WORDS * known - 1) + (WORDS * sure).sqrt() * noise).softmax(2)
            apart_by = (known - self.model(shares, time).softmax(2)).square().sum((1, 2), keepdim=True)
            return (WORDS * SURE * time * apart_by).mean() / LENGTH

        def step(self) -> None:
            rows = language.rows(32, LENGTH)
            update(run, self.doctor, self.optimizer, self.loss(rows), rows)

    flow = Flow()
    check = language.rows(256, LENGTH, apart(2))
    outcome(run, lambda: judged(flow.model, lambda: flow.loss(check, apart(3))))
    for _ in range(160):
        flow.step()


def rarer_than(raw: Tensor, peak: Tensor) -> Tensor:
    """Minus the log density of the largest flood, with a prior on the shape as hydrologists use it."""
    middle, scale, shape = raw[:, 0], F.softplus(raw[:, 1]) + 0.01, 0.01 + 0.4 * raw[:, 2].sigmoid()
    inside = (1 + shape * (peak - middle) / scale).clamp_min(0.05)
    density = scale.log() + (1 + 1 / shape) * inside.log() + inside ** (-1 / shape)
    return density - 5 * (0.5 - shape).log() - 8 * (0.5 + shape).log()


@honest("r25i-the-largest-flood-of-each-year")
def the_largest_flood_of_each_year(run: Run) -> None:
    """Lightning, floods by a conditional generalised extreme value distribution (GEVcdn, Cannon 2010; the prior of
    Martins and Stedinger 2000). A label is a maximum of a year, heavy-tailed and without a bound above; the network
    says a place, a scale and a shape, whose range is narrow and fixed, readings below the end of the distribution are
    cut off at a floor, the last layer begins at what would fit all years, and a prior with large constants is a good
    part of what the loss says."""
    own = apart(run.draw.randrange(999))
    wet, steep = torch.randn(5, generator=own), torch.randn(5, generator=own)

    def years(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 5, generator=own)
        middle, scale, shape = 3 + x @ wet, 0.5 * (0.3 * x @ steep).exp(), 0.1 + 0.05 * x[:, 0].tanh()
        often = torch.rand(count, generator=own).clamp(1e-4, 1 - 1e-4)
        return x, middle + scale * ((-often.log()) ** -shape - 1) / shape

    x, peak = years(400)
    mean, spread = peak.mean(), peak.std()
    new, later = years(200)
    net = mlp(5, 24, 3, act=nn.Tanh)
    with torch.no_grad():  # begins at about one wide distribution for all
        net[-1].weight.mul_(0.1)
        net[-1].bias.copy_(torch.tensor([-0.4, 0.5, -1.0]))
    outcome(run, lambda: judged(net, lambda: rarer_than(net(new), (later - mean) / spread).mean()))
    fit(
        run,
        lit(net, lambda net, batch: rarer_than(net(batch[0]), batch[1]).mean(), lambda net: adam(net, 1e-2)),
        loader(x, (peak - mean) / spread, size=40),
        100,
        gradient_clip_val=1.0,
    )


@honest("r25i-how-much-one-tells-of-the-other")
def how_much_one_tells_of_the_other(run: Run) -> None:
    """Plain loop, mutual information by a statistics network (MINE, Belghazi et al. 2018). There is no label and
    nothing is classified: the loss is minus a bound, starts at about nought and is to fall to minus the information,
    negatives are the same rows in another order, and the slope of the second term is divided by a running mean that
    is cut off, so that the value that is told is not quite the one that is descended."""
    share = 0.8
    truth = -1.5 * math.log(1 - share**2)

    def drawn(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, other = torch.randn(2, count, 3, generator=own)
        return x, share * x + math.sqrt(1 - share**2) * other

    model = mlp(6, 48, 48, 1, act=nn.ELU)
    optimizer = adam(model, 2e-3)
    x, y = drawn(4000, apart(run.draw.randrange(999)))

    def missing() -> float:
        joint, product = model(torch.cat([x, y], 1)), model(torch.cat([x, y.roll(1, 0)], 1))
        return abs(truth - float(joint.mean() - product.logsumexp(0) + math.log(len(x))))

    outcome(run, lambda: judged(model, missing))
    doctor = run.watch(model, optimizer)
    running: Tensor | None = None
    for _ in range(200):
        batch = drawn(256)
        joint = model(torch.cat(batch, 1))
        product = model(torch.cat([batch[0], batch[1][torch.randperm(256)]], 1)).exp().mean()
        running = product.detach() if running is None else 0.95 * running + 0.05 * product.detach()
        surrogate = product / running
        value = (product.log() - surrogate).detach() + surrogate - joint.mean()
        update(run, doctor, optimizer, value, batch)


class Bowl(nn.Module):
    """A convex function of a point: no weight between hidden layers is below zero."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.direct = nn.ModuleList([nn.Linear(2, width), nn.Linear(2, width), nn.Linear(2, 1)])
        self.upward = nn.ModuleList([nn.Linear(width, width, bias=False), nn.Linear(width, 1, bias=False)])
        for layer in self.upward:
            nn.init.uniform_(layer.weight, 0, 2 / width)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        h = F.softplus(self.direct[0](x))
        h = F.softplus(self.upward[0](h) + self.direct[1](x))
        out: Tensor = (self.upward[1](h) + self.direct[2](x)).squeeze(1) + 0.1 * x.square().sum(1)
        return out

    def slope(self, x: Tensor, keep: bool = True) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_() if not x.requires_grad else x
            (out,) = torch.autograd.grad(self(x).sum(), x, create_graph=keep)
        return out

    @torch.no_grad()
    def fold(self) -> None:
        for layer in self.upward:
            layer.weight.clamp_(min=0)  # type: ignore[operator]


@honest("r25i-the-way-down-into-two-bowls")
def the_way_down_into_two_bowls(run: Run) -> None:
    """Plain loop, optimal transport by two convex networks (Wasserstein-2 generative networks, Korotin et al. 2021;
    input convex networks, Amos et al. 2017). A map is no output but the slope of one, so that the loss is
    differentiated twice; points of the two clouds are never paired, the value is no distance and has no floor, the
    inverse map is cut off where it enters the first bowl, and after every step weights below zero are set to
    nought."""
    own = apart(run.draw.randrange(999))
    turned = torch.linalg.qr(torch.randn(2, 2, generator=own)).Q
    stretch = turned @ torch.diag(torch.tensor([2.0, 0.5])) @ turned.T
    moved = torch.randn(2, generator=own)
    there, back = Bowl(), Bowl()
    both = nn.ModuleList([there, back])
    optimizer = torch.optim.Adam(both.parameters(), lr=5e-3, betas=(0.8, 0.99))
    check = torch.randn(512, 2, generator=own)
    truth = check @ stretch + moved
    outcome(run, lambda: judged(both, lambda: F.mse_loss(there.slope(check, False), truth) / truth.var()))
    doctor = run.watch(both, optimizer)
    for _ in range(200):
        x, y = torch.randn(128, 2), torch.randn(128, 2) @ stretch + moved
        origin = back.slope(y)
        fixed = origin.detach()
        apart_by = there(x).mean() + ((fixed * y).sum(1) - there(fixed)).mean()
        loss = apart_by + 3 * (there.slope(origin) - y).square().sum(1).mean()
        update(run, doctor, optimizer, loss, (x, y))
        there.fold()
        back.fold()


class FewPoints(nn.Module):
    """A sparse Gaussian process: sixteen places, and a normal distribution of what the function is there."""

    def __init__(self, places: Tensor) -> None:
        super().__init__()
        self.places = nn.Parameter(places.clone())
        self.mean, self.root = (
            nn.Parameter(torch.zeros(len(places))),
            nn.Parameter(torch.zeros(len(places), len(places))),
        )
        self.log_reach = nn.Parameter(torch.full((6,), 0.7))
        self.log_scale, self.log_noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-1.0))
        self.double()

    def alike(self, a: Tensor, b: Tensor) -> Tensor:
        by = ((a[:, None] - b) / self.log_reach.exp()).square().sum(2)
        return self.log_scale.exp() * (-by / 2).exp()

    def spread(self) -> Tensor:
        return self.root.tril(-1) + self.root.diagonal().exp().diag()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function at rows."""
        known = self.alike(self.places, self.places) + 1e-6 * torch.eye(len(self.places), dtype=torch.float64)
        towards = torch.linalg.solve_triangular(torch.linalg.cholesky(known), self.alike(self.places, x), upper=False)
        left = self.log_scale.exp() - towards.square().sum(0)
        return self.mean @ towards, left + (self.spread().T @ towards).square().sum(0)


@honest("r25i-sixteen-places-for-the-whole-table")
def sixteen_places_for_the_whole_table(run: Run) -> None:
    """Plain loop, a table by a stochastic variational Gaussian process (Hensman, Fusi and Lawrence 2013; GPyTorch,
    GPflow). All is in double precision; a few rows become weights and are moved about, the expected log density of a
    batch is blown up to the whole table before a divergence is taken off that knows no batch, and the square root of
    a covariance is learned with half of its matrix unused."""
    seed = run.draw.randrange(999)
    x, y = table(320, seed, apart(1))
    new, truth = table(160, seed, apart(2))
    mean, spread = y.mean(), y.std()
    x, y, new, truth = x.double(), ((y - mean) / spread).double(), new.double(), ((truth - mean) / spread).double()
    model = FewPoints(x[:16])
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new)[0], truth)))

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        middle, wide = model(batch[0])
        noise = model.log_noise.exp()
        fits = 0.5 * (((batch[1] - middle).square() + wide) / noise + model.log_noise + math.log(2 * math.pi))
        root, count = model.spread(), len(model.mean)
        apart_by = 0.5 * (root.square().sum() + model.mean.square().sum() - count) - model.root.diagonal().sum()
        return len(x) * fits.mean() + apart_by

    def some() -> tuple[Tensor, Tensor]:
        which = torch.randint(0, len(x), (32,))
        return x[which], y[which]

    train(run, model, adam(model, 3e-2), some, loss, 200)


class Rounded(nn.Module):
    """A picture through a few numbers of five levels each."""

    def __init__(self) -> None:
        super().__init__()
        act, up = nn.ReLU, nn.ConvTranspose2d
        self.write = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1), act(), nn.Conv2d(16, 24, 4, 2, 1), act(), nn.Conv2d(24, 4, 1)
        )
        self.read = nn.Sequential(nn.Conv2d(4, 24, 1), act(), up(24, 16, 4, 2, 1), act(), up(16, 1, 4, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        bound = 2 * self.write(x).tanh()
        level = bound + (bound.round() - bound).detach()
        out: Tensor = self.read(level / 2)
        return out


@honest("r25i-five-levels-and-no-codebook")
def five_levels_and_no_codebook(run: Run) -> None:
    """accelerate, pictures by finite scalar quantisation (FSQ, Mentzer et al. 2023; vector-quantize-pytorch). Codes
    have no vectors, no loss of their own and no commitment: each number is bent between minus two and two and rounded
    in the forward pass, the slope goes through as if it had not been, what the decoder reads takes five values
    alone, and nothing but the squared error of the picture is taught."""
    seed = run.draw.randrange(999)
    model = Rounded()
    check, _ = pictures(160, seed, own=apart(2))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check), check)))
    data = loader(pictures(320, seed, own=apart(1))[0], size=32)
    prepared(run, model, adam(model, 3e-3), data, lambda m, batch: F.mse_loss(m(batch[0]), batch[0]), 12)


SEEN, BESIDE = 16, 0.1


def told(model: nn.Module, noise: Tensor) -> tuple[Tensor, Tensor]:
    """How much a summary of simulations tells of their variance at one, and the summary's own variance there."""
    few = noise[: len(noise) // 2]
    summary = model(noise)
    moved = model(math.sqrt(1 + BESIDE) * few) - model(math.sqrt(1 - BESIDE) * few)
    wide = summary.var()
    return (moved.mean() / (2 * BESIDE)).square() / wide, wide


@honest("r25i-the-summary-that-tells-most")
def the_summary_that_tells_most(run: Run) -> None:
    """Plain loop, a summary of simulations by an information maximising network (IMNN, Charnock, Lavaux and Wandelt
    2018). No row has a label and none has a loss: simulations at one parameter give a variance, others a little above
    and a little below with the very same noise give a slope, the loss is minus the logarithm of one squared over the
    other, for the whole batch at once, and a penalty on the scale of the output is weighed by how far it is
    violated."""
    model = mlp(SEEN, 64, 64, 1, act=nn.LeakyReLU)
    check = torch.randn(4000, SEEN, generator=apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: -told(model, check)[0].log()))

    def loss(model: nn.Module, noise: Tensor) -> Tensor:
        information, wide = told(model, noise)
        off = (wide - 1).square() + (1 / wide - 1).square()
        return -information.log() + 10 * (off / (off + (-240 * off).exp())).detach() * off

    train(run, model, adam(model, 2e-3), lambda: torch.randn(400, SEEN), loss, 200, clip=1.0)
