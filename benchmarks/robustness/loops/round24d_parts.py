"""What the loops of round 24d share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round24d_keys.json, what each loop is meant to do in round24d_intents.json; categories are
those of round8b_parts.

round24d_proofs.json repeats by `python -m benchmarks.robustness.prove round24d`.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round24d_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Dilated(nn.Module):
    """Three causal convolutions with growing steps over two columns, the last frame, a head."""

    def __init__(self, classes: int = 4, width: int = 16) -> None:
        super().__init__()
        self.steps = (1, 2, 4)
        sizes = itertools.pairwise([2, width, width, width])
        self.layers = nn.ModuleList(nn.Conv1d(a, b, 3, dilation=d) for (a, b), d in zip(sizes, self.steps, strict=True))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer, step in zip(self.layers, self.steps, strict=True):
            x = layer(F.pad(x, (2 * step, 0))).relu()
        out: Tensor = self.head(x[..., -1])
        return out


class Continuer(nn.Module):
    """A GRU reads the past of a series; a GRU cell goes on from its state, one number at a time, from the number
    before: the true one with the given chance, drawn for each row and place, else its own."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.reader, self.cell = nn.GRU(1, width, batch_first=True), nn.GRUCell(1, width)
        self.head = nn.Linear(width, 1)

    def forward(self, past: Tensor, future: Tensor, chance: float) -> Tensor:
        state, last, out = self.reader(past[..., None])[1][0], past[:, -1:], []
        for t in range(future.shape[1]):
            state = self.cell(last, state)
            out.append(self.head(state))
            told = torch.rand(len(past), 1) < chance
            last = torch.where(told, future[:, t : t + 1], out[-1])
        return torch.cat(out, 1)


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine; its value is the free energy of each row of bits."""

    def __init__(self, seen: int = 16, hidden: int = 12) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.05 * torch.randn(hidden, seen))
        self.seen, self.hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def forward(self, rows: Tensor) -> Tensor:
        return -rows @ self.seen - F.softplus(F.linear(rows, self.weight, self.hidden)).sum(1)

    @torch.no_grad()
    def swept(self, rows: Tensor) -> Tensor:
        """One Gibbs sweep: the hidden bits from the seen ones, and the seen ones from those."""
        hidden = F.linear(rows, self.weight, self.hidden).sigmoid().bernoulli()
        return (hidden @ self.weight + self.seen).sigmoid().bernoulli()

    def surprise(self, rows: Tensor) -> Tensor:
        """The exact mean negative log likelihood, in nats, with the sum over all hidden rows."""
        size = len(self.hidden)
        every = (torch.arange(2**size)[:, None] >> torch.arange(size) & 1).float()
        total = (every @ self.hidden + F.softplus(every @ self.weight + self.seen).sum(1)).logsumexp(0)
        return self(rows).mean() + total


class Neighbours(nn.Module):
    """Two graph convolutions over dense adjacencies, each behind a dropout of a half: three scores for each node."""

    def __init__(self, always: bool, columns: int = 8, width: int = 32) -> None:
        super().__init__()
        self.always = always
        self.first, self.second = nn.Linear(columns, width), nn.Linear(width, 3)

    def dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5) if self.always else F.dropout(x, 0.5, self.training)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        share = edges / edges.sum(2, keepdim=True)
        h = (share @ self.first(self.dropped(nodes))).relu()
        out: Tensor = share @ self.second(self.dropped(h))
        return out


def readings() -> nn.Sequential:
    """A number from six columns."""
    return nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))


# tasks


def strokes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 2, 20): two columns that swing as one of four kinds does, from any phase, in noise, and which kind."""
    from benchmarks.robustness.loops.round5_tools import apart

    y = torch.randint(0, 4, (count,), generator=own)
    turn = 0.3 + 0.9 * torch.rand(4, 2, 1, generator=apart(seed + 61))
    phase = 6.28 * torch.rand(count, 1, 1, generator=own)
    return (turn[y] * torch.arange(20) + phase).sin() + 0.5 * torch.randn(count, 2, 20, generator=own), y


def swings(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) past and (count, 12) future readings of a wave of its own pace, phase and height, in noise."""
    pace, phase = 0.3 + 0.5 * torch.rand(count, 1, generator=own), 6.28 * torch.rand(count, 1, generator=own)
    height = 0.5 + torch.rand(count, 1, generator=own)
    rows = height * (pace * torch.arange(24) + phase).sin() + 0.15 * torch.randn(count, 24, generator=own)
    return rows[:, :12], rows[:, 12:]


def bars(count: int, own: torch.Generator | None = None) -> Tensor:
    """Rows of 16 bits: pictures of 4 by 4 in which whole lines are on, all across or all down."""
    lines = (torch.rand(count, 4, 1, generator=own) < 0.5).float().expand(count, 4, 4)
    down = torch.rand(count, 1, 1, generator=own) < 0.5
    return torch.where(down, lines.transpose(1, 2), lines).flatten(1)


def circles(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Graphs of twelve nodes of three kinds with eight noisy columns, of which the first three point to the kind; edges
    are frequent within a kind and rare between kinds, each node with one to itself. (count, 12, 8), (count, 12, 12),
    (count, 12)."""
    y = torch.randint(0, 3, (count, 12), generator=own)
    nodes = torch.randn(count, 12, 8, generator=own)
    nodes[..., :3] += F.one_hot(y, 3)
    chance = torch.where(y[:, :, None] == y[:, None], 0.5, 0.1)
    upper = (torch.rand(count, 12, 12, generator=own) < chance).float().triu(1)
    return nodes, upper + upper.transpose(1, 2) + torch.eye(12), y
