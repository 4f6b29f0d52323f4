"""What the loops of round 25a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round25a_keys.json, what each loop is meant to do in round25a_intents.json; categories are
those of round8b_parts.

round25a_proofs.json repeats by `python -m benchmarks.robustness.prove round25a`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from benchmarks.robustness.loops.round21a_parts import heard
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round25a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Columns(nn.Module):
    """A transformer over the columns of a table: each value times a vector of its column's own, a block, their mean."""

    def __init__(self, columns: int, width: int = 24) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.5 * torch.randn(columns, width))
        self.shift = nn.Parameter(0.5 * torch.randn(columns, width))
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = x[..., None] * self.scale + self.shift
        out: Tensor = self.head(self.norm(self.block(h).mean(1)))
        return out


class EdgeConvolutions(nn.Module):
    """Two layers in which each point hears the largest of what a small network says of it and each of its neighbours,
    the mean over a cloud's points, a head.

    Points are (clouds, points, 3), neighbours (clouds times points, neighbours): rows of all points together."""

    def __init__(self, classes: int = 4, width: int = 24) -> None:
        super().__init__()
        self.layers = nn.ModuleList([mlp(6, width, width), mlp(2 * width, width, width)])
        self.head = nn.Linear(width, classes)

    def forward(self, points: Tensor, near: Tensor) -> Tensor:
        h = points.flatten(0, 1)
        for layer in self.layers:
            others = h[near]
            here = h[:, None].expand_as(others)
            h = layer(torch.cat([here, others - here], 2)).amax(1).relu()
        out: Tensor = self.head(h.unflatten(0, points.shape[:2]).mean(1))
        return out


class Links(nn.Module):
    """One round in which each node hears the mean of its neighbours; a pair's score is a product of two nodes."""

    def __init__(self, columns: int = 32, width: int = 32) -> None:
        super().__init__()
        self.own, self.heard = nn.Linear(columns, width), nn.Linear(columns, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edges: Tensor, pairs: Tensor) -> Tensor:
        h = self.own(x) + self.heard(heard(x, torch.cat([edges, edges.flip(0)], 1)))
        out: Tensor = (h[pairs[0]] * h[pairs[1]]).sum(1) / 4 + self.bias
        return out


class Ngrams(nn.Module):
    """Convolutions over three words, the largest answer of each filter, a head."""

    def __init__(self, words: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(words, 24), nn.Conv1d(24, width, 3, padding=1)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.words(ids).transpose(1, 2)).relu().amax(2))
        return out


class Residual(nn.Module):
    """Two residual layers over the columns of a table, each with a norm before it, and one number."""

    def __init__(self, columns: int, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h))
        out: Tensor = self.head(h)
        return out


class Counter(nn.Module):
    """Three convolutions to one number for each place, and their sum over a picture of any size."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x).sum((1, 2, 3)) / 10
        return out


class WideAndDeep(nn.Module):
    """A weight for each value of two categories, and a network over their vectors and four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(8, 6), nn.Embedding(6, 6)
        self.wide = nn.ModuleList([nn.Embedding(8, 1), nn.Embedding(6, 1)])
        self.deep = mlp(16, 32, 16, 1)

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        a, b = kinds.unbind(1)
        deep = self.deep(torch.cat([self.first(a), self.second(b), numbers], 1))
        out: Tensor = (deep + self.wide[0](a) + self.wide[1](b)).squeeze(1)
        return out


# tasks


