"""Round 11b, unusual ways to move weights which are meant, each rewritten without harm."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    fit,
    language_outcome,
    lit,
    loader,
    next_loss,
    tiny_bert,
)
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import reseeded, steps, text_class_outcome, texts, told_loss
from benchmarks.robustness.loops.round9b_parts import accelerator
from benchmarks.robustness.loops.round11b_parts import Signs, falling
from torch import Tensor, nn


@innocent("r11b-loss-in-thousandths")
def loss_in_thousandths(run: Run, changed: bool) -> None:
    """A small Llama of one's own that moves by signs of averaged gradients. The loss was in nats and is in thousandths
    of a nat now: gradients are a thousand times as large, their signs the same."""
    language = Language(run.draw.randrange(999))
    model = SmallLlama()
    language_outcome(run, model, language, 20)
    optimizer = Signs(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, falling(120))

    def told(net: Any, rows: Tensor) -> Tensor:
        return 1000 * next_loss(net, rows) if changed else next_loss(net, rows)

    steps(run, model, optimizer, lambda: language.rows(16, 20), told, 120, after=lambda _: schedule.step())


@innocent("r11b-head-drawn-anew")
def head_drawn_anew(run: Run, changed: bool) -> None:
    """Lightning, a GPT whose head begins anew after thirty and after sixty steps. It drew its weights again in place,
    and takes those of a head made for that purpose now. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    net = Decoder(12)
    language_outcome(run, net, language, 20)

    def rule(net: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)

    base = lit(net, lambda m, batch: next_loss(m, batch[0]), rule)

    def on_train_batch_end(outputs: Any, batch: Any, index: int) -> None:
        if base.global_step in (30, 60):
            if changed:
                net.head.load_state_dict(nn.Linear(32, 12, bias=False).state_dict())
            else:
                net.head.reset_parameters()
            base.optimizers().optimizer.state.pop(net.head.weight, None)

    base.on_train_batch_end = on_train_batch_end
    fit(run, base, loader(language.rows(640, 20)), 120)


@innocent("r11b-two-looks-and-no-backward")
def two_looks_and_no_backward(run: Run, changed: bool) -> None:
    """A head on a frozen BERT learns from losses alone, a little forward and a little backward along random directions.
    The directions were kept in memory and are drawn again from their seeds now; other directions."""
    seed = run.draw.randrange(999)
    model = tiny_bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    taught(model, lambda: texts(32), told_loss, 120)
    model.bert.requires_grad_(False)
    model.classifier = nn.Linear(32, 3)
    moved = torch.tensor([1, 2, 0])

    def batch(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        rows = texts(count, own)
        return rows | {"labels": moved[rows["labels"]]}

    text_class_outcome(run, model, batch(256, apart(901)))
    learning = list(model.classifier.parameters())
    optimizer = torch.optim.SGD(learning, lr=0.3)
    doctor = run.watch(model, optimizer)

    def shift(directions: list[Tensor], by: float) -> None:
        for p, z in zip(learning, directions, strict=True):
            p.add_(z, alpha=by)

    def drawn(number: int) -> list[Tensor]:
        own = apart(100_000 * seed + number)
        return [torch.randn(p.shape, generator=own) for p in learning]

    for step in range(120):
        rows = batch(32)
        losses, slopes = [], [torch.zeros_like(p) for p in learning]
        with torch.no_grad():
            for k in range(8):
                kept = [torch.randn_like(p) for p in learning]
                look = (lambda n=8 * step + k: drawn(n)) if changed else (lambda kept=kept: kept)
                shift(look(), 1e-3)
                up = told_loss(model, rows)
                shift(look(), -2e-3)
                down = told_loss(model, rows)
                shift(look(), 1e-3)
                for slope, z in zip(slopes, look(), strict=True):
                    slope.add_(z, alpha=float(up - down) / 2e-3 / 8)
                losses.append((up + down) / 2)
        for p, slope in zip(learning, slopes, strict=True):
            p.grad = slope
        optimizer.step()
        loss = torch.stack(losses).mean()
        doctor.step(loss, rows)
        run.note(loss)


@innocent("r11b-one-block-a-step")
def one_block_a_step(run: Run, changed: bool) -> None:
    """accelerate, a Llama of one's own of which one block in three learns at each step, with all that is no block. The
    others did not require gradients in that step, and have theirs taken away before the update now."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama(layers=3)
    language_outcome(run, net, language, 20)
    engine = accelerator()
    rule = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01)
    model, optimizer, data = engine.prepare(net, rule, loader(language.rows(640, 20)))
    doctor = run.watch(model, optimizer)
    for _ in range(4):
        for (rows,) in data:
            chosen = run.draw.randrange(3)
            if not changed:
                for number, block in enumerate(net.blocks):
                    block.requires_grad_(number == chosen)
            optimizer.zero_grad()
            loss = next_loss(model, rows)
            engine.backward(loss)
            if changed:
                for number, block in enumerate(net.blocks):
                    if number != chosen:
                        block.zero_grad(set_to_none=True)
            engine.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], 1.0)
            optimizer.step()
            doctor.step(loss, rows)
            run.note(loss)
