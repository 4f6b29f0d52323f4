"""Mistakes in optimizers, schedules, precision, accumulation, clipping and modes."""

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, add_fault, fault
from benchmarks.robustness.loops.plan import Batch, Plan, swap
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops, padded, sentences, some, topics
from benchmarks.robustness.loops.training import adamw, next_token, update
from benchmarks.robustness.loops.transformer import Classifier, Transformer
from torch import nn
from torch.nn import functional as F


def new_head(model: nn.Module) -> None:
    model.head = nn.Linear(32, VOCABULARY, bias=False)


def constant(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def from_zero(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))


def adam_with(**options: Any) -> Callable[[nn.Module], Any]:
    return lambda model: torch.optim.AdamW(model.parameters(), **({"lr": 2e-3, "weight_decay": 0.0} | options))


STALE = r"optimizer|not (in|held)|stale|replaced|never (updated|changed)|holds"

swap(
    "head-replaced-too-late",
    "optimizer",
    "the head is replaced after the optimizer was made",
    STALE,
    Plan(optimizer=adam_with(), prepare=new_head),
    Plan(optimizer=adam_with(), after_optimizer=new_head),
)

swap(
    "zero-grad-forgotten",
    "optimizer",
    "gradients are never cleared",
    r"zero_grad|clear|accumul|left over|old gradient",
    Plan(),
    Plan(zero="never"),
)

swap(
    "zero-grad-too-late",
    "optimizer",
    "zero_grad between backward and step",
    r"zero_grad|clear|between|order|all zero|no gradient|gradients? (is|are) zero",
    Plan(),
    Plan(zero="between"),
)

swap(
    "rate-of-0.5",
    "optimizer",
    "AdamW at a rate of 0.5",
    r"learning rate|\blr\b|\brate\b",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(lr=0.5)),
)

swap(
    "rate-of-1e-8",
    "optimizer",
    "AdamW at a rate of 1e-8",
    r"learning rate|\blr\b|\brate\b|update.*(small|tiny)",
    Plan(optimizer=adam_with(), scheduler=constant),
    Plan(optimizer=adam_with(lr=1e-8), scheduler=constant),
)

swap(
    "scheduler-never-stepped",
    "optimizer",
    "a warmup from zero whose scheduler is never stepped",
    r"schedul|warmup|rate (is|of|stays|was) 0|rate.*zero|\blr",
    Plan(scheduler=from_zero),
    Plan(scheduler=from_zero, scheduler_steps=0),
)

swap(
    "scheduler-stepped-per-row",
    "optimizer",
    "the scheduler is stepped eight times a step, and the rate is at its floor after a tenth of the run",
    r"schedul|rate|\blr",
    Plan(scheduler=lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n)),
    Plan(scheduler=lambda o, n: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, n), scheduler_steps=8),
)

swap(
    "decay-of-10",
    "optimizer",
    "weight_decay=10",
    r"decay",
    Plan(optimizer=adam_with(weight_decay=0.1)),
    Plan(optimizer=adam_with(weight_decay=10.0, lr=5e-3)),
)

swap(
    "betas-swapped",
    "optimizer",
    "betas=(0.999, 0.9)",
    r"beta|β",
    Plan(optimizer=adam_with(betas=(0.9, 0.999))),
    Plan(optimizer=adam_with(betas=(0.999, 0.9))),
)

swap(
    "eps-of-1",
    "optimizer",
    "eps=1.0 in AdamW",
    r"\beps|ε|epsilon",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(eps=1.0)),
)


@fault(
    "optimizer-made-anew",
    "optimizer",
    r"state|moment|new optimizer|re-?created|made (anew|again)|reset|step count|restart|optimizer",
)
def _(run: Run, wrong: bool) -> None:
    """The optimizer is made inside the epoch's loop: its moments are lost every ten steps."""
    model, tokens = Transformer(), corpus(9)
    optimizer = adam_with()(model)
    doctor = run.watch(model, optimizer)
    for step in range(80):
        if wrong and step and step % 10 == 0:
            optimizer = adam_with()(model)
        x, y = crops(tokens)
        loss = next_token(model(x), y)
        update(run, doctor, optimizer, loss, (x, y))


def half(dtype: torch.dtype) -> Callable[[nn.Module], Any]:
    return lambda model: model.to(dtype)


