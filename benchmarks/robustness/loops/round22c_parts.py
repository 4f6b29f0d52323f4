"""What the loops of round 22c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round22c_keys.json, what each loop is meant to do in round22c_intents.json; categories are
those of round8b_parts.

round22c_proofs.json repeats by `python -m benchmarks.robustness.prove round22c`.
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

KEYS = json.loads((Path(__file__).parent / "round22c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Towers(nn.Module):
    """A vector for a user from six columns, one for each item of a table, and a bias for each item; a score is their
    product plus the bias: (users, 6) and (items,) to (users, items)."""

    def __init__(self, items: int, width: int = 16) -> None:
        super().__init__()
        self.user, self.items, self.bias = mlp(6, 32, width), nn.Embedding(items, width), nn.Embedding(items, 1)
        nn.init.normal_(self.items.weight, std=0.2)
        nn.init.zeros_(self.bias.weight)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        out: Tensor = self.user(users) @ self.items(items).T + self.bias(items).T
        return out


class Cleaner(nn.Module):
    """Three convolutions along a curve that are told how noisy it is; the noise in it: (rows, 32) to (rows, 32)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter, self.level = nn.Conv1d(1, width, 5, padding=2), mlp(2, 32, width, act=nn.SiLU)
        self.middle = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2 * d, dilation=d) for d in (2, 3))
        self.leave = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        told = self.level(torch.stack([share.sqrt(), (1 - share).sqrt()], 1))[:, :, None]
        h = F.silu(self.enter(x[:, None]) + told)
        for layer in self.middle:
            h = h + F.silu(layer(h) + told)
        out: Tensor = self.leave(h)[:, 0]
        return out


class Views(nn.Module):
    """Two convolutions with batch norm, and a vector of sixteen numbers for a picture of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


class Phrases(nn.Module):
    """Convolutions of three words over words, the largest of each channel, a head."""

    def __init__(self, words: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.Conv1d(width, 48, 3, padding=1)
        self.head = nn.Linear(48, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids).transpose(1, 2)).relu().amax(2))
        return out


class Adversary(nn.Module):
    """Convolutions over three axes and their mean over time; a head for the kind and a small network that says from
    which device the recording is."""

    def __init__(self, kinds: int = 4, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(3, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU())
        self.kind, self.judge = nn.Linear(width, kinds), mlp(width, 32, 2)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x).mean(2)
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.kind(self.features(x))
        return out


class Turned(torch.autograd.Function):
    """The same on the way forward, the negative of a share on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.share * gradient, None


# tasks


