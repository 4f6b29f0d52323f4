"""What the loops of round 27c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round27c_keys.json, what each loop is meant to do in round27c_intents.json; categories are
those of round8b_parts.

round27c_proofs.json repeats by `python -m benchmarks.robustness.prove round27c`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Language, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round27c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class FilterBySpectrum(torch.autograd.Function):
    """A causal filter as long as the row, by fast Fourier transforms: x (rows, places, channels), kernel (places,
    channels). The way back is a correlation, a product with the conjugate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, conjugated: bool) -> Tensor:
        size = x.shape[1]
        waves, filters = torch.fft.rfft(x, 2 * size, 1), torch.fft.rfft(kernel, 2 * size, 0)
        ctx.save_for_backward(waves, filters)
        ctx.size, ctx.conjugated = size, conjugated
        return torch.fft.irfft(waves * filters, 2 * size, 1)[:, :size]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        waves, filters = ctx.saved_tensors
        size = ctx.size
        coming = torch.fft.rfft(slopes[0], 2 * size, 1)
        if ctx.conjugated:
            waves, filters = waves.conj(), filters.conj()
        to_x = torch.fft.irfft(coming * filters, 2 * size, 1)[:, :size]
        to_kernel = torch.fft.irfft((coming * waves).sum(0), 2 * size, 0)[:size]
        return to_x, to_kernel, None


