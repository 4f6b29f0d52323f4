"""Round 27b, mistakes in a model's numbers: where it begins, by what it divides, what it can hold."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round27b_parts import (
    Layers,
    Linear,
    Matcher,
    Rain,
    Reviews,
    Standardised,
    Stations,
    bags,
    clouds,
    gauges,
    slides,
    slip,
    weather_maps,
    wells,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27b-a-fiftieth-for-the-mean")
def a_fiftieth_for_the_mean(run: Run, wrong: bool) -> None:
    """accelerate, a small GPT from scratch. Its matrices and vectors are drawn with a spread of 0.02; where it says so
    0.02 stands in the place of the mean, and the spread stays one. The twin names it. Judged by the cross-entropy of
    other texts."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12, layers=2)

    def begin(part: nn.Module) -> None:
        if isinstance(part, nn.Linear | nn.Embedding):
            if wrong:
                nn.init.normal_(part.weight, 0.02)
            else:
                nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)

    net.apply(begin)
    language_outcome(run, net, language)
    data = loader(language.rows(640, 24))
    prepared(run, net, adam(net, 3e-3), data, lambda m, batch: next_loss(m, batch[0]), 3)


@slip("r27b-the-nought-is-counted-too")
def the_nought_is_counted_too(run: Run, wrong: bool) -> None:
    """Lightning, a network that gives each review a mark, and a book the mean of its reviews' marks. The mean is
    written over noughts, and scatter_reduce counts these as one mark more: a book with one review gets half of its
    mark. The twin leaves them out. Judged by the unexplained share of other books' marks."""
    net = Reviews(from_nought=wrong)

    def laid(x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
        return x[torch.arange(6) < sizes[:, None]], torch.arange(len(sizes)).repeat_interleave(sizes)

    def collated(rows: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
        x, sizes, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return *laid(x, sizes), y

    x, sizes, y = bags(512, apart(1))
    reviews, book = laid(x, sizes)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(reviews, book, len(y)), y) / y.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1], len(batch[2])), batch[2])

    data = loader(*bags(960), size=24, collate_fn=collated)
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), data, 140)


@slip("r27b-a-quarter-of-the-map")
def a_quarter_of_the_map(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over maps, read at points. Points are shares of the map's width and height from nought
    to one, and grid_sample takes them from minus one to one: all points are read in the lower right quarter. The twin
    stretches them. Judged by the unexplained share of what other maps say at other points."""
    net = Stations(stretched=not wrong)
    maps, points, y = weather_maps(256, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(maps, points), y) / y.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    prepared(run, net, adam(net, 5e-3), loader(*weather_maps(640)), loss, 3)


@slip("r27b-plans-that-come-to-nought")
def plans_that_come_to_nought(run: Run, wrong: bool) -> None:
    """Plain loop, vectors for the points of two clouds and Sinkhorn's plan that joins them. The plan is scaled as it is
    and not by its logarithms: with a smoothing of a fiftieth nearly all of its entries lie below the 1e-8 that is added
    lest one divides by nought, rows are even and teach nothing. The twin scales logarithms. Judged by the share of
    points joined to a wrong one."""
    seed = run.draw.randrange(999)
    net = Matcher(by_logarithms=not wrong)
    a, b, place = clouds(128, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(a, b).argmax(2) != place).float().mean()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        first, second, where = batch
        return -m(first, second).gather(2, where[..., None]).mean()

    train(run, net, adam(net, 3e-3), lambda: clouds(16, seed), loss, 120)


@slip("r27b-sites-that-differ-are-not-counted")
def sites_that_differ_are_not_counted(run: Run, wrong: bool) -> None:
    """Plain loop, a network with tanh behind the mean and the spread of all its samples. These are gathered beforehand
    site by site; where the sites' squares are merged, what their means differ by is left out, and the spread is that
    within a site, a ninth of the whole. The twin adds it. Judged by the unexplained share at other sites."""
    net = Standardised(mlp(3, 48, 48, 1, act=nn.Tanh), 3, between=not wrong)
    samples, yields = wells(200)
    for site in samples:
        net.show(site)
    x, y = wells(100, apart(1))
    number_outcome(run, net, (x.flatten(0, 1), y.flatten()))
    samples, yields = samples.flatten(0, 1), yields.flatten()

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(samples), (32,))
        return samples[rows], yields[rows]

    train(run, net, adam(net, 3e-3), batch, regress, 150)


@slip("r27b-no-less-than-one")
def no_less_than_one(run: Run, wrong: bool) -> None:
    """accelerate, a number for each gauge and their mean, weighed by how near they stand. The sum of weights is held
    above one, as for counts, and it is often below: where all gauges are far, the mean comes out too small. The twin
    holds it above a millionth. Judged by the unexplained share of other places' rain."""
    net = Rain(1.0 if wrong else 1e-6)
    x, far, y = gauges(512, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x, far), y) / y.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    prepared(run, net, adam(net, 5e-3), loader(*gauges(960), size=24), loss, 3)


@slip("r27b-dimmed-by-itself")
def dimmed_by_itself(run: Run, wrong: bool) -> None:
    """Plain loop, a small network that takes a picture apart into four sheets, which laid upon each other give it
    without its noise. A sheet is dimmed by itself, too, as the product runs over it: what is opaque lets nothing of
    itself through, and no pixel gets bright. The twin leaves it out. Judged by other pictures' squared error."""
    net = Layers(before_it=not wrong)
    x, clean = slides(128, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x), clean)))
    pictures, wanted = slides(400)

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(pictures), (16,))
        return pictures[rows], wanted[rows]

    train(run, net, adam(net, 5e-3), batch, lambda m, b: F.mse_loss(m(b[0]), b[1]), 120)


@slip("r27b-sums-of-either-sign")
def sums_of_either_sign(run: Run, wrong: bool) -> None:
    """Plain loop, a language model with causal attention by running sums. Queries and keys go through an ELU to which
    one isn't added: they are negative as often as not, and what the sums are divided by comes near nought and has
    either sign. The twin adds it. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = Linear(12, raised=not wrong)
    language_outcome(run, net, language)
    train(run, net, adam(net, 3e-3), lambda: language.rows(16, 24), next_loss, 120, clip=1.0)
