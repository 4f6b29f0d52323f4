"""What the loops of the tenth round, part a, share: how a fault is named, ways to train, tasks.

A fault's category and the patterns of a right diagnosis stand in round10a_keys.json, what a loop is meant to do in
round10a_intents.json. The category is the part of a training step in which the mistake lies:
data      what goes into the model: ids, features, places, the choice of rows;
labels    which labels are taught, in which form, at which place;
model     architecture, weights at the start, forward pass;
loss      formula and reduction.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import apart
from torch import Tensor, nn

KEYS = json.loads((Path(__file__).parent / "round10a_keys.json").read_text())


def keyed(name: str) -> Callable[..., Any]:
    """A fault with the category and the patterns of its key."""
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def plain(
    run: Run,
    model: nn.Module,
    batches: Callable[[], Any],
    loss: Callable[[Any], Tensor],
    steps: int,
    rate: float = 5e-3,
) -> None:
    """A plain loop: AdamW, ten steps of warm-up and a cosine to a tenth, clipping at 1."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    factor = lambda step: min((step + 1) / 10, 0.55 + 0.45 * math.cos(math.pi * min(step / steps, 1.0)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    doctor = run.watch(model, optimizer)
    model.train()
    for _ in range(steps):
        batch = batches()
        optimizer.zero_grad()
        value = loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        doctor.step(value, batch)
        run.note(value)


def tuned(
    model: nn.Module, batches: Callable[[], Any], loss: Callable[[Any], Tensor], steps: int, rate: float = 3e-3
) -> None:
    """Before the script begins: the checkpoint that it starts from."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    for _ in range(steps):
        optimizer.zero_grad()
        loss(batches()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def adamw(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """For Lightning: a constant rate."""
    return lambda net: torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.01)


def titled(seed: int, count: int, length: int, own: torch.Generator | None = None) -> Tensor:
    """(count, length) ids: a title, 4 to 9, then words, 10 to 21, of which each title has frequent ones."""
    liked = 2.5 * torch.randn(6, 12, generator=apart(seed + 31))
    after = 0.7 * torch.randn(12, 12, generator=apart(seed + 32))
    titles = torch.randint(0, 6, (count,), generator=own)
    rows = torch.randint(0, 12, (count, length), generator=own)
    for t in range(2, length):
        chance = (liked[titles] + after[rows[:, t - 1]]).softmax(-1)
        rows[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
    rows = rows + 10
    rows[:, 0] = 4 + titles
    return rows


def tagged(
    count: int, table: Tensor, own: torch.Generator, least: int = 6, most: int = 14
) -> list[tuple[list[int], list[int]]]:
    """Rows of words 4 to 15 and a tag for each, of the word's group and the group of the one before it."""
    out = []
    for size in torch.randint(least, most + 1, (count,), generator=own).tolist():
        words = torch.randint(4, 16, (size,), generator=own)
        group = words % 3
        before = torch.cat([torch.zeros(1, dtype=torch.long), group[:-1]])
        out.append((words.tolist(), table[before, group].tolist()))
    return out


def tag_table(own: torch.Generator) -> Tensor:
    """(3, 3) tags 0 to 3; every tag occurs."""
    return torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0])[torch.randperm(9, generator=own)].view(3, 3)


def recitals(seed: int, sizes: list[int], own: torch.Generator) -> list[list[int]]:
    """Rows of words 4 to 15 of the given sizes: the first is a title, and title and place decide each other word."""
    table = torch.randint(4, 16, (12, 24), generator=apart(seed + 41))
    table[:, 0] = torch.arange(4, 16)
    titles = torch.randint(0, 12, (len(sizes),), generator=own).tolist()
    return [table[title, :size].tolist() for title, size in zip(titles, sizes, strict=True)]


def joined(rows: list[list[int]], end: int) -> Tensor:
    """One stream of rows, each followed by `end`."""
    return torch.tensor([word for row in rows for word in [*row, end]])