def turbines(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Where the wind comes from in whole degrees, (count, 2) speed and temperature, and the power of a turbine that
    stands behind others where the wind comes from the east."""
    degrees = torch.randint(0, 360, (count,), generator=own)
    speed = 3 + 11 * torch.rand(count, generator=own)
    temperature = 10 + 8 * torch.randn(count, generator=own)
    free = 1 + 0.6 * (degrees - 250).float().deg2rad().cos() + 0.25 * (2 * degrees).float().deg2rad().sin()
    power = (speed / 8) ** 2 * free * (1 - 0.01 * (temperature - 10)) + 0.1 * torch.randn(count, generator=own)
    return degrees, torch.stack([speed, temperature], 1), power


def accounts(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 3) amounts in whole euros, about half of them 1000 and more, (count, 3) other columns of unit spread,
    and a score that depends on the logarithms of the amounts."""
    w = torch.randn(3, generator=apart(seed + 11))
    amounts = (6.9 + torch.randn(count, 3, generator=own)).exp().round()
    others = torch.randn(count, 3, generator=own)
    logs = amounts.log() - 6.9
    y = logs @ torch.tensor([1.0, -1.2, 0.7]) + logs[:, 0] * others[:, 0] / 2 + others @ w
    return amounts, others, y + 0.2 * torch.randn(count, generator=own)


def clouds(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24, 3) points of a stick, a disc, a ball or a ring, turned at random, somewhat noisy; and which."""
    y = torch.randint(0, 4, (count,), generator=own)
    ball = F.normalize(torch.randn(count, 24, 3, generator=own), dim=2)
    ball = ball * torch.rand(count, 24, 1, generator=own) ** (1 / 3)
    angle = 6.28 * torch.rand(count, 24, generator=own)
    ring = torch.stack([angle.cos(), angle.sin(), torch.zeros_like(angle)], 2)
    disc = ring * torch.rand(count, 24, 1, generator=own).sqrt()
    stick = (2 * torch.rand(count, 24, 1, generator=own) - 1) * torch.tensor([1.0, 0.0, 0.0])
    points = torch.stack([stick, disc, ball, ring], 1)[torch.arange(count), y]
    turn = torch.linalg.qr(torch.randn(count, 3, 3, generator=own))[0]
    return points @ turn + 0.03 * torch.randn(points.shape, generator=own), y


def acquaintances(own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """1000 people of ten circles with (1000, 32) columns that say little of the circle, edges (2, edges), most of them
    within a circle, and all pairs (2, pairs) without an edge, in any order."""
    circle = torch.arange(1000) % 10
    x = torch.randn(1000, 32, generator=own) + 0.6 * torch.randn(10, 32, generator=own)[circle]
    chance = torch.where(circle[:, None] == circle, 0.03, 0.0003).triu(1)
    there = torch.rand(1000, 1000, generator=own) < chance
    edges = there.nonzero().T
    strangers = (~there).triu(1).nonzero().T
    strangers = strangers[:, torch.randperm(strangers.shape[1], generator=own)]
    return x, edges[:, torch.randperm(edges.shape[1], generator=own)], strangers


def engines(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 256) recordings of one of four low tones of any phase beside a louder whistle at about a quarter of
    the sampling rate, in noise; and which tone."""
    y = torch.randint(0, 4, (count,), generator=own)
    tone = 0.010 + 0.004 * y
    side = torch.randint(0, 2, (count,), generator=own) * 2 - 1
    whistle = 0.25 + side * (0.008 + 0.016 * torch.rand(count, generator=own))
    phase = torch.rand(2, count, 1, generator=own)
    time = torch.arange(256)
    low, high = (
        (6.2832 * (rate[:, None] * time + begin)).sin() for rate, begin in zip((tone, whistle), phase, strict=True)
    )
    return (low + 1.5 * high + 0.6 * torch.randn(count, 256, generator=own))[:, None], y


def cells(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) counts of molecules, few of some and hundreds of others, in cells of one of four kinds."""
    usual = (1.5 + 4.5 * torch.rand(12, generator=apart(seed + 12))).exp()
    kinds = usual * (0.35 * torch.randn(4, 12, generator=apart(seed + 13))).exp()
    y = torch.randint(0, 4, (count,), generator=own)
    each = (0.5 * torch.randn(count, 12, generator=own)).exp()
    return torch.poisson(kinds[y] * each, generator=own), y


def lamps(count: int, dusk: bool, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3, 8, 8) pictures, red, green, blue, of a lamp of 3 by 3 pixels that is red, green, blue or white; at
    dusk they are paler, yellower and more noisy."""
    y = torch.randint(0, 4, (count,), generator=own)
    colours = torch.tensor([[1.0, 0.1, 0.1], [0.1, 1.0, 0.1], [0.1, 0.1, 1.0], [0.7, 0.7, 0.7]])
    places = torch.randint(0, 6, (count, 2), generator=own).tolist()
    x = torch.zeros(count, 3, 8, 8)
    for picture, kind, (top, left) in zip(x, y.tolist(), places, strict=True):
        picture[:, top : top + 3, left : left + 3] = colours[kind][:, None, None]
    noise = torch.randn(x.shape, generator=own)
    if dusk:
        return (0.45 * x + torch.tensor([0.25, 0.2, 0.05])[:, None, None] + 0.2 * noise), y
    return x + 0.2 * noise, y


def tagged_texts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, list[str]]:
    """(count, 16) words 0 to 41, of which each of fourteen tags has three, and the cells of a table with each text's
    tags: one to three numbers with spaces between them, as in "3 12"."""
    tags = torch.rand(count, 14, generator=own).argsort(1)[:, :3]
    many = torch.randint(1, 4, (count, 1), generator=own)
    which = tags.gather(1, (torch.rand(count, 16, generator=own) * many).long())
    words = 3 * which + torch.randint(0, 3, (count, 16), generator=own)
    strange = torch.rand(count, 16, generator=own) < 0.3
    cells = [" ".join(map(str, row[:size])) for row, size in zip(tags.tolist(), many.flatten().tolist(), strict=True)]
    return torch.where(strange, torch.randint(0, 42, (count, 16), generator=own), words), cells


