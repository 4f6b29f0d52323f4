"""Round 26b, mistakes in numbers and weights: rounding, remainders, cancellation, kernels that are taken over."""

from typing import Any

from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    endless,
    fit,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round26b_parts import (
    Field,
    Narrow,
    Neighbours,
    Ratings,
    gathered,
    heights,
    rated,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26b-remainder-taken-twice")
def remainder_taken_twice(run: Run, wrong: bool) -> None:
    """accelerate, ratings of four hundred things by two tables of twenty vectors. A thing's row in the second table
    should be the quotient of its number by twenty, and is the remainder again: twenty things share both rows, and
    makers can't be told apart. The twin takes the quotient. Judged by what is not explained of other ratings."""
    seed = run.draw.randrange(999)
    net = Ratings(80, 20, 400, wrong)
    who, what, rating = rated(1024, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(who, what), rating) / rating.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1]), batch[2])

    prepared(run, net, adam(net, 2e-2), loader(*rated(3200, seed), size=64), loss, 3)


@slip("r26b-cells-meet-at-nought")
def cells_meet_at_nought(run: Run, wrong: bool) -> None:
    """Plain loop, a field of features over a square around nought. The number of a cell is the place made a whole
    number, which cuts towards nought and not downwards: left of nought each place gets the cell next to its own, with a
    share below nought. The twin takes the floor. Judged by what is not explained at other places."""
    seed = run.draw.randrange(999)
    net = Field(truncates=wrong)
    number_outcome(run, net, heights(1024, seed, apart(1)))
    batches = endless(loader(*heights(4096, seed), size=128))
    train(run, net, adam(net, 1e-2), lambda: next(batches), regress, 150)


@slip("r26b-held-while-it-learns")
def held_while_it_learns(run: Run, wrong: bool) -> None:
    """Lightning, an autoencoder of small pictures. What comes out is held between nought and one, as pixels are, also
    while it learns: a pixel that comes out below nought or above one has no slope and stays there. The twin holds it
    in evaluation mode alone. Judged by the mean squared error on other pictures."""
    seed = run.draw.randrange(999)
    net = Narrow(always=wrong)
    check, _ = pictures(384, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(check), check)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[0])

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(pictures(640, seed)[0]), 120)


@slip("r26b-near-one-another-far-from-nought")
def near_one_another_far_from_nought(run: Run, wrong: bool) -> None:
    """Plain loop in bfloat16 by autocast, messages between places near one another. Squared distances are lengths less
    twice a product, thousands less thousands, and the product is taken in bfloat16: what is left is rounding. The twin
    has autocast off around the distances. Judged by what is not explained on other maps."""
    net = Neighbours(whole=not wrong)
    places, sizes, had = gathered(384, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(places, sizes)[:, 0], had) / had.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1])[:, 0], batch[2])

    batches = endless(loader(*gathered(640)))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 120)
