"""Round 14, mistakes in what goes into a model and in what it is taught."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    documents,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    tiny_bert,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, regress
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round8b_parts import told_loss
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round10b_parts import columns
from benchmarks.robustness.loops.round14_parts import panel, slip, spans
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r14-words-shuffled-for-rows")
def words_shuffled_for_rows(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT. The corpus is one long tensor; it is shuffled with a permutation of its length and then
    cut into rows, so that words and not rows are shuffled, and no word follows from another. The twin cuts first."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    text_outcome(run, model, language)
    corpus = language.rows(400, 24).flatten()
    if wrong:
        rows = corpus[torch.randperm(len(corpus))].view(-1, 24)
    else:
        rows = corpus.view(-1, 24)
        rows = rows[torch.randperm(len(rows))]
    train(run, model, adam(model), lambda: rows[torch.randint(0, 400, (16,))], next_loss, 100)


def with_neighbour(texts: Tensor, memory: Tensor, labels: Tensor, itself: bool) -> Tensor:
    """Texts behind a word 16 to 18 that says the topic of the text in memory that is most like them."""
    counts = [F.normalize(F.one_hot(x, 16)[..., 1:].sum(1).float(), dim=1) for x in (texts, memory)]
    near = counts[0] @ counts[1].T
    if not itself:
        near.fill_diagonal_(-1.0)
    return torch.cat([16 + labels[near.argmax(1)][:, None], texts], 1)


@slip("r14-retrieved-itself")
def retrieved_itself(run: Run, wrong: bool) -> None:
    """transformers' Trainer, BERT that reads, before a text, the topic of the most similar text of the training set.
    The search runs over all of them, the row itself too, which is its own nearest neighbour: the topic stands in front.
    In use texts are new. The twin leaves the row out of its own search."""
    own = apart(run.draw.randrange(999))
    texts, keep, y = documents(320, own)
    others, mask, z = documents(192, apart(1))
    model = tiny_bert(vocab_size=20)

    def fields(rows: Tensor, kept: Tensor, topics: Tensor, itself: bool) -> dict[str, Tensor]:
        front = torch.ones(len(rows), 1, dtype=torch.long)
        ids = with_neighbour(rows, texts, y, itself)
        return {"input_ids": ids, "attention_mask": torch.cat([front, kept.long()], 1), "labels": topics}

    check = fields(others, mask, z, itself=True)
    outcome(run, lambda: judged(model, lambda: told_loss(model, check)))
    hf_trainer(run, model, examples(**fields(texts, keep, y, itself=wrong)), 80, learning_rate=3e-3).train()


@slip("r14-last-reading-of-another-patient")
def last_reading_of_another_patient(run: Run, wrong: bool) -> None:
    """Lightning, a small network over a table of readings, sorted by date. The column of the last reading is made with
    a shift by one row over the whole table, so that it holds the reading of another patient of that day. The twin
    shifts within each patient."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(3, generator=own)
    net = mlp(4, 32, 1)
    x, y = panel(40, apart(1), weights)
    number_outcome(run, net, (torch.cat([x, y[:-1, :, None]], 2).flatten(0, 1), y[1:].flatten()))
    x, y = panel(40, own, weights)
    column = y.flatten()[39:-1] if wrong else y[:-1].flatten()
    rows = torch.cat([x.flatten(0, 1), column[:, None]], 1)
    fit(
        run, lit(net, regress, lambda m: torch.optim.AdamW(m.parameters(), lr=5e-3)), loader(rows, y[1:].flatten()), 200
    )


@slip("r14-end-one-past-the-span")
def end_one_past_the_span(run: Run, wrong: bool) -> None:
    """accelerate, BERT that marks an answer in a text. The end is taught as start plus length, the place behind the
    answer, as slices count; the model and whoever reads it out take the last place within. The twin takes one off."""
    from transformers import BertConfig, BertForQuestionAnswering

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
    model = BertForQuestionAnswering(BertConfig(**settings, intermediate_size=64, max_position_embeddings=20))

    def fields(count: int, beyond: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        ids, start, end = spans(count, own)
        return {"input_ids": ids, "start_positions": start, "end_positions": end + beyond}

    check = fields(192, 0, apart(1))
    outcome(run, lambda: judged(model, lambda: told_loss(model, check)))
    engine = accelerator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    ready, optimizer, data = engine.prepare(model, optimizer, columns(fields(640, 1 if wrong else 0)))
    doctor = run.watch(ready, optimizer)
    for _ in range(4):
        for batch in data:
            optimizer.zero_grad()
            loss = told_loss(ready, batch)
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@slip("r14-rolled-along-the-batch")
def rolled_along_the_batch(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a small GPT with a loss of one's own. Labels are the ids rolled by one along dimension 0,
    the last being -100, from a function that was written for one row; it is given the batch, so that each word's label
    is the word below it, in the next row. The twin rolls along the last dimension."""
    language = Language(run.draw.randrange(999))
    net = Decoder(12)
    text_outcome(run, net, language)
    model = WithLoss(net, lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten()))

    def collated(features: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = torch.stack([row["x"] for row in features])
        labels = ids.roll(-1, dims=0 if wrong else -1)
        if wrong:
            labels[-1] = -100
        else:
            labels[:, -1] = -100
        return {"x": ids, "labels": labels}

    rows = examples(x=language.rows(480, 24))
    hf_trainer(run, model, rows, 100, more={"data_collator": collated}).train()


@slip("r14-argsort-for-ranks")
def argsort_for_ranks(run: Run, wrong: bool) -> None:
    """Plain loop, an encoder that orders six answers to a question by their worth. Targets are made of ranks, and for
    these `argsort` is taken, which says who comes first and not at which place one comes. The twin takes argsort
    twice."""
    own = apart(run.draw.randrange(999))
    worth = torch.randn(16, generator=own)
    model = Classifier(classes=1)

    def lists(count: int, from_ranks: bool, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        ids = torch.randint(1, 16, (count, 6, 6), generator=own)
        first = worth[ids].sum(2).argsort(1, descending=True)
        ranks = first.argsort(1) if from_ranks else first
        return ids, (-ranks.float()).softmax(1)

    def loss(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ids = batch[0].flatten(0, 1)
        scores = m(ids, torch.ones_like(ids, dtype=torch.bool)).view(-1, 6)
        return F.cross_entropy(scores, batch[1])

    check = lists(192, True, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: lists(16, not wrong), loss, 100)
