"""A next-token loop whose parts a fault replaces."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, add_fault
from benchmarks.robustness.loops.text import corpus, crops
from benchmarks.robustness.loops.training import adamw, next_token, warm_cosine
from benchmarks.robustness.loops.transformer import Transformer
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]

FUTURE = r"causal|future|later (token|position)|ahead|leak"


def identity(value: Any) -> Any:
    return value


@dataclass
class Plan:
    """What a next-token loop is made of; a fault replaces a part of it."""

    shape: dict[str, Any] = field(default_factory=dict)
    steps: int = 80
    length: int = 32
    micro: int = 1
    batch: Callable[[Batch], Batch] = identity
    loss: Callable[[Tensor, Tensor], Tensor] = next_token
    optimizer: Callable[[nn.Module], Any] = adamw
    scheduler: Callable[[Any, int], Any] = warm_cosine
    scheduler_steps: int = 1
    clip: float = 1.0
    clip_late: bool = False
    divide: bool = True
    zero: str = "before"  # the backward pass; or "between" it and the update, or "never"
    prepare: Callable[[nn.Module], Any] = identity
    after_optimizer: Callable[[nn.Module], Any] = identity
    autocast: Any = None
    mode_after: int | None = None  # the step after which a validation leaves eval mode on


def train(run: Run, plan: Plan) -> None:
    tokens = corpus(run.draw.randrange(1000))
    model = Transformer(**plan.shape)
    plan.prepare(model)
    optimizer = plan.optimizer(model)
    plan.after_optimizer(model)
    scheduler = plan.scheduler(optimizer, plan.steps)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    run.preflight(doctor, plan.batch(crops(tokens, 8, plan.length)), lambda m, b: plan.loss(m(b[0]), b[1]))
    for step in range(plan.steps):
        micro = [plan.batch(crops(tokens, 8, plan.length)) for _ in range(plan.micro)]
        if plan.zero == "before":
            optimizer.zero_grad()
        total = 0.0
        for x, y in micro:
            if plan.autocast is not None:
                with torch.autocast("cpu", plan.autocast):
                    loss = plan.loss(model(x), y)
            else:
                loss = plan.loss(model(x), y)
            (loss / plan.micro if plan.divide else loss).backward()
            total += float(loss.detach()) / plan.micro
        if plan.zero == "between":
            optimizer.zero_grad(set_to_none=False)
        if plan.clip and not plan.clip_late:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimizer.step()
        if plan.clip and plan.clip_late:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        doctor.step(total, micro[0] if plan.micro == 1 else micro)
        for _ in range(plan.scheduler_steps):
            scheduler.step()
        run.note(total)
        if plan.mode_after is not None and step % 20 == 19:
            model.eval()
            with torch.no_grad():
                model(crops(tokens)[0])
            if step != plan.mode_after:
                model.train()


def swap(name: str, category: str, what: str, wanted: str | tuple[str, ...], right: Plan, wrong: Plan) -> None:
    """A fault that is one part of the next-token loop replaced."""
    add_fault(name, category, what, wanted, lambda run, slip: train(run, wrong if slip else right))


def slip(name: str, what: str, wanted: str | tuple[str, ...], kind: str = "", **shape: Any) -> None:
    """A fault in the transformer's own code; `kind` is its honest form where that is not the default."""
    swap(name, "model", what, wanted, Plan(shape=shape | {"slip": kind}), Plan(shape=shape | {"slip": name}))
