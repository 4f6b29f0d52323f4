"""Mistakes planted in a training loop, each with the rule that names it and the step by which it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from doctor.bench import Loop, batch, groups, mean_loss, warm


def no_clear(loop: Loop) -> None:
    loop.clear = lambda: None


def cleared_too_early(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.zero_grad()


def set_to_zero(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.zero_grad(set_to_none=False)


def clip_nothing(loop: Loop) -> None:
    spent = loop.model.parameters()
    list(spent)
    loop.clip = lambda: torch.nn.utils.clip_grad_norm_(spent, 1e-3)


def schedule_first(loop: Loop) -> None:
    def step() -> tuple[float, list[Any]]:
        given = loop.batch(loop.number)
        loss = loop.loss(given)
        loss.backward()
        loop.scheduler.step()
        loop.optimizer.step()
        loop.clear()
        return float(loss.detach()), [given]

    loop.step = step


def too_low(loop: Loop) -> None:
    loop.optimizer = torch.optim.AdamW(groups(loop.model), lr=1e-10)
    loop.scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, warm)


def restored(loop: Loop) -> None:
    first = {name: tensor.clone() for name, tensor in loop.model.state_dict().items()}
    loop.clear = lambda: (loop.optimizer.zero_grad(), loop.model.load_state_dict(first))


def same_batch(loop: Loop) -> None:
    loop.batch = lambda number: batch(0)


def schedule_in_the_inner_loop(loop: Loop) -> None:
    def backward(loss: Tensor) -> None:
        loss.backward()
        loop.scheduler.step()

    loop.backward = backward


def eval_mode(loop: Loop) -> None:
    for block in loop.model.blocks:
        block.dropout.p = 0.1

    def step() -> tuple[float, list[Any]]:
        if loop.number == 5:
            loop.model.eval()
        return Loop.step(loop)

    loop.step = step


def uneven(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        kept = 2 if number % 2 else 20
        return x, y.index_fill(1, torch.arange(kept, y.shape[1]), -100)

    loop.batch = some


def not_divided(loop: Loop) -> None:
    loop.loss = lambda given: mean_loss(loop.model, given)


def noise(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        return (torch.full_like(x, 7), torch.full_like(y, 7)) if 30 <= number < 33 else (x, y)

    loop.batch = some


def sorted_data(loop: Loop) -> None:
    def some(number: int) -> Any:
        x, y = batch(number)
        return (x // 2, y // 2) if number < 20 else (x, y)

    loop.batch = some


def stepped_twice(loop: Loop) -> None:
    loop.clip = lambda: loop.optimizer.step()


FAULTS: list[tuple[Callable[[Loop], None], str, int, int]] = [
    (no_clear, "gradients-not-cleared", 1, 3),
    (cleared_too_early, "step-without-gradients", 1, 3),
    (set_to_zero, "step-without-gradients", 1, 3),
    (clip_nothing, "clipping-misses-parameters", 1, 3),
    (schedule_first, "schedule-before-update", 1, 4),
    (too_low, "learning-rate-too-low", 1, 4),
    (restored, "weights-never-change", 1, 4),
    (stepped_twice, "stepped-twice", 1, 2),
    (same_batch, "batch-repeats", 1, 4),
    (schedule_in_the_inner_loop, "schedule-per-micro-batch", 4, 5),
    (eval_mode, "trained-in-eval-mode", 1, 7),
    (uneven, "loss-mean-of-means", 2, 1),
    (not_divided, "accumulation-not-divided", 2, 1),
    (noise, "corrupt-batch", 1, 33),
    (sorted_data, "data-sorted", 1, 34),
]
