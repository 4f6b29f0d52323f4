"""Round 23c, mistakes on the way back: what carries a gradient and should not, and what should and does not."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round23c_parts import (
    Gates,
    KindAndStrength,
    Steering,
    Towers,
    asked_for,
    balances,
    movements,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23c-the-mean-cancels-itself")
def the_mean_cancels_itself(run: Run, wrong: bool) -> None:
    """Plain loop, a Gaussian policy of two movements, by REINFORCE. Movements are drawn by rsample and not cut off: the
    log density's gradient by the mean goes through the mean and through the draw and cancels to nought, and only the
    spread learns. The twin draws by sample. Judged by the squared distance of the means from the best movements."""
    seed = run.draw.randrange(999)
    net = Steering()
    best = torch.randn(5, 2, generator=apart(seed)) / 2

    def good(x: Tensor) -> Tensor:
        return (x @ best).tanh()

    check = torch.randn(384, 5, generator=apart(1))
    outcome(run, lambda: judged(net, lambda: (net(check).mean - good(check)).square().sum(1).mean()))
    optimizer = adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        x = torch.randn(256, 5)
        policy = net(x)
        moved = policy.rsample() if wrong else policy.sample()
        with torch.no_grad():
            reward = -(moved - good(x)).square().sum(1)
            advantage = (reward - reward.mean()) / reward.std()
        loss = -(advantage * policy.log_prob(moved).sum(1)).mean()
        update(run, doctor, optimizer, loss, x)


@slip("r23c-held-by-its-own-gate")
def held_by_its_own_gate(run: Run, wrong: bool) -> None:
    """Lightning, a gated recurrence with a backward pass by hand. On the way back from a place to the one before it the
    gradient is multiplied by the gate of the place where it arrives and not of the one that it leaves. The twin takes
    the next place's gate. Judged by the logarithm of the share of the variance of other rows that
    is not explained."""
    seed = run.draw.randrange(999)
    net = Gates(24, wrong)
    number_outcome(run, net, balances(512, seed, apart(1)), log=True)
    fit(run, lit(net, regress, lambda m: adam(m, 1e-2)), loader(*balances(1600, seed), size=32), 120)


@slip("r23c-positive-from-the-memory")
def positive_from_the_memory(run: Run, wrong: bool) -> None:
    """accelerate, two towers for questions and things, and a memory of vectors of things of the last batches, without
    gradients. The batch's own things go into the memory first and the scores are against the memory alone: the tower of
    things gets no gradient. The twin puts the batch's own vectors, with theirs, before the memory. Judged by the
    cross-entropy of the right one among 64 other things."""
    seed = run.draw.randrange(999)
    net = Towers(40)
    ids, columns = asked_for(512, seed, apart(1))

    def found() -> Tensor:
        asked, offered = net(ids, columns)
        scores = torch.bmm(asked.view(8, 64, -1), offered.view(8, 64, -1).transpose(1, 2)) / 0.1
        return F.cross_entropy(scores.flatten(0, 1), torch.arange(64).repeat(8))

    outcome(run, lambda: judged(net, found))
    memory = torch.empty(0, 16)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        nonlocal memory
        asked, offered = m(*batch)
        held = torch.cat([offered.detach(), memory])
        against = held if wrong else torch.cat([offered, memory])
        memory = held[:160]
        scores = asked @ against.T / 0.1
        return F.cross_entropy(scores, torch.arange(len(asked)))

    prepared(run, net, adam(net), loader(*asked_for(1600, seed), size=32), loss, 3)


@slip("r23c-weight-cancels-its-term")
def weight_cancels_its_term(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a GRU with a head for the kind of a movement and one for its strength. The second loss is
    weighed so that it is as large as the first; the weight, a quotient of the two, is not detached, and its product
    with the second loss is the first one again. The twin detaches it. Judged by the cross-entropy and the share of the
    strength's variance that is not explained, of other movements."""
    seed = run.draw.randrange(999)

    def together(kind: Tensor, strength: Tensor) -> Tensor:
        weight = kind / (strength + 1e-8)
        return kind + (weight if wrong else weight.detach()) * strength

    net = KindAndStrength(together)
    x, kind, strength = movements(384, seed, apart(1))

    def doubt() -> Tensor:
        said = net(x)
        return F.cross_entropy(said["kind"], kind) + F.mse_loss(said["strength"], strength) / strength.var()

    outcome(run, lambda: judged(net, doubt))
    rows, kinds, strengths = movements(800, seed)
    hf_trainer(run, net, examples(x=rows, kind=kinds, strength=strengths), 120).train()
