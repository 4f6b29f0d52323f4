"""Round 13c, mistakes in optimizers, rates and averages."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    examples,
    hf_trainer,
    language_outcome,
    next_loss,
)
from benchmarks.robustness.loops.round7b_tools import near
from benchmarks.robustness.loops.round8b_parts import causal_outcome
from benchmarks.robustness.loops.round10b_parts import bare_gpt2
from benchmarks.robustness.loops.round13c_parts import slip
from torch import nn


@slip("r13c-rate-set-in-the-first-group")
def rate_set_in_the_first_group(run: Run, wrong: bool) -> None:
    """Plain loop, a small GPT whose rate, warm-up and cosine, is written into the optimizer before each step. Since
    decay was taken from norms, biases and embeddings there are two groups, and only the first is given the rate; the
    second stays at what the optimizer was made with, zero. The twin writes it into both."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    for table in (model.tokens, model.places):
        nn.init.normal_(table.weight, std=0.02)
    model.head.weight = model.tokens.weight
    language_outcome(run, model, language)
    vectors = [p for n, p in model.named_parameters() if p.ndim == 1 or n in ("tokens.weight", "places.weight")]
    kept = {id(p) for p in vectors}
    matrices = [p for p in model.parameters() if id(p) not in kept]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    doctor = run.watch(model, optimizer)
    for step in range(120):
        rate = 5e-3 * min((step + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * step / 120))
        if wrong:
            optimizer.param_groups[0]["lr"] = rate
        else:
            for group in optimizer.param_groups:
                group["lr"] = rate
        rows = language.rows(16, 24)
        optimizer.zero_grad()
        loss = next_loss(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, rows)
        run.note(loss)


@slip("r13c-shares-of-absent-clients")
def shares_of_absent_clients(run: Run, wrong: bool) -> None:
    """Plain loop, federated averaging of a small GPT. Three of eight clients take part in a round, and their weights
    are averaged by their numbers of texts; these are divided by the texts of all eight, so that the shares do not add
    up to one and every round shrinks the model. The twin divides by the texts of those who took part."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    language_outcome(run, model, language)
    sizes = [run.draw.randrange(40, 160) for _ in range(8)]
    texts = [near(language, 2000 + k, 0.1).rows(n, 24) for k, n in enumerate(sizes)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    doctor = run.watch(model, optimizer)
    for _ in range(32):
        present = run.draw.sample(range(8), 3)
        whole = sum(sizes) if wrong else sum(sizes[k] for k in present)
        start = [p.detach().clone() for p in model.parameters()]
        average = [torch.zeros_like(p) for p in start]
        for k in present:
            with torch.no_grad():
                for p, value in zip(model.parameters(), start, strict=True):
                    p.copy_(value)
            for _ in range(3):
                rows = texts[k][torch.randint(0, sizes[k], (16,))]
                optimizer.zero_grad()
                loss = next_loss(model, rows)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                doctor.step(loss, rows)
                run.note(loss)
            for total, p in zip(average, model.parameters(), strict=True):
                total.add_(p.detach(), alpha=sizes[k] / whole)
        with torch.no_grad():
            for p, value in zip(model.parameters(), average, strict=True):
                p.copy_(value)


@slip("r13c-warmup-in-whole-numbers")
def warmup_in_whole_numbers(run: Run, wrong: bool) -> None:
    """transformers' Trainer, GPT-2 with a schedule of one's own, a rise over forty steps and then level. The share is
    step // 40, the whole-number division: the rate is zero for all of the forty steps and jumps to its height. The twin
    divides by /."""
    language = Language(run.draw.randrange(999))
    model = bare_gpt2(12)
    causal_outcome(run, model, language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)

    def share(step: int) -> float:
        return min(1.0, step // 40) if wrong else min(1.0, (step + 1) / 40)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    rows = language.rows(640, 20)
    more: dict[str, Any] = {"optimizers": (optimizer, schedule)}
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 90, more=more).train()
