"""Round 19, part b: mistakes in a model, its places, norms, convolutions and heads."""

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round19b_parts import (
    Dilated,
    LockedReader,
    OfNodes,
    Questions,
    Stage,
    Turning,
    modes,
    neighbourhoods,
    slip,
    three_questions,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r19b-turned-by-the-head")
def turned_by_the_head(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama. The function that turns queries and keys takes its places from the second axis, and is
    called when that is the axis of heads: each head is turned by its own number, all places alike. The twin calls it
    before heads and places change axes."""
    language = Language(run.draw.randrange(999), words=16, sharp=2.0)
    net = SmallLlama(16, layers=1)
    for block in net.blocks:
        block.attention = Turning(32, late=wrong)
    text_outcome(run, net, language)
    train(run, net, adam(net), lambda: language.rows(16, 24), next_loss, 120)


@slip("r19b-norm-by-default-argument")
def norm_by_default_argument(run: Run, wrong: bool) -> None:
    """Lightning, a small residual network for pictures. Its stages get their batch norm by a default argument, which is
    made once: all four share one, whose running statistics are of all depths at once. The twin makes one for each."""
    seed = run.draw.randrange(999)
    default = nn.BatchNorm2d(16)
    stages = [Stage(16, default if wrong else nn.BatchNorm2d(16)) for _ in range(4)]
    ends = [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 4)]
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), *stages, *ends)
    class_outcome(run, net, pictures(256, seed, own=apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 2e-3)), loader(*pictures(480, seed)), 120)


@slip("r19b-dilations-not-passed-on")
def dilations_not_passed_on(run: Run, wrong: bool) -> None:
    """accelerate, a network of four convolutions that tells the mode at each place of a row. They should reach 1, 2, 4
    and 8 places far, but the layer that is built is not told its dilation: together they see four places to either
    side, where fifteen are needed. The twin passes it on."""
    net = Dilated(12, 3, [1, 1, 1, 1] if wrong else [1, 2, 4, 8])

    def loss(m: nn.Module, batch: list[Tensor]) -> Tensor:
        return F.cross_entropy(m(batch[0]).flatten(0, 1), batch[1].flatten())

    check = list(modes(128, apart(1)))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    prepared(run, net, adam(net), loader(*modes(480, apart(run.draw.randrange(999)))), loss, 4)


@slip("r19b-nodes-without-themselves")
def nodes_without_themselves(run: Run, wrong: bool) -> None:
    """Plain loop, a graph network that tells the class of nodes. The adjacency has no ones on its diagonal, and none
    are added: a node's own features never reach its own state. The twin adds them."""
    seed = run.draw.randrange(999)
    net = OfNodes(6, 3, not wrong)

    def loss(m: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.cross_entropy(m(batch[0], batch[1]).flatten(0, 1), batch[2].flatten())

    check = neighbourhoods(128, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    train(run, net, adam(net, 1e-2), lambda: neighbourhoods(16, seed), loss, 120)


@slip("r19b-locked-dropout-unscaled")
def locked_dropout_unscaled(run: Run, wrong: bool) -> None:
    """accelerate, a recurrent language model with locked dropout of one's own, which multiplies by its mask and forgets
    to divide by the share kept: in use the inputs of what follows are larger than they ever were. The twin divides."""
    language = Language(run.draw.randrange(999))
    net = LockedReader(12, scaled=not wrong)
    text_outcome(run, net, language)
    rows = loader(language.rows(480, 24, apart(run.draw.randrange(999))))
    prepared(run, net, adam(net), rows, lambda m, batch: next_loss(m, batch[0]), 4)


@slip("r19b-every-question-to-the-last-head")
def every_question_to_the_last_head(run: Run, wrong: bool) -> None:
    """transformers' Trainer, one body and three heads. The heads are called by functions made in a loop, which look the
    head up when they are called and all find the last one. The twin binds each its own."""
    seed = run.draw.randrange(999)
    net = Questions(late=wrong)
    check = three_questions(256, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(**check)["loss"]))
    hf_trainer(run, net, examples(**three_questions(640, seed)), 120).train()


@slip("r19b-leaks-everything")
def leaks_everything(run: Run, wrong: bool) -> None:
    """Lightning, a regression from six columns. ReLU(True) became LeakyReLU(True), whose first argument is no longer
    whether it works in place but the slope below zero: it is one, and the network is linear. The twin's is a tenth."""
    seed = run.draw.randrange(999)

    def act() -> nn.Module:
        return nn.LeakyReLU(True) if wrong else nn.LeakyReLU(0.1, True)

    net = nn.Sequential(nn.Linear(6, 48), act(), nn.Linear(48, 48), act(), nn.Linear(48, 1))
    number_outcome(run, net, table(256, seed, apart(1)), log=True)
    fit(run, lit(net, regress, lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3)), loader(*table(640, seed)), 120)
