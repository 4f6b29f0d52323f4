"""What the loops of round 26a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round26a_keys.json, what each loop is meant to do in round26a_intents.json; categories are
those of round8b_parts.

round26a_proofs.json repeats by `python -m benchmarks.robustness.prove round26a`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round26a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Bonded(nn.Module):
    """Two rounds of messages along edges, by a matrix for each kind of edge, then the sum over nodes of a number each.

    Nodes are (rows, nodes, columns), edges (rows, 2, edges), from and to, kinds (rows, edges, kinds)."""

    def __init__(self, columns: int = 3, kinds: int = 3, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.say = nn.ModuleList(nn.Linear(width, kinds * width) for _ in range(2))
        self.hear = nn.ModuleList(mlp(2 * width, 32, width, act=nn.SiLU) for _ in range(2))
        self.head = mlp(width, 24, 1, act=nn.SiLU)

    def forward(self, nodes: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
        h = self.enter(nodes)
        start, end = (edges[:, i, :, None].expand(-1, -1, h.shape[2]) for i in range(2))
        for say, hear in zip(self.say, self.hear, strict=True):
            told = (say(h.gather(1, start)).unflatten(2, (kinds.shape[2], -1)) * kinds[..., None]).sum(2)
            h = h + hear(torch.cat([h, torch.zeros_like(h).scatter_add(1, end, told)], 2))
        out: Tensor = self.head(h).sum((1, 2))
        return out


class Ahead(nn.Module):
    """A GRU over twenty readings, and from its last state the next four."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Patched(nn.Module):
    """A vision transformer for grey pictures of 16 by 16: sixteen patches, learned places, two blocks, a head."""

    def __init__(self, out: int = 2, width: int = 32) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 4, 4)
        self.places = nn.Parameter(0.1 * torch.randn(1, 16, width))
        self.blocks = nn.Sequential(Block(width, causal=False), Block(width, causal=False))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(16 * width, out)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(self.cut(x).flatten(2).transpose(1, 2) + self.places)
        out: Tensor = self.head(self.norm(h).flatten(1))
        return out


