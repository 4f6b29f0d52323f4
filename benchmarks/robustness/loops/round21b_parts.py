"""What the loops of round 21, part b, share: how a fault is named, small networks, tasks. A fault's category, the part
of a step in which its mistake lies, and the patterns of a right diagnosis stand in round21b_keys.json, what each loop
is meant to do in round21b_intents.json; categories are those of round8b_parts.

round21b_proofs.json repeats by `python -m benchmarks.robustness.prove round21b`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round21b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Duel(nn.Module):
    """Action values of a state: its worth, and each action's advantage less the mean advantage."""

    def __init__(self, states: int, actions: int, over_all: bool) -> None:
        super().__init__()
        self.over_all = over_all
        self.body = nn.Sequential(nn.Linear(states, 48), nn.ReLU())
        self.worth, self.advantage = nn.Linear(48, 1), nn.Linear(48, actions)

    def forward(self, states: Tensor) -> Tensor:
        seen = self.body(states)
        advantage = self.advantage(seen)
        mean = advantage.mean() if self.over_all else advantage.mean(1, keepdim=True)
        out: Tensor = self.worth(seen) + advantage - mean
        return out


class SumOfWords(nn.Module):
    """The sum of a text's word vectors, and a small network behind it; the vector of padding is nought."""

    def __init__(self, words: int, classes: int, drawn_again: bool, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width, padding_idx=0)
        self.head = mlp(width, 32, classes)
        self.apply(self.begun)
        if not drawn_again:
            nn.init.zeros_(self.tokens.weight[0].detach())

    @staticmethod
    def begun(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.tokens(ids).sum(1))
        return out


class Windows(nn.Module):
    """Attention within windows of four by four, which in every other block are moved by half a window."""

    def __init__(self, width: int, heads: int, shift: int, back: bool) -> None:
        super().__init__()
        self.heads, self.shift, self.back = heads, shift, back
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.nearness = nn.Parameter(torch.zeros(heads, 16, 16))
        self.feed = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        rows, _, _, width = x.shape
        y = self.norm1(x).roll((-self.shift, -self.shift), (1, 2))
        y = y.view(rows, 2, 4, 2, 4, width).transpose(2, 3).reshape(rows * 4, 16, width)
        q, k, v = (p.view(-1, 16, self.heads, width // self.heads).transpose(1, 2) for p in self.qkv(y).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(width / self.heads) + self.nearness
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, width))
        y = y.view(rows, 2, 2, 4, 4, width).transpose(2, 3).reshape(rows, 8, 8, width)
        if self.back:
            y = y.roll((self.shift, self.shift), (1, 2))
        x = x + y
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class Swin(nn.Module):
    """A number at each of eight by eight places to a number at each."""

    def __init__(self, back: bool, width: int = 24) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(1, width), nn.Linear(width, 1)
        self.blocks = nn.Sequential(*(Windows(width, 4, 2 * (i % 2), back) for i in range(2)))

    def forward(self, field: Tensor) -> Tensor:
        out: Tensor = self.leave(self.blocks(self.enter(field[..., None]))).squeeze(-1)
        return out


