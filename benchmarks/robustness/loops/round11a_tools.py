"""What the loops of the eleventh round, part a, share: how a fault is named, networks, tasks.

A fault's category and the patterns of a right diagnosis stand in round11a_keys.json, what a loop is meant to do in
round11a_intents.json. The category is the part of a training step in which the mistake lies:
data      what goes into the model: ids, features, the choice of places and rows;
labels    which labels are taught, in which form, with which weight;
model     architecture, weights at the start, forward pass;
loss      formula and reduction.

round11a_proofs.json repeats by `python -m benchmarks.robustness.prove round11a`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from benchmarks.robustness.loops.round9a_tools import noised
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round11a_keys.json").read_text())


def keyed(name: str) -> Callable[..., Any]:
    """A fault with the category and the patterns of its key."""
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


def adamw(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """For Lightning: a constant rate over what is trained."""
    return lambda net: torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=rate, weight_decay=0.01)


def some(*columns: Tensor, size: int = 16) -> Callable[[], tuple[Tensor, ...]]:
    """A batch of rows, drawn without return."""

    def batch() -> tuple[Tensor, ...]:
        chosen = torch.randperm(len(columns[0]))[:size]
        return tuple(column[chosen] for column in columns)

    return batch


# networks


class Patches(nn.Module):
    """An encoder of a row of numbers, `size` numbers a patch, with learned places and a head over the mean state."""

    def __init__(self, length: int, size: int, out: int, width: int = 32) -> None:
        super().__init__()
        self.size, self.enter = size, nn.Linear(size, width)
        self.places = nn.Parameter(0.1 * torch.randn(length // size, width))
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.unflatten(-1, (-1, self.size))) + self.places
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


def patches(shots: Tensor) -> Tensor:
    """(rows, 1, 8, 8) to (rows, 16, 4)."""
    return F.unfold(shots, 2, stride=2).transpose(1, 2)


class ModulatedBlock(nn.Module):
    """Peebles and Xie 2023: norms without weights of their own, shifted, scaled and gated by the condition."""

    def __init__(self, width: int, scale_first: bool) -> None:
        super().__init__()
        self.scale_first = scale_first
        self.norm1, self.norm2 = (nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp, self.modulation = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        if self.scale_first:
            scale1, shift1, gate1, scale2, shift2, gate2 = parts
        else:
            shift1, scale1, gate1, shift2, scale2, gate2 = parts
        h = self.norm1(x) * (1 + scale1) + shift1
        x = x + gate1 * self.attn(h, h, h, need_weights=False)[0]
        out: Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return out


class DiT(nn.Module):
    """The noise in a picture of 16 patches, from the picture, the time and the class, of which the fifth is none."""

    def __init__(self, scale_first: bool = False, width: int = 32, times: int = 40) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, width), nn.Linear(width, 4)
        self.places = nn.Parameter(0.1 * torch.randn(16, width))
        self.times, self.classes = nn.Embedding(times, width), nn.Embedding(5, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width, scale_first) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """x: (rows, 64)."""
        h, condition = self.enter(x.unflatten(-1, (16, 4))) + self.places, self.times(t) + self.classes(y)
        for block in self.blocks:
            h = block(h, condition)
        out: Tensor = self.leave(self.norm(h)).flatten(1)
        return out


KEPT = (1 - torch.linspace(0.001, 0.15, 40)).cumprod(0)


def noise_loss(model: nn.Module, x: Tensor, y: Tensor, own: torch.Generator | None = None) -> Tensor:
    """x: (rows, 64); a time and a noise for each row."""
    t, noise = torch.randint(0, 40, (len(x),), generator=own), torch.randn(x.shape, generator=own)
    return F.mse_loss(model(noised(x, noise, t, KEPT), t, y), noise)


# tasks


def letters(seed: int, count: int, own: torch.Generator, length: int = 12) -> Tensor:
    """Rows of words 4 to 15; a row is of one of six kinds, and kind and place decide seven words of eight."""
    form = torch.randint(4, 16, (6, length), generator=apart(seed + 51))
    rows = form[torch.randint(0, 6, (count,), generator=own)]
    other = torch.rand(rows.shape, generator=own) < 0.125
    return torch.where(other, torch.randint(4, 16, rows.shape, generator=own), rows)


def recurring(seed: int, count: int, length: int, own: torch.Generator | None = None) -> Tensor:
    """Rows of words 4 to 15 in which nine of ten follow from the word six places before."""
    after = torch.randperm(12, generator=apart(seed + 52))
    rows = torch.randint(0, 12, (count, length), generator=own)
    for t in range(6, length):
        known = torch.rand(count, generator=own) < 0.9
        rows[:, t] = torch.where(known, after[rows[:, t - 6]], rows[:, t])
    return rows + 4


def voices(count: int, rate: float, length: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, length) noisy waves of one of four frequencies, read `rate` times as often as usual."""
    y = torch.randint(0, 4, (count,), generator=own)
    speed = torch.tensor([0.3, 0.45, 0.6, 0.9])[y, None] + 0.03 * torch.randn(count, 1, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    wave = (phase + speed * torch.arange(length) / rate).sin()
    return wave + 0.3 * torch.randn(wave.shape, generator=own), y


def loads(count: int, own: torch.Generator) -> Tensor:
    """(count, 36) sums of a slow and a fast wave, in noise."""
    out = torch.zeros(count, 36)
    for low, wide, size in ((0.15, 0.1, 1.0), (0.6, 0.3, 0.6)):
        speed = low + wide * torch.rand(count, 1, generator=own)
        phase = 6.28 * torch.rand(count, 1, generator=own)
        out = out + size * (phase + speed * torch.arange(36)).sin()
    return out + 0.1 * torch.randn(out.shape, generator=own)
