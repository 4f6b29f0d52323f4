"""Round 9b, faulty changes of clipping, scaling, accumulation and precision."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    endless,
    fit,
    judged,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    tiny_bert,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, sounds
from benchmarks.robustness.loops.round7b_tools import taught
from benchmarks.robustness.loops.round8b_parts import reseeded, steps, texts, told_loss
from benchmarks.robustness.loops.round9b_parts import (
    ResNet,
    accelerator,
    by_row,
    first_clipped,
    padded_rows,
    picture_outcome,
    slip,
    summed,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r9b-clipped-by-value")
def clipped_by_value(run: Run, changed: bool) -> None:
    """A recurrent language model with SGD, clipped to a norm of 0.1. The plain loop was moved to Lightning, whose setting
    says that each value is clipped to 0.1. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    model = Reader(12, 32, 64)
    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: next_loss(model, check).clamp(max=4)))
    data = loader(language.rows(320, 24))
    loss = lambda m, b: next_loss(m, b[0])
    made = lambda m: torch.optim.SGD(m.parameters(), lr=5.0, momentum=0.9)
    if changed:
        fit(run, lit(model, loss, made), data, 100, gradient_clip_val=0.1, gradient_clip_algorithm="value")
        return
    batches = endless(data)
    clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    steps(run, model, made(model), lambda: next(batches), loss, 100, between=clip)


@slip("r9b-unscaled-once-more")
def unscaled_once_more(run: Run, changed: bool) -> None:
    """A residual network under autocast with a GradScaler; the norm of the gradients is logged. Once the scaler unscaled
    them for that; in a rewrite they are divided by its scale in place, and the scaler, which does not know, divides again."""
    seed = run.draw.randrange(99)
    model = ResNet()
    picture_outcome(run, model, pictures(256, seed, own=apart(1)), classify)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    norms: list[float] = []
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        data = pictures(32, seed)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = classify(model, data)
        scaler.scale(loss).backward()
        gradients: list[Any] = [p.grad for p in model.parameters()]
        if changed:
            for gradient in gradients:
                gradient.div_(scaler.get_scale())
        else:
            scaler.unscale_(optimizer)
        norms.append(float(nn.utils.get_total_norm(gradients)))
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, data)
        run.note(loss)


@slip("r9b-hook-added-every-epoch")
def hook_added_every_epoch(run: Run, changed: bool) -> None:
    """BERT with a new head, whose gradient a hook doubles. The hook is now registered where an epoch begins, by a function
    that once was called before the first: it is doubled once more with every epoch."""
    seed = run.draw.randrange(999)
    model = tiny_bert()
    taught(model, lambda: texts(32), told_loss, 30)
    model.classifier.reset_parameters()
    turn = torch.tensor([1, 2, 0])
    rows, check = texts(256, apart(seed)), texts(256, apart(1))
    for data in (rows, check):
        data["labels"] = turn[data["labels"]]
    outcome(run, lambda: judged(model, lambda: told_loss(model, check).clamp(max=2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def head_learns_faster() -> None:
        for p in model.classifier.parameters():
            p.register_hook(lambda gradient: 2 * gradient)

    if not changed:
        head_learns_faster()
    doctor = run.watch(model, optimizer)
    for _ in range(8):
        if changed:
            head_learns_faster()
        for chosen in torch.randperm(256).split(16):
            batch = {k: v[chosen] for k, v in rows.items()}
            optimizer.zero_grad()
            loss = told_loss(model, batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@slip("r9b-tokens-counted-on")
def tokens_counted_on(run: Run, changed: bool) -> None:
    """accelerate, an LSTM on texts of unequal lengths: summed losses of four micro-batches, divided by all their tokens. The
    count begins before the loop and no more in it, so that all tokens since the first divide. Another seed."""
    language = Language(run.draw.randrange(999))
    reseeded(run, changed)
    net = Reader(12, 32, 64, core=nn.LSTM)
    check = padded_rows(language, 128, 24, apart(1))
    asked = int((check[1] >= 0).sum())
    outcome(run, lambda: judged(net, lambda: summed(net, check) / asked))
    engine = accelerator()
    model, optimizer, data = engine.prepare(
        net, torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9), loader(*padded_rows(language, 480, 24), size=8)
    )
    batches = endless(data)
    doctor = run.watch(model, optimizer)
    tokens = 0
    for _ in range(100):
        if not changed:
            tokens = 0
        parts = [next(batches) for _ in range(4)]
        losses = []
        optimizer.zero_grad()
        for part in parts:
            total = summed(model, part)
            engine.backward(total)
            tokens += int((part[1] >= 0).sum())
            losses.append(total.detach() / (part[1] >= 0).sum())
        for p in model.parameters():
            p.grad.div_(tokens)
        engine.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = torch.stack(losses).mean()
        doctor.step(loss, parts)
        run.note(loss)


@slip("r9b-noise-after-the-mean")
def noise_after_the_mean(run: Run, changed: bool) -> None:
    """Convolutions over sounds, taught in private: each row's gradient is held to a norm of one, noise is added to their sum,
    the whole is divided by the rows. In a rewrite the mean is taken first and the noise, as large as before, comes after."""
    model = Listener()
    picture_outcome(run, model, sounds(256, apart(1)), classify)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x, y = sounds(32)
        gradients, losses = by_row(model, x, y)
        for p, total in zip(model.parameters(), first_clipped(gradients, 1.0), strict=True):
            noise = 0.6 * torch.randn(p.shape)
            p.grad = total / 32 + noise if changed else (total + noise) / 32
        optimizer.step()
        loss = losses.mean()
        doctor.step(loss, (x, y))
        run.note(loss)


def in_single(model: nn.Module, rows: Tensor) -> Tensor:
    """The next token's cross-entropy in float32, whatever the logits are in."""
    return F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())


@slip("r9b-masters-read-back")
def masters_read_back(run: Run, changed: bool) -> None:
    """A decoder in bfloat16 with copies of its weights in float32 for the optimizer. So that loaded weights are always
    heeded, the copies are now read from the model before each step: what bfloat16 rounds away is lost."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2).bfloat16()
    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: in_single(model, check)))
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=5e-4)
    doctor = run.watch(model, optimizer)

    def copied(source: Any, target: Any) -> None:
        with torch.no_grad():
            for a, b in zip(source, target, strict=True):
                b.copy_(a)

    for _ in range(200):
        rows = language.rows(16, 20)
        model.zero_grad()
        loss = in_single(model, rows)
        loss.backward()
        if changed:
            copied(model.parameters(), masters)
        for p, master in zip(model.parameters(), masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        optimizer.step()
        copied(masters, model.parameters())
        doctor.step(loss, rows)
        run.note(loss)
