"""Round 19a, honest and odd: losses and objectives."""

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
    pictures,
    straight,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


def soft_warping(a: Tensor, b: Tensor, gamma: float) -> Tensor:
    """(rows,) the soft minimum over all ways to walk through both curves (rows, time) of the squares met."""
    apart_by = (a[:, :, None] - b[:, None]).square()
    far = torch.full_like(apart_by[:, 0, 0], 1e6)
    above = [torch.zeros_like(far)] + [far] * b.shape[1]
    for i in range(a.shape[1]):
        row = [far]
        for j in range(b.shape[1]):
            ways = torch.stack([above[j], above[j + 1], row[j]])
            row.append(apart_by[:, i, j] - gamma * torch.logsumexp(-ways / gamma, 0))
        above = row
    return above[-1]


def beats(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Four numbers and a curve of ten readings that they decide, which begins up to two readings late."""
    x = torch.randn(count, 4, generator=own)
    place = torch.linspace(-2, 4, 12)
    w = torch.randn(4, 2, generator=apart(seed + 9)) / 2
    height, width = (x @ w).T
    curve = (1.5 + height.tanh())[:, None] * (-((place / (1 + 0.4 * width.tanh())[:, None]) ** 2)).exp()
    late = torch.randint(0, 3, (count, 1), generator=own)
    return x, curve.gather(1, torch.arange(10) + late)


@honest("r19a-early-or-late-is-no-mistake")
def early_or_late_is_no_mistake(run: Run) -> None:
    """Plain loop, curves foretold by soft dynamic time warping (Cuturi and Blondel 2017; tslearn). A curve that is
    right but early costs next to nothing, each reading may answer for several, and since the minimum is soft the loss
    of a perfect curve is not nought but well below, and goes on falling under nought while it learns."""
    seed = run.draw.randrange(999)
    model = mlp(4, 32, 32, 10, act=nn.Tanh)
    check = beats(128, seed, apart(1))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor], gamma: float = 0.1) -> Tensor:
        return soft_warping(model(batch[0]), batch[1], gamma).mean()

    outcome(run, lambda: judged(model, lambda: loss(model, check, 0.001)))
    train(run, model, adam(model, 5e-3), lambda: beats(32, seed), loss, 80)


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points on two thirds of a ring."""
    angle = 4.2 * torch.rand(count, generator=own)
    radius = 2 + 0.1 * torch.randn(count, generator=own)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def kernels_apart(a: Tensor, b: Tensor) -> Tensor:
    """Between two clouds, the unbiased square of the largest difference of means in a sum of kernels."""

    def alike(a: Tensor, b: Tensor) -> Tensor:
        square = (a[:, None] - b[None]).square().sum(2)
        return torch.stack([(1 + square / width).reciprocal() for width in (0.1, 0.5, 2.0, 8.0)]).sum(0)

    n, m = len(a), len(b)
    within_a, within_b = alike(a, a).sum() - 4 * n, alike(b, b).sum() - 4 * m
    return within_a / (n * (n - 1)) + within_b / (m * (m - 1)) - 2 * alike(a, b).mean()


@honest("r19a-a-kernel-for-a-judge")
def a_kernel_for_a_judge(run: Run) -> None:
    """Plain loop, a generator by moment matching (Li et al. 2015, GMMN; Dziugaite et al. 2015). There is neither label
    nor critic nor density: a cloud of points that the network makes of noise is compared with a cloud of data by
    kernels, all with all, no point with a point of its own. The estimate is unbiased, by which the loss swings about
    nought in the end, below it as often as above."""
    model = mlp(4, 48, 48, 2)
    noise, check = torch.randn(400, 4, generator=apart(3)), ring(400, apart(1))
    outcome(run, lambda: judged(model, lambda: kernels_apart(model(noise), check)))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)

    def loss(model: nn.Module, points: Tensor) -> Tensor:
        return kernels_apart(model(torch.randn(len(points), 4)), points)

    train(run, model, optimizer, lambda: ring(96), loss, 200)


