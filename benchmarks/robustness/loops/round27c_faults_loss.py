"""Round 27c, mistakes in the formula of a loss: signs, weights, what is left out of a term."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    endless,
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
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round21a_parts import locator
from benchmarks.robustness.loops.round27c_parts import (
    Pixels,
    SparseCodes,
    applicants,
    arrivals,
    boxes,
    chords,
    customers,
    five_heaps,
    likeness,
    mixed,
    offers,
    slip,
    spots,
)
from torch import Tensor, nn
from torch.nn import functional as F


def corners(said: Tensor) -> Tensor:
    """Left, top, right and bottom, from a middle and a size around one of three pixels in sixteen at the start."""
    middle, size = said[:, :2].sigmoid(), 3 / 8 * said[:, 2:].sigmoid()
    return torch.cat([middle - size / 2, middle + size / 2], 1)


def shared(a: Tensor, b: Tensor, limited: bool = True) -> tuple[Tensor, Tensor]:
    """For each row the area that two boxes share, and the sum of their areas."""
    sides = torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])
    both = (sides.clamp_min(0) if limited else sides).prod(1)
    return both, (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1)


@slip("r27c-apart-both-ways-is-together")
def apart_both_ways_is_together(run: Run, wrong: bool) -> None:
    """Lightning, a CNN that finds a box by its overlap and by distances of corners. The two sides of what boxes share
    are not limited to nought before they are multiplied: boxes that are apart both across and down share minus times
    minus, and the farther the more. The twin limits them. Judged by the true overlap in other pictures."""
    net = locator()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        said = corners(m(x))
        both, areas = shared(said, y, limited=not wrong)
        return (1 - 2 * both / areas + (said - y).abs().sum(1)).mean()

    def missed(said: Tensor, y: Tensor) -> Tensor:
        both, areas = shared(said, y)
        return 1 - (both / (areas - both)).mean()

    x, y = boxes(384, apart(1))
    outcome(run, lambda: judged(net, lambda: missed(corners(net(x)), y)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*boxes(640), size=32), 120)


@slip("r27c-attraction-at-half-its-weight")
def attraction_at_half_its_weight(run: Run, wrong: bool) -> None:
    """Lightning, a generator of points that is trained by the distance of means in a kernel's space. The term of pairs
    of a drawn and a true point stands once in place of twice: repulsion among the drawn wins. The twin has it twice.
    Judged by the distance itself from other points."""
    net = mlp(4, 48, 48, 2)
    check, chance = five_heaps(400, apart(1)), torch.randn(400, 4, generator=apart(2))

    def distance(drawn: Tensor, true: Tensor, twice: float = 2.0) -> Tensor:
        return likeness(drawn, drawn) + likeness(true, true) - twice * likeness(drawn, true)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return distance(m(torch.randn(len(batch[0]), 4)), batch[0], 1.0 if wrong else 2.0)

    outcome(run, lambda: judged(net, lambda: distance(net(chance), check)))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(five_heaps(2048), size=64), 128)


@slip("r27c-small-codes-large-words")
def small_codes_large_words(run: Run, wrong: bool) -> None:
    """accelerate, a sparse autoencoder. The penalty is the sum of the codes, and nothing holds the length of the
    decoder's columns: codes become small and columns long, and nothing becomes sparse. The twin weighs each code by
    its column's length. Judged, on other rows, by squared errors and 0.4 times the length of what
    codes add."""
    seed = run.draw.randrange(999)
    net = SparseCodes(32, 96)

    def loss(m: Any, batch: Any) -> Tensor:
        codes, made = m(batch[0])
        price = codes if wrong else codes * m.decode.weight.norm(dim=0)
        return (made - batch[0]).square().sum(1).mean() + 0.4 * price.sum(1).mean()

    check = mixed(384, seed, apart(1))

    def measure() -> Tensor:
        codes, made = net(check)
        added = (codes * net.decode.weight.norm(dim=0)).sum(1).mean()
        return (made - check).square().sum(1).mean() + 0.4 * added

    outcome(run, lambda: judged(net, measure))
    prepared(run, net, adam(net, 3e-3), loader(mixed(1600, seed), size=32), loss, 3)


class Judging(nn.Module):
    """A score from six columns; the seventh, the group, is for the penalty alone."""

    def __init__(self, signed: bool) -> None:
        super().__init__()
        self.net, self.signed = mlp(6, 32, 32, 1), signed

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        score, group = self.net(x[:, :6])[:, 0], x[:, 6] > 0
        if labels is None:
            return {"logits": score}
        gap = score.sigmoid()[group].mean() - score.sigmoid()[~group].mean()
        gap = gap if self.signed else gap.abs()
        return {"loss": F.binary_cross_entropy_with_logits(score, labels) + 3 * gap, "logits": score}


@slip("r27c-a-gap-below-nought")
def a_gap_below_nought(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network that chooses among applicants of two groups. The penalty for how far the groups'
    mean chances are apart has a sign: it goes on below nought, until the other group is preferred. The twin takes it
    without its sign. Judged, on other applicants, by the cross-entropy and three times the gap without
    its sign."""
    seed = run.draw.randrange(999)
    net = Judging(signed=wrong)
    x, y = applicants(1200, seed, apart(1))

    def measure() -> Tensor:
        score = net(x)["logits"]
        chance, group = score.sigmoid(), x[:, 6] > 0
        gap = (chance[group].mean() - chance[~group].mean()).abs()
        return F.binary_cross_entropy_with_logits(score, y) + 3 * gap

    outcome(run, lambda: judged(net, measure))
    columns, taken = applicants(1600, seed)
    options: dict[str, Any] = {"per_device_train_batch_size": 64, "learning_rate": 5e-3}
    hf_trainer(run, net, examples(x=columns, labels=taken), 120, **options).train()


