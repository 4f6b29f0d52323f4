"""Round 13c, mistakes in what is taught, and to which row and place it belongs."""

import copy
import random
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    documents,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8a_tools import bert
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10a_tools import plain
from benchmarks.robustness.loops.round11a_tools import adamw, some
from benchmarks.robustness.loops.round13c_parts import rated, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r13c-inverse-of-the-shuffle")
def inverse_of_the_shuffle(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a BERT that chooses one of four answers. The file has the right one first; the four are
    put in a random order, and the label should say where the right one has gone: order.index(0). The mistake takes
    order[0], which says what has come to the first place. The twin asks for the index."""
    model = bert("BertForMultipleChoice")
    key = torch.randperm(6, generator=apart(run.draw.randrange(999))) + 10

    def rows(count: int, own: random.Random, first: bool) -> list[dict[str, Tensor]]:
        out = []
        for _ in range(count):
            asked = own.randrange(6)
            others = own.sample([w for w in range(10, 16) if w != int(key[asked])], 3)
            said = [int(key[asked]), *others]
            order = own.sample(range(4), 4)
            ids = [[1, 4 + asked, 2, said[i], own.randrange(4, 10), 3] for i in order]
            label = order[0] if first else order.index(0)
            out.append({"input_ids": torch.tensor(ids), "labels": torch.tensor(label)})
        return out

    new = rows(192, random.Random(5), False)
    check = {k: torch.stack([row[k] for row in new]) for k in ("input_ids", "labels")}
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data: Any = rows(640, random.Random(run.draw.randrange(999)), wrong)
    hf_trainer(run, model, data, 120, learning_rate=3e-3).train()


@slip("r13c-likeliest-words-sorted-by-id")
def likeliest_words_sorted_by_id(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT that learns the four likeliest next words of a larger one from a file. So that the file
    packs better the ids of each place are sorted before they are written, and the probabilities stay as they were,
    largest first. The twin keeps both in one order."""
    language = Language(run.draw.randrange(999))
    teacher, student = Decoder(12, layers=2), Decoder(12, width=16)
    taught(teacher, lambda: language.rows(16, 24), next_loss, 200)
    rows = language.rows(320, 24)
    with torch.no_grad():
        top = teacher(rows[:, :-1]).softmax(-1).topk(4)
    shares = top.values / top.values.sum(-1, keepdim=True)
    ids = top.indices.sort(-1).values if wrong else top.indices
    language_outcome(run, student, language)

    def loss(batch: tuple[Tensor, ...]) -> Tensor:
        rows, ids, shares = batch
        return -(shares * student(rows[:, :-1]).log_softmax(-1).gather(-1, ids)).sum(-1).mean()

    plain(run, student, some(rows, ids, shares), loss, 150)


@slip("r13c-levels-from-the-class-itself")
def levels_from_the_class_itself(run: Run, wrong: bool) -> None:
    """Lightning, texts rated from 0 to 4 by four ordered questions, is it more than 0, 1, 2, 3 (CORAL). The levels are
    made with rating >= k for k = 0 to 3, where > k is meant: the first is always true and a rating counts one too high.
    The twin has >."""
    net = Classifier(classes=4)

    def levels(rating: Tensor, at_least: bool) -> Tensor:
        k = torch.arange(4)
        return (rating[:, None] >= k if at_least else rating[:, None] > k).float()

    x, keep, rating = rated(256, apart(1))
    outcome(run, lambda: judged(net, lambda: (net(x, keep).sigmoid().sum(1) - rating).abs().mean()))

    def loss(net: nn.Module, batch: Any) -> Tensor:
        ids, keep, wanted = batch
        return F.binary_cross_entropy_with_logits(net(ids, keep), wanted)

    ids, mask, given = rated(640)
    fit(run, lit(net, loss, adamw(5e-3)), loader(ids, mask, levels(given, wrong)), 120)


@slip("r13c-positive-in-the-first-column")
def positive_in_the_first_column(run: Run, wrong: bool) -> None:
    """accelerate, texts with a queue of negatives and a slow copy that encodes the other view (MoCo). Each row's scores
    are its positive and then the queue, so that the answer is always column 0; the labels were taken over from a loss
    among the rows of a batch and are 0, 1, 2, … The twin has zeros."""
    own = apart(run.draw.randrange(999))
    net = Classifier(classes=16)
    texts, keep, _ = documents(512, own)

    def seen(ids: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A view: a fifth of the words are others."""
        other = torch.rand(ids.shape, generator=generator) < 0.2
        return torch.where(other & (ids > 0), torch.randint(1, 16, ids.shape, generator=generator), ids)

    new, new_keep, _ = documents(64, apart(3))
    one, two = seen(new, apart(4)), seen(new, apart(5))

    def matched() -> Tensor:
        a, b = (F.normalize(net(x, new_keep), dim=1) for x in (one, two))
        return F.cross_entropy(a @ b.T / 0.2, torch.arange(64))

    outcome(run, lambda: judged(net, matched))
    engine, slow = accelerator(), copy.deepcopy(net).requires_grad_(False)
    model, optimizer, data = engine.prepare(net, torch.optim.AdamW(net.parameters(), lr=5e-3), loader(texts, keep))
    doctor = run.watch(model, optimizer)
    queue = F.normalize(torch.randn(96, 16), dim=1)
    for _ in range(5):
        for ids, mask in data:
            query = F.normalize(model(seen(ids), mask), dim=1)
            with torch.no_grad():
                key = F.normalize(slow(seen(ids), mask), dim=1)
            scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], 1) / 0.2
            labels = torch.arange(len(ids)) if wrong else torch.zeros(len(ids), dtype=torch.long)
            loss = F.cross_entropy(scores, labels)
            optimizer.zero_grad()
            engine.backward(loss)
            optimizer.step()
            with torch.no_grad():
                for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                    p.lerp_(q, 0.05)
            queue = torch.cat([key, queue])[:96]
            doctor.step(loss, {"input_ids": ids, "attention_mask": mask, "labels": labels})
            run.note(loss)
