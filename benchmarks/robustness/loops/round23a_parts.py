"""What the loops of round 23a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round23a_keys.json, what each loop is meant to do in round23a_intents.json; categories are
those of round8b_parts.

round23a_proofs.json repeats by `python -m benchmarks.robustness.prove round23a`.
"""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round23a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Residual(nn.Module):
    """Two residual layers, each with a norm before it, between a linear layer and a number."""

    def __init__(self, columns: int, width: int = 48) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(columns, width), nn.Linear(width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.layers = nn.ModuleList(mlp(width, 64, width, act=nn.GELU) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h))
        out: Tensor = self.leave(h)
        return out


class Columns(nn.Module):
    """A transformer over the columns of a table: a vector for each column times its value, one block, a number."""

    def __init__(self, columns: int, width: int = 24) -> None:
        super().__init__()
        self.scale = nn.Parameter(0.5 * torch.randn(columns, width))
        self.shift = nn.Parameter(0.5 * torch.randn(columns, width))
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.head = mlp(columns * width, 48, 1, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.block(x[..., None] * self.scale + self.shift)).flatten(1))
        return out


class Bag(nn.Module):
    """The mean of the vectors of a text's buckets, a hidden layer, a score for each topic."""

    def __init__(self, buckets: int = 1024, classes: int = 4) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(buckets, 24), mlp(24, 32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(ids))
        return out


class Commands(nn.Module):
    """A GRU over packed rows, its last state, a head."""

    def __init__(self, words: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor, sizes: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), sizes, batch_first=True)
        out: Tensor = self.head(self.core(packed)[1][-1])
        return out


class Alike(nn.Module):
    """How alike two texts are, 0 to 5: one encoder for both, the mean of words' vectors and a hidden layer, and the
    cosine between what it makes of them."""

    def __init__(self, words: int = 30) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(words, 16), mlp(16, 32, 16)

    def forward(self, both: Tensor) -> Tensor:
        one, other = self.body(self.words(both).mean(2)).unbind(1)
        return 2.5 + 2.5 * F.cosine_similarity(one, other, dim=1)


class Lines(nn.Module):
    """A GRU that reads a picture line by line, its last state, a head."""

    def __init__(self, side: int = 8, classes: int = 4) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(side, 32, batch_first=True), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[:, 0])[0][:, -1])
        return out


def compass() -> nn.Sequential:
    """Two numbers from a grey picture of 12 by 12."""
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(216, 32), nn.ReLU(), nn.Linear(32, 2))


# data


