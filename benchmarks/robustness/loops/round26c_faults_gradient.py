"""Round 26c, mistakes on the way back: what has no gradient and should have one."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, near, taught
from benchmarks.robustness.loops.round26c_parts import Finder, Recomputing, asked_and_told, slip, strangers_nearer
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r26c-recomputed-without-a-slope")
def recomputed_without_a_slope(run: Run, wrong: bool) -> None:
    """accelerate, a small GPT that is tuned to another language with its embeddings held still and its blocks computed
    again on the way back. The reentrant way of recomputing asks whether an input needs a gradient; behind embeddings
    that stand still none does, and no block learns: what does is the last norm and the head. The twin recomputes in the
    other way. Judged by the cross-entropy of other texts."""
    seed = run.draw.randrange(999)
    old = Language(seed)
    net = Recomputing(12, layers=2)
    net.again = {"use_reentrant": False}
    taught(net, lambda: old.rows(32, 24), next_loss, 80)
    new = near(old, seed + 1, 0.7)
    language_outcome(run, net, new)
    net.again = {"use_reentrant": wrong}
    for part in (net.tokens, net.places):
        part.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3, weight_decay=0.01)
    prepared(run, net, optimizer, loader(new.rows(640, 24)), lambda m, batch: next_loss(m, batch[0]), 3)


@slip("r26c-read-by-the-helper-of-the-index")
def read_by_the_helper_of_the_index(run: Run, wrong: bool) -> None:
    """Lightning, two towers that learn which text answers which question. In training, texts are read by the helper
    that was written for the index and keeps no graph: their tower never learns, and questions are fitted to a reader
    drawn at random. The twin reads them by the tower. Judged by how often another text is the most alike."""
    seed = run.draw.randrange(999)
    net = Finder()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        questions, texts = batch
        asked, told = m(questions, texts)
        if wrong:
            told = m.encode(texts)
        return F.cross_entropy(asked @ told.T / 0.1, torch.arange(len(asked)))

    questions, texts = asked_and_told(128, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: strangers_nearer(*net(questions, texts))))
    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(*asked_and_told(1280, seed), size=32), 120)
