"""What the loops of round 26c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round26c_keys.json, what each loop is meant to do in round26c_intents.json; categories are
those of round8b_parts.

round26c_proofs.json repeats by `python -m benchmarks.robustness.prove round26c`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Decoder, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

KEYS = json.loads((Path(__file__).parent / "round26c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Skimmer(nn.Module):
    """A convolution over words and the largest of what it finds, then three scores."""

    def __init__(self, words: int = 16, classes: int = 3, width: int = 24) -> None:
        super().__init__()
        self.words, self.look = nn.Embedding(words, width), nn.Conv1d(width, 32, 3, padding=1)
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.look(self.words(ids).transpose(1, 2)).relu().amax(2))
        return out


class Ear(nn.Module):
    """Two strided convolutions over a signal and a linear layer: (rows, channels, places) to (rows, features)."""

    def __init__(self, channels: int, places: int, features: int) -> None:
        super().__init__()
        layers = [nn.Conv1d(channels, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(24 * places // 4, features))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class Denoiser(nn.Module):
    """The noise in a row of sixteen numbers, from the row and which of fifty steps it is at."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.when, self.enter = nn.Embedding(50, width), nn.Linear(16, width)
        self.middle, self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(2)), nn.Linear(width, 16)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        h = F.silu(self.enter(x) + self.when(step))
        for layer in self.middle:
            h = h + F.silu(layer(h) + self.when(step))
        out: Tensor = self.leave(h)
        return out


class Coupling(nn.Module):
    """Half of the columns are scaled and moved by what a small network reads off the other half; and the volume."""

    def __init__(self, columns: int, odd: bool, width: int = 32) -> None:
        super().__init__()
        self.odd, self.reads = odd, mlp(columns // 2, width, columns, act=nn.Tanh)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        read, changed = reversed(x.chunk(2, 1)) if self.odd else x.chunk(2, 1)
        scale, move = self.reads(read).chunk(2, 1)
        scale = scale.tanh()
        changed = changed * scale.exp() + move
        halves = [changed, read] if self.odd else [read, changed]
        return torch.cat(halves, 1), scale.sum(1)


class Recomputing(Decoder):
    """A small GPT whose blocks keep nothing for the way back and are computed once more."""

    again: dict[str, bool]

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, **self.again)
        out: Tensor = self.head(self.norm(x))
        return out


class Finder(nn.Module):
    """A tower for questions and one for texts, each a GRU over words, the mean of its outputs, a linear layer."""

    def __init__(self, words: int = 40, width: int = 32) -> None:
        super().__init__()
        self.asked, self.told = (self.tower(words, width) for _ in range(2))

    @staticmethod
    def tower(words: int, width: int) -> nn.ModuleList:
        core = nn.GRU(width, width, batch_first=True)
        return nn.ModuleList([nn.Embedding(words, width), core, nn.Linear(width, 24)])

    @staticmethod
    def read(tower: nn.ModuleList, ids: Tensor) -> Tensor:
        words, core, leave = tower
        return F.normalize(leave(core(words(ids))[0].mean(1)), dim=1)

    def forward(self, questions: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        return self.read(self.asked, questions), self.read(self.told, texts)

    @torch.no_grad()
    def encode(self, texts: Tensor) -> Tensor:
        """What an index keeps of texts."""
        return self.read(self.told, texts)


# tasks


def hums(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 1, 32): three tones at once, each of a loudness and phase of its own."""
    loud = torch.rand(count, 3, 1, generator=own) + 0.3
    phase = 6.28 * torch.rand(count, 3, 1, generator=own)
    pitch = torch.tensor([0.2, 0.45, 0.8])[:, None]
    return (loud * (pitch * torch.arange(32) + phase).sin()).sum(1, keepdim=True)


def heard_twice(x: Tensor, own: torch.Generator | None = None) -> list[Tensor]:
    """Two views of each signal: another loudness, other noise."""
    views = []
    for _ in range(2):
        loud = 0.7 + 0.6 * torch.rand(len(x), 1, 1, generator=own)
        views.append(loud * x + 0.3 * torch.randn(x.shape, generator=own))
    return views


def strangers_nearer(a: Tensor, b: Tensor) -> Tensor:
    """Of rows that belong together, how often another is the most alike: a share."""
    found = (F.normalize(a, dim=1) @ F.normalize(b, dim=1).T).argmax(1)
    return (found != torch.arange(len(a))).float().mean()


def swings(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 16): a wave of any phase, slow or fast, with a little noise."""
    phase = 6.28 * torch.rand(count, 1, generator=own)
    speed = torch.tensor([0.4, 0.9])[torch.randint(0, 2, (count, 1), generator=own)]
    return (speed * torch.arange(16) + phase).sin() + 0.05 * torch.randn(count, 16, generator=own)


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """How unlike two samples are, nought for the same distribution."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


def crescents(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 4): two columns on a bent line, one that spreads with the first, and one of two levels."""
    z = torch.randn(count, 4, generator=own)
    second = z[:, 0] ** 2 - 1 + 0.3 * z[:, 1]
    third = z[:, 2] * (0.2 + 0.5 * z[:, 0].abs())
    fourth = torch.where(torch.rand(count, generator=own) < 0.5, 1.0, -1.0) + 0.3 * z[:, 3]
    return torch.stack([z[:, 0], second, third, fourth], 1)


def by_remainder(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Texts of twelve words 1 to 15, of which two in three leave the class's number when they are divided by three."""
    y = torch.randint(0, 3, (count,), generator=own)
    ours = 3 * torch.randint(0, 5, (count, 12), generator=own) + y[:, None]
    ours = torch.where(ours == 0, 15, ours)
    alike = torch.rand(count, 12, generator=own) < 0.55
    x = torch.where(alike, ours, torch.randint(1, 16, (count, 12), generator=own))
    return {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}


def moves(count: int, seed: int, shares: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3, 24) movements along three axes, of one of sixteen kinds, begun a bit earlier or later, in noise; and
    the kind."""
    y = torch.multinomial(shares, count, replacement=True, generator=own)
    speed = 0.2 + torch.rand(16, 3, 1, generator=apart(seed + 31))
    start = 2 * torch.rand(count, 1, 1, generator=own)
    begin = 6.28 * torch.rand(16, 3, 1, generator=apart(seed + 32))
    clean = (begin[y] + speed[y] * (torch.arange(24) + start)).sin()
    return clean + 0.6 * torch.randn(clean.shape, generator=own), y


def swinging(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3): where something that swings is and was a quarter of a turn ago, and how fast it swings; and the sum
    of where it is at the next twelve times, each worth nine tenths of the one before."""
    size = 0.4 + 0.8 * torch.rand(count, 1, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    speed = 0.1 + 0.2 * torch.rand(count, 1, generator=own)
    wave = size * (speed * torch.arange(12) + phase).sin()
    state = torch.cat([size * phase.sin(), -size * phase.cos(), 10 * speed - 2], 1)
    return state, wave @ 0.9 ** torch.arange(12.0)


def asked_and_told(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Texts of ten words of 40, and questions of four: words of the text, said in another tongue."""
    tongue = torch.randperm(40, generator=apart(seed + 33))
    texts = torch.randint(0, 40, (count, 10), generator=own)
    places = torch.rand(count, 10, generator=own).argsort(1)[:, :4]
    return tongue[texts.gather(1, places)], texts