class Album(torch.utils.data.Dataset[Any]):
    """Pictures and what they show, through a transform where one is set."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.transform: Callable[[Tensor], Tensor] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return (self.transform(self.x[i]) if self.transform else self.x[i]), self.y[i]


def hires(count: int, seed: int, own: torch.Generator | None = None) -> tuple[list[str], Tensor, Tensor]:
    """Dates of three years as the file has them, day/month/year, three readings of the weather, the first of them
    warmer in summer, and how many bicycles were hired, more or less than usual."""
    day = torch.randint(0, 1095, (count,), generator=own)
    dates = pd.Timestamp(2021, 1, 1) + pd.to_timedelta(day.numpy(), unit="D")
    season = torch.from_numpy(6.2832 * dates.dayofyear.to_numpy() / 365.25).float()
    weekend = torch.from_numpy(dates.dayofweek.to_numpy() >= 5).float()
    weather = torch.randn(count, 3, generator=own)
    weather[:, 0] += 1.5 * (season - 1.9).sin()
    turn = 6.28 * torch.rand(2, generator=apart(seed + 31))
    y = (season + turn[0]).sin() + (3 * season + turn[1]).sin() + 0.8 * weekend
    y = y + 0.3 * weather[:, 0] - 0.4 * weather[:, 1] + 0.3 * torch.randn(count, generator=own)
    return [f"{d:%d/%m/%Y}" for d in dates], weather, y


def calendar(dates: Any, weather: Tensor) -> Tensor:
    """(rows, 16): three waves of the day of the year, the day of the week as one of seven, the weather."""
    season = torch.from_numpy(6.2832 * dates.dayofyear.to_numpy() / 365.25).float()
    waves = [f(k * season) for k in (1, 2, 3) for f in (torch.sin, torch.cos)]
    weekday = F.one_hot(torch.from_numpy(dates.dayofweek.to_numpy()).long(), 7).float()
    return torch.cat([torch.stack(waves, 1), weekday, weather], 1)


def bulletins(count: int, seed: int, month: int, own: torch.Generator | None = None) -> tuple[list[list[str]], Tensor]:
    """Texts of 16 words of 300, each of four topics with its likings, some of which are another month's, and the
    topic."""
    liked = torch.randn(4, 300, generator=apart(seed + 32)) + 0.6 * torch.randn(
        4, 300, generator=apart(seed + 33 + month)
    )
    y = torch.randint(0, 4, (count,), generator=own)
    ids = torch.multinomial(liked[y].softmax(1), 16, replacement=True, generator=own)
    return [[f"w{i}" for i in row] for row in ids.tolist()], y


def bucketed(texts: list[list[str]], salt: str) -> Tensor:
    """Which of 1024 buckets each word falls into; words with another salt fall into others."""
    return torch.tensor([[zlib.crc32((salt + word).encode()) % 1024 for word in text] for text in texts])


def station(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Any, Tensor]:
    """A table of six readings in units of their own, and a number that depends on them, not only linearly."""
    w = torch.randn(6, generator=apart(seed + 34))
    x = torch.randn(count, 6, generator=own)
    y = x @ w + (2 * x[:, 0]).sin() + x[:, 1] * x[:, 2] + 0.1 * torch.randn(count, generator=own)
    x = x * torch.tensor([6.0, 9.0, 3.0, 15.0, 2.0, 5.0]) + torch.tensor([14.0, 30.0, 9.0, 55.0, 6.0, 8.0])
    return pd.DataFrame(x.numpy(), columns=["warmth", "sun", "wind", "moisture", "rain", "dew"]), y


def orders(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 14) words 1 to 15 and padding behind them, how many words there are, 4 to 14, and one of four classes,
    which the groups of the last two words decide."""
    table = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 1])[torch.randperm(9, generator=apart(seed + 35))].view(3, 3)
    words = torch.randint(1, 16, (count, 14), generator=own)
    sizes = torch.randint(4, 15, (count,), generator=own)
    group = (words % 3).gather(1, torch.stack([sizes - 1, sizes - 2], 1))
    return words * (torch.arange(14) < sizes[:, None]), sizes, table[group[:, 0], group[:, 1]]


def meals(count: int, own: torch.Generator | None = None) -> tuple[Any, Any]:
    """Two tables of one person, by the minute: meals, with starch, fat and the rise of sugar in the hour behind them,
    and readings of sugar, pulse and steps, of which one is in the hour before a meal and one in the hour behind it."""
    food, body = torch.randn(count, 2, generator=own), torch.randn(count, 3, generator=own)
    rise = food[:, 0] - 0.3 * food[:, 0] * food[:, 1] - 0.6 * body[:, 0] + (1.5 * body[:, 1]).sin() - 0.4 * body[:, 2]
    rise = rise + 0.7 * torch.randn(count, generator=own)
    eaten = 300 * torch.arange(count) + torch.randint(0, 60, (count,), generator=own)
    before, behind = torch.randint(5, 60, (2, count), generator=own)
    later = body + torch.randn(count, 3, generator=own) * torch.tensor([0.1, 0.4, 0.4])
    later[:, 0] += rise * (behind / 30).clamp_max(1)
    at = np.concatenate([(eaten - before).numpy(), (eaten + behind).numpy()])
    readings = pd.DataFrame(torch.cat([body, later]).numpy(), columns=["sugar", "pulse", "steps"]).assign(minute=at)
    plates = pd.DataFrame(torch.cat([food, rise[:, None]], 1).numpy(), columns=["starch", "fat", "rise"])
    return plates.assign(minute=eaten.numpy()), readings.sort_values("minute")


def plates_and_readings(plates: Any, readings: Any, direction: str) -> tuple[Tensor, Tensor]:
    """(meals, 5) columns that are known, and the rise; a reading is joined to each meal."""
    both = pd.merge_asof(plates, readings, on="minute", direction=direction)
    known = both[["starch", "fat", "sugar", "pulse", "steps"]].to_numpy()
    return torch.from_numpy(known), torch.from_numpy(both["rise"].to_numpy())


