"""What the loops of round 21a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round21a_keys.json, what each loop is meant to do in round21a_intents.json; categories are
those of round8b_parts.

round21a_proofs.json repeats by `python -m benchmarks.robustness.prove round21a`.
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

KEYS = json.loads((Path(__file__).parent / "round21a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Forecaster(nn.Module):
    """A GRU over a series, and one number from its last state: (rows, places) to (rows, 1)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Topics(nn.Module):
    """An LSTM over words, the mean of its outputs, a head."""

    def __init__(self, words: int, classes: int = 3, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0].mean(1))
        return out


class Messages(nn.Module):
    """Two rounds in which each node hears the mean of the nodes that have an edge to it, then three scores a node.

    Edges are (2, edges): from, to."""

    def __init__(self, columns: int = 4, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.head = nn.Linear(width, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes).relu()
        for layer in self.rounds:
            h = h + layer(torch.cat([h, heard(h, edges)], 1)).relu()
        out: Tensor = self.head(h)
        return out


class Outline(nn.Module):
    """A U-Net of one floor: four scores for each pixel of a picture in three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.below = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.last = nn.Sequential(nn.Conv2d(36, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(torch.cat([h, self.below(h)], 1))
        return out


class Speller(nn.Module):
    """A GRU in both directions over frames, and for each frame the log probabilities of blank and letters."""

    def __init__(self, columns: int = 8, letters: int = 6, width: int = 32) -> None:
        super().__init__()
        self.core = nn.GRU(columns, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 1 + letters)

    def forward(self, frames: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(frames)[0]).log_softmax(2)
        return out


class Mixer(nn.Module):
    """An MLP-Mixer on pictures of 8 by 8: sixteen patches, two layers that mix places and then channels."""

    def __init__(self, width: int = 32, classes: int = 4) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.places = nn.ModuleList(mlp(16, 32, 16, act=nn.GELU) for _ in range(2))
        self.channels = nn.ModuleList(mlp(width, 64, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.cut(x).flatten(2).transpose(1, 2)
        for i in range(2):
            h = h + self.places[i](self.norms[2 * i](h).transpose(1, 2)).transpose(1, 2)
            h = h + self.channels[i](self.norms[2 * i + 1](h))
        out: Tensor = self.head(h.mean(1))
        return out


class Past(nn.Module):
    """Three causal convolutions with growing steps over three columns, the last frame, a head."""

    def __init__(self, classes: int = 5, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(a, width, 3, dilation=d) for a, d in ((3, 1), (width, 2), (width, 6)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer, step in zip(self.layers, (1, 2, 6), strict=True):
            x = layer(F.pad(x, (2 * step, 0))).relu()
        out: Tensor = self.head(x[..., -1])
        return out


class Factors(nn.Module):
    """A vector for each user and each item and a bias for each item; a score is their product plus the bias."""

    def __init__(self, users: int, items: int, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.bias = nn.Embedding(items, 1)
        for part, size in ((self.users, 0.1), (self.items, 0.1), (self.bias, 0.0)):
            nn.init.normal_(part.weight, std=size)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        out: Tensor = (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)
        return out


def heard(values: Tensor, edges: Tensor) -> Tensor:
    """For each node the mean of those that have an edge to it, nought where there are none."""
    start, end = edges
    total = torch.zeros_like(values).index_add(0, end, values[start])
    count = torch.zeros(len(values)).index_add(0, end, torch.ones(len(end)))
    return total / count.clamp_min(1)[:, None]


def spectrometer() -> nn.Sequential:
    """A number from 48 channels."""
    layers = [nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv1d(8, 8, 5, 2, 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 1))


def locator() -> nn.Sequential:
    """Four numbers from a grey picture of 16 by 16."""
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 4))


# tasks


def calls(count: int, shares: list[float], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Tones of one of four pitches, of any phase, in noise, (count, 1, 64), and which pitch."""
    y = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (0.3 + 0.2 * y[:, None]) + phase).sin()
    return (clean + torch.randn(count, 64, generator=own))[:, None], y


def drifts(count: int, length: int = 13, own: torch.Generator | None = None) -> Tensor:
    """(count, length) readings around a level of each row's own, each three fifths of the one before it and chance."""
    level = 3 * torch.randn(count, 1, generator=own)
    chance = torch.randn(count, length, generator=own)
    rows = [chance[:, 0]]
    for t in range(1, length):
        rows.append(0.6 * rows[-1] + 0.8 * chance[:, t])
    return level + torch.stack(rows, 1)


def about(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) words 1 to 25 and one of five topics, each with five words of its own that are more frequent."""
    y = torch.randint(0, 5, (count,), generator=own)
    ours = 1 + 5 * y[:, None] + torch.randint(0, 5, (count, 12), generator=own)
    alike = torch.rand(count, 12, generator=own) < 0.4
    return torch.where(alike, ours, torch.randint(1, 26, (count, 12), generator=own)), y


def spectra(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 48): two peaks that overlap, each as high as there is of a substance, on a slope; and how much there
    is of the first."""
    amount = torch.rand(count, 2, generator=own)
    channel = torch.arange(48)
    peaks = torch.stack([(-((channel - centre) ** 2) / 18).exp() for centre in (20, 25)])
    slope = torch.rand(count, 1, generator=own) * channel / 48
    return (3 * amount @ peaks + slope)[:, None], amount[:, 0]


