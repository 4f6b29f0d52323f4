"""What the loops of round 25b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round25b_keys.json, what each loop is meant to do in round25b_intents.json; categories are
those of round8b_parts.

round25b_proofs.json repeats by `python -m benchmarks.robustness.prove round25b`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Attention, Block, apart, mlp
from benchmarks.robustness.loops.round7b_parts import Gated, Rotary
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round25b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Turned(Attention):
    """Causal attention with rotary places, which are applied before or after heads are brought in front of places."""

    def __init__(self, width: int, heads: int, before: bool) -> None:
        super().__init__(width, heads)
        self.rotary, self.before = Rotary(width // heads, 100.0), before

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (part.view(b, t, self.heads, -1) for part in self.qkv(x).chunk(3, -1))
        if self.before:
            q, k = self.rotary(q).transpose(1, 2), self.rotary(k).transpose(1, 2)
        else:
            q, k = self.rotary(q.transpose(1, 2)), self.rotary(k.transpose(1, 2))
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return out


class TurnedModel(nn.Module):
    """A small language model in the manner of Llama: RMS norms, rotary places, gated feed-forward parts."""

    def __init__(self, words: int, before: bool, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.attentions = nn.ModuleList(Turned(width, 4, before) for _ in range(layers))
        self.feeds = nn.ModuleList(Gated(width, 2 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[-1](x))
        return out


class Placed(nn.Module):
    """A small language model with rotary places that are given: (rows, places) ids and places to scores of words.

    Where `apart_from_autocast` is on, angles are computed outside of autocast."""

    def __init__(self, words: int, apart_from_autocast: bool, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.apart_from_autocast = apart_from_autocast
        self.tokens = nn.Embedding(words, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, words, bias=False)
        self.register_buffer("frequencies", 100.0 ** (-torch.arange(0, 16, 2) / 16), persistent=False)

    def angles(self, places: Tensor) -> Tensor:
        product: Tensor = places[:, :, None].float() @ self.frequencies.float()[None]
        return product[:, None].float()

    def forward(self, ids: Tensor, places: Tensor) -> Tensor:
        x = self.tokens(ids)
        b, t, d = x.shape
        if self.apart_from_autocast:
            with torch.autocast("cpu", enabled=False):
                angle = self.angles(places)
        else:
            angle = self.angles(places)
        cos, sin = angle.cos(), angle.sin()

        def turned(part: Tensor) -> Tensor:
            one, two = part.float().chunk(2, -1)
            return torch.cat([one * cos - two * sin, two * cos + one * sin], -1).to(part.dtype)

        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feeds, strict=True)):
            parts = qkv(self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (part.view(b, t, 2, -1).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
            x = x + out(mixed.transpose(1, 2).reshape(b, t, d))
            x = x + feed(self.norms[2 * i + 1](x))
        scores: Tensor = self.head(self.norms[-1](x))
        return scores


class Walker(nn.Module):
    """A GRU cell that goes through rollouts of several episodes, and three scores for each step.

    (steps, rows, 5) of what is seen; `fresh` says, (steps, rows), before which steps the state is cleared."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.cell, self.head = nn.Linear(5, width), nn.GRUCell(width, width), nn.Linear(width, 3)

    def forward(self, seen: Tensor, fresh: Tensor) -> Tensor:
        state = torch.zeros(seen.shape[1], self.cell.hidden_size)
        states = []
        for view, clear in zip(self.enter(seen).relu(), fresh, strict=True):
            state = self.cell(view, state * (1 - clear[:, None]))
            states.append(state)
        out: Tensor = self.head(torch.stack(states))
        return out


