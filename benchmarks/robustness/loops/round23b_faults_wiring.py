"""Round 23b, mistakes in how a model is put together: joints, shapes, tables shared, files read, states."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round23b_parts import (
    Floors,
    Pieces,
    WideAndDeep,
    notebooks,
    prices,
    rings,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23b-first-floor-first")
def first_floor_first(run: Run, wrong: bool) -> None:
    """Lightning, a small U-Net that tells discs, their borders and the ground apart. What was kept on the way down is
    joined on the way up in the order in which it was kept, the finest first: the last layer works on the coarser of the
    two floors, and its scores are blown up to the picture's size. The twin joins the last kept first. Judged by the
    cross-entropy of other pictures' pixels."""
    net = Floors(lambda kept: kept if wrong else kept[::-1])
    class_outcome(run, net, rings(128, apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 5e-3)), loader(*rings(320)), 120)


@slip("r23b-wide-and-deep-by-pairs")
def wide_and_deep_by_pairs(run: Run, wrong: bool) -> None:
    """accelerate, a weighted sum of columns and a network beside it, whose answers are added. The sum has one dimension
    and the network's answer a second one of size one: added they are each row's sum with each row's answer, and the
    loss is the mean over all pairs, so that the network can learn no more than a constant. The twin takes the last
    dimension away. Judged on other rows, which come one by one."""
    seed = run.draw.randrange(999)
    net = WideAndDeep(8, lambda deep: deep if wrong else deep.squeeze(-1))
    x, y = prices(192, seed, apart(1))

    def unexplained() -> Tensor:
        found = torch.cat([net(row[None]).flatten() for row in x])
        return ((found - y) ** 2).mean() / y.var()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return ((m(batch[0]) - batch[1]) ** 2).mean()

    outcome(run, lambda: judged(net, unexplained))
    prepared(run, net, adam(net), loader(*prices(640, seed), size=32), loss, 7)


@slip("r23b-table-of-unit-spread")
def table_of_unit_spread(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT whose table of words is its head as well. The table is drawn as nn.Embedding
    draws it, with a spread of one, which is far too large for a head over 64 columns: the first guesses are as sure as
    they are wrong. The twin draws tables with 0.02. Judged by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999), words=48, sharp=2.0)
    net = Decoder(48, 64)
    if not wrong:
        for table in (net.tokens, net.places):
            nn.init.normal_(table.weight, std=0.02)
    net.head.weight = net.tokens.weight
    language_outcome(run, net, language)
    rows = language.rows(480, 24)
    model = WithLoss(net, lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    hf_trainer(run, model, examples(x=rows[:, :-1], labels=rows[:, 1:]), 120, learning_rate=2e-3).train()


@slip("r23b-thirds-of-each-head")
def thirds_of_each_head(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT that goes on from a file of another library and learns a text near that which it knows.
    The file keeps queries, keys and values of the first head together and then those of the second, the model all
    queries, all keys and all values; the shapes are alike, and the file is loaded as it is. The twin puts the rows in
    the model's order. Judged by the cross-entropy of other texts of the new kind."""
    old = Language(run.draw.randrange(999))
    new = near(old, run.draw.randrange(999), 0.2)
    before, net = Decoder(12, layers=2), Decoder(12, layers=2)
    taught(before, lambda: old.rows(16, 24), next_loss, 200)

    def reordered(state: dict[str, Tensor], heads_first: bool) -> dict[str, Tensor]:
        sizes = (3, 2) if heads_first else (2, 3)
        out = dict(state)
        for name in (name for name in state if ".qkv." in name):
            out[name] = state[name].unflatten(0, (*sizes, -1)).transpose(0, 1).flatten(0, 2)
        return out

    file = reordered(before.state_dict(), heads_first=True)
    net.load_state_dict(file if wrong else reordered(file, heads_first=False))
    language_outcome(run, net, new)
    rows = new.rows(64, 24)
    train(run, net, adam(net, 1e-3), lambda: rows[torch.randint(0, 64, (16,))], next_loss, 80, clip=1.0)


@slip("r23b-memory-never-handed-on")
def memory_never_handed_on(run: Run, wrong: bool) -> None:
    """Plain loop, a transformer that reads a text in three pieces and keeps two vectors of memory between them. What
    a piece writes is kept under a name that nothing reads, and each piece begins with the first memory: what stands in
    the first piece is unknown in the others. The twin hands it on. Judged by the cross-entropy of answers in other
    texts."""
    seed = run.draw.randrange(999)
    net = Pieces(18, 8)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        memory, found = None, []
        for piece in rows[:, :-1].split(8, 1):
            logits, written = m(piece, memory)
            if not wrong:
                memory = written
            found.append(logits)
        each = F.cross_entropy(torch.cat(found, 1).transpose(1, 2), rows[:, 1:], reduction="none")
        answers = (rows[:, 1:] >= 12).float()
        return (each * answers).sum() / answers.sum()

    check = notebooks(192, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(net, check)))
    train(run, net, adam(net, 3e-3), lambda: notebooks(32, seed), loss, 150, clip=1.0)
