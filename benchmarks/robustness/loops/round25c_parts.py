"""What the loops of round 25c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round25c_keys.json, what each loop is meant to do in round25c_intents.json; categories are
those of round8b_parts.

round25c_proofs.json repeats by `python -m benchmarks.robustness.prove round25c`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round25c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Unmixer(nn.Module):
    """Two sounds from one: three convolutions over the samples, (rows, samples) to (rows, 2, samples)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        sizes = ((1, width), (width, width), (width, 2))
        first, second, last = (nn.Conv1d(a, b, 11, padding=5) for a, b in sizes)
        self.layers = nn.Sequential(first, nn.GELU(), second, nn.GELU(), last)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x[:, None])
        return out


class Denoiser(nn.Module):
    """Points without their noise. Around a network stand the scales of Karras and others for data of deviation 0.5, so
    that what goes in and what it is asked for are of size one at any level."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.core = mlp(3, width, width, 2, act=nn.SiLU)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        both = level**2 + 0.25
        inside = self.core(torch.cat([x / both.sqrt(), level.log() / 4], 1))
        out: Tensor = 0.25 / both * x + 0.5 * level / both.sqrt() * inside
        return out


class Flow(nn.Module):
    """Where a point goes at a time between 0 and 1."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.core = mlp(3, width, width, width, 2, act=nn.SiLU)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = self.core(torch.cat([x, time], 1))
        return out


class Shape(nn.Module):
    """Two convolutions, a linear layer, a direction of sixteen numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.layers(x), dim=1)


class Voice(nn.Module):
    """Strided convolutions over a sound, their mean over time, a direction of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 12, 7, 2, 3), nn.ReLU(), nn.Conv1d(12, 24, 5, 2, 2), nn.ReLU())
        self.head = nn.Linear(24, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.head(self.body(x).mean(2)), dim=1)


class Listening(nn.Module):
    """An embedding, a GRU, and at each place as many numbers as the teacher has."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, width)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0])
        return out


class Clicks(nn.Module):
    """The logarithm of the odds that somebody clicks on an item: two vectors, and a bias for each."""

    def __init__(self, users: int, items: int, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for part, size in ((self.users, 0.2), (self.items, 0.2), (self.user_bias, 0.0), (self.item_bias, 0.0)):
            nn.init.normal_(part.weight, std=size)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        bias = (self.user_bias(user) + self.item_bias(item)).squeeze(-1)
        out: Tensor = (self.users(user) * self.items(item)).sum(-1) + bias
        return out


class Speaker(nn.Module):
    """A GRU that is told a word and then what it has said itself: (rows,) and (rows, said) to scores of all next
    words, (rows, 1 + said, words)."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.asked, self.said = nn.Embedding(words, width), nn.Embedding(words, width)
        self.core, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, words)

    def forward(self, asked: Tensor, said: Tensor) -> Tensor:
        heard = torch.cat([self.asked(asked)[:, None], self.said(said)], 1)
        out: Tensor = self.head(self.core(heard)[0])
        return out


class Echo(nn.Module):
    """A plain recurrent network; the matrix from state to state is a part that is handed in."""

    def __init__(self, words: int, step: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.words, self.step, self.head = nn.Embedding(words, width), step, nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        heard = self.words(ids)
        state, states = torch.zeros_like(heard[:, 0]), []
        for t in range(ids.shape[1]):
            state = (heard[:, t] + self.step(state)).tanh()
            states.append(state)
        out: Tensor = self.head(torch.stack(states, 1))
        return out


class Gauge(nn.Module):
    """An LSTM over readings that says at each place what the next one will be."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0]).squeeze(-1)
        return out


# tasks


def two_tones(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 64) sums of a low and a high tone, each as loud as it likes and of any phase, with a little noise, and
    both tones in any order, (count, 2, 64)."""
    low, high = 0.15 + 0.2 * torch.rand(count, 1, generator=own), 0.9 + 0.5 * torch.rand(count, 1, generator=own)
    turn = torch.cat([low, high], 1)[..., None]
    phase = 6.28 * torch.rand(count, 2, 1, generator=own)
    loud = 0.5 + torch.rand(count, 2, 1, generator=own)
    tones = loud * (turn * torch.arange(64) + phase).sin()
    swap = torch.rand(count, generator=own) < 0.5
    tones = torch.where(swap[:, None, None], tones.flip(1), tones)
    return tones.sum(1) + 0.1 * torch.randn(count, 64, generator=own), tones


def windy(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3) readings and a number whose spread is between a fifth and two, as the second reading says."""
    x = torch.randn(count, 3, generator=own)
    spread = 0.2 + 1.8 * (2 * x[:, 1]).sigmoid()
    y = x[:, 0] + 0.5 * (2 * x[:, 2]).sin() + spread * torch.randn(count, generator=own)
    return x, y


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 2) points on a thin ring of radius 0.7."""
    angle = 6.28 * torch.rand(count, 1, generator=own)
    radius = 0.7 + 0.01 * torch.randn(count, 1, generator=own)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def islands(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 2) points of six heaps on a circle of radius two."""
    angle = 6.28 / 6 * torch.randint(0, 6, (count, 1), generator=own)
    return torch.cat([2 * angle.cos(), 2 * angle.sin()], 1) + 0.15 * torch.randn(count, 2, generator=own)


def marks(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 8, 8) pictures of one of ten marks in strong noise, and which one."""
    shapes = (torch.randn(10, 8, 8, generator=apart(seed + 51)) > 0).float()
    y = torch.randint(0, 10, (count,), generator=own)
    return shapes[y][:, None] + 0.8 * torch.randn(count, 1, 8, 8, generator=own), y


def pitches(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 64) tones of one of eight pitches, of any phase, in noise, and which pitch."""
    y = torch.randint(0, 8, (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = ((0.2 + 0.15 * y[:, None]) * torch.arange(64) + phase).sin()
    return (clean + 0.5 * torch.randn(count, 64, generator=own))[:, None], y


def strangers_next(found: Tensor, y: Tensor) -> Tensor:
    """How many rows of a hundred have a nearest row of another kind, as a share."""
    distance = torch.cdist(found, found) + 1e6 * torch.eye(len(found))
    return (y[distance.argmin(1)] != y).float().mean()


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """How far two clouds of points are from each other."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