class Hops(nn.Module):
    """What a node knows of itself, of its neighbours' mean and of the mean over walks of two steps, then a number.

    Nodes are (rows, nodes, 4), `edges` (rows, nodes, nodes) of noughts and ones."""

    def __init__(self, elementwise: bool, width: int = 32) -> None:
        super().__init__()
        self.elementwise = elementwise
        self.parts = nn.ModuleList(nn.Linear(4, width) for _ in range(3))
        self.head = mlp(width, width, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        twice = edges**2 if self.elementwise else torch.matrix_power(edges, 2)
        near, far = (share / share.sum(2, keepdim=True).clamp_min(1) for share in (edges, twice))
        own, one, two = self.parts
        out: Tensor = self.head((own(nodes) + one(near @ nodes) + two(far @ nodes)).relu())
        return out.squeeze(2)


class Wave(nn.Module):
    """Convolutions with a shortcut around each, an activation in front of each, on waves: (rows, 1, places)."""

    def __init__(self, in_place: bool, width: int = 12, layers: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, width, 7, padding=3), nn.Conv1d(width, 1, 7, padding=3)
        self.act = nn.LeakyReLU(0.1, inplace=in_place)
        steps = (1, 2, 4) * (layers // 3)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=s, dilation=s) for s in steps)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for layer in self.layers:
            h = h + layer(self.act(h))
        out: Tensor = self.leave(h)
        return out


class Shuffled(nn.Module):
    """Three grouped convolutions with batch norm, and between them a shuffle of channels; the mean, four scores."""

    def __init__(self, transposed: bool, width: int = 16) -> None:
        super().__init__()
        self.transposed = transposed
        self.layers = nn.ModuleList(nn.Conv2d(a, width, 3, padding=1, groups=2) for a in (2, width, width))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.head = nn.Linear(width, 4)

    def shuffle(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        groups = x.view(b, 2, c // 2, h, w)
        if self.transposed:
            groups = groups.transpose(1, 2)
        return groups.reshape(b, c, h, w)

    def forward(self, x: Tensor) -> Tensor:
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            x = norm(layer(x if i == 0 else self.shuffle(x))).relu()
        out: Tensor = self.head(x.mean((2, 3)))
        return out


class Axes(nn.Module):
    """Attention along rows and then along columns of a plate, a feed-forward part, a number for each well.

    (plates, 8, 8, 3) to (plates, 8, 8)."""

    def __init__(self, transposed: bool, width: int = 32) -> None:
        super().__init__()
        self.transposed = transposed
        self.enter, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        self.row, self.column = Attention(width, causal=False), Attention(width, causal=False)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.feed = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        b, rows, columns, d = h.shape
        h = h + self.row(self.norms[0](h).reshape(b * rows, columns, d)).view(h.shape)
        inner = self.norms[1](h)
        if self.transposed:
            along = self.column(inner.transpose(1, 2).reshape(b * columns, rows, d))
            h = h + along.view(b, columns, rows, d).transpose(1, 2)
        else:
            h = h + self.column(inner.reshape(b * columns, rows, d)).view(b, rows, columns, d)
        h = h + self.feed(self.norms[2](h))
        out: Tensor = self.head(h)
        return out.squeeze(3)


class Adapted(nn.Module):
    """Word vectors, an adapter for each of three languages, a block of attention, the mean, three scores."""

    def __init__(self, words: int, by_row: bool, width: int = 32) -> None:
        super().__init__()
        self.by_row = by_row
        self.tokens = nn.Embedding(words, width)
        self.adapters = nn.ModuleList(mlp(width, width, width, act=nn.GELU) for _ in range(3))
        self.block, self.head = Block(width, causal=False), nn.Linear(width, 3)

    def forward(self, ids: Tensor, language: Tensor) -> Tensor:
        h = self.tokens(ids)
        if self.by_row:
            every = torch.stack([adapter(h) for adapter in self.adapters])
            h = h + every[language, torch.arange(len(ids))]
        else:
            h = h + self.adapters[int(language[0])](h)
        out: Tensor = self.head(self.block(h).mean(1))
        return out


class LongFilter(nn.Module):
    """Filters as long as the series, computed by Fourier transforms, then a GELU and a number for each place."""

    def __init__(self, places: int, filled_up: bool, width: int = 12) -> None:
        super().__init__()
        self.size = 2 * places if filled_up else places
        self.enter, self.leave = nn.Linear(1, width), nn.Linear(width, 1)
        self.kernel = nn.Parameter(0.1 * torch.randn(places, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x[..., None])
        waves = torch.fft.rfft(h, n=self.size, dim=1) * torch.fft.rfft(self.kernel, n=self.size, dim=0)
        h = h + torch.fft.irfft(waves, n=self.size, dim=1)[:, : x.shape[1]]
        out: Tensor = self.leave(F.gelu(h))
        return out.squeeze(2)


class Pairs(nn.Module):
    """An energy as the sum over pairs of what a network says of their distance, which ends at a cutoff."""

    def __init__(self, box: float, periodic: bool, cutoff: float = 2.4) -> None:
        super().__init__()
        self.box, self.periodic, self.cutoff = box, periodic, cutoff
        self.body, self.level = mlp(16, 32, 1, act=nn.SiLU), nn.Parameter(torch.zeros(()))

    def forward(self, points: Tensor) -> Tensor:
        first, second = torch.triu_indices(points.shape[1], points.shape[1], 1)
        apart_by = points[:, first] - points[:, second]
        if self.periodic:
            apart_by = apart_by - self.box * (apart_by / self.box).round()
        far = (apart_by.square().sum(2) + 1e-12).sqrt()
        hills = (-((far[..., None] - torch.linspace(0, self.cutoff, 16)) ** 2) / 0.05).exp()
        ends = 0.5 * (1 + (math.pi * far / self.cutoff).cos()) * (far < self.cutoff)
        return 0.3 * (self.body(hills).squeeze(2) * ends).sum(1) + self.level


class Globe(nn.Module):
    """Three convolutions on a map of the globe, which is joined along one of its axes: (rows, 1, down, across)."""

    def __init__(self, joined: tuple[int, int, int, int], ended: tuple[int, int, int, int], width: int = 16) -> None:
        super().__init__()
        self.joined, self.ended = joined, ended
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in ((1, width), (width, width), (width, 1)))

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(F.pad(F.pad(x, self.joined, mode="circular"), self.ended))
            x = x.relu() if i < 2 else x
        return x


class Radial(nn.Module):
    """How near a row is to each of some centres, as shares, and four scores from the shares."""

    def __init__(self, centres: Tensor, by_row: bool) -> None:
        super().__init__()
        self.by_row = by_row
        self.centres, self.width = nn.Parameter(centres.clone()), nn.Parameter(torch.full((len(centres),), 0.5).log())
        self.head = nn.Linear(len(centres), 4)

    def forward(self, x: Tensor) -> Tensor:
        nearness = -0.5 * (x[:, None] - self.centres).square().sum(2) * (-2 * self.width).exp()
        highest = nearness.max(1, keepdim=True).values if self.by_row else nearness.max()
        weight = (nearness - highest).exp()
        out: Tensor = self.head(weight / (weight.sum(1, keepdim=True) + 1e-8))
        return out


class Towers(nn.Module):
    """Two networks that put two views of one thing near each other; without labels, the scores of all pairs."""

    def __init__(self, unit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.unit = unit
        self.left, self.right = mlp(12, 48, 24), mlp(10, 48, 24)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        scores = self.unit(self.left(left)) @ self.unit(self.right(right)).T / 0.1
        own = torch.arange(len(scores))
        loss = (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2
        return {"loss": loss, "logits": scores}


class Steering(nn.Module):
    """From where a goal lies, across and up, and where a vehicle heads: how much to turn, and how fast to go."""

    def __init__(self, whole_circle: bool) -> None:
        super().__init__()
        self.whole_circle = whole_circle
        self.body = mlp(3, 32, 32, 2)

    def forward(self, x: Tensor) -> Tensor:
        across, up, heading = x.unbind(1)
        bearing = torch.atan2(up, across) if self.whole_circle else torch.atan(up / across)
        turn = bearing - heading
        far = (across.square() + up.square()).sqrt()
        out: Tensor = self.body(torch.stack([far, turn.sin(), turn.cos()], 1))
        return out


# tasks


def rollouts(rows: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Rollouts of 32 steps through corridors of four to eight steps, one after another: (32, rows, 5) of what is seen,
    (32, rows) what a guide does, 0 on, 1 left, 2 right, and (32, rows) ones at the last step of each corridor.

    The first step of a corridor shows a sign to the left or to the right, the last one the junction."""
    seen, does, last = torch.zeros(32, rows, 5), torch.zeros(32, rows, dtype=torch.long), torch.zeros(32, rows)
    sizes = torch.randint(4, 9, (rows, 9), generator=own).tolist()
    signs = torch.randint(0, 2, (rows, 9), generator=own).tolist()
    for row in range(rows):
        start = 0
        for size, sign in zip(sizes[row], signs[row], strict=True):
            if start + size > 32:
                break
            seen[start, row, sign] = 1
            seen[start + 1 : start + size - 1, row, 2] = 1
            seen[start + size - 1, row, 3] = 1
            does[start + size - 1, row], last[start + size - 1, row] = 1 + sign, 1
            start += size
        if start < 32:
            seen[start:, row, 2] = 1
    seen[..., 4] = torch.randn(32, rows, generator=own)
    return seen, does, last


def friends(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 14, 4) nodes, (count, 14, 14) edges both ways, about three a node, and a number for each node that
    depends on itself, its neighbours' mean and the mean over walks of two steps."""
    by = torch.randn(3, 4, generator=apart(seed + 61))
    by = by / by.norm(dim=1, keepdim=True)
    nodes = torch.randn(count, 14, 4, generator=own)
    half = (torch.rand(count, 14, 14, generator=own) < 0.22).float().triu(1)
    edges = half + half.transpose(1, 2)
    twice = edges @ edges
    near, far = (share / share.sum(2, keepdim=True).clamp_min(1) for share in (edges, twice))
    y = nodes @ by[0] + 1.5 * (near @ nodes) @ by[1] + 2.5 * (far @ nodes) @ by[2]
    return nodes, edges, y + 0.1 * torch.randn(count, 14, generator=own)


def waves(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 64) sums of three waves in noise, and the same without the noise."""
    pitch, phase, loud = (torch.rand(count, 3, 1, generator=own) for _ in range(3))
    clean = ((0.5 + loud) * (torch.arange(64) * (0.1 + 0.8 * pitch) + 6.28 * phase).sin()).sum(1, keepdim=True)
    return clean + 0.6 * torch.randn(count, 1, 64, generator=own), clean


def stripes(count: int, periods: tuple[float, ...], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 12, 12) pictures of stripes that lie flat, at any height, in noise, and which period they have."""
    y = torch.randint(0, len(periods), (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (6.28 * torch.arange(12) / torch.tensor(periods)[y][:, None] + phase).sin()
    return clean[:, None, :, None] + torch.randn(count, 1, 12, 12, generator=own), y


def features() -> nn.Sequential:
    """Two convolutions and their mean over a picture: 24 numbers."""
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def two_sensors(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 2, 10, 10): the same texture as two sensors see it, in noise. Four classes: the texture is fine or
    coarse, and the second sensor sees it as the first does or with the opposite sign."""
    kind = torch.randint(0, 4, (count,), generator=own)
    fine = torch.randn(count, 1, 10, 10, generator=own)
    coarse = 2.4 * F.avg_pool2d(F.pad(fine, (1, 1, 1, 1), mode="circular"), 3, 1)
    texture = torch.where((kind < 2)[:, None, None, None], fine, coarse)
    sign = torch.where(kind % 2 == 0, 1.0, -1.0)[:, None, None, None]
    x = torch.cat([texture, sign * texture], 1)
    return x + 0.7 * torch.randn(x.shape, generator=own), kind


def plates(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8, 8, 3): a well's reading, whether it is its row's standard, whether it is its column's blank; and the
    corrected readings, (count, 8, 8): each plus its row's standard, less its column's blank."""
    reading = torch.randn(count, 8, 8, generator=own)
    standard = F.one_hot(torch.randint(0, 8, (count, 8), generator=own), 8).float()
    blank = F.one_hot(torch.randint(0, 8, (count, 8), generator=own), 8).float().transpose(1, 2)
    right = reading + (reading * standard).sum(2, keepdim=True) - (reading * blank).sum(1, keepdim=True)
    return torch.stack([reading, standard, blank], 3), right


def tongues(count: int, seed: int, language: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 10) words 0 to 14 and one of three topics; in each of three languages other words belong to a topic."""
    means = torch.stack([torch.randperm(15, generator=apart(seed + 62 + i)) for i in range(3)])
    y = torch.randint(0, 3, (count,), generator=own)
    ours = 5 * y[:, None] + torch.randint(0, 5, (count, 10), generator=own)
    any_word = torch.randint(0, 15, (count, 10), generator=own)
    thought = torch.where(torch.rand(count, 10, generator=own) < 0.5, ours, any_word)
    return means[language[:, None], thought], y


def answered(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 64) pushes by chance and what a damped pendulum answers to all pushes so far, softly limited."""
    t = torch.arange(64)
    kernel = 0.5 * (-t / 20).exp() * (0.35 * t).cos()
    push = torch.randn(count, 64, generator=own)
    size = 128
    swing = torch.fft.irfft(torch.fft.rfft(push, n=size) * torch.fft.rfft(kernel, n=size), n=size)[:, :64]
    return push, 2 * (swing / 2).tanh() + 0.1 * torch.randn(count, 64, generator=own)


def liquid(count: int, box: float, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12, 2) points in a square that goes on on its other side, and their energy, at about unit spread."""
    points = box * torch.rand(count, 12, 2, generator=own)
    first, second = torch.triu_indices(12, 12, 1)
    apart_by = points[:, first] - points[:, second]
    apart_by = apart_by - box * (apart_by / box).round()
    far = apart_by.norm(dim=2)
    pair = 2 * (-(far**2) / 0.4).exp() - (-((far - 1.2) ** 2) / 0.2).exp()
    return points, (pair.sum(1) + 7.0) / 3.0


def weathers(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 8, 16) maps of the globe, north at the top, and the maps of the next day: all moves two places to the
    east, and what leaves on the right comes in on the left."""
    field = torch.randn(count, 1, 8, 16, generator=own)
    field = 1.4 * F.avg_pool2d(F.pad(field, (1, 0, 0, 0), mode="circular"), (1, 2), 1)
    moved = field.roll(2, 3)
    down = F.pad(moved, (0, 0, 1, 0))[:, :, :-1]
    return field, 0.8 * moved + 0.4 * down + 0.1 * torch.randn(moved.shape, generator=own)


def clusters(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 16) numbers around one of eight places, some rows more exactly than others; two places are one class."""
    middle = 1.6 * torch.randn(8, 16, generator=apart(seed + 66))
    which = torch.randint(0, 8, (count,), generator=own)
    spread = 0.4 + 1.6 * torch.rand(count, 1, generator=own)
    return middle[which] + spread * torch.randn(count, 16, generator=own), which % 4


def two_sides(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) and (count, 10): two views of six hidden numbers, in noise."""
    fixed = apart(seed + 67)
    one, two = torch.randn(6, 12, generator=fixed), torch.randn(6, 10, generator=fixed)
    hidden = torch.randn(count, 6, generator=own)
    left = hidden @ one / 2 + 0.4 * torch.randn(count, 12, generator=own)
    right = (hidden @ two / 2).tanh() + 0.2 * torch.randn(count, 10, generator=own)
    return left, right


def drives(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3): where the goal lies, across and up, and the heading; (count, 2): the turn, at most one radian to
    either side, and the speed, lower where the goal is near or behind."""
    goal = 1.5 * torch.randn(count, 2, generator=own)
    heading = 6.28 * torch.rand(count, generator=own) - 3.14
    turn = torch.atan2(goal[:, 1], goal[:, 0]) - heading
    turn = torch.atan2(turn.sin(), turn.cos())
    speed = goal.norm(dim=1).clamp(max=2.0) * (0.6 + 0.4 * turn.cos())
    y = torch.stack([turn.clamp(-1, 1), speed], 1)
    return torch.cat([goal, heading[:, None]], 1), y + 0.05 * torch.randn(y.shape, generator=own)