class Shop:
    """Items of which few are popular, and users of six columns who choose by popularity and by their likings."""

    def __init__(self, seed: int, items: int = 120) -> None:
        own = apart(seed + 51)
        self.usual = -1.1 * torch.log(2 + torch.arange(items).float())
        self.likings = 0.8 * torch.randn(6, items, generator=own)

    def choices(self, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        users = torch.randn(count, 6, generator=own)
        chance = (self.usual + users @ self.likings).softmax(1)
        return users, torch.multinomial(chance, 1, generator=own)[:, 0]


def survivals(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Six columns, how long somebody was followed, and whether the event was seen then."""
    w = torch.randn(6, generator=apart(seed + 52))
    x = torch.randn(count, 6, generator=own)
    risk = x @ w / w.norm() * 1.2 + 0.6 * x[:, 0] * x[:, 1]
    event = -torch.rand(count, generator=own).clamp_min(1e-6).log() / risk.exp()
    left = 3 * torch.rand(count, generator=own)
    return x, torch.minimum(event, left), (event <= left).float()


def partial_likelihood(risk: Tensor, time: Tensor, seen: Tensor, first_to_last: bool) -> Tensor:
    """Cox's loss, the mean over events seen, with rows sorted by time."""
    order = time.argsort(descending=not first_to_last)
    risk, seen = risk[order], seen[order]
    return -((risk - risk.logcumsumexp(0)) * seen).sum() / seen.sum().clamp_min(1)


def discordant(risk: Tensor, time: Tensor, seen: Tensor) -> Tensor:
    """Of the pairs whose order is known, the share in which the one with the earlier event has no higher risk."""
    known = (time[:, None] < time[None]) & (seen[:, None] > 0)
    return ((risk[:, None] <= risk[None]) & known).sum() / known.sum()


def curves(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 32): two waves of any phase, of one of four pitches, the second at twice the pitch and half as high."""
    pitch = 0.2 + 0.1 * torch.randint(0, 4, (count, 1), generator=own)
    phase = 6.28 * torch.rand(2, count, 1, generator=own)
    t = torch.arange(32)
    return (pitch * t + phase[0]).sin() + 0.5 * (2 * pitch * t + phase[1]).sin()


def offers(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """For each question six offers of five columns, and how often each was clicked, as a logarithm. The first column
    is the price. Whoever asks takes the cheaper offer; questions with dear offers are asked more often."""
    w = torch.randn(5, generator=apart(seed + 53))
    w[0] = 0.0
    dear = torch.randn(count, 1, generator=own)
    x = torch.randn(count, 6, 5, generator=own)
    price = x[..., 0]
    liking = x @ w + (1.5 * x[..., 1]).sin() - 0.8 * price
    clicks = liking + 1.5 * dear + 0.3 * torch.randn(count, 6, generator=own)
    return torch.cat([(price + 2 * dear)[..., None], x[..., 1:]], 2), clicks


def doses(count: int, seed: int, own: torch.Generator | None = None, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """The logarithm of a dose, from -2 to 2, and five columns of a patient, and an effect that never falls with the
    dose and comes to rest where there is enough of it."""
    w = torch.randn(5, generator=apart(seed + 54))
    dose, patient = 4 * torch.rand(count, 1, generator=own) - 2, torch.randn(count, 5, generator=own)
    strength = 1 + (patient[:, 0] + 0.5 * patient[:, 1]).sigmoid()
    effect = 0.8 * strength * (3 * (dose[:, 0] + 0.8)).sigmoid() + 0.4 * patient @ w
    return torch.cat([dose, patient], 1), effect + noise * torch.randn(count, generator=own)


def movements(
    count: int, seed: int, device: int, own: torch.Generator | None = None, classes: int = 4
) -> tuple[Tensor, Tensor]:
    """(count, 3, 24): movements of four kinds along three axes, in noise, and which kind. The second device leans, so
    that each axis has another level, and measures more on the first axis and less on the last."""
    y = torch.randint(0, classes, (count,), generator=own)
    turn = 0.3 + torch.rand(classes, 3, 1, generator=apart(seed + 55))
    begin = 6.28 * torch.rand(classes, 3, 1, generator=apart(seed + 56))
    x = (begin[y] + turn[y] * torch.arange(24)).sin() + 0.8 * torch.randn(count, 3, 24, generator=own)
    if device:
        lean = 0.8 * torch.randn(3, 1, generator=apart(seed + 57))
        x = x * torch.tensor([[1.4], [1.0], [0.7]]) + lean
    return x, y


def notes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 14) words 1 to 30 and one of four classes, each with its own frequent pairs of neighbours."""
    pairs = torch.randint(1, 31, (4, 5, 2), generator=apart(seed + 58))
    y = torch.randint(0, 4, (count,), generator=own)
    x = torch.randint(1, 31, (count, 14), generator=own)
    which = torch.randint(0, 5, (count, 3), generator=own)
    place = torch.randint(0, 4, (count, 3), generator=own) + torch.tensor([0, 5, 9])
    rows = torch.arange(count)[:, None]
    for k in range(2):
        x[rows, place + k] = pairs[y[:, None], which, k]
    return x, y


class Field:
    """Twelve weeks, in each of which one sells, for a fifth, or sows, at a cost of a fifth, and reaps one three weeks
    later; what is reaped behind the last week is lost. One sees the three weeks before and which week it is."""

    weeks, wait = 12, 3

    def seen(self, done: Tensor, week: int) -> Tensor:
        """(rows, 4): whether one sowed one, two and three weeks ago, and how much of the year has passed."""
        past = [done[:, week - k] if week >= k else torch.zeros(len(done)) for k in (1, 2, 3)]
        return torch.stack([*past, torch.full((len(done),), week / self.weeks)], 1)

    def pay(self, done: Tensor) -> Tensor:
        """(rows, weeks) from whether each row sowed in each week."""
        reaped = F.pad(done, (self.wait, 0))[:, : self.weeks]
        return reaped + torch.where(done > 0, -0.2, 0.2)