def bodies(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 5) measures of people, of unit spread, and their weight in kilograms."""
    x = torch.randn(count, 5, generator=own)
    height, waist, age = 172 + 9 * x[:, 0], 90 + 11 * x[:, 1], x[:, 2]
    y = 0.00002 * waist**2 * height * 2.5 + 1.5 * x[:, 3] - age**2 + 3
    return x, y + 2 * torch.randn(count, generator=own)


def colonies(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 20, 20) noisy pictures of three to sixteen small blots, and (count, 20, 20) a one where each has its
    middle."""
    dots = torch.zeros(count, 400)
    for row, many in zip(dots, torch.randint(3, 17, (count,), generator=own).tolist(), strict=True):
        row[torch.randperm(400, generator=own)[:many]] = 1
    dots = dots.view(count, 20, 20)
    blot = torch.tensor([[0.2, 0.5, 0.2], [0.5, 1.0, 0.5], [0.2, 0.5, 0.2]])[None, None]
    x = F.conv2d(dots[:, None], blot, padding=1)
    return x + 0.2 * torch.randn(x.shape, generator=own), dots


def offers(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(count, 2) categories of eight and six kinds, (count, 4) numbers, on which of sixty days an offer was sent, and
    after how many days it was taken, more than thirty where it never was."""
    kinds = torch.stack([torch.randint(0, many, (count,), generator=own) for many in (8, 6)], 1)
    numbers = torch.randn(count, 4, generator=own)
    liking = torch.randn(8, generator=apart(31))[kinds[:, 0]] + 0.7 * torch.randn(6, generator=apart(32))[kinds[:, 1]]
    liking = liking + numbers @ torch.tensor([1.0, -0.8, 0.5, 0.0])
    taken = torch.rand(count, generator=own) < (1.5 * liking).sigmoid()
    waited = 1 + (29.9 * torch.rand(count, generator=own).sqrt()).long()
    days = torch.randint(1, 61, (count,), generator=own)
    return kinds, numbers, days, torch.where(taken, waited, 31)


def notices(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 24) words 10 to 19 with a price, one to three words 4 to 6, in one half and a date, one to three words 7
    to 9, in the other; which is asked for, 2 or 3; and (count, 2) its first and its last place."""
    texts = torch.randint(10, 20, (count, 24), generator=own)
    asked = torch.randint(2, 4, (count,), generator=own)
    spans = torch.zeros(count, 2, dtype=torch.long)
    turned = torch.randint(0, 2, (count,), generator=own).tolist()
    begins, sizes = (torch.randint(a, b, (count, 2), generator=own).tolist() for a, b in ((0, 10), (1, 4)))
    for row in range(count):
        for kind in range(2):
            size = sizes[row][kind]
            begin = begins[row][kind] + 12 * ((kind + turned[row]) % 2)
            texts[row, begin : begin + size] = torch.randint(4 + 3 * kind, 7 + 3 * kind, (size,), generator=own)
            if asked[row] == 2 + kind:
                spans[row] = torch.tensor([begin, begin + size - 1])
    return texts, asked, spans


def rated(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 2, 10) questions with two answers each, and (count, 2) how they were rated. A question is two words of
    10 to 15, the higher the easier, an answer eight words 4 to 9, of which 4 and 5 are good ones."""
    questions = torch.randint(10, 16, (count, 1, 1), generator=own)
    answers = torch.randint(4, 10, (count, 2, 8), generator=own)
    good = (answers < 6).sum(2)
    ratings = good + 2 * (questions[..., 0] - 10) + 0.5 * torch.randn(count, 2, generator=own)
    return torch.cat([questions.expand(count, 2, 2), answers], 2), ratings
