"""Round 22d, mistakes in what is kept beside the weights: averages, copies, adapters."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import WithLoss
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round8b_parts import steps
from benchmarks.robustness.loops.round22d_parts import Editors, LowRank, desks, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22d-old-self-copied-too-soon")
def old_self_copied_too_soon(run: Run, wrong: bool) -> None:
    """Lightning, an LSTM that sorts texts for one desk, is to learn another desk's topics and keep the first's, by
    agreeing with a copy of what it was. The copy is made before the checkpoint is loaded: what it is to agree with is a
    network as drawn. The twin loads first. Judged by the cross-entropy of both desks' other texts."""
    seed = run.draw.randrange(999)
    before = Editors()
    taught(before, lambda: desks(32, seed), lambda m, b: F.cross_entropy(m(b[0])[0], b[1]), 120)
    checkpoint = before.state_dict()
    net = Editors()
    if wrong:
        self_before = copy.deepcopy(net)
        net.load_state_dict(checkpoint)
    else:
        net.load_state_dict(checkpoint)
        self_before = copy.deepcopy(net)
    self_before.eval().requires_grad_(False)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, y = batch
        old, new = m(ids)
        kept = F.kl_div(old.log_softmax(1), self_before(ids)[0].softmax(1), reduction="batchmean")
        return F.cross_entropy(new, y) + 2 * kept

    first, second = desks(256, seed, apart(1)), desks(256, seed + 1, apart(2))

    def both() -> Tensor:
        return F.cross_entropy(net(first[0])[0], first[1]) + F.cross_entropy(net(second[0])[1], second[1])

    outcome(run, lambda: judged(net, both))
    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*desks(640, seed + 1)), 120)


@slip("r22d-merged-without-its-scale")
def merged_without_its_scale(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT tuned to a language near its own by low-rank factors that are merged into the matrices
    every thirty steps and begin again. Forward, their product counts fourfold (alpha over rank); merged, once: three
    quarters of what was learned are lost each time. The twin merges with the scale. Judged by the cross-entropy of
    other texts."""
    seed = run.draw.randrange(999)
    old = Language(seed)
    net = Decoder(12, layers=2)
    taught(net, lambda: old.rows(16, 20), next_loss, 100)
    language = near(old, seed + 1)
    net.requires_grad_(False)
    factors = []
    for block in net.blocks:
        block.attention.qkv = LowRank(block.attention.qkv)
        block.attention.out = LowRank(block.attention.out)
        block.feed[0], block.feed[2] = LowRank(block.feed[0]), LowRank(block.feed[2])
        factors += [block.attention.qkv, block.attention.out, block.feed[0], block.feed[2]]
    language_outcome(run, net, language)
    rows = language.rows(640, 24)
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=5e-3)

    def after(step: int) -> None:
        if step % 30 == 29 and step < 110:
            for layer in factors:
                layer.merge(1.0 if wrong else layer.scale)
            optimizer.state.clear()

    steps(run, net, optimizer, lambda: rows[torch.randint(0, 640, (16,))], next_loss, 120, after=after)


@slip("r22d-teacher-with-its-first-statistics")
def teacher_with_its_first_statistics(run: Run, wrong: bool) -> None:
    """Lightning, a small CNN with batch norm that learns from few labels and from agreeing, on other pictures, with a
    teacher that is the moving average of its weights. Only parameters are averaged: the teacher, in evaluation mode,
    normalises by the means of nought and variances of one that its norms began with. The twin copies the norms'
    statistics too. Judged by the student's cross-entropy on other pictures."""
    seed = run.draw.randrange(999)
    net = cnn()
    teacher = copy.deepcopy(net).eval().requires_grad_(False)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    unlabelled = pictures(320, seed)[0]

    def followed() -> None:
        with torch.no_grad():
            for mean, p in zip(teacher.parameters(), net.parameters(), strict=True):
                mean.lerp_(p, 0.1)
            if not wrong:
                for ours, theirs in zip(teacher.buffers(), net.buffers(), strict=True):
                    ours.copy_(theirs)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        followed()
        x, y = batch
        more = unlabelled[torch.randint(0, len(unlabelled), (32,))]
        said = m(torch.cat([x, more + 0.1 * torch.randn(more.shape)]))
        agreed = F.kl_div(said[len(x) :].log_softmax(1), teacher(more).softmax(1), reduction="batchmean")
        return F.cross_entropy(said[: len(x)], y) + 2 * agreed

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(*pictures(48, seed)), 120)


@slip("r22d-kept-by-reference")
def kept_by_reference(run: Run, wrong: bool) -> None:
    """transformers' Trainer, an LSTM that predicts words, and an average of its weights that takes their place every
    ten steps while validation rows are read. What is put back afterwards was kept as references to the very tensors
    that were overwritten: training goes on from the average. The twin keeps copies. Judged by the average's
    cross-entropy on other texts."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from transformers import TrainerCallback

    language = Language(run.draw.randrange(999))
    reader = Reader(12, core=nn.LSTM)
    net = WithLoss(reader, lambda found, rows: F.cross_entropy(found[:, :-1].flatten(0, 1), rows[:, 1:].flatten()))
    average = AveragedModel(reader, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    check, logged = language.rows(96, 24, apart(901)), language.rows(48, 24, apart(902))
    outcome(run, lambda: judged(average, lambda: next_loss(average, check)))
    shown: list[float] = []

    class Averages(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            average.update_parameters(reader)
            if state.global_step % 10 == 0:
                kept = reader.state_dict()
                if not wrong:
                    kept = {name: tensor.clone() for name, tensor in kept.items()}
                reader.load_state_dict(average.module.state_dict())
                shown.append(judged(reader, lambda: next_loss(reader, logged)))
                reader.load_state_dict(kept)

    rows = language.rows(640, 24)
    trainer = hf_trainer(run, net, examples(x=rows, labels=rows), 120, learning_rate=1e-2)
    trainer.add_callback(Averages())
    trainer.train()
