"""Round 12b, mistakes when a model or a run is taken up again, and in which weights are to learn."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Language, apart, examples, hf_trainer, judged, outcome
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import (
    causal_loss,
    causal_outcome,
    steps,
    text_class_outcome,
    texts,
)
from benchmarks.robustness.loops.round9a_tools import bart, bert, translations
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.round12b_parts import grown, half_cosine, slip
from torch import nn


def with_more_words(model: Any, words: int, as_drawn: bool) -> None:
    """A longer table, for input and output."""
    old = model.transformer.wte.weight.detach()
    table = nn.Embedding(words, old.shape[1])
    with torch.no_grad():
        if not as_drawn:
            table.weight.mul_(0.02).add_(old.mean(0))
        table.weight[: len(old)] = old
    model.transformer.wte = table
    model.lm_head.weight = table.weight
    model.config.vocab_size = words


@slip("r12b-new-words-as-drawn")
def new_words_as_drawn(run: Run, changed: bool) -> None:
    """A GPT-2 with one table for input and output is given eight words more. New rows were the mean of the old ones and
    a little noise; the function was written anew, and they are what nn.Embedding draws, with a deviation of one."""
    language = Language(run.draw.randrange(999))
    more = grown(language, run.draw.randrange(999), 20)
    model = bare_gpt2(12)
    taught(model, lambda: language.rows(16, 20), causal_loss, 80, 3e-3)
    with_more_words(model, 20, as_drawn=changed)
    causal_outcome(run, model, more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, half_cosine(90))
    steps(run, model, optimizer, lambda: more.rows(16, 20), causal_loss, 90, after=lambda _: schedule.step())


@slip("r12b-length-of-what-is-left")
def length_of_what_is_left(run: Run, changed: bool) -> None:
    """transformers' Trainer, BART, taken up half way with its optimizer and its schedule. The cosine is now made for
    the steps that are left, while the loaded count goes on: it is at its end at once. Another order of rows."""
    table = 4 + torch.randperm(12, generator=apart(run.draw.randrange(999)))
    (source, labels), check = (translations(n, table, apart(k)) for n, k in ((480, 900), (128, 901)))
    model = bart(16)
    before = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    kept = torch.optim.lr_scheduler.LambdaLR(before, half_cosine(120))
    for _ in range(60):
        at = torch.randint(0, 480, (16,))
        before.zero_grad()
        model(input_ids=source[at], labels=labels[at]).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        before.step()
        kept.step()
    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, half_cosine(60 if changed else 120))
    optimizer.load_state_dict(before.state_dict())
    schedule.load_state_dict(kept.state_dict())
    seeds = run.draw.randrange(9999), run.draw.randrange(9999)
    more = {"optimizers": (optimizer, schedule)}
    data = examples(input_ids=source, labels=labels)
    hf_trainer(run, model, data, 60, more=more, seed=seeds[changed]).train()


@slip("r12b-layer-ten-begins-with-one")
def layer_ten_begins_with_one(run: Run, changed: bool) -> None:
    """transformers' Trainer, a BERT of twelve layers of which the last two learn, and the head. Layers to freeze are
    found by the beginnings of names, whose closing dot was lost: layer.10 and layer.11 begin with layer.1."""
    model = bert("BertForSequenceClassification", num_hidden_layers=12, num_labels=3, initializer_range=0.02)
    train, check = texts(480, apart(900)), texts(256, apart(901))
    text_class_outcome(run, model, check)
    dot = "" if changed else "."
    fixed = ("bert.embeddings.", *(f"bert.encoder.layer.{i}{dot}" for i in range(10)))
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(fixed))
    hf_trainer(run, model, examples(**train), 80, learning_rate=4e-3, max_grad_norm=1.0).train()
