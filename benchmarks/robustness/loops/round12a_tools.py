"""What the loops of the twelfth round, part a, share: how a fault is named, networks, tasks.

A fault's category and the patterns of a right diagnosis stand in round12a_keys.json, what a loop is meant to do in
round12a_intents.json. The category is the part of a training step in which the mistake lies:
data      what goes into the model: ids, pictures, edges, what belongs to which row;
labels    which labels are taught, and to which rows and places they belong;
model     architecture, settings, weights at the start, forward pass;
loss      formula and reduction.

round12a_proofs.json repeats by `python -m benchmarks.robustness.prove round12a`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round12a_keys.json").read_text())


def keyed(name: str) -> Callable[..., Any]:
    """A fault with the category and the patterns of its key."""
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Messages(nn.Module):
    """Two rounds of messages along edges, the mean state of each graph, a head."""

    def __init__(self, kinds: int, classes: int, width: int = 24) -> None:
        super().__init__()
        self.kinds = nn.Embedding(kinds, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.heard = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.head = mlp(width, width, classes)

    def forward(self, kinds: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        """kinds: (nodes,); edges: (2, edges), from and to; graph: (nodes,), the row that a node belongs to."""
        h, (source, target) = self.kinds(kinds), edges
        degree = torch.ones(len(kinds), 1).index_add(0, target, torch.ones(len(target), 1))
        for own, heard in zip(self.own, self.heard, strict=True):
            told = torch.zeros_like(h).index_add(0, target, h[source]) / degree
            h = (own(h) + heard(told)).relu()
        rows = int(graph.max()) + 1
        size = torch.zeros(rows, 1).index_add(0, graph, torch.ones(len(graph), 1))
        out: Tensor = self.head(torch.zeros(rows, h.shape[1]).index_add(0, graph, h) / size)
        return out


class Seeing(nn.Module):
    """A small GPT that reads pictures: four patches of a picture take the places of four placeholders."""

    def __init__(self, words: int, placeholder: int, width: int = 32) -> None:
        super().__init__()
        self.placeholder, self.project = placeholder, nn.Linear(16, width)
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, shots: Tensor) -> Tensor:
        """shots: (pictures, 1, 8, 8), in the order of the rows that have one."""
        seen = self.project(F.unfold(shots, 4, stride=4).transpose(1, 2))
        x = self.tokens(ids).masked_scatter((ids == self.placeholder)[..., None], seen)
        x = x + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


def waves_of_places(side: int, width: int, indexing: str) -> Tensor:
    """(side * side, width) sines and cosines, half of them of each coordinate of the grid."""
    first, second = torch.meshgrid(torch.arange(side), torch.arange(side), indexing=indexing)
    speed = 1 / 100 ** (torch.arange(width // 4) / (width // 4))
    angles = [at.flatten()[:, None] * speed for at in (first, second)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1)


class GridViT(nn.Module):
    """A vision transformer over patches of 2 by 2 whose places are computed and not kept in its file."""

    def __init__(self, indexing: str = "ij", classes: int = 4, width: int = 32) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(4, width)
        self.register_buffer("pos_embed", waves_of_places(4, width, indexing), persistent=False)
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, shots: Tensor) -> Tensor:
        h = self.patch_embed(F.unfold(shots, 2, stride=2).transpose(1, 2)) + self.pos_embed
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


class Separator(nn.Module):
    """Two voices from their sum, four moments a patch."""

    def __init__(self, length: int, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, width), nn.Linear(width, 8)
        self.places = nn.Parameter(0.1 * torch.randn(length // 4, width))
        self.blocks, self.norm = nn.ModuleList(Block(width, causal=False) for _ in range(2)), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, length) to (rows, 2, length)."""
        h = self.enter(x.unflatten(1, (-1, 4))) + self.places
        for block in self.blocks:
            h = block(h)
        return self.leave(self.norm(h)).unflatten(-1, (2, 4)).transpose(1, 2).flatten(2)


# tasks


def networks(count: int, own: torch.Generator) -> list[tuple[Tensor, Tensor, int]]:
    """Graphs of 5 to 9 nodes of three kinds: kinds, edges of both directions, and whether equal kinds are joined."""
    out = []
    for y in torch.randint(0, 2, (count,), generator=own).tolist():
        size = int(torch.randint(5, 10, (1,), generator=own))
        kinds = torch.randint(0, 3, (size,), generator=own)
        alike = kinds[:, None] == kinds[None]
        chance = torch.where(alike == bool(y), 0.85, 0.15) * (1 - torch.eye(size))
        pairs = torch.multinomial(chance.flatten(), 2 * size, generator=own)
        edges = torch.stack([pairs // size, pairs % size])
        out.append((kinds, torch.cat([edges, edges.flip(0)], 1), y))
    return out


def long_texts(count: int, own: torch.Generator) -> tuple[list[str], list[int]]:
    """Texts of 6 to 36 words w4 to w18; the topic is the group of five words that is more frequent."""
    y = torch.randint(0, 3, (count,), generator=own)
    ours = 4 + 5 * y[:, None] + torch.randint(0, 5, (count, 36), generator=own)
    words = torch.where(
        torch.rand(count, 36, generator=own) < 0.6, ours, torch.randint(4, 19, (count, 36), generator=own)
    )
    sizes = torch.randint(6, 37, (count,), generator=own).tolist()
    rows = [" ".join(f"w{w}" for w in row[:size]) for row, size in zip(words.tolist(), sizes, strict=True)]
    return rows, y.tolist()


def scenes(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures of 8 by 8 and the class of each pixel, 0 to 2: regions of three brightnesses, in noise."""
    ground = F.interpolate(torch.randn(count, 1, 4, 4, generator=own), scale_factor=2, mode="bilinear")
    y = (ground > -0.3).long() + (ground > 0.3).long()
    return (y - 1.0) + 0.5 * torch.randn(y.shape, generator=own), y[:, 0]


def forms(count: int, tables: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 16) ids: a start, three fields of eight words each, eight words of filling, a colon, and what the tables,
    (3, 8), say of the three fields; the labels are these three."""
    fields = torch.randint(0, 8, (count, 3), generator=own)
    said = 41 + tables[torch.arange(3), fields]
    filling = torch.randint(28, 40, (count, 8), generator=own)
    one = torch.ones(count, 1, dtype=torch.long)
    ids = torch.cat([one, 4 + 8 * torch.arange(3) + fields, filling, 40 * one, said], 1)
    labels = ids.clone()
    labels[:, :-3] = -100
    return ids, labels


def duets(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 32) the sum of a low and a high voice, and both, (count, 2, 32), in either order."""
    low, high = 0.2 + 0.15 * torch.rand(count, 1, generator=own), 0.9 + 0.4 * torch.rand(count, 1, generator=own)
    phase = 2 * math.pi * torch.rand(2, count, 1, generator=own)
    voices = torch.stack([(p + s * torch.arange(32)).sin() for p, s in zip(phase, (low, high), strict=True)], 1)
    turned = torch.rand(count, 1, 1, generator=own) < 0.5
    voices = torch.where(turned, voices.flip(1), voices)
    return voices.sum(1) + 0.05 * torch.randn(count, 32, generator=own), voices


def described(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 64) sums of three patterns of four each, in noise, and three words, 0 to 11, that name the patterns."""
    templates = torch.randn(3, 4, 64, generator=apart(seed + 71))
    which = torch.randint(0, 4, (count, 3), generator=own)
    clean = templates[torch.arange(3), which].sum(1)
    return clean + 0.3 * torch.randn(clean.shape, generator=own), which + 4 * torch.arange(3)