def peer(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss less that of scores and labels of two strangers."""
    first, second = torch.randperm(len(labels)), torch.randperm(len(labels))
    strange = F.cross_entropy(logits[first], labels[second])
    return F.cross_entropy(logits, labels) - 0.6 * strange


@honest("r19a-less-what-strangers-would-say")
def less_what_strangers_would_say(run: Run) -> None:
    """Trainer, labels of which one in three is wrong, by the peer loss (Liu and Guo 2020). From the cross-entropy of a
    row and its label that of a row and some other row's label is taken off, so that a blind agreement with the labels'
    shares is worth nothing; the loss is below nought soon, has no floor that one could name, and scores grow large. The
    rows' scores are put in another order inside the loss, which is meant."""
    seed = run.draw.randrange(999)
    x, y = straight(1200, seed, apart(2), noise=0.2)
    new, truth = straight(256, seed, apart(1), noise=0.0)
    labels, wrong = (y > 0).long(), torch.rand(1200, generator=apart(seed)) < 0.33
    model = WithLoss(mlp(6, 32, 2), peer)
    outcome(run, lambda: judged(model, lambda: (model.net(new).argmax(1) != (truth > 0).long()).float().mean()))
    data = examples(x=x, labels=torch.where(wrong, 1 - labels, labels))
    hf_trainer(run, model, data, 130, per_device_train_batch_size=64, weight_decay=0.01, max_grad_norm=1.0).train()


def pairs_by_a_margin(scores: Tensor, labels: Tensor) -> Tensor:
    """Squares of how much a yes is less than one above a no."""
    gaps = scores[labels == 1][:, None] - scores[labels == 0][None]
    return (1 - gaps).clamp_min(0).square().mean()


@honest("r19a-only-that-yes-is-above-no")
def only_that_yes_is_above_no(run: Run) -> None:
    """accelerate, screening for something rare by the area under the curve (Gao and Zhou 2015, Yuan et al. 2021 and
    their LibAUC). The loss knows pairs only, of a yes and a no of the same batch: no score has a right value, the last
    layer's bias has a gradient of nought, a sampler sees to it that each batch holds as many of either although one in
    twelve is a yes, and no chance can be read off what comes out."""
    from torch.utils.data import WeightedRandomSampler

    seed = run.draw.randrange(999)
    x, y = table(1500, seed, apart(2), noise=0.5)
    new, truth = table(800, seed, apart(1), noise=0.5)
    limit = y.quantile(0.92)
    labels, asked = (y > limit).long(), truth > limit
    model = mlp(6, 48, 48, 1)

    def wrong_pairs() -> Tensor:
        scores = model(new).squeeze(1)
        return (scores[asked][:, None] <= scores[~asked][None]).float().mean()

    outcome(run, lambda: judged(model, wrong_pairs))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return pairs_by_a_margin(model(batch[0]).squeeze(1), batch[1])

    sampler = WeightedRandomSampler(torch.where(labels == 1, 11.5, 1.0).tolist(), 1500)
    data = loader(x, labels, size=64, shuffle=False, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    prepared(run, model, optimizer, data, loss, 6)


def ratings(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures, and how a dozen people's marks from one to ten are spread over the ten."""
    x, classes = pictures(count, seed, own=own)
    middle = torch.tensor([3.0, 5.0, 6.5, 8.0])[classes] + 2 * (x.mean((1, 2, 3)) - 0.5)
    marks = (middle[:, None] + 1.2 * torch.randn(count, 12, generator=own)).round().long().clamp(1, 10)
    return x, F.one_hot(marks - 1, 10).float().mean(1)


def between_sums(scores: Tensor, shares: Tensor) -> Tensor:
    """How far the running sums of two distributions are from each other, as a root of a mean of squares."""
    gaps = (scores.softmax(1) - shares).cumsum(1)
    return (gaps.square().mean(1) + 1e-8).sqrt().mean()


@honest("r19a-ratings-by-their-running-sums")
def ratings_by_their_running_sums(run: Run) -> None:
    """Lightning, how people rate pictures (NIMA, Talebi and Milanfar 2018; Hou et al. 2016). A label is a distribution
    over ten marks, all of it taught; compared are the running sums of both, so that a neighbouring mark is a small
    mistake. The loss is the mean of roots, a few hundredths from the start, and the last of the ten sums is one for
    both and teaches nothing."""
    seed = run.draw.randrange(999)
    x, shares = ratings(800, seed, apart(2))
    new, truth = ratings(256, seed, apart(1))
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(96, 10))
    outcome(run, lambda: judged(model, lambda: between_sums(model(new), truth)))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        return between_sums(model(batch[0]), batch[1])

    fit(run, lit(model, loss, adamw(3e-3)), loader(x, shares, size=40), 150)


def plans() -> Tensor:
    """(20, 6) all ways to take three of six."""
    rows = torch.cartesian_prod(*[torch.arange(2.0)] * 6)
    return rows[rows.sum(1) == 3]


@honest("r19a-good-enough-to-choose-by")
def good_enough_to_choose_by(run: Run) -> None:
    """Plain loop, costs foretold in order to decide by them (SPO+, Elmachtoub and Grigas 2022; PyEPO). Of six things
    the three cheapest are bought; the loss solves that choice for twice the forecast less the truth, and its gradient
    is nought wherever the choice would be right anyway. So it is no distance between forecast and cost, most steps
    teach few of the outputs, and a constant may be added to all six without any change."""
    seed = run.draw.randrange(999)
    w = torch.randn(5, 6, generator=apart(seed))
    possible = plans()

    def market(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 5, generator=own)
        costs = ((x @ w) / math.sqrt(5) + 3).clamp_min(0.1) ** 2 / 4
        return x, costs * (0.8 + 0.4 * torch.rand(costs.shape, generator=own))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, costs = batch
        said = model(x)
        best = possible[(costs @ possible.T).argmin(1)]
        worst = ((costs - 2 * said) @ possible.T).max(1).values
        return (worst + 2 * (said * best).sum(1) - (costs * best).sum(1)).mean()

    model = mlp(5, 32, 6)
    new, truth = market(512, apart(1))

    def regret() -> Tensor:
        chosen = possible[(model(new) @ possible.T).argmin(1)]
        least = (truth @ possible.T).min(1).values
        return ((truth * chosen).sum(1) - least).sum() / least.sum()

    outcome(run, lambda: judged(model, regret))
    train(run, model, adam(model, 5e-3), lambda: market(32), loss, 150)


class Guesses(nn.Module):
    """A variational autoencoder of pictures of bits, with several guesses for each."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 48, 2 * hidden, act=nn.Tanh), mlp(hidden, 48, 64, act=nn.Tanh)

    def bound(self, x: Tensor, guesses: int) -> Tensor:
        mean, log_spread = self.encoder(x).chunk(2, 1)
        about = torch.distributions.Normal(mean, log_spread.exp())
        z = about.rsample((guesses,))
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(2)
        scores = self.decoder(z)
        seen = -F.binary_cross_entropy_with_logits(scores, x.expand_as(scores), reduction="none").sum(2)
        out: Tensor = torch.logsumexp(seen + prior - about.log_prob(z).sum(2), 0) - math.log(guesses)
        return out


@honest("r19a-eight-guesses-for-one-bound")
def eight_guesses_for_one_bound(run: Run) -> None:
    """A loop with Adam's epsilon at 1e-4 and a rate that falls in stairs, as in the paper, an importance-weighted
    autoencoder (Burda et al. 2016). Pictures are drawn anew as bits in every step; each is guessed eight times, and
    the logarithm of the mean of the eight weights is climbed. The loss is a sum over 64 pixels, dozens in size; its
    term for the prior is hidden in the weights, no divergence is written down, and the encoder is taught mainly by the
    best guess of the eight."""
    seed = run.draw.randrange(999)
    model = Guesses()

    def bits(count: int, own: torch.Generator | None = None) -> Tensor:
        grey = pictures(count, seed, own=own)[0].flatten(1)
        return torch.bernoulli(grey, generator=own)

    check = bits(256, apart(1))
    outcome(run, lambda: judged(model, lambda: -model.bound(check, 64).mean()))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.999), eps=1e-4)
    stairs = torch.optim.lr_scheduler.MultiStepLR(optimizer, [60, 110, 140], gamma=0.5)
    doctor = run.watch(model, optimizer, scheduler=stairs)
    for _ in range(160):
        x = bits(48)
        update(run, doctor, optimizer, -model.bound(x, 8).mean(), x)
        stairs.step()