swap(
    "updates-lost-in-bfloat16",
    "precision",
    "weights in bfloat16 at a small rate: most updates round to nothing",
    (r"bf16|bfloat16|precision|half", r"round|lost|too small|vanish|no change|unchanged|swallow"),
    Plan(optimizer=adam_with(lr=1e-5), scheduler=constant),
    Plan(optimizer=adam_with(lr=1e-5), scheduler=constant, prepare=half(torch.bfloat16)),
)

swap(
    "adam-in-float16",
    "precision",
    "weights and moments in float16: eps rounds to zero",
    r"float16|fp16|half",
    Plan(optimizer=adam_with()),
    Plan(optimizer=adam_with(), prepare=half(torch.float16)),
)


def scaled(run: Run, wrong: bool, what: str) -> None:
    model, tokens = Transformer(), corpus(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, enabled=not (what == "none" and wrong))
    doctor = run.watch(model, optimizer, scaler=scaler)
    small = 1e-4 if what == "none" else 1.0  # a weighted loss whose gradients float16 cannot hold
    for group in optimizer.param_groups:
        group["lr"] /= small
    for _ in range(80):
        x, y = crops(tokens)
        with torch.autocast("cpu", torch.float16):
            logits = model(x)
        loss = next_token(logits.float(), y) * small
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if what == "clip":
            if not wrong:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)


add_fault(
    "clipped-before-unscaling",
    "precision",
    "gradients clipped while they still carry the scaler's factor",
    r"unscale|scaler|before.*scal|scaled gradient",
    lambda run, bad: scaled(run, bad, "clip"),
)

add_fault(
    "float16-without-scaler",
    "precision",
    "float16 autocast without a scaler, gradients below its smallest number",
    (r"float16|fp16|half", r"underflow|scal|too small|zero|smallest|subnormal"),
    lambda run, bad: scaled(run, bad, "none"),
)

swap(
    "accumulation-not-divided",
    "accumulation",
    "eight micro-batches' losses added, not averaged, SGD",
    r"accumul|micro|divid|sum of|8",
    Plan(micro=8, steps=60, clip=0.0, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)),
    Plan(micro=8, steps=60, clip=0.0, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), divide=False),
)

swap(
    "clipped-after-the-step",
    "accumulation",
    "clip_grad_norm_ after optimizer.step()",
    (r"clip", r"after|order|no effect|late"),
    Plan(clip=0.3, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.5)),
    Plan(clip=0.3, clip_late=True, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.5)),
)

swap(
    "clipped-to-1e-3",
    "accumulation",
    "gradients clipped at 0.001 in every step, SGD",
    r"clip",
    Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3)),
    Plan(optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.3), clip=1e-3),
)


@fault("mean-of-means", "accumulation", r"unequal|token|micro|weight|mean of")
def _(run: Run, wrong: bool) -> None:
    """Micro-batches of very unequal numbers of targets, each averaged by itself."""
    model, tokens = Transformer(), corpus(11)
    optimizer = adamw(model)
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        micro: list[Batch] = []
        for keep in (32, 2, 2, 2):
            x, y = crops(tokens, 4)
            micro.append((x, y.masked_fill(torch.arange(32) < 32 - keep, -100)))
        count = sum(int((y != -100).sum()) for _, y in micro)
        optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="mean" if wrong else "sum")
            loss = loss / (4 if wrong else count)
            loss.backward()
            total += float(loss.detach())
        optimizer.step()
        doctor.step(total, micro)
        run.note(total)


swap(
    "eval-mode-left-on",
    "mode",
    "model.train() is forgotten after a validation",
    r"eval|train\(\)|training mode|dropout",
    Plan(shape={"dropout": 0.2}, mode_after=10_000),
    Plan(shape={"dropout": 0.2}, mode_after=19),
)


@fault(
    "trunk-without-gradient",
    "mode",
    r"no_grad|no gradient|without (a )?gradient|never (trained|updated|changed)|detach|not trained|grad",
)
def _(run: Run, wrong: bool) -> None:
    """torch.no_grad() around a trunk that the optimizer is meant to train."""
    model, documents = Classifier(classes=4), sentences(12)
    optimizer = adamw(model, 2e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        batch = some(documents, 16)
        ids, mask = padded(batch)
        with torch.set_grad_enabled(not wrong):
            hidden = model.trunk.hidden(ids, mask.bool())
        logits = model.classes((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        loss = F.cross_entropy(logits, topics(batch))
        update(run, doctor, optimizer, loss, {"input_ids": ids, "attention_mask": mask, "labels": topics(batch)})
