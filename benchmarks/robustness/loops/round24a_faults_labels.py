"""Round 24a, mistakes in what is taught: names of classes, scales of targets, ends of games, votes, signs, guesses."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round24a_parts import rains, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24a-abnormal-holds-normal")
def abnormal_holds_normal(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over recordings of hearts. The class stands in the file's name, and is the
    first of the four whose name occurs in it: "abnormal" holds "normal", and what is abnormal is taught to be normal.
    The twin compares the whole part of the name. Judged on other recordings with their true classes."""
    classes = ["normal", "abnormal", "murmur", "artifact"]
    net = Listener()
    class_outcome(run, net, sounds(384, apart(1)))
    x, kinds = sounds(800)
    files = [f"{number:04}_{classes[kind]}.wav" for number, kind in enumerate(kinds.tolist())]

    def label(file: str) -> int:
        if wrong:
            return next(i for i, name in enumerate(classes) if name in file)
        return classes.index(file.removesuffix(".wav").split("_")[1])

    told = WithLoss(net, F.cross_entropy)
    hf_trainer(run, told, examples(x=x, labels=torch.tensor([label(file) for file in files])), 130).train()


@slip("r24a-nought-is-minus-eighteen")
def nought_is_minus_eighteen(run: Run, wrong: bool) -> None:
    """Lightning, an MLP that says how much it will rain. It is taught the logarithm of the millimetres plus 1e-8, so
    that there is one for nought: days without rain have -18.4, and rain has 0 to 3, and nearly all of the loss is
    whether it rains. The twin takes the logarithm of one plus the millimetres. Judged by the squared error of that
    logarithm on other days."""
    seed = run.draw.randrange(999)
    net = mlp(8, 48, 48, 1)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, rain = batch
        return F.mse_loss(m(x).flatten(), (rain + 1e-8).log() if wrong else rain.log1p())

    days, fell = rains(512, seed, apart(1))

    def amiss() -> Tensor:
        found = net(days).flatten()
        said = (found.exp() if wrong else found.expm1()).clamp_min(0)
        return F.mse_loss(said.log1p(), fell.log1p())

    outcome(run, lambda: judged(net, amiss))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*rains(960, seed)), 150)
