"""Round 26b, mistakes in shapes and wiring: which axis, which corner, which rows, what overlaps."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
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
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round21a_parts import scenes
from benchmarks.robustness.loops.round26b_parts import (
    Legs,
    Patchwork,
    Sampled,
    ValidOutline,
    bent,
    slip,
    smudged,
    table_turns,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26b-cropped-from-the-corner")
def cropped_from_the_corner(run: Run, wrong: bool) -> None:
    """accelerate, a U-Net without padding. What is handed across is larger than what comes from below and is cropped
    from its upper left corner: it lies four pixels beside what it is joined to. The twin crops the middle. Judged by
    the cross-entropy of pixels of other pictures."""
    net = ValidOutline(from_corner=wrong)
    class_outcome(run, net, scenes(128, apart(1)))
    prepared(run, net, adam(net, 6e-3), loader(*scenes(320)), classify, 6)


@slip("r26b-crossed-from-leg-to-leg")
def crossed_from_leg_to_leg(run: Run, wrong: bool) -> None:
    """transformers' Trainer, forces of three legs and what they turn. The cross product is taken along the first axis
    of three, as torch.cross does where no axis is named, and that is the legs' and not the coordinates': components of
    one name of different legs are multiplied. The twin names the last axis. Judged by what is not explained."""
    seed = run.draw.randrange(999)
    net = Legs(1 if wrong else 2)
    gauges, places, turn = table_turns(512, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(gauges, places, turn)["loss"] / turn.var()))
    seen, stands, turns = table_turns(960, seed)
    hf_trainer(run, net, examples(gauges=seen, places=stands, labels=turns), 120).train()


@slip("r26b-overlaps-added-up")
def overlaps_added_up(run: Run, wrong: bool) -> None:
    """Lightning, pictures cleaned patch by patch. `fold` adds where patches overlap, and nobody divides by how many do:
    four in the middle, two along the sides, one in the corners, and the same network for all. The twin divides. Judged
    by the mean squared error on other pictures."""
    net = Patchwork(averages=not wrong)
    noisy, clean = smudged(256, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(noisy), clean)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    fit(run, lit(net, loss, lambda m: adam(m, 2e-3)), loader(*smudged(640)), 120)


@slip("r26b-rows-weighed-against-rows")
def rows_weighed_against_rows(run: Run, wrong: bool) -> None:
    """Plain loop, a variational autoencoder with eight weighted samples a row. Log weights come sample by sample, all
    rows each, and are read as row by row: the sum inside the logarithm runs over eight rows and not over eight samples,
    and the row that fits best takes nearly all. The twin sums over samples. Judged by the bound with 32 samples."""
    seed = run.draw.randrange(999)
    net = Sampled()
    check = bent(384, seed, apart(1))

    def bound(x: Tensor, samples: int) -> Tensor:
        weights = net.log_weights(x, samples).view(samples, len(x))
        return math.log(samples) - weights.logsumexp(0).mean()

    def measure() -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            return bound(check, 32)

    outcome(run, lambda: judged(net, measure))

    def loss(m: Any, batch: Any) -> Tensor:
        x = batch[0]
        weights = m.log_weights(x, 8)
        if wrong:
            return math.log(8) - weights.view(len(x), 8).logsumexp(1).mean()
        return math.log(8) - weights.view(8, len(x)).logsumexp(0).mean()

    batches = endless(loader(bent(640, seed), size=32))
    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 140)
