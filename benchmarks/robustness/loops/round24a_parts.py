"""What the loops of round 24a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round24a_keys.json, what each loop is meant to do in round24a_intents.json; categories are
those of round8b_parts.

round24a_proofs.json repeats by `python -m benchmarks.robustness.prove round24a`.
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

KEYS = json.loads((Path(__file__).parent / "round24a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Hearing(nn.Module):
    """Two convolutions over a sound of two channels, their mean over time, two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 16, 7, padding=3), nn.ReLU(), nn.Conv1d(16, 24, 5, padding=2), nn.ReLU())
        self.head = nn.Linear(24, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean(2))
        return out


class Gazette(nn.Module):
    """An LSTM over words, the mean of its outputs, a head."""

    def __init__(self, words: int, classes: int = 3, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0].mean(1))
        return out


class Beats(nn.Module):
    """A GRU over gaps between events, three scores from its last state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Birds(nn.Module):
    """Three convolutions with a step of two over a sound of 96 frames in four bands, all places, three scores."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((4, 16), (16, 24), (24, 24))
        self.body = nn.ModuleList(nn.Conv1d(a, b, 5, 2, 2) for a, b in sizes)
        self.head = nn.Linear(24 * 12, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body:
            x = layer(x).relu()
        out: Tensor = self.head(x.flatten(1))
        return out


class Stations(nn.Module):
    """A convolution over a piece of a map, joined with readings, and one number."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Flatten(), nn.Linear(300, 24), nn.ReLU())
        self.join = mlp(27, 32, 1)

    def forward(self, piece: Tensor, readings: Tensor) -> Tensor:
        out: Tensor = self.join(torch.cat([self.look(piece), readings], 1)).flatten()
        return out


class Reviews(nn.Module):
    """One block of attention over twelve words, their mean, a score for each of four questions."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(words, width), Block(width, causal=False)
        self.head = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.block(self.words(ids)).mean(1))
        return out


class Attitude(nn.Module):
    """An MLP from the places of eight points to a quaternion of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(24, 64, 64, 4, act=nn.GELU)

    def forward(self, points: Tensor) -> Tensor:
        return F.normalize(self.net(points.flatten(1)), dim=1)


class Hours(nn.Module):
    """Two causal convolutions over twelve hours of three columns, the last hour, one number."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, width, 3), nn.Conv1d(width, width, 3, dilation=3)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(F.pad(x, (2, 0))).relu()
        out: Tensor = self.head(self.second(F.pad(h, (6, 0))).relu()[..., -1]).flatten()
        return out