class Spectral(nn.Module):
    """A layer of a Fourier neural operator in two dimensions: low waves times matrices, and each place by itself."""

    def __init__(self, width: int, waves: int, both: bool) -> None:
        super().__init__()
        self.waves, self.both = waves, both
        self.up, self.down = (nn.Parameter(torch.randn(width, width, waves, waves, 2) / width) for _ in range(2))
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        m = self.waves
        seen = torch.fft.rfft2(x)
        made = torch.zeros_like(seen)
        made[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", seen[:, :, :m, :m], torch.view_as_complex(self.up))
        if self.both:
            low = torch.einsum("bixy,ioxy->boxy", seen[:, :, -m:, :m], torch.view_as_complex(self.down))
            made[:, :, -m:, :m] = low
        out: Tensor = torch.fft.irfft2(made, s=x.shape[-2:]) + self.beside(x)
        return out


class StateSpace(nn.Module):
    """A diagonal state space layer, as a convolution; behind it a norm, a GELU and a mix, around all a residual."""

    def __init__(self, width: int, inverted: bool, states: int = 8) -> None:
        super().__init__()
        step = torch.empty(width).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.step = nn.Parameter(step + torch.log(-torch.expm1(-step)) if inverted else step)
        self.rate = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.read = nn.Parameter(torch.randn(width, states))
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        step, rate = F.softplus(self.step)[:, None], self.rate.exp()
        kept = torch.exp(-(step * rate)[..., None] * places)
        kernel = ((self.read * (1 - torch.exp(-step * rate)) / rate)[..., None] * kept).sum(1)
        y = F.conv1d(F.pad(x.transpose(1, 2), (x.shape[1] - 1, 0)), kernel.flip(-1)[:, None], groups=x.shape[2])
        out: Tensor = x + self.mix(F.gelu(self.norm(y.transpose(1, 2))))
        return out


class ActNorm(nn.Module):
    """Scales and shifts columns, by its first batch in training; whether that was is a buffer where `kept`."""

    def __init__(self, columns: int, kept: bool) -> None:
        super().__init__()
        self.shift, self.log = nn.Parameter(torch.zeros(columns)), nn.Parameter(torch.zeros(columns))
        if kept:
            self.register_buffer("begun", torch.tensor(False))
        else:
            self.begun = torch.tensor(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self.begun:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log.copy_(-x.std(0).clamp_min(1e-3).log())
                self.begun.fill_(True)
        return (x + self.shift) * self.log.exp(), self.log.sum()


class Glow(nn.Module):
    """A flow of four rounds: an ActNorm, columns turned around, a coupling by a small network."""

    def __init__(self, kept: bool, columns: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(ActNorm(columns, kept) for _ in range(4))
        self.nets = nn.ModuleList(mlp(columns // 2, 32, columns) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """The log density of each row."""
        total = torch.zeros(len(x))
        for norm, net in zip(self.norms, self.nets, strict=True):
            x, log = norm(x)
            a, b = x.flip(1).chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = torch.tanh(scale)
            x = torch.cat([a, b * scale.exp() + shift], 1)
            total = total + log + scale.sum(1)
        return total - (x.square() + math.log(2 * math.pi)).sum(1) / 2


class Looking(nn.Module):
    """A block of an encoder whose attention is written with einsum; `sums` names its second one."""

    def __init__(self, width: int, heads: int, sums: str) -> None:
        super().__init__()
        self.heads, self.sums = heads, sums
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (p.view(rows, places, self.heads, -1).transpose(1, 2) for p in parts)
        shares = (torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(width / self.heads)).softmax(-1)
        seen = torch.einsum(self.sums, shares, v)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, places, width))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class FillsIn(nn.Module):
    """Words, one of which may be the mask, to words."""

    def __init__(self, words: int, sums: str, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words + 1, width), nn.Embedding(16, width)
        self.blocks = nn.Sequential(*(Looking(width, 4, sums) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        out: Tensor = self.head(self.norm(self.blocks(x)))
        return out


class Levels:
    """Takes a series' own level and spread off, and puts them back."""

    def measure(self, x: Tensor) -> Tensor:
        self.mean, self.spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        return self.use(x)

    def use(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.spread

    def back(self, x: Tensor) -> Tensor:
        return x * self.spread + self.mean


class Forecast(nn.Module):
    """24 readings to the next eight, by them and a window of sixteen of which the last eight are empty."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again, self.levels = again, Levels()
        self.net = mlp(24 + 16, 64, 64, 8, act=nn.GELU)

    def forward(self, past: Tensor) -> Tensor:
        window = torch.cat([past[:, -8:], torch.zeros(len(past), 8)], 1)
        past = self.levels.measure(past)
        window = self.levels.measure(window) if self.again else self.levels.use(window)
        return self.levels.back(self.net(torch.cat([past, window], 1)))


class Clouds(nn.Module):
    """Points to numbers, their mean over each cloud, a head; points run in bfloat16, means in single precision."""

    def __init__(self, counts: torch.dtype) -> None:
        super().__init__()
        self.counts = counts
        self.points, self.head = mlp(3, 32, 32), mlp(32, 32, 1)

    def forward(self, points: Tensor, of: Tensor, clouds: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            seen = self.points(points)
        total = torch.zeros(clouds, seen.shape[1]).index_add(0, of, seen.float())
        count = torch.zeros(clouds, dtype=self.counts).index_add(0, of, torch.ones(len(of), dtype=self.counts))
        out: Tensor = self.head(total / count[:, None]).flatten()
        return out


class Denoiser(nn.Module):
    """The noise in 16 numbers, by the numbers and waves of the step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(16 + 16, 96, 96, 16, act=nn.SiLU)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        angle = step[:, None] * 1000.0 ** (-torch.arange(8) / 8)
        out: Tensor = self.net(torch.cat([x, angle.sin(), angle.cos()], 1))
        return out


class Process(nn.Module):
    """A Gaussian process over what a network makes of six columns."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(6, 32, 3, act=nn.Tanh)
        self.noise, self.scale = nn.Parameter(torch.tensor(-1.6)), nn.Parameter(torch.tensor(0.0))

    def kernel(self, a: Tensor, b: Tensor) -> Tensor:
        f, g = self.body(a), self.body(b)
        return self.scale.exp() * torch.exp(-(f[:, None] - g[None]).square().sum(2) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x, x) + self.noise.exp() * torch.eye(len(x))


class Waves(nn.Module):
    """A place in the plane to a number, by 32 random waves of it."""

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()
        self.register_buffer("turns", 2.0 * torch.randn(2, 32, generator=own))
        self.net = mlp(64, 64, 1)

    def forward(self, places: Tensor) -> Tensor:
        angle = 2 * math.pi * places @ self.turns
        out: Tensor = self.net(torch.cat([angle.sin(), angle.cos()], 1)).squeeze(1)
        return out


class Remembering(nn.Module):
    """A decoder of one block with learned places that can go on from keys and values it has kept."""

    def __init__(self, words: int, from_nought: bool, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.from_nought = heads, from_nought
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, words)
        self.kept: list[Tensor] | None = None

    def forward(self, ids: Tensor, keep: bool = False) -> Tensor:
        rows, new = ids.shape
        old = self.kept[0].shape[2] if keep and self.kept else 0
        x = self.tokens(ids) + self.places(torch.arange(new) + (0 if self.from_nought else old))
        q, k, v = (p.view(rows, new, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        if keep:
            if self.kept:
                k, v = torch.cat([self.kept[0], k], 2), torch.cat([self.kept[1], v], 2)
            self.kept = [k, v]
        later = torch.ones(new, old + new, dtype=torch.bool).triu(old + 1)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -1e9)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(rows, new, -1))
        out: Tensor = self.head(self.norm3(x + self.feed(self.norm2(x))))
        return out

    @torch.no_grad()
    def answers(self, prompts: Tensor, count: int) -> Tensor:
        """Prompts and `count` drawn words behind each."""
        rows, new, self.kept = prompts, prompts, None
        for _ in range(count):
            new = torch.multinomial(self(new, keep=True)[:, -1].softmax(-1), 1)
            rows = torch.cat([rows, new], 1)
        self.kept = None
        return rows


# tasks


def brains(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Four channels of 64 readings in volts: one of three rhythms, with other phases and another gain for each row."""
    y = torch.randint(0, 3, (count,), generator=own)
    shares = 0.4 + torch.rand(3, 4, generator=apart(seed))
    phase = 6.28 * torch.rand(count, 4, 1, generator=own)
    waves = (torch.arange(64) * (0.35 + 0.3 * y[:, None, None]) + phase).sin() * shares[y][..., None]
    gain = torch.exp(0.6 * torch.randn(count, 1, 1, generator=own))
    return 2e-5 * gain * (waves + 1.2 * torch.randn(count, 4, 64, generator=own)), y


def chain(states: int = 10, discount: float = 0.8) -> tuple[Tensor, Tensor, Tensor]:
    """Where left, stay and right lead (states, 3), what they pay, and their true worth; the right end pays."""
    at = torch.arange(states)
    leads = torch.stack([(at - 1).clamp_min(0), at, (at + 1).clamp_max(states - 1)], 1)
    pays = (leads == states - 1).float() * 2.0 - torch.tensor([0.5, 0.0, 0.5])
    worth = torch.zeros(states, 3)
    for _ in range(200):
        worth = pays + discount * worth.amax(1)[leads]
    return leads, pays, worth


def winds(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fields of eight by eight on a torus, and what wind and mixing make of them."""
    field = torch.randn(count, 8, 8, generator=own)
    return field, 0.8 * field.roll((1, 0), (1, 2)) + 0.4 * field.roll((0, 1), (1, 2)) + 0.2 * field.square()


def flows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Smooth periodic fields of 16 by 16, and the same after drifting across both axes and spreading."""
    waves = torch.fft.fftfreq(16, 1 / 16)
    down, across = waves[:, None], waves[None]
    low = (down.abs() <= 3) & (across.abs() <= 3)
    seen = torch.fft.fft2(torch.randn(count, 16, 16, generator=own)) * low
    later = seen * torch.exp(-0.05 * (down**2 + across**2) - 1j * (1.3 * down - 0.7 * across))
    both = [torch.fft.ifft2(s).real for s in (seen, later)]
    return (both[0] / 0.4)[:, None], (both[1] / 0.4 + 0.1 * (both[0] / 0.4) ** 2)[:, None]


def remembered(count: int, own: torch.Generator, length: int = 32) -> tuple[Tensor, Tensor]:
    """Words 4 to 11, before which stands one of 0 to 3: that is the class."""
    y = torch.randint(0, 4, (count,), generator=own)
    return torch.cat([y[:, None], torch.randint(4, 12, (count, length - 1), generator=own)], 1), y


def bent(count: int, seed: int, own: torch.Generator, moved: float = 0.0) -> Tensor:
    """Six columns that hang together in curves, moved by `moved`."""
    turn = torch.linalg.qr(torch.randn(6, 6, generator=apart(seed)))[0]
    z = torch.randn(count, 6, generator=own)
    z[:, 3:] = 0.3 * z[:, 3:] + 1.2 * (1.5 * z[:, :3]).sin() + moved * z[:, [1, 2, 0]]
    return 3 * z @ turn + 2


def seasons(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Series of 32 readings with a level, a spread and a period of their own: the first 24, and the last eight."""
    level, spread = 20 + 80 * torch.rand(count, 1, generator=own), 1 + 4 * torch.rand(count, 1, generator=own)
    period, phase = 7 + 7 * torch.rand(count, 1, generator=own), 6.28 * torch.rand(count, 1, generator=own)
    x = level + spread * (
        (6.28 * torch.arange(32) / period + phase).sin() + 0.15 * torch.randn(count, 32, generator=own)
    )
    return x[:, :24], x[:, 24:]


def stretched(count: int, own: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Clouds of 40 to 1500 points, and the logarithm of how much longer than wide they are."""
    sizes = torch.empty(count).uniform_(math.log(40), math.log(1500), generator=own).exp().long()
    shape = torch.randn(count, 3, generator=own) * 0.5
    return [
        (torch.randn(n, 3, generator=own) * s.exp(), s[0] - s[1]) for n, s in zip(sizes.tolist(), shape, strict=True)
    ]


def clouds_together(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """The points of a few clouds, whose each is, and the clouds' numbers."""
    of = torch.cat([torch.full((len(points),), i) for i, (points, _) in enumerate(rows)])
    return torch.cat([points for points, _ in rows]), of, torch.stack([y for _, y in rows])


def swings(count: int, length: int, own: torch.Generator, noise: float) -> Tensor:
    """(count, length, 2): a pendulum's angle and speed, read with noise."""
    state = torch.randn(count, 2, generator=own)
    out = []
    for _ in range(length):
        out.append(state)
        speed = state[:, 1] - 0.3 * state[:, 0].sin() - 0.01 * state[:, 1]
        state = torch.stack([state[:, 0] + 0.3 * speed, speed], 1)
    clean = torch.stack(out, 1)
    return clean + noise * torch.randn(clean.shape, generator=own)


def driven(states: Tensor, force: Tensor) -> Tensor:
    """A cart on a slope that gets steeper: place and speed (rows, 2) after a push."""
    place, speed = states.unbind(1)
    speed = speed + 0.2 * (place.sin() * 1.5 + force.clamp(-2, 2))
    return torch.stack([place + 0.2 * speed, speed], 1)


def expert(states: Tensor) -> Tensor:
    return (-3.0 * states[:, 0] - 2.0 * states[:, 1]).clamp(-2, 2)