def weather(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 6) readings in units of their own, of which the first and the fourth fail once in twelve times and are
    kept as -999, and a number that depends on what they would have been."""
    w = torch.randn(6, generator=apart(seed + 21))
    w[0], w[3] = 1.2, -1.5
    x = torch.randn(count, 6, generator=own)
    y = x @ w + (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + 0.1 * torch.randn(count, generator=own)
    x = x * torch.tensor([8.0, 10.0, 3.0, 20.0, 1.5, 5.0]) + torch.tensor([15.0, 1010.0, 6.0, 60.0, 2.0, 10.0])
    fails = torch.rand(count, 6, generator=own) < torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]) / 12
    return torch.where(fails, -999.0, x), y


def molecules(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 10, 4) nodes and (count, 12, 2) edges between different nodes, each kept once, the lower node first."""
    first = torch.randint(0, 10, (count, 12), generator=own)
    second = (first + torch.randint(1, 10, (count, 12), generator=own)) % 10
    nodes = torch.randn(count, 10, 4, generator=own)
    return nodes, torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 2)


def one_graph(edges: Tensor) -> Tensor:
    """The edges of several graphs of ten nodes, (rows, edges, 2), as those of one: (2, rows times edges)."""
    return (edges + 10 * torch.arange(len(edges))[:, None, None]).flatten(0, 1).T


def headlines(count: int, seed: int, own: torch.Generator | None = None) -> tuple[list[list[str]], Tensor]:
    """Texts of 24 words of 120, few of them frequent and most rare, each class with its likings, and the class."""
    usual = 1 / (2 + torch.arange(120))
    liked = usual * (1.2 * torch.randn(3, 120, generator=apart(seed + 22))).exp()
    y = torch.randint(0, 3, (count,), generator=own)
    ids = torch.multinomial(liked[y], 24, replacement=True, generator=own)
    return [[f"w{i}" for i in row] for row in ids.tolist()], y


def figures(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 16 by 16 of somebody who faces us, a head and two hands, and where the hands are, in
    sixteenths: left hand across and down, right hand across and down. Somebody's left is on our right."""
    middle = torch.randint(6, 9, (count,), generator=own)
    arms = torch.randint(2, 6, (2, count), generator=own)
    across, down = torch.stack([middle + arms[0], middle - arms[1]], 1), torch.randint(6, 14, (count, 2), generator=own)
    x = 0.2 * torch.randn(count, 1, 16, 16, generator=own)
    for picture, m, columns, rows in zip(x, middle.tolist(), across.tolist(), down.tolist(), strict=True):
        picture[0, 1:4, m : m + 2] += 0.6
        for column, row in zip(columns, rows, strict=True):
            picture[0, row : row + 2, column : column + 2] += 1
    return x, (torch.stack([across, down], 2).flatten(1) + 0.5) / 16


def scenes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 20 by 20 in three colours with three rectangles, and each pixel's class, 0 where there is none;
    rectangles of class 1, 2 or 3 are red, green or blue. A later one hides what it lies on."""
    x, y = torch.zeros(count, 3, 20, 20), torch.zeros(count, 20, 20, dtype=torch.long)
    for row in range(count):
        kinds = torch.randint(1, 4, (3,), generator=own).tolist()
        corners = torch.randint(0, 15, (3, 2), generator=own).tolist()
        sizes = torch.randint(3, 7, (3, 2), generator=own).tolist()
        for kind, (top, left), (high, wide) in zip(kinds, corners, sizes, strict=True):
            x[row, :, top : top + high, left : left + wide] = F.one_hot(torch.tensor(kind - 1), 3)[
                :, None, None
            ].float()
            y[row, top : top + high, left : left + wide] = kind
    return x + 0.4 * torch.randn(x.shape, generator=own), y


def spoken(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, list[Tensor]]:
    """(count, 24, 8) frames of five letters 1 to 6, each of two frames and two silent ones behind, and the letters;
    every third letter or so is the one before it again."""
    sounds = 1.5 * torch.randn(6, 8, generator=apart(seed + 23))
    letters = torch.randint(0, 6, (count, 5), generator=own)
    again = torch.rand(count, 5, generator=own) < 0.3
    for t in range(1, 5):
        letters[:, t] = torch.where(again[:, t], letters[:, t - 1], letters[:, t])
    frames = torch.zeros(count, 24, 8)
    for t in range(5):
        frames[:, 2 + 4 * t : 4 + 4 * t] = sounds[letters[:, t], None]
    return frames + 0.4 * torch.randn(frames.shape, generator=own), list(letters + 1)


def questions(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 10) ids and where the answer stands: three to six words 4 to 13, a mark, 14, two words that answer the
    last of them, an end, 2, and padding, 0. The end belongs to the answer."""
    answers = torch.randint(4, 14, (14, 2), generator=apart(seed + 24))
    ids, answer = torch.zeros(count, 10, dtype=torch.long), torch.zeros(count, 10)
    for row, size in enumerate(torch.randint(3, 7, (count,), generator=own).tolist()):
        asked = torch.randint(4, 14, (size,), generator=own)
        ids[row, : size + 4] = torch.cat([asked, torch.tensor([14]), answers[asked[-1]], torch.tensor([2])])
        answer[row, size + 1 : size + 4] = 1
    return ids, answer


def gestures(count: int, seed: int, kinds: list[int], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3, 24): movements along three axes, of the given kinds, in noise, and which kind."""
    y = torch.tensor(kinds)[torch.randint(0, len(kinds), (count,), generator=own)]
    turn = 0.3 + torch.rand(5, 3, 1, generator=apart(seed + 25))
    begin = 6.28 * torch.rand(5, 3, 1, generator=apart(seed + 26))
    clean = (begin[y] + turn[y] * torch.arange(24)).sin()
    return clean + 0.8 * torch.randn(clean.shape, generator=own), y