class Dictation(nn.Module):
    """A convolution and a GRU in both directions over frames of eight bands, and scores of seven signs for each."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.front = nn.Conv1d(8, width, 3, padding=1)
        self.core = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 7)

    def forward(self, frames: Tensor) -> Tensor:
        h = self.front(frames.transpose(1, 2)).relu().transpose(1, 2)
        out: Tensor = self.head(self.core(h)[0])
        return out


# tasks


def recordings(count: int, own: torch.Generator | None = None) -> tuple[list[bytes], Tensor]:
    """Sounds of 64 frames in two channels, as a file keeps them, frame by frame, and where their sources are: from the
    left, -1, to the right, 1, and how near, from -1 to 1; near sources are louder."""
    place = 2 * torch.rand(count, 2, generator=own) - 1
    side = 0.785 * (1 + place[:, :1])
    pitch, phase = 0.3 + torch.rand(count, 1, generator=own), 6.28 * torch.rand(count, 1, generator=own)
    tone = (pitch * torch.arange(64) + phase).sin() * (0.7 * place[:, 1:]).exp()
    both = torch.stack([tone * side.cos(), tone * side.sin()], 2) + 0.1 * torch.randn(count, 64, 2, generator=own)
    kept = (8000 * both).clamp(-32768, 32767).numpy().astype(np.int16)
    return [row.tobytes() for row in kept], place


def reports(count: int, seed: int, own: torch.Generator | None = None) -> tuple[list[list[str]], Tensor]:
    """Texts of 20 words of 90 and which of three papers they are from. Half of the words are names, written with a
    capital as is the first word of every text, and papers differ in names more than in other words."""
    strength = torch.where(torch.arange(90) < 45, 1.2, 0.4)
    liked = (strength * torch.randn(3, 90, generator=apart(seed + 31))).exp()
    y = torch.randint(0, 3, (count,), generator=own)
    ids = torch.multinomial(liked[y], 20, replacement=True, generator=own).tolist()
    return [[f"{'W' if i < 45 or place == 0 else 'w'}ord{i}" for place, i in enumerate(row)] for row in ids], y


def letters(count: int, own: torch.Generator | None = None) -> list[tuple[list[int], int]]:
    """Letters of 6 to 22 words, of which the first, 4 to 7, says what they are about and the others, 14 to 25, say
    nothing, and what is asked about each, 8 to 13."""
    out = []
    for size in torch.randint(6, 23, (count,), generator=own).tolist():
        about = 4 + torch.randint(0, 4, (1,), generator=own)
        out.append(
            (
                torch.cat([about, 14 + torch.randint(0, 12, (size - 1,), generator=own)]).tolist(),
                8 + int(torch.randint(0, 6, (1,), generator=own)),
            )
        )
    return out


def logs(count: int, own: torch.Generator | None = None) -> tuple[np.ndarray[Any, Any], Tensor]:
    """(count, 25) times of events in seconds since 1970, whose mean gap is each row's own, 20 to 150 seconds, and how
    regular they are: 0 by chance alone, 1 somewhat, 2 nearly even."""
    y = torch.randint(0, 3, (count,), generator=own)
    many = torch.tensor([1, 4, 16])[y]
    chance = -torch.rand(count, 24, 16, generator=own).clamp_min(1e-6).log()
    used = (torch.arange(16) < many[:, None]).float()
    gaps = (chance * used[:, None]).sum(2) / many[:, None]
    mean = 20 * (2 * torch.rand(count, 1, generator=own)).exp()
    start = 1_700_000_000 + 10_000_000 * torch.rand(count, 1, generator=own).double()
    times = torch.cat([start, start + (gaps * mean).double().cumsum(1)], 1)
    return times.numpy(), y


def singing(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 4, 96): two songs of ten frames by different birds of three, both in the middle half, at least four
    frames apart, in noise, and which bird sings first."""
    songs = 1.5 * torch.randn(3, 4, 10, generator=apart(seed + 32))
    y = torch.randint(0, 3, (count,), generator=own)
    second = (y + torch.randint(1, 3, (count,), generator=own)) % 3
    begin = 24 + torch.randint(0, 13, (count,), generator=own)
    after = torch.minimum(begin + 14 + torch.randint(0, 13, (count,), generator=own), torch.tensor(62))
    x = 0.4 * torch.randn(count, 4, 96, generator=own)
    for row, (a, b, i, j) in enumerate(zip(y.tolist(), second.tolist(), begin.tolist(), after.tolist(), strict=True)):
        x[row, :, i : i + 10] += songs[a]
        x[row, :, j : j + 10] += songs[b]
    return x, y


def terrain(seed: int) -> Tensor:
    """(64, 64) heights, rows from north to south, with hills some ten places wide, of mean nought and spread one."""
    own = apart(seed + 33)
    rough = torch.randn(1, 1, 10, 10, generator=own)
    smooth = F.interpolate(rough, size=(64, 64), mode="bicubic")[0, 0]
    return (smooth - smooth.mean()) / smooth.std()


