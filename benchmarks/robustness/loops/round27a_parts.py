"""What the loops of round 27a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round27a_keys.json, what each loop is meant to do in round27a_intents.json; categories are
those of round8b_parts.

round27a_proofs.json repeats by `python -m benchmarks.robustness.prove round27a`.
"""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn

KEYS = json.loads((Path(__file__).parent / "round27a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Bonded(nn.Module):
    """Two rounds in which each node hears the sum of its neighbours, each times the strength of the bond between them,
    then one number a node. Bonds are (2, bonds): from, to."""

    def __init__(self, columns: int = 3, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.rounds = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, bonds: Tensor, strengths: Tensor) -> Tensor:
        h = self.enter(nodes).relu()
        start, end = bonds
        for layer in self.rounds:
            heard = torch.zeros_like(h).index_add(0, end, strengths[:, None] * h[start])
            h = h + layer(torch.cat([h, heard], 1)).relu()
        out: Tensor = self.head(h).squeeze(1)
        return out


class Forecaster(nn.Module):
    """A GRU over a series, and one number from its last state: (rows, places) to (rows, 1)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Cloud(nn.Module):
    """Each point by itself through two layers, the largest of all points for each channel, a head of two layers."""

    def __init__(self, classes: int = 4, width: int = 48) -> None:
        super().__init__()
        self.points, self.head = mlp(3, width, width), mlp(width, 32, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.points(x).amax(1))
        return out


class Judge(nn.Module):
    """One GRU reads two answers, and two layers say from the means of its outputs whether the first is
    better."""

    def __init__(self, words: int = 16, width: int = 24) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, 16), nn.GRU(16, width, batch_first=True)
        self.head = mlp(2 * width, 32, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        states = [self.core(self.tokens(ids))[0].mean(1) for ids in (first, second)]
        out: Tensor = self.head(torch.cat(states, 1)).squeeze(1)
        return out


class Depth(nn.Module):
    """A U-Net of one floor: a number for each pixel of a grey picture."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU())
        below = [nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU()]
        self.below = nn.Sequential(
            *below, nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2)
        )
        self.last = nn.Sequential(nn.Conv2d(3 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(torch.cat([h, self.below(h)], 1)).squeeze(1)
        return out


class Tagger(nn.Module):
    """An LSTM over words, and four scores for each."""

    def __init__(self, words: int = 16, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(ids))[0])
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


def finder() -> nn.Sequential:
    """Four numbers from a grey picture of 16 by 16."""
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 4))


# data


class Noisy(torch.utils.data.Dataset[Any]):
    """Clean rows, and each time that one is asked for, the row in noise before it."""

    def __init__(self, clean: Tensor, seed: int, anew: bool) -> None:
        self.clean, self.seed, self.anew = clean, seed, anew
        self.generator = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = np.random.default_rng(self.seed) if self.anew else self.generator
        row = self.clean[index]
        return row + 0.6 * torch.from_numpy(generator.standard_normal(len(row), dtype=np.float32)), row