class Residual(nn.Module):
    """A small ResNet with group norms for pictures in three colours."""

    def __init__(self, classes: int = 4, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, 2, 1)
        self.first = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.second = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.head = nn.Linear(width * 9, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for first, second, norm in zip(self.first, self.second, self.norms, strict=True):
            h = h + second(first(norm(h).relu()).relu())
        out: Tensor = self.head(F.max_pool2d(h.relu(), 2).flatten(1))
        return out


class Steps(nn.Module):
    """A residual MLP: two layers that add to what they are given, then one number."""

    def __init__(self, columns: int, width: int = 48) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(columns, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(mlp(width, width, width, act=nn.SiLU) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = h + layer(h)
        out: Tensor = self.head(h)
        return out


class Chords(nn.Module):
    """A block of attention over frames of twelve pitch classes, their mean, twelve scores."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.block = nn.Linear(12, width), Block(width, causal=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.block(self.enter(x))).mean(1))
        return out


class Frames(nn.Module):
    """A GRU in both directions, four scores for each frame."""

    def __init__(self, columns: int = 6, classes: int = 4, width: int = 24) -> None:
        super().__init__()
        self.core = nn.GRU(columns, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0])
        return out


class Finder(nn.Module):
    """The first word of a row is the question, the others are the text: convolutions over the text, to each place of
    which the question is added, and one score for each place of the text."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.question = nn.Embedding(words, width), nn.Embedding(words, width)
        self.near = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.mixed = nn.Conv1d(width, width, 3, padding=1)
        self.head = nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        h = (self.words(ids[:, 1:]) + self.question(ids[:, :1])).transpose(1, 2)
        h = h + F.glu(self.near(h), 1)
        h = h + self.mixed(h).relu()
        out: Tensor = self.head(h.transpose(1, 2)).squeeze(2)
        return out


def detector() -> nn.Sequential:
    """Four numbers from a grey picture of 16 by 16."""
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 4))


# tasks


def bonds(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(count, 8, 3) nodes, (count, 2, 10) bonds between different nodes, told once, (count, 10) their kinds 0 to 2,
    and an energy: the sum over bonds of the kind's strength, -1, 0 or 1, times its ends' first columns added."""
    nodes = torch.randn(count, 8, 3, generator=own)
    first = torch.randint(0, 8, (count, 10), generator=own)
    second = (first + torch.randint(1, 8, (count, 10), generator=own)) % 8
    kind = torch.randint(0, 3, (count, 10), generator=own)
    value = nodes[..., 0]
    energy = ((kind - 1) * (value.gather(1, first) + value.gather(1, second))).sum(1)
    return nodes, torch.stack([first, second], 1), kind, energy / 4


def meter(length: int, own: torch.Generator | None = None) -> np.ndarray[Any, Any]:
    """(length,) readings: a level that wanders around five, a wave of twelve readings, and chance."""
    level, chance = torch.full((length,), 5.0), 0.25 * torch.randn(length, generator=own)
    for t in range(1, length):
        level[t] = 5 + 0.97 * (level[t - 1] - 5) + chance[t]
    wave = (2 * torch.pi * torch.arange(length) / 12).sin()
    return (level + wave + 0.15 * torch.randn(length, generator=own)).numpy()


def rooms(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 16 by 16 that are lighter above than below, with one bright lamp of 3 by 3, and where its
    middle is, across and down, from -1 to 1."""
    place = torch.randint(0, 14, (count, 2), generator=own)
    x = 0.25 * torch.randn(count, 1, 16, 16, generator=own)
    x = x + torch.linspace(0.3, -0.3, 16)[:, None]
    for picture, (across, down) in zip(x, place.tolist(), strict=True):
        picture[0, down : down + 3, across : across + 3] += 1
    return x, (place - 6.5) / 6.5


def icons(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 4, 12, 12) red, green, blue and alpha from 0 to 1, and which of four figures the opaque pixels form.
    Someone drew each icon over an older one and made only the older one's pixels transparent."""
    figures = torch.randn(4, 10, 10, generator=apart(seed + 61)) > 0.3
    y, old = torch.randint(0, 4, (2, count), generator=own)
    move = torch.randint(0, 3, (2, count, 2), generator=own)
    colour = 0.7 * torch.rand(2, count, 3, 1, 1, generator=own)
    x = torch.ones(count, 4, 12, 12)
    x[:, 3] = 0
    for row in range(count):
        for layer, which in ((1, old), (0, y)):
            down, across = move[layer, row].tolist()
            part = x[row, :, down : down + 10, across : across + 10]
            part[:3] = torch.where(figures[which[row]], colour[layer, row], part[:3])
        part[3] = figures[y[row]].float()
    x[:, :3] = (x[:, :3] + 0.15 * torch.randn(count, 3, 12, 12, generator=own)).clamp(0, 1)
    return x, y


def customers(count: int, own: torch.Generator | None = None) -> tuple[Any, Any]:
    """A table of customers, their age, months and price and whether they left, and a table of calls with their minutes.
    Three in ten never call: of them those leave who are new; of the others, those who call often or long."""
    import pandas as pd

    age, months, price = (low + span * torch.rand(count, generator=own) for low, span in ((20, 50), (1, 36), (5, 30)))
    calls = torch.where(torch.rand(count, generator=own) < 0.3, 0, torch.randint(1, 9, (count,), generator=own))
    who = torch.arange(count).repeat_interleave(calls)
    minutes = 1 + 9 * torch.rand(len(who), generator=own)
    mean = torch.zeros(count).index_add(0, who, minutes) / calls.clamp_min(1)
    tends = torch.where(calls > 0, 0.8 * (calls - 5) + 0.4 * (mean - 5.5), 0.15 * (24 - months)) + 0.05 * (price - 20)
    left = torch.rand(count, generator=own) < tends.sigmoid()
    person = {"customer": range(count), "age": age, "months": months, "price": price, "left": left.long()}
    return pd.DataFrame({k: np.asarray(v) for k, v in person.items()}), pd.DataFrame(
        {"customer": who.numpy(), "minutes": minutes.numpy()}
    )


def stations(count: int, own: torch.Generator | None = None) -> tuple[list[tuple[str, str]], Tensor, Tensor]:
    """Places as a file has them, such as 34.5S and 18.2E, (count, 2) altitude in kilometres and day of the year, and
    the day's mean temperature in degrees Celsius. A third of the stations lie in the south, half in the west."""
    far = 65 * torch.rand(count, generator=own)
    south = torch.rand(count, generator=own) < 1 / 3
    along = 360 * torch.rand(count, generator=own) - 180
    high, day = 2 * torch.rand(count, generator=own), 365 * torch.rand(count, generator=own)
    season = -(2 * torch.pi * (day - 20) / 365).cos() * torch.where(south, -1, 1)
    warm = 28 - 0.4 * far + 0.22 * far * season - 6 * high + 3 * torch.deg2rad(along).sin()
    warm = warm + torch.randn(count, generator=own)
    names = [
        (f"{a:.1f}{'S' if s else 'N'}", f"{abs(b):.1f}{'E' if b > 0 else 'W'}")
        for a, s, b in zip(far.tolist(), south.tolist(), along.tolist(), strict=True)
    ]
    return names, torch.stack([high, day], 1), warm


def framed(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 16 by 16 with one bright rectangle of three to seven pixels each way, and its box as an
    annotation file has it: left, top, width, height, in sixteenths."""
    size = torch.randint(3, 8, (count, 2), generator=own)
    corner = (torch.rand(count, 2, generator=own) * (17 - size)).long()
    x = 0.3 * torch.randn(count, 1, 16, 16, generator=own)
    for picture, (left, top), (wide, high) in zip(x, corner.tolist(), size.tolist(), strict=True):
        picture[0, top : top + high, left : left + wide] += 1
    return x, torch.cat([corner, size], 1) / 16


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """The mean share that boxes, left, top, right and bottom, have in common."""
    common = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp_min(0).prod(1)
    areas = sum((box[:, 2:] - box[:, :2]).clamp_min(0).prod(1) for box in (a, b))
    return (common / (areas - common).clamp_min(1e-6)).mean()


def chords(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8, 12): eight frames of how loud each pitch class is in a major chord, with another tone sounding along,
    in noise, and the chord's root."""
    root = torch.randint(0, 12, (count,), generator=own)
    tones = torch.tensor([1.0, 0, 0, 0, 0.8, 0, 0, 0.8, 0, 0, 0, 0])
    x = torch.stack([tones.roll(int(r)) for r in root])[:, None].repeat(1, 8, 1)
    other = torch.randint(0, 12, (count, 8), generator=own)
    x = x + F.one_hot(other, 12) + 0.5 * torch.randn(x.shape, generator=own)
    return x, root


def speech(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 40, 6) features, a frame each 12.5 milliseconds, of half a second of speech; (count, 13) the times
    in seconds at which sounds begin and (count, 13) which of four each is."""
    like = 1.2 * torch.randn(4, 6, generator=apart(seed + 62))
    lasts = 0.04 + 0.06 * torch.rand(count, 13, generator=own)
    begins = lasts.cumsum(1) - lasts[:, :1]
    first = torch.randint(0, 4, (count, 1), generator=own)
    which = (first + torch.cat([first * 0, torch.randint(1, 4, (count, 12), generator=own)], 1).cumsum(1)) % 4
    x = like[sounding(begins, which, torch.arange(40) / 80)]
    return x + 0.8 * torch.randn(x.shape, generator=own), begins, which


def sounding(begins: Tensor, which: Tensor, times: Tensor) -> Tensor:
    """(rows, times): the sound that is heard at each time."""
    number = (times[None, :, None] >= begins[:, None]).sum(2) - 1
    return which.gather(1, number)


def notices(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 25): a question, 0, 1 or 2, and a text of 24 words, in which each of the marks 0, 1 and 2 stands once,
    with the name that is asked for behind it; other words are 3 to 22. And (count,) where in the text the name that
    answers stands; the same name may stand elsewhere too."""
    text = torch.randint(3, 23, (count, 24), generator=own)
    eighth = torch.rand(count, 8, generator=own).argsort(1)[:, :3]
    place = 3 * eighth + torch.randint(0, 2, (count, 3), generator=own)
    text.scatter_(1, place, torch.arange(3).expand(count, 3))
    question = torch.randint(0, 3, (count, 1), generator=own)
    return torch.cat([question, text], 1), place.gather(1, question).squeeze(1) + 1


def collages(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, list[tuple[int, int]]]:
    """Noisy grey pictures of 8 by 8 in which one to three of six patterns lie over each other, and the table of tags:
    (picture, tag), a line for each pattern in a picture, in any order."""
    patterns = (torch.randn(6, 8, 8, generator=apart(seed + 63)) > 0.7).float()
    order = torch.rand(count, 6, generator=own).argsort(1)[:, :3]
    many = torch.randint(1, 4, (count,), generator=own)
    x = 0.3 * torch.randn(count, 1, 8, 8, generator=own)
    lines = []
    for row, (tags, size) in enumerate(zip(order.tolist(), many.tolist(), strict=True)):
        x[row, 0] += patterns[tags[:size]].amax(0)
        lines += [(row, tag) for tag in tags[:size]]
    return x, lines