def warmth(count: int, heights: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Stations' places (x to the east, y to the south) on a map, three readings, and how warm it is: less on heights,
    more on slopes to the south, and by the readings."""
    places = torch.randint(3, 61, (count, 2), generator=own)
    readings = torch.randn(count, 3, generator=own)
    x, y = places.T
    slope = heights[y - 2, x] - heights[y + 2, x]
    warm = slope - heights[y, x] + readings @ torch.tensor([0.8, -0.5, 0.3])
    return places, readings, warm + 0.2 * torch.randn(count, generator=own)


def rains(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Eight readings of a day and the millimetres of the next, of which about four in ten have none."""
    w = torch.randn(2, 8, generator=apart(seed + 34))
    w = w / w.norm(dim=1, keepdim=True)
    x = torch.randn(count, 8, generator=own)
    falls = 2 * x @ w[0] + torch.randn(count, generator=own) > -0.6
    much = (1 + x @ w[1] + 0.3 * torch.randn(count, generator=own)).exp()
    return x, torch.where(falls, much, 0.0)


def flights(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Moves of `count` games, one game after another: four readings (fuel left, in thirtieths, and three of the
    weather), what a move gains, and whether it is a game's last. A game ends with its fuel, after 4 to 30 moves."""
    states, ends = [], []
    for size in torch.randint(4, 31, (count,), generator=own).tolist():
        weather = [torch.randn(3, generator=own)]
        for _ in range(size - 1):
            weather.append(0.9 * weather[-1] + 0.44 * torch.randn(3, generator=own))
        fuel = torch.arange(size, 0, -1)[:, None] / 30
        states.append(torch.cat([fuel, torch.stack(weather)], 1))
        ends.append(torch.arange(size) == size - 1)
    state = torch.cat(states)
    return state, state[:, 1].sigmoid(), torch.cat(ends)


def votes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12) words 0 to 39, how many of a review's readers, 1 to 5, say yes to each of four questions, (count, 4),
    and how many readers there were. Question k is about words 6k to 6k + 5."""
    words = torch.randint(0, 40, (count, 12), generator=own)
    about = torch.stack([((words >= 6 * k) & (words < 6 * k + 6)).sum(1) for k in range(4)], 1)
    readers = torch.randint(1, 6, (count, 1), generator=own)
    asked = torch.rand(count, 4, 5, generator=own) < (1.5 * (about - 2)).sigmoid()[..., None]
    yes = (asked & (torch.arange(5) < readers)[:, None]).sum(2)
    return words, yes, readers


def tracked(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8, 3): eight points of a body that is turned by up to two thirds of a half turn, in noise, and the turn
    as a quaternion, real part first, with the sign that the tracker happened to give."""
    body = torch.randn(8, 3, generator=apart(35))
    axis = F.normalize(torch.randn(count, 3, generator=own), dim=1)
    half = torch.rand(count, 1, generator=own) * torch.pi / 3
    real, other = half.cos(), axis * half.sin()
    across = torch.linalg.cross(other[:, None].expand(-1, 8, -1), body.expand(count, -1, -1))
    turned = body + 2 * real[..., None] * across + 2 * torch.linalg.cross(other[:, None].expand(-1, 8, -1), across)
    sign = 2 * torch.randint(0, 2, (count, 1), generator=own) - 1
    return turned + 0.1 * torch.randn(turned.shape, generator=own), sign * torch.cat([real, other], 1)


def metered(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 3, 12): twelve hours of three readings of the weather, and what an electricity meter shows before and
    after the hour that follows; it counts to 4,095 and begins again at 0."""
    w = torch.randn(3, generator=apart(seed + 36))
    x = torch.randn(count, 3, 12, generator=own).cumsum(2) / 3
    used = 120 * (0.5 * (x[..., -3:].mean(2) @ (w / w.norm())) + 0.1 * torch.randn(count, generator=own)).exp()
    before = torch.randint(0, 4096, (count,), generator=own)
    return x, before, (before + used.round().long()) % 4096


def dictated(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 20, 8) frames of five letters, each of two frames and one to two of silence behind, and silence at the
    end, in noise, and the letters as numbers from 0 to 5."""
    sounds = 1.5 * torch.randn(6, 8, generator=apart(seed + 37))
    y = torch.randint(0, 6, (count, 5), generator=own)
    begin = (2 + torch.randint(1, 3, (count, 5), generator=own)).cumsum(1) - 3
    x = 0.4 * torch.randn(count, 20, 8, generator=own)
    row = torch.arange(count)[:, None].expand(-1, 5)
    for k in range(2):
        x[row, begin + k] += sounds[y]
    return x, y


def apart_by(a: list[int], b: list[int]) -> int:
    """How many letters must be put in, taken out or replaced so that one becomes the other."""
    before = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        now = [i]
        for j, other in enumerate(b, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (letter != other)))
        before = now
    return before[-1]
