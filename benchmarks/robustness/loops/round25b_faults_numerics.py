"""Round 25b, mistakes in numbers: precision, norms, the edge of what is computed, functions of half the circle."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round25b_faults_model import squared, unexplained
from benchmarks.robustness.loops.round25b_parts import (
    Globe,
    LongFilter,
    Pairs,
    Placed,
    Radial,
    Steering,
    Towers,
    answered,
    clusters,
    drives,
    liquid,
    slip,
    two_sides,
    weathers,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r25b-angles-under-autocast")
def angles_under_autocast(run: Run, wrong: bool) -> None:
    """Plain loop, a small model under autocast to bfloat16, whose windows keep their places in a long text. Angles of
    rotary places are a product of matrices, and autocast rounds places and angles to eight binary digits: neighbours
    have the same place. The twin computes angles outside of autocast. Judged on other windows, under autocast too."""
    language = Language(run.draw.randrange(999))
    net = Placed(12, apart_from_autocast=not wrong)

    def windows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        start = torch.randint(0, 4000, (count, 1), generator=own)
        return language.rows(count, 25, own), start + torch.arange(24)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        rows, places = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = m(rows[:, :-1], places)
        return F.cross_entropy(scores.float().flatten(0, 1), rows[:, 1:].flatten())

    check = windows(96, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    train(run, net, adam(net), lambda: windows(16), loss, 110)


@slip("r25b-the-end-runs-into-the-beginning")
def the_end_runs_into_the_beginning(run: Run, wrong: bool) -> None:
    """transformers' Trainer, long filters by Fourier transforms that say what a pendulum answers to pushes. Series and
    filters are not filled up with noughts before the transform, and the product of transforms goes round: pushes at the
    end act at the beginning. The twin transforms twice the length. Judged by the unexplained share on other series."""
    net = WithLoss(LongFilter(64, filled_up=not wrong), F.mse_loss)
    x, y = answered(256, apart(1))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"] / y.var()))
    x, y = answered(480)
    hf_trainer(run, net, examples(x=x, labels=y), 140, learning_rate=1e-2, lr_scheduler_type="constant").train()


@slip("r25b-a-wall-where-there-is-none")
def a_wall_where_there_is_none(run: Run, wrong: bool) -> None:
    """Lightning, a network of pairs that learns the energy of particles in a box that goes on on its other side.
    Distances are taken as if the box ended at its sides: pairs across them are far apart and say nothing. The twin
    takes the nearest image. Judged by the unexplained share on other boxes."""
    net = Pairs(5.0, periodic=not wrong)
    unexplained(run, net, liquid(384, 5.0, apart(1)))
    fit(run, lit(net, squared, lambda m: adam(m)), loader(*liquid(640, 5.0)), 140)


@slip("r25b-closed-at-the-poles")
def closed_at_the_poles(run: Run, wrong: bool) -> None:
    """accelerate, convolutions from a map of the globe to the next day's. Sizes of the padding are given in the order
    of the axes and are read from the last axis on: the map is joined along north and south and ends at east and west.
    The twin joins east with west. Judged by the unexplained share on other days."""
    across, down = (1, 1, 0, 0), (0, 0, 1, 1)
    net = Globe(joined=down, ended=across) if wrong else Globe(joined=across, ended=down)
    unexplained(run, net, weathers(256, apart(1)))
    prepared(run, net, adam(net), loader(*weathers(640)), squared, 3)


@slip("r25b-highest-of-the-whole-batch")
def highest_of_the_whole_batch(run: Run, wrong: bool) -> None:
    """Plain loop, shares by nearness to centres and a head. Before the exponential the highest number of the whole
    batch is taken off and not each row's own: in rows that are farther from all centres each weight is nearly nought,
    the small number in the divisor wins, and the head is told nothing. The twin takes off each row's highest. Judged by
    the cross-entropy of other rows."""
    seed = run.draw.randrange(999)
    x, y = clusters(640, seed)
    net = Radial(x[:24], by_row=not wrong)
    class_outcome(run, net, clusters(384, seed, apart(1)))
    batches = endless(loader(x, y, size=32))
    train(run, net, adam(net, 1e-2), lambda: next(batches), classify, 120)


@slip("r25b-one-is-the-power")
def one_is_the_power(run: Run, wrong: bool) -> None:
    """transformers' Trainer, two towers and a contrastive loss. The second argument of F.normalize is meant as the axis
    and is the power of the norm: vectors are divided by the sum of what their entries are without sign, and products
    are far smaller than cosines. The twin divides by the Euclidean length. Judged by how often another's view is more
    alike by the tower's own score."""
    seed = run.draw.randrange(999)
    net = Towers((lambda x: F.normalize(x, 1)) if wrong else (lambda x: F.normalize(x, dim=1)))
    left, right = two_sides(192, seed, apart(1))

    def missed() -> Tensor:
        scores = net(left, right)["logits"]
        return (scores.argmax(1) != torch.arange(len(scores))).float().mean()

    outcome(run, lambda: judged(net, missed))
    left_rows, right_rows = two_sides(1600, seed)
    options: dict[str, Any] = {"per_device_train_batch_size": 32, "learning_rate": 3e-3}
    hf_trainer(run, net, examples(left=left_rows, right=right_rows), 120, **options).train()


@slip("r25b-ahead-and-behind-alike")
def ahead_and_behind_alike(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a network that steers to a goal. The bearing is the arc tangent of up divided by across,
    which loses both signs: a goal behind looks like one ahead. The twin gives both to atan2. Judged by the unexplained
    share on other drives."""
    net = WithLoss(Steering(whole_circle=not wrong), F.mse_loss)
    x, y = drives(512, apart(1))
    outcome(run, lambda: judged(net, lambda: net(x, y)["loss"] / y.var()))
    x, y = drives(800)
    hf_trainer(run, net, examples(x=x, labels=y), 140).train()
