"""Round 26b, mistakes in attention and memories: distances, fading, windows."""

from typing import Any

from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round26b_parts import (
    Events,
    Levels,
    LocalTagger,
    SkewedDecoder,
    doses,
    slip,
    stored,
    topics,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26b-distances-never-moved")
def distances_never_moved(run: Run, wrong: bool) -> None:
    """Plain loop, a small decoder whose only places are distances. Queries times vectors of distances are added to the
    scores as they come, (queries, distances), without the move that brings each distance under its key: a key gets what
    belongs to its place in the row, however far back it is. The twin moves them. Judged on other texts."""
    language = Language(run.draw.randrange(999))
    net = SkewedDecoder(12, skew=not wrong)
    language_outcome(run, net, language)
    rows = language.rows(640, 25)
    batches = endless(loader(rows))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return next_loss(m, batch[0])

    train(run, net, adam(net, 3e-3), lambda: next(batches), loss, 120)


@slip("r26b-older-pieces-never-fade")
def older_pieces_never_fade(run: Run, wrong: bool) -> None:
    """Lightning, a small network with retention. While it learns it goes by pieces of eight places, and what is handed
    from piece to piece doesn't fade by the eight that pass: old pieces stay as loud as they were. Used place by place
    the memory fades as it should. The twin lets it fade in both. Judged on other rows, place by place."""
    seed = run.draw.randrange(999)
    net = Levels(fades=not wrong)
    number_outcome(run, net, stored(256, seed, apart(1)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(*stored(640, seed)), 120)


@slip("r26b-five-and-true-is-one")
def five_and_true_is_one(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a tagger with attention to near words. `away <= 5 & real` is read as `away <= (5 & real)`,
    which is one for a word and nought for padding: each word attends to its two neighbours and not to five on either
    side. The twin has its brackets. Judged on other texts."""
    net = LocalTagger(16, wrong)
    ids, tags = topics(256, apart(1))
    outcome(run, lambda: judged(net, lambda: net(ids, tags)["loss"]))
    ids_seen, tags_seen = topics(640)
    hf_trainer(run, net, examples(ids=ids_seen, labels=tags_seen), 120, learning_rate=3e-3).train()


@slip("r26b-gaps-in-whole-steps")
def gaps_in_whole_steps(run: Run, wrong: bool) -> None:
    """accelerate, a GRU over doses and the gaps between them. The logarithms of gaps are written into a tensor made
    like that of the kinds, of whole numbers: between nought and one nothing is left, above it one or two. The twin
    makes it like that of the times. Judged by what is not explained on other rows."""
    seed = run.draw.randrange(999)
    net = Events(wrong)
    kinds, times, left = doses(512, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(kinds, times)[:, 0], left) / left.var()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0], batch[1])[:, 0], batch[2])

    prepared(run, net, adam(net, 1e-2), loader(*doses(720, seed)), loss, 3)
