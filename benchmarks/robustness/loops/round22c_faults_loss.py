"""Round 22c, mistakes in the formula of a loss: temperatures, corrections, risk sets, weights, axes, pairs, units."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
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
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught
from benchmarks.robustness.loops.round21a_parts import Mixer
from benchmarks.robustness.loops.round22c_parts import (
    Cleaner,
    Shop,
    Towers,
    Views,
    curves,
    discordant,
    offers,
    partial_likelihood,
    slip,
    survivals,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22c-only-the-teacher-is-warmed")
def only_the_teacher_is_warmed(run: Run, wrong: bool) -> None:
    """accelerate, a small MLP-Mixer that learns from a CNN's answers at temperature four. The teacher's scores are
    divided by four and the student's are not, so that the student at its own temperature comes to be as unsure as the
    teacher at four. The twin divides both. Judged by the cross-entropy of the labels."""
    seed = run.draw.randrange(999)
    teacher, net = cnn(), Mixer()
    taught(teacher, lambda: pictures(32, seed), classify, 120)
    teacher.eval().requires_grad_(False)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        with torch.no_grad():
            target = (teacher(x) / 4).softmax(1)
        scores = m(x) if wrong else m(x) / 4
        return 16 * F.kl_div(scores.log_softmax(1), target, reduction="batchmean")

    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    prepared(run, net, adam(net, 2e-3), loader(pictures(640, seed)[0]), loss, 3)


@slip("r22c-popular-items-punished-twice")
def popular_items_punished_twice(run: Run, wrong: bool) -> None:
    """Plain loop, two towers for users and items, in which the other items of a batch are the wrong answers. Popular
    items come as wrong answers as often as they are chosen, for which the logarithm of their share is to be taken off
    the scores; it is added. The twin takes it off. Judged by the cross-entropy over all items."""
    shop = Shop(run.draw.randrange(999))
    net = Towers(120)
    users, items = shop.choices(4000)
    share = (torch.bincount(items, minlength=120) + 1).float()
    offset = (share / share.sum()).log()

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(users), (64,))
        return users[rows], items[rows]

    def loss(m: nn.Module, data: Any) -> Tensor:
        x, chosen = data
        scores = m(x, chosen)
        scores = scores + offset[chosen] if wrong else scores - offset[chosen]
        twice = (chosen[:, None] == chosen[None]) & ~torch.eye(len(x), dtype=torch.bool)
        return F.cross_entropy(scores.masked_fill(twice, -1e9), torch.arange(len(x)))

    x, y = shop.choices(512, apart(1))
    outcome(run, lambda: judged(net, lambda: F.cross_entropy(net(x, torch.arange(120)), y)))
    train(run, net, adam(net, 1e-2), batch, loss, 150)


@slip("r22c-those-gone-for-those-at-risk")
def those_gone_for_those_at_risk(run: Run, wrong: bool) -> None:
    """Lightning, Cox's loss for a network of risks. A running sum over rows from the last time to the first is over
    those still at risk; rows are sorted from the first to the last, and the sum is over those who are gone. The twin
    sorts from the last to the first. Judged by the share of pairs of others in the wrong order."""
    seed = run.draw.randrange(999)
    net = mlp(6, 32, 32, 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, time, seen = batch
        return partial_likelihood(m(x).flatten(), time, seen, first_to_last=wrong)

    x, time, seen = survivals(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: discordant(net(x).flatten(), time, seen)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*survivals(640, seed), size=64), 100)


@slip("r22c-floor-for-a-ceiling")
def floor_for_a_ceiling(run: Run, wrong: bool) -> None:
    """accelerate, convolutions that find the noise in a curve, at a hundred levels of noise. Each row is weighed by the
    lesser of signal to noise and five, over signal to noise; `min=5` in place of `max=5` makes it the greater, and the
    rows that are nothing but noise weigh thousands of times as much as others. Judged by the mean squared error of the
    noise at all levels alike, for other curves."""
    net = Cleaner()
    share = (1 - torch.linspace(1e-3, 0.12, 100)).cumprod(0)
    ratio = share / (1 - share)
    weight = (ratio.clamp(min=5) if wrong else ratio.clamp(max=5)) / ratio

    def error(m: nn.Module, x: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        kept = share[level]
        seen = kept.sqrt()[:, None] * x + (1 - kept).sqrt()[:, None] * noise
        return (m(seen, kept) - noise).square().mean(1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        level = torch.randint(0, 100, (len(x),))
        return (weight[level] * error(m, x, level, torch.randn_like(x))).mean()

    check, levels = curves(400, apart(1)), torch.arange(400) % 100
    noise = torch.randn(400, 32, generator=apart(2))
    outcome(run, lambda: judged(net, lambda: error(net, check, levels, noise).mean()))
    prepared(run, net, adam(net, 5e-3), loader(curves(960), size=32), loss, 5)


@slip("r22c-spread-along-the-row")
def spread_along_the_row(run: Run, wrong: bool) -> None:
    """Lightning, vectors of pictures that are alike for two noisy views of one and spread over the batch, with no
    negatives. The spread is taken along the sixteen numbers of a vector and not over the batch: one vector with
    unequal numbers for all pictures satisfies it. The twin takes it over the batch. Judged by the squared error of a
    ridge regression from the vectors to the classes."""
    seed = run.draw.randrange(999)
    net = Views()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        a, b = (m(x + 0.2 * torch.randn_like(x)) for _ in range(2))
        spread = sum((1 - (z.var(1 if wrong else 0) + 1e-4).sqrt()).relu().mean() for z in (a, b))
        together: Any = 0.0
        for z in (a, b):
            centred = z - z.mean(0)
            covariance = centred.T @ centred / (len(z) - 1)
            together = together + (covariance - covariance.diag().diag()).square().sum() / z.shape[1]
        return 25 * F.mse_loss(a, b) + 25 * spread / 2 + together

    x, y = pictures(512, seed, own=apart(1))
    target = F.one_hot(y, 4) - 0.25

    def probe() -> Tensor:
        z = torch.cat([net(x), torch.ones(512, 1)], 1)
        first, last = z[:256], z[256:]
        found = torch.linalg.solve(first.T @ first + 25 * torch.eye(17), first.T @ target[:256])
        return (last @ found - target[256:]).square().mean()

    outcome(run, lambda: judged(net, probe))
    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(pictures(640, seed)[0], size=64), 100)


@slip("r22c-derivative-by-scaled-time")
def derivative_by_scaled_time(run: Run, wrong: bool) -> None:
    """Plain loop, a network that solves an equation of cooling with the day's temperature around it. It takes time as
    a share of 24 hours; its derivative is one by that share, and the equation is in hours. The twin divides by 24.
    Twelve measurements of the first six hours are taught too. Judged by the mean absolute error over the day."""
    own = apart(run.draw.randrange(999))
    rate, begin = 0.25 + 0.1 * torch.rand((), generator=own), 4 + torch.rand((), generator=own)
    net = mlp(1, 32, 32, 1, act=nn.Tanh)

    def around(hours: Tensor) -> Tensor:
        return 2 * (2 * math.pi * hours / 24).sin()

    fine = torch.linspace(0, 24, 2401)
    value, course = begin, [begin]
    for hour in fine[:-1]:
        value = value - 0.01 * rate * (value - around(hour + 0.005))
        course.append(value)
    truth = torch.stack(course)
    at = torch.randint(0, 600, (12,), generator=own)
    measured = truth[at] + 0.1 * torch.randn(12, generator=own)

    def loss(m: nn.Module, share: Tensor) -> Tensor:
        share = share.requires_grad_()
        u = m(share)
        slope = torch.autograd.grad(u.sum(), share, create_graph=True)[0]
        if not wrong:
            slope = slope / 24
        residual = slope + rate * (u - around(24 * share))
        found = m(fine[at, None] / 24).flatten()
        return F.mse_loss(found, measured) + 10 * residual.square().mean()

    outcome(run, lambda: judged(net, lambda: (net(fine[:, None] / 24).flatten() - truth).abs().mean()))
    train(run, net, adam(net, 1e-2), lambda: torch.rand(64, 1), loss, 150)


@slip("r22c-pairs-across-questions")
def pairs_across_questions(run: Run, wrong: bool) -> None:
    """Plain loop, a network that puts the offers to a question in order, taught by pairs. Pairs are made of all the
    rows of a batch, so that offers to different questions are compared, whose clicks differ by how often each is asked.
    The twin keeps to pairs of one question. Judged by the share of pairs of one question in the wrong order."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(nn.Linear(5, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, clicks = batch
        question = torch.arange(len(x)).repeat_interleave(6)
        scores, clicks = m(x).flatten(), clicks.flatten()
        more = clicks[:, None] > clicks[None]
        if not wrong:
            more = more & (question[:, None] == question[None])
        return F.softplus(-(scores[:, None] - scores[None]))[more].mean()

    x, clicks = offers(256, seed, apart(1))

    def disordered() -> Tensor:
        scores = net(x)[..., 0]
        more = clicks[:, :, None] > clicks[:, None]
        return (scores[:, :, None] <= scores[:, None])[more].float().mean()

    outcome(run, lambda: judged(net, disordered))
    batches = endless(loader(*offers(480, seed), size=16))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 120)
