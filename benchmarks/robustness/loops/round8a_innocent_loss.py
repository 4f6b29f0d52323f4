"""Round 8, part a, innocent changes of the loss and of its targets."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    apart,
    class_outcome,
    documents,
    endless,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round8a_parts import Album, TwoTowers
from benchmarks.robustness.loops.round8a_tools import adam, language, reseeded, shuffled, told
from torch import Tensor, nn
from torch.nn import functional as F


@innocent("r8-nll-of-log-softmax")
def nll_of_log_softmax(run: Run, changed: bool) -> None:
    """Lightning, a GPT. cross_entropy becomes log_softmax, then the right word's entry by gather, then the mean."""
    words = language(run)
    model = Decoder(12)
    language_outcome(run, model, words)

    def by_hand(net: nn.Module, rows: Tensor) -> Tensor:
        said = net(rows[:, :-1]).log_softmax(-1)
        return -said.gather(2, rows[:, 1:, None]).mean()

    rows = words.rows(480, 24, apart(run.draw.randrange(999)))
    fit(run, lit(model, by_hand if changed else next_loss, adam), shuffled(rows), 120)


@innocent("r8-teacher-kept-by-row")
def teacher_kept_by_row(run: Run, changed: bool) -> None:
    """A student learns a teacher's answers about texts. The teacher was asked in each step; now it is asked for all texts
    once, and its answers are looked up by the number of the row."""
    own = apart(run.draw.randrange(999))
    check = documents(256, own)
    teacher, student = Classifier(), Classifier()
    optimizer = adam(teacher)
    for _ in range(150):
        ids, keep, y = documents(32, own)
        optimizer.zero_grad()
        F.cross_entropy(teacher(ids, keep), y).backward()
        optimizer.step()
    teacher.eval().requires_grad_(False)
    class_outcome(run, student, check)
    ids, keep, _ = documents(320, own)
    stored = teacher(ids, keep) if changed else None

    def loss(batch: Any) -> Tensor:
        row, mask, number = batch
        answers = teacher(row, mask) if stored is None else stored[number]
        said = (student(row, mask) / 2).log_softmax(-1)
        return 4 * F.kl_div(said, (answers / 2).softmax(-1), reduction="batchmean")

    batches = endless(loader(ids, keep, torch.arange(320)))
    told(run, student, lambda: next(batches), loss, 160)


@innocent("r8-pairs-by-logsumexp")
def pairs_by_logsumexp(run: Run, changed: bool) -> None:
    """Pictures and captions brought together. The contrastive loss was a cross_entropy with targets, and is the logsumexp
    of each row less the right entry. Another seed."""
    album = Album(run.draw.randrange(999))
    reseeded(changed)
    model = TwoTowers(20)

    def loss(batch: Any, by_hand: bool = False) -> Tensor:
        seen, read = model(*batch)
        scores, n = read @ seen.T / 0.1, torch.arange(len(seen)).repeat_interleave(2)
        if by_hand:
            return (scores.logsumexp(1) - scores[torch.arange(len(n)), n]).mean()
        return F.cross_entropy(scores, n)

    check = album.draw(25, apart(5))
    outcome(run, lambda: judged(model, lambda: loss(check)))
    told(run, model, lambda: album.draw(16), lambda b: loss(b, changed), 150)