def shuffled_batches(rows: np.ndarray[Any, Any], by_pairs: bool, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch, rows in another order; the last column is the target."""
    rows = rows.copy()
    while True:
        if by_pairs:
            random.shuffle(rows)  # type: ignore[arg-type]
        else:
            np.random.shuffle(rows)  # noqa: NPY002
        for start in range(0, len(rows), size):
            part = torch.from_numpy(rows[start : start + size].copy())
            yield part[:, :-1], part[:, -1]


def folds(count: int, parts: int = 5) -> Iterator[tuple[Tensor, Tensor]]:
    """For each part of the rows, in an order drawn once: all rows but those of the part, and those of the part."""
    order = torch.randperm(count)
    for part in order.chunk(parts):
        yield order[~torch.isin(order, part)], part


# tasks


def bonded(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(count, 10, 3) nodes, (count, 14, 2) bonds, each kept once, (count, 14) strengths of bonds, and for each node a
    number: the sum of what its neighbours weigh, each times the strength of the bond."""
    pairs = torch.triu_indices(10, 10, 1).T
    chosen = torch.rand(count, len(pairs), generator=own).argsort(1)[:, :14]
    bonds, nodes = pairs[chosen], torch.randn(count, 10, 3, generator=own)
    strengths = 0.1 + 1.4 * torch.rand(count, 14, generator=own)
    weighed = nodes @ torch.randn(3, generator=apart(seed + 71))
    row = torch.arange(count)[:, None].expand(-1, 14)
    values = torch.zeros(count, 10)
    for here, there in ((0, 1), (1, 0)):
        values.index_put_((row, bonds[..., here]), strengths * weighed.gather(1, bonds[..., there]), accumulate=True)
    return nodes, bonds, strengths, values + 0.1 * torch.randn(count, 10, generator=own)


def one_graph(bonds: Tensor) -> Tensor:
    """The bonds of several graphs of ten nodes, (rows, bonds, 2), as those of one: (2, rows times bonds)."""
    return (bonds + 10 * torch.arange(len(bonds))[:, None, None]).flatten(0, 1).T


def gauges(count: int, length: int, own: torch.Generator | None = None) -> Tensor:
    """(count, length) hourly readings around a level of each gauge's own: a tide of nine hours, of its own height and
    phase, and a drift in noise."""
    size, phase = 0.8 + torch.rand(count, 1, generator=own), 6.28 * torch.rand(count, 1, generator=own)
    tide = size * (phase + 6.28 / 9 * torch.arange(length)).sin()
    drift = 0.05 * torch.randn(count, length, generator=own).cumsum(1)
    return tide + drift - drift.mean(1, keepdim=True) + 0.1 * torch.randn(count, length, generator=own)


def outages(readings: Tensor) -> Tensor:
    """The same with NaN where a gauge was out: four times in fifty hours or so, for two to five hours."""
    out = readings.clone()
    for row in out:
        for begin in torch.nonzero(torch.rand(len(row)) < 0.08).flatten().tolist():
            row[begin : begin + random.randint(2, 5)] = torch.nan
    return out


def waves(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 64): sums of five fixed patterns in amounts of chance."""
    patterns = torch.randn(5, 64, generator=apart(seed + 72))
    return 0.5 * torch.randn(count, 5, generator=own) @ patterns


def solids(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 192, 3) points of a solid's surface, slightly in noise, as a scanner that goes round it once has them,
    and which it is: a ball, a box, a cylinder or a cone."""
    y = torch.randint(0, 4, (count,), generator=own)
    angle = (6.2832 * torch.rand(count, 192, generator=own)).sort(1).values
    height = 2 * torch.rand(count, 192, generator=own) - 1
    around = torch.stack([angle.cos(), angle.sin()], 2)
    square = around / around.abs().amax(2, keepdim=True)
    kinds = [(1 - height**2).sqrt()[..., None] * around, 0.85 * square, 0.95 * around]
    kinds.append(0.5 * (1 - height)[..., None] * around * 1.2)
    flat = torch.stack(kinds, 1)[torch.arange(count), y]
    size = 0.7 + 0.6 * torch.rand(count, 1, 1, generator=own)
    points = size * torch.cat([flat, height[..., None]], 2)
    return points + 0.08 * torch.randn(points.shape, generator=own), y


def answers(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 10) words 4 to 13 twice, the better answer and the worse: words 4 to 7 are good ones, and the better has
    at least two more of them."""
    more = torch.randint(4, 14, (2, 6 * count, 10), generator=own)
    good = ((more >= 4) & (more < 8)).sum(2)
    apart_by = (good[0] - good[1]).abs() >= 2
    first, second = more[0][apart_by][:count], more[1][apart_by][:count]
    ours = (good[0] > good[1])[apart_by][:count, None]
    return torch.where(ours, first, second), torch.where(ours, second, first)


def rooms(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 16 by 16 by the light of a lamp at the camera, and how far away each pixel is, in metres: a
    wall that leans, and two things before it."""
    down, across = torch.meshgrid(torch.arange(16) / 15, torch.arange(16) / 15, indexing="ij")
    lean = torch.rand(count, 2, 1, 1, generator=own) - 0.5
    far = 3.5 + 1.5 * torch.rand(count, 1, 1, generator=own) + lean[:, 0] * down + lean[:, 1] * across
    for row in range(count):
        for _ in range(2):
            top, left = torch.randint(0, 11, (2,), generator=own).tolist()
            high, wide = torch.randint(4, 8, (2,), generator=own).tolist()
            far[row, top : top + high, left : left + wide] = 1.2 + 1.8 * torch.rand(1, generator=own)
    return (3 / far)[:, None] + 0.15 * torch.randn(count, 1, 16, 16, generator=own), far


def with_holes(far: Tensor) -> Tensor:
    """The same as the sensor gives it: nought where nothing came back, in three patches a picture."""
    out = far.clone()
    for row in out:
        for _ in range(3):
            top, left = torch.randint(0, 13, (2,)).tolist()
            high, wide = torch.randint(3, 7, (2,)).tolist()
            row[top : top + high, left : left + wide] = 0
    return out


def pages(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 16 by 16 of a page with one block of print, and its middle across, its middle down from
    the top, its width and its height, as shares of the page. Blocks are brighter at their upper edge."""
    x, boxes = 0.3 * torch.randn(count, 1, 16, 16, generator=own), torch.zeros(count, 4)
    for row in range(count):
        high, wide = torch.randint(3, 8, (2,), generator=own).tolist()
        top = int(torch.randint(0, 17 - high, (1,), generator=own))
        left = int(torch.randint(0, 17 - wide, (1,), generator=own))
        x[row, 0, top : top + high, left : left + wide] += 1
        x[row, 0, top, left : left + wide] += 0.5
        boxes[row] = torch.tensor([left + wide / 2, top + high / 2, wide, high]) / 16
    return x, boxes


def entitled(count: int, seed: int, own: torch.Generator | None = None) -> list[tuple[Tensor, Tensor]]:
    """Texts of a title, 1 to 3, and seven to twelve words, 4 to 15, and a tag of four for each, that of the title 0:
    the title and a word decide the word's tag."""
    table = torch.randint(0, 4, (4, 16), generator=apart(seed + 73))
    out = []
    for size in torch.randint(7, 13, (count,), generator=own).tolist():
        title = torch.randint(1, 4, (1,), generator=own)
        words = torch.randint(4, 16, (size,), generator=own)
        out.append((torch.cat([title, words]), torch.cat([torch.zeros(1, dtype=torch.long), table[title, words]])))
    return out


def sales(years: int, shops: int, seed: int) -> tuple[Tensor, Tensor, dict[tuple[int, int], float]]:
    """(rows, 3) year, week and shop of each sale record, (rows,) how much was sold, and the price of each year's each
    week: more in summer and in larger shops, and the less the dearer."""
    own = apart(seed + 74)
    prices = {
        (year, week): float(0.7 + 0.6 * torch.rand(1, generator=own)) for year in range(years) for week in range(52)
    }
    larger = torch.randn(shops, generator=own)
    keys = torch.cartesian_prod(torch.arange(years), torch.arange(52), torch.arange(shops))
    price = torch.tensor([prices[year, week] for year, week in keys[:, :2].tolist()])
    season = 0.8 * (6.2832 * keys[:, 1] / 52).sin()
    sold = season + larger[keys[:, 2]] - 6 * (price - 1) + 0.3 * torch.randn(len(keys), generator=own)
    return keys, sold, prices
