"""Round 25c, mistakes in losses of their own: orders, spreads, levels, ways."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round25c_parts import (
    Denoiser,
    Flow,
    Unmixer,
    energy_distance,
    islands,
    ring,
    slip,
    two_tones,
    windy,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25c-one-order-for-the-batch")
def one_order_for_the_batch(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that take a mixture of two tones apart. The tones of a row come in any order, and the
    better of two orders counts; the errors are averaged over the batch before the better one is chosen, so that all
    rows must have the same order. The twin chooses for each row. Judged by the error of the better order of each of
    other rows."""
    net = Unmixer()

    def orders(found: Tensor, tones: Tensor) -> tuple[Tensor, Tensor]:
        return ((found - tones) ** 2).mean((1, 2)), ((found - tones.flip(1)) ** 2).mean((1, 2))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        straight, crossed = orders(m(batch[0]), batch[1])
        if wrong:
            return torch.minimum(straight.mean(), crossed.mean())
        return torch.minimum(straight, crossed).mean()

    x, tones = two_tones(256, apart(1))
    outcome(run, lambda: judged(net, lambda: torch.minimum(*orders(net(x), tones)).mean()))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*two_tones(640)), 120)


@slip("r25c-disagreement-between-rows")
def disagreement_between_rows(run: Run, wrong: bool) -> None:
    """accelerate, a network that says eight possible values of a number. The loss is the mean distance of the eight
    from what came, less half of their mean distance from one another; that is taken between rows of the batch and not
    between the eight of a row, and nothing keeps the eight apart. The twin takes it within a row. Judged by the same
    score on other rows."""
    net = mlp(3, 48, 48, 8)

    def score(found: Tensor, y: Tensor, between_rows: bool) -> Tensor:
        away = (found - y[:, None]).abs().mean()
        if between_rows:
            return away - (found[:, None] - found[None]).abs().mean() / 2
        return away - (found[:, :, None] - found[:, None, :]).abs().mean() / 2

    x, y = windy(512, apart(1))
    outcome(run, lambda: judged(net, lambda: score(net(x), y, False)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return score(m(batch[0]), batch[1], wrong)

    prepared(run, net, adam(net, 3e-3), loader(*windy(1280), size=32), loss, 3)


@slip("r25c-weight-over-the-sum-of-spreads")
def weight_over_the_sum_of_spreads(run: Run, wrong: bool) -> None:
    """Plain loop, a denoiser of points on a ring at noise levels of a lognormal. The error at a level is weighed by the
    sum of two variances over the square of the product of their deviations; here over the square of their sum, and low
    levels hardly count. The twin has the product. Judged by the error with the right weights on other points."""
    net = Denoiser()

    def error(m: nn.Module, clean: Tensor, level: Tensor, noise: Tensor, product: bool) -> Tensor:
        below = level * 0.5 if product else level + 0.5
        weight = (level**2 + 0.25) / below**2
        return (weight * (m(clean + level * noise, level) - clean) ** 2).mean()

    own = apart(1)
    clean = ring(2048, own)
    level = (-1.2 + 1.2 * torch.randn(2048, 1, generator=own)).exp()
    noise = torch.randn(2048, 2, generator=own)
    outcome(run, lambda: judged(net, lambda: error(net, clean, level, noise, True)))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return ring(256), (-1.2 + 1.2 * torch.randn(256, 1)).exp(), torch.randn(256, 2)

    train(run, net, adam(net, 1e-2), batch, lambda m, b: error(m, *b, not wrong), 150)


@slip("r25c-the-goal-begins-at-the-old-place")
def the_goal_begins_at_the_old_place(run: Run, wrong: bool) -> None:
    """Plain loop, a flow from noise to six heaps of points. The noise of a batch is dealt to the points so that all
    ways are short; places on the way are between a point and the noise that it was dealt, and the velocity that is
    taught is the point less the noise in its old order. The twin takes the noise as dealt in both. Judged by the energy
    distance of points drawn in twenty steps from other points."""
    from scipy.optimize import linear_sum_assignment

    net = Flow()
    start, other = torch.randn(512, 2, generator=apart(1)), islands(512, apart(2))

    def drawn() -> Tensor:
        x = start
        for step in range(20):
            x = x + net(x, torch.full((len(x), 1), step / 20)) / 20
        return energy_distance(x, other)

    outcome(run, lambda: judged(net, drawn))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(96, 2), islands(96), torch.rand(96, 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        noise, points, time = batch
        _, columns = linear_sum_assignment(torch.cdist(points, noise).square().numpy())
        dealt = noise[torch.as_tensor(columns)]
        place = (1 - time) * dealt + time * points
        return F.mse_loss(m(place, time), points - (noise if wrong else dealt))

    train(run, net, adam(net, 3e-3), batch, loss, 150)