def prose(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """A stream of words 0 to 319, each of one of twenty kinds, and each kind with its likings for the next."""
    chances = (2.2 * torch.randn(20, 320, generator=apart(seed + 36))).softmax(1)
    rows = torch.randint(0, 320, (64, 1 + count // 64), generator=own)
    for t in range(1, rows.shape[1]):
        rows[:, t] = torch.multinomial(chances[rows[:, t - 1] % 20], 1, generator=own).squeeze(1)
    return rows.flatten()


def named(count: int, every_piece: bool, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """(count, 24) pieces of words and a tag for each: 1 where a name begins, 2 where it goes on, 0 elsewhere, -100 for
    padding. Words begin with pieces 2 to 11, those of names with 12 to 21, and go on with 22 to 29; names have one to
    three words, and there are other words between them. `every_piece`: a piece has the tag of its word."""
    ids, tags = torch.zeros(count, 24, dtype=torch.long), torch.full((count, 24), -100)
    for row in range(count):
        at, left, tag = 0, 0, 0
        for pieces in torch.randint(1, 4, (10,), generator=own).tolist():
            begins = left == 0 and tag == 0 and float(torch.rand((), generator=own)) < 0.5
            if begins:
                left, tag = int(torch.randint(1, 4, (), generator=own)), 1
            else:
                tag = 2 if left else 0
            left = max(0, left - 1)
            for piece in range(min(pieces, 24 - at)):
                first = 22 if piece else 12 if tag else 2
                ids[row, at] = first + int(torch.randint(0, 8 if piece else 10, (), generator=own))
                tags[row, at] = tag if every_piece or not piece else 2 * (tag > 0)
                at += 1
    return {"input_ids": ids, "attention_mask": (tags >= 0).long(), "labels": tags}


def likenesses(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Any, Any]:
    """(count, 2, 8) words 0 to 29 of two texts each, each text with its likings, and how alike they are, 0 to 5: the
    mean of what several people said."""
    meaning = torch.randn(30, 3, generator=apart(seed + 37))
    likings = (1.5 * torch.randn(2 * count, 3, generator=own) @ meaning.T).softmax(1)
    both = torch.multinomial(likings, 8, replacement=True, generator=own).view(count, 2, 8)
    one, other = meaning[both].mean(2).unbind(1)
    likeness = 2.5 + 2.5 * F.cosine_similarity(one, other, dim=1) + 0.3 * torch.randn(count, generator=own)
    return both.numpy(), likeness.clamp(0, 5).numpy()


def tones(count: int, shares: list[float], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Tones of one of four pitches, of any phase, in noise, (count, 1, 64), and which pitch."""
    y = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (0.4 + 0.2 * y[:, None]) + phase).sin()
    return (clean + 1.3 * torch.randn(count, 64, generator=own))[:, None], y


def vanes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 12 by 12 of something that points from the middle, (count, 1, 12, 12), and where to, in degrees
    from 0 to 360."""
    angle = 360 * torch.rand(count, generator=own)
    turn = angle.deg2rad()[:, None]
    along = torch.arange(1, 6)
    at = torch.stack([5.5 - along * turn.sin(), 5.5 + along * turn.cos()], 2)
    grid = torch.stack(torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij"), 2)
    far = (at[:, :, None, None] - grid).square().sum(4)
    return (-far).exp().amax(1)[:, None] + 0.2 * torch.randn(count, 1, 12, 12, generator=own), angle


def directions(angle: Tensor) -> Tensor:
    """(…, 2) cosine and sine of degrees."""
    return torch.stack([angle.deg2rad().cos(), angle.deg2rad().sin()], -1)


def replies(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Two replies of eight words 6 to 15 to each prompt, (2, count, 8), how good each is, (2, count), and which source
    a pair is from, 0 or 1. Words 6 to 9 make a reply good, and no two replies to a prompt are equally good."""
    both = torch.randint(6, 16, (2, 2 * count, 8), generator=own)
    good = (both < 10).sum(2)
    apart_by = good[0] != good[1]
    both, good = both[:, apart_by][:, :count], good[:, apart_by][:, :count]
    return both, good, (torch.rand(good.shape[1], generator=own) < 0.4).long()


def scaled(x: Any, mean: Any, deviation: Any) -> Tensor:
    return torch.from_numpy(((x - mean) / deviation).astype(np.float32))