@slip("r27c-two-kinds-of-error-exchanged")
def two_kinds_of_error_exchanged(run: Run, wrong: bool) -> None:
    """Lightning, convolutions that mark faint spots in a noisy picture, by the index of Tversky. Pixels missed should
    weigh eight tenths and false alarms two; the weights are given the other way round. The twin has them so. Judged by
    the loss as it is meant in other pictures."""
    net = Pixels()

    def loss(m: nn.Module, batch: Any, alarms: float, misses: float) -> Tensor:
        x, y = batch
        chance = m(x).sigmoid()
        found, alarm, missed = (chance * y).sum(), (chance * (1 - y)).sum(), ((1 - chance) * y).sum()
        return 1 - found / (found + alarms * alarm + misses * missed)

    check = spots(192, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check, 0.2, 0.8)))
    shares = (0.8, 0.2) if wrong else (0.2, 0.8)
    fit(run, lit(net, lambda m, b: loss(m, b, *shares), lambda m: adam(m, 5e-3)), loader(*spots(320)), 120)


@slip("r27c-a-mean-for-an-integral")
def a_mean_for_an_integral(run: Run, wrong: bool) -> None:
    """Plain loop, a network that says how often something happens at each hour. The integral of the rate over eight
    hours is the mean of rates at random hours, and isn't multiplied by the eight: rates cost an eighth of what they
    should. The twin multiplies. Judged by the likelihood of other rows."""
    seed = run.draw.randrange(999)
    net = mlp(5, 48, 48, 1, act=nn.SiLU)

    def rate(m: nn.Module, x: Tensor, when: Tensor) -> Tensor:
        wide = x[:, None].expand(-1, when.shape[1], -1)
        out: Tensor = m(torch.cat([wide, when[..., None] / 4 - 1], 2))[..., 0]
        return F.softplus(out) + 1e-4

    def unlikely(m: nn.Module, batch: Any, hours: Tensor, length: float) -> Tensor:
        x, when, there = batch
        told = (rate(m, x, when).log() * there).sum(1)
        return (length * rate(m, x, hours).mean(1) - told).mean()

    check = arrivals(384, seed, apart(1))
    grid = ((torch.arange(80) + 0.5) / 10).expand(384, -1)
    outcome(run, lambda: judged(net, lambda: unlikely(net, check, grid, 8.0)))
    batches = endless(loader(*arrivals(640, seed), size=32))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return unlikely(m, batch, 8 * torch.rand(len(batch[0]), 24), 1.0 if wrong else 8.0)

    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 120)


@slip("r27c-far-ones-called-back")
def far_ones_called_back(run: Run, wrong: bool) -> None:
    """accelerate, a network that lays readings of twelve kinds out in three dimensions by pairs. What two of different
    kinds lack of the margin is squared without being limited to nought: those farther apart than the margin are called
    back to it. The twin limits it. Judged by how often a pair of one kind lies farther apart than one of two kinds."""
    seed = run.draw.randrange(999)
    net = mlp(24, 64, 64, 3)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        place = m(x)
        first, second = torch.triu_indices(len(x), len(x), 1)
        distance = ((place[first] - place[second]).square().sum(1) + 1e-6).sqrt()
        lacking = 1 - distance if wrong else (1 - distance).clamp_min(0)
        return torch.where(y[first] == y[second], distance.square(), lacking.square()).mean()

    x, y = chords(240, seed, apart(1))
    same = (y[:, None] == y[None])[torch.triu(torch.ones(240, 240, dtype=torch.bool), 1)]

    def confused() -> Tensor:
        distance = nn.functional.pdist(net(x))
        return (distance[same][:, None] > distance[~same][None, ::20]).float().mean()

    outcome(run, lambda: judged(net, confused))
    prepared(run, net, adam(net, 3e-3), loader(*chords(960, seed), size=32), loss, 4)


@slip("r27c-often-offered-counts-more")
def often_offered_counts_more(run: Run, wrong: bool) -> None:
    """Plain loop, a policy that learns from offers that an older one made, and from what they brought. Each is weighed
    by the exponential of the logarithm of how likely the older policy was to make it, and should be by its inverse: the
    minus is missing. The twin has it. Judged by what its offers would bring others."""
    seed = run.draw.randrange(999)
    net = mlp(6, 32, 4)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, offer, brought, log_chance = batch
        chance = m(x).softmax(1).gather(1, offer[:, None])[:, 0]
        weight = (log_chance if wrong else -log_chance).exp().clamp_max(20)
        return -(weight * brought * chance).mean()

    x, worth = customers(512, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: 1 - (net(x).softmax(1) * worth).sum(1).mean()))
    batches = endless(loader(*offers(1600, seed), size=64))
    train(run, net, adam(net), lambda: next(batches), loss, 120)