class LongFilters(nn.Module):
    """A language model of two layers, each a norm, a causal filter as long as the row with a gate, and a residual."""

    def __init__(self, words: int, length: int, conjugated: bool, width: int = 32) -> None:
        super().__init__()
        self.conjugated = conjugated
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        fading = (-torch.arange(length)[:, None] / 3.0).exp()
        self.kernels = nn.ParameterList(nn.Parameter(0.5 * fading * torch.randn(length, width)) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        for i in range(2):
            x = self.norms[i](h)
            heard: Any = FilterBySpectrum.apply(x, self.kernels[i][: x.shape[1]], self.conjugated)
            h = h + self.leave[i](heard * F.silu(self.gates[i](x)))
        out: Tensor = self.head(self.norms[2](h))
        return out


class Scan(torch.autograd.Function):
    """States h_t = a_t h_(t-1) + x_t, all of them: (rows, places, channels)."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, x: Tensor, shifted: bool) -> Tensor:
        states, state = [], torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            state = gates[:, t] * state + x[:, t]
            states.append(state)
        out = torch.stack(states, 1)
        ctx.save_for_backward(gates, out)
        ctx.shifted = shifted
        return out

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        gates, states = ctx.saved_tensors
        carried, to_x = torch.zeros_like(states[:, 0]), torch.empty_like(states)
        for t in reversed(range(states.shape[1])):
            carried = slopes[0][:, t] + carried
            to_x[:, t] = carried
            carried = gates[:, t] * carried
        before = F.pad(states, (0, 0, 1, 0))[:, :-1] if ctx.shifted else states
        return to_x * before, to_x, None


class GatedReader(nn.Module):
    """Words, a state that forgets and takes in by gates of the word itself, and a head on the last state."""

    def __init__(self, words: int, classes: int, shifted: bool, width: int = 32) -> None:
        super().__init__()
        self.shifted = shifted
        self.words, self.forget = nn.Embedding(words, width), nn.Linear(width, width)
        self.take = nn.Linear(width, width)
        self.value, self.norm, self.head = nn.Linear(width, width), nn.LayerNorm(width), nn.Linear(width, classes)
        nn.init.constant_(self.forget.bias, 1.0)

    def forward(self, ids: Tensor) -> Tensor:
        e = self.words(ids)
        states: Any = Scan.apply(self.forget(e).sigmoid(), self.take(e).sigmoid() * self.value(e), self.shifted)
        out: Tensor = self.head(self.norm(states[:, -1]))
        return out


class Denoiser(nn.Module):
    """A network of three layers over rows of 16 readings and their level of noise."""

    def __init__(self, size: int = 16, width: int = 96) -> None:
        super().__init__()
        self.net = mlp(size + 2, width, width, size, act=nn.SiLU)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        angle = 0.5 * math.pi * level[:, None]
        out: Tensor = self.net(torch.cat([x, angle.cos(), angle.sin()], 1))
        return out


class Pixels(nn.Module):
    """Four convolutions with growing steps from a grey picture to one number for each pixel."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        steps = ((1, 1), (width, 2), (width, 4))
        self.layers = nn.ModuleList(nn.Conv2d(a, width, 3, padding=d, dilation=d) for a, d in steps)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        out: Tensor = self.last(x)
        return out


class SparseCodes(nn.Module):
    """Codes that are not negative, more of them than columns, and what is put together from them."""

    def __init__(self, columns: int, codes: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(columns, codes), nn.Linear(codes, columns)
        self.decode.weight.data = F.normalize(torch.randn(columns, codes), dim=0)
        self.encode.weight.data = self.decode.weight.data.T.clone()
        nn.init.zeros_(self.encode.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.encode(x - self.decode.bias).relu()
        return codes, self.decode(codes)


# tasks


def last_marked(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 20) words 0 to 19, of which one in five is a name, 0 to 5, and the last name of the row."""
    named = torch.rand(count, 20, generator=own) < 0.2
    named[:, 0] = True
    ids = torch.randint(6, 20, (count, 20), generator=own)
    ids = torch.where(named, torch.randint(0, 6, (count, 20), generator=own), ids)
    last = (named * torch.arange(20)).argmax(1)
    return ids, ids[torch.arange(count), last]


def boxes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 16 by 16 with one bright box of 2 to 4 pixels a side, and its left, top, right and bottom as
    shares of the picture."""
    size = torch.randint(2, 5, (count, 2), generator=own)
    first = (torch.rand(count, 2, generator=own) * (17 - size)).long()
    x = 0.3 * torch.randn(count, 1, 16, 16, generator=own)
    for picture, (left, top), (wide, high) in zip(x, first.tolist(), size.tolist(), strict=True):
        picture[0, top : top + high, left : left + wide] += 1.5
    return x, torch.cat([first, first + size], 1) / 16


def spots(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noise of 16 by 16 with two faint rectangles of 2 to 4 pixels a side in it, and which pixels are theirs."""
    y = torch.zeros(count, 1, 16, 16)
    corners = torch.randint(0, 13, (count, 2, 2), generator=own).tolist()
    sizes = torch.randint(2, 5, (count, 2, 2), generator=own).tolist()
    for mask, places, sides in zip(y, corners, sizes, strict=True):
        for (top, left), (high, wide) in zip(places, sides, strict=True):
            mask[0, top : top + high, left : left + wide] = 1
    return torch.randn(y.shape, generator=own) + 1.2 * y, y


def arrivals(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Four columns, when things happened within eight hours, (count, most), 0 where there is none, and where there is
    one. How often depends on the hour and on the columns."""
    w = 0.4 * torch.randn(4, generator=apart(seed + 31))
    x = torch.randn(count, 4, generator=own)
    middle = (torch.arange(160) + 0.5) / 20
    rate = (0.2 + (x @ w)[:, None] + 0.8 * (middle + x[:, :1]).sin()).exp()
    happened = torch.rand(count, 160, generator=own) < rate / 20
    when = (middle + (torch.rand(count, 160, generator=own) - 0.5) / 20) * happened
    when, order = when.sort(1, descending=True)
    there = happened.gather(1, order)
    most = int(there.sum(1).max())
    return x, when[:, :most], there[:, :most]


def chords(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24) readings of one of twelve kinds, in noise, and which kind."""
    kinds = torch.randn(12, 24, generator=apart(seed + 32))
    y = torch.randint(0, 12, (count,), generator=own)
    return kinds[y] + torch.randn(count, 24, generator=own), y


def mixed(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 32) columns, each row a sum of about four of eighty directions, and a little noise."""
    directions = F.normalize(torch.randn(80, 32, generator=apart(seed + 33)), dim=1)
    amount = 1 + torch.rand(count, 80, generator=own)
    used = torch.rand(count, 80, generator=own) < 0.05
    return (amount * used) @ directions + 0.05 * torch.randn(count, 32, generator=own)


def applicants(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six columns, a group, 0 or 1, as a seventh, that some of the six tell of, and who was taken, more often from
    group 1."""
    w = torch.cat([torch.full((2,), 0.5), 0.5 * torch.randn(4, generator=apart(seed + 34))])
    group = torch.randint(0, 2, (count, 1), generator=own).float()
    x = torch.randn(count, 6, generator=own)
    x[:, :2] += 1.2 * (group - 0.5)
    score = x @ w + x[:, 2] * x[:, 3] + 1.6 * (group[:, 0] - 0.5)
    y = (score + 0.5 * torch.randn(count, generator=own) > 0).float()
    return torch.cat([x, group], 1), y


def tones(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 16) a wave of any phase and of one to two turns, of size about one."""
    turns = 1 + torch.rand(count, 1, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    return 1.4 * (6.28 * turns * torch.arange(16) / 16 + phase).sin()


def answered(
    usual: Language, better: Language, count: int, own: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Prompts of four words, and behind them eight of the better language and eight of the usual one: (count, 12)."""
    out = []
    prompts = usual.rows(count, 4, own)
    for language in (better, usual):
        rows = prompts
        for _ in range(8):
            chance = (language.one[rows[:, -1]] + language.two[rows[:, -2]]).softmax(1)
            rows = torch.cat([rows, torch.multinomial(chance, 1, generator=own)], 1)
        out.append(rows)
    return out[0], out[1]


def customers(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six columns, and how likely each of four offers is to be taken."""
    taste = torch.randn(6, 4, generator=apart(seed + 35))
    x = torch.randn(count, 6, generator=own)
    return x, (x @ taste - 0.5).sigmoid()


def offers(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Six columns, the offer that an older policy made, which mostly makes the first, 1 where it was taken, and the
    logarithm of how likely that policy was to make it."""
    x, worth = customers(count, seed)
    log_chances = (torch.tensor([1.5, 0.5, -0.5, -1.0]) + 0.5 * x[:, :4]).log_softmax(1)
    offer = torch.multinomial(log_chances.exp(), 1)
    taken = (torch.rand(count) < worth.gather(1, offer)[:, 0]).float()
    return x, offer[:, 0], taken, log_chances.gather(1, offer)[:, 0]


def five_heaps(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 2) points in five small heaps on a circle."""
    angle = 2 * math.pi * torch.randint(0, 5, (count, 1), generator=own) / 5
    return torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(count, 2, generator=own)


def likeness(a: Tensor, b: Tensor) -> Tensor:
    """The mean over all pairs of three Gaussian kernels."""
    square = (a[:, None] - b[None]).square().sum(2)
    return torch.stack([(-square / (2 * width**2)).exp().mean() for width in (0.2, 0.5, 1.0)]).mean()
