"""What the loops of round 27b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round27b_keys.json, what each loop is meant to do in round27b_intents.json; categories are
those of round8b_parts.

round27b_proofs.json repeats by `python -m benchmarks.robustness.prove round27b`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round27b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Switch(nn.Module):
    """Four gated experts for words, of which each word asks the likeliest. An expert has seats for twice its even share
    of a batch, words take them in order, and a word that finds none passes by. `along` is the dimension along which
    those in front are counted."""

    def __init__(self, width: int, along: int, experts: int = 4) -> None:
        super().__init__()
        self.along, self.experts = along, experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / math.sqrt(2 * width))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        share = self.router(flat).softmax(1)
        gate, chosen = share.max(1)
        mask = F.one_hot(chosen, self.experts).float()
        self.balance = self.experts * (mask.mean(0) * share.mean(0)).sum()
        seats = 2 * len(flat) // self.experts
        seat = (mask.cumsum(self.along) * mask).sum(1).long() - 1
        taken = F.one_hot(seat.clamp_max(seats - 1), seats) * (seat < seats)[:, None]
        sent = mask[:, :, None] * taken[:, None]
        inside = torch.einsum("nec,nd->ecd", sent, flat)
        outside = F.gelu(inside @ self.up) @ self.down
        return torch.einsum("nec,ecd->nd", sent * gate[:, None, None], outside).view_as(x)


class Grouped(nn.Module):
    """Attention of four heads of queries, of which each two share a head of keys and values. `in_turn` says which two:
    the first and the third, or neighbours."""

    def __init__(self, width: int, in_turn: bool) -> None:
        super().__init__()
        self.in_turn, self.size = in_turn, width // 4
        self.queries, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.shared = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q = self.queries(x).view(b, t, 4, self.size).transpose(1, 2)
        both = (p.view(b, t, 2, self.size).transpose(1, 2) for p in self.shared(x).chunk(2, -1))
        k, v = (p.repeat(1, 2, 1, 1) if self.in_turn else p.repeat_interleave(2, 1) for p in both)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(found.transpose(1, 2).reshape(b, t, d))
        return out


class GroupedDecoder(nn.Module):
    """A language model of two blocks with grouped attention and learned places."""

    def __init__(self, words: int, in_turn: bool, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.attentions = nn.ModuleList(Grouped(width, in_turn) for _ in range(2))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for i in range(2):
            x = x + self.attentions[i](self.norms[2 * i](x))
            x = x + self.feeds[i](self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[4](x))
        return out


class Neighbourly(nn.Module):
    """A transformer over the nodes of graphs: four heads, and to each pair's score a number is added that is learned
    for how far apart the two are. `for_rows` says that this number belongs to rows and not to heads."""

    def __init__(self, for_rows: bool, columns: int = 4, width: int = 32) -> None:
        super().__init__()
        self.for_rows, self.near = for_rows, nn.Embedding(3, 1)
        nn.init.zeros_(self.near.weight)
        self.enter, self.norm1, self.norm2 = nn.Linear(columns, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, 1)

    def forward(self, nodes: Tensor, hops: Tensor) -> Tensor:
        x = self.enter(nodes)
        b, t, d = x.shape
        q, k, v = (p.view(b, t, 4, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        near = self.near(hops).squeeze(-1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(d / 4) + (near[:, None] if self.for_rows else near)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        out: Tensor = self.head(x + self.feed(self.norm2(x))).squeeze(-1)
        return out


class Stations(nn.Module):
    """Convolutions over a map; for points of it, told as shares of its width and height, a number from what the
    convolutions found there. `stretched` turns shares into what grid_sample calls the edges: -1 and 1."""

    def __init__(self, stretched: bool) -> None:
        super().__init__()
        self.stretched = stretched
        self.body = nn.Sequential(nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1))
        self.head = mlp(16, 32, 1)

    def forward(self, maps: Tensor, points: Tensor) -> Tensor:
        where = 2 * points - 1 if self.stretched else points
        there = F.grid_sample(self.body(maps), where[:, None], align_corners=False, padding_mode="border")
        out: Tensor = self.head(there[:, :, 0].transpose(1, 2)).squeeze(-1)
        return out


class Matcher(nn.Module):
    """Vectors for the points of two clouds, and the logarithms of a plan that joins them: each row and each column of
    the plan is scaled in turn to add up to one. `by_logarithms` scales them as logarithms."""

    def __init__(self, by_logarithms: bool, columns: int = 6, smoothing: float = 0.02) -> None:
        super().__init__()
        self.by_logarithms, self.smoothing = by_logarithms, smoothing
        self.first, self.second = mlp(columns, 48, 16), mlp(columns, 48, 16)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        cost = (self.first(a)[:, :, None] - self.second(b)[:, None]).pow(2).sum(-1)
        if self.by_logarithms:
            scores = -cost / self.smoothing
            for _ in range(8):
                scores = scores.log_softmax(2).log_softmax(1)
            return scores.log_softmax(2)
        plan = (-cost / self.smoothing).exp() + 1e-8
        for _ in range(8):
            plan = plan / plan.sum(2, keepdim=True)
            plan = plan / plan.sum(1, keepdim=True)
        return (plan / plan.sum(2, keepdim=True)).log()


class Waves(nn.Module):
    """A WaveNet: gated causal convolutions of two taps, 1, 2, 4 and 8 places apart; what each adds to the answer is
    summed. `handed_on` says that a layer reads what the one before it made."""

    def __init__(self, handed_on: bool, width: int = 16) -> None:
        super().__init__()
        self.handed_on, self.steps = handed_on, (1, 2, 4, 8)
        self.enter = nn.Conv1d(1, width, 1)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=step) for step in self.steps)
        self.back = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.steps)
        self.aside = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in self.steps)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = start = self.enter(x[:, None])
        total = torch.zeros_like(h)
        for step, gated, back, aside in zip(self.steps, self.gated, self.back, self.aside, strict=True):
            a, b = gated(F.pad(h if self.handed_on else start, (step, 0))).chunk(2, 1)
            z = a.tanh() * b.sigmoid()
            total = total + aside(z)
            h = h + back(z)
        out: Tensor = self.head(total)[:, 0]
        return out


class Films(nn.Module):
    """Convolutions over each frame, a GRU over a film's frames, four scores from its last state. `in_order` says that
    frames were laid end to end film by film, as they were."""

    def __init__(self, in_order: bool) -> None:
        super().__init__()
        self.in_order = in_order
        layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.eye = nn.Sequential(*layers, nn.Linear(64, 24), nn.ReLU())
        self.core, self.head = nn.GRU(24, 32), nn.Linear(32, 4)

    def forward(self, films: Tensor) -> Tensor:
        rows, times = films.shape[:2]
        seen = self.eye(films.flatten(0, 1))
        frames = seen.view(rows, times, -1).transpose(0, 1) if self.in_order else seen.view(times, rows, -1)
        out: Tensor = self.head(self.core(frames)[0][-1])
        return out


class Standardised(nn.Module):
    """A network behind the mean and the spread of all rows that it was shown, merged piece by piece. `between` adds
    what the pieces' means differ by."""

    def __init__(self, net: nn.Module, columns: int, between: bool) -> None:
        super().__init__()
        self.net, self.between = net, between
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("squares", torch.zeros(columns))

    def show(self, x: Tensor) -> None:
        new, apart_by = len(x), x.mean(0) - self.mean
        total = self.count + new
        self.squares += ((x - x.mean(0)) ** 2).sum(0)
        if self.between:
            self.squares += apart_by**2 * self.count * new / total
        self.mean += apart_by * new / total
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        spread = (self.squares / self.count).sqrt()
        out: Tensor = self.net((x - self.mean) / spread)
        return out


class Reviews(nn.Module):
    """A mark for each review, and their mean for each book. `from_nought` counts what the mean is written over, too."""

    def __init__(self, from_nought: bool) -> None:
        super().__init__()
        self.from_nought, self.net = from_nought, mlp(4, 48, 48, 1)

    def forward(self, x: Tensor, book: Tensor, books: int) -> Tensor:
        marks = self.net(x).squeeze(-1)
        return torch.zeros(books).scatter_reduce(0, book, marks, "mean", include_self=self.from_nought)


class Rain(nn.Module):
    """A number from each gauge's readings, and their mean, weighed by how near a gauge stands: by a part in e less for
    each ten kilometres. The sum of weights is held above `least` before it divides."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least, self.net = least, mlp(4, 48, 48, 1)

    def forward(self, x: Tensor, far: Tensor) -> Tensor:
        weight = (-far / 10).exp()
        out: Tensor = (weight * self.net(x).squeeze(-1)).sum(1) / weight.sum(1).clamp_min(self.least)
        return out


class Layers(nn.Module):
    """A picture as four sheets, the foremost first, of which a small network says for each pixel how bright it is there
    and how opaque. `before_it` lets a sheet be dimmed by those before it, and not by itself."""

    def __init__(self, before_it: bool) -> None:
        super().__init__()
        self.before_it = before_it
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Conv2d(16, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        bright, opaque = self.body(x).sigmoid().chunk(2, 1)
        through = (1 - opaque).cumprod(1)
        if self.before_it:
            through = torch.cat([torch.ones_like(through[:, :1]), through[:, :-1]], 1)
        return (bright * opaque * through).sum(1, keepdim=True)


class Crossed(nn.Module):
    """A factorization machine over columns of categories: all columns' rows lie in one table, one column's behind
    another's. `moved` adds where a column's rows begin."""

    def __init__(self, sizes: list[int], moved: bool, width: int = 6) -> None:
        super().__init__()
        begins = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("begins", begins if moved else torch.zeros_like(begins))
        self.alone, self.pairs = nn.Embedding(sum(sizes), 1), nn.Embedding(sum(sizes), width)
        nn.init.zeros_(self.alone.weight)
        nn.init.normal_(self.pairs.weight, std=0.3)
        self.level = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids + self.begins
        v = self.pairs(ids)
        both = (v.sum(1) ** 2 - (v**2).sum(1)).sum(-1) / 2
        out: Tensor = self.level + self.alone(ids).sum((1, 2)) + both
        return out


class Panel(nn.Module):
    """A batch norm over the sensors of a machine, a GRU over its readings, three scores. Readings are (rows, times,
    sensors); `turned` hands the norm the sensors where it looks for channels."""

    def __init__(self, turned: bool, sensors: int = 12, width: int = 24) -> None:
        super().__init__()
        self.turned, self.norm = turned, nn.BatchNorm1d(sensors)
        self.core, self.head = nn.GRU(sensors, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.transpose(1, 2)).transpose(1, 2) if self.turned else self.norm(x)
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


class Linear(nn.Module):
    """A language model of two blocks with causal attention by running sums: what queries and keys are turned into by
    an ELU is, with `raised`, one more, and so never below nought."""

    def __init__(self, words: int, raised: bool, width: int = 32) -> None:
        super().__init__()
        self.raised = raised
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def looked(self, x: Tensor, i: int) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, 2, d // 2) for p in self.qkv[i](x).chunk(3, -1))
        q, k = (F.elu(p) + self.raised for p in (q, k))
        sums = (k[..., None] * v[..., None, :]).cumsum(1)
        above = (q[..., None] * sums).sum(3)
        below = (q * k.cumsum(1)).sum(-1, keepdim=True)
        out: Tensor = self.outs[i]((above / (below + 1e-6)).flatten(2))
        return out

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for i in range(2):
            x = x + self.looked(self.norms[2 * i](x), i)
            x = x + self.feeds[i](self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[4](x))
        return out


# tasks


def graphs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 10, 4) nodes, (count, 10, 10) how far apart, 0 for a node and itself, 1 for neighbours and 2 for others,
    and for each node the mean of its neighbours' first column and of the product of their next two."""
    nodes = torch.randn(count, 10, 4, generator=own)
    joined = (torch.rand(count, 10, 10, generator=own) < 0.15).triu(1)
    ring = torch.eye(10, dtype=torch.bool).roll(1, 1)
    joined = joined | joined.transpose(1, 2) | ring | ring.T
    says = nodes[..., 0] + nodes[..., 1] * nodes[..., 2]
    share = joined.float() / joined.sum(2, keepdim=True)
    hops = torch.where(torch.eye(10, dtype=torch.bool), 0, torch.where(joined, 1, 2))
    return nodes, hops, (share @ says[..., None]).squeeze(-1)


def bags(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 6, 4) reviews, of which the first few are there, how many, and the mean of the marks that they give: from
    one to five, in noise."""
    sizes = torch.randint(1, 7, (count,), generator=own)
    x = torch.randn(count, 6, 4, generator=own)
    marks = 3 + x[..., 0] + (2 * x[..., 1]).sin() + 0.5 * x[..., 2] * x[..., 3]
    marks = (marks + 0.2 * torch.randn(marks.shape, generator=own)).clamp(1, 5)
    there = torch.arange(6) < sizes[:, None]
    return x, sizes, (marks * there).sum(1) / sizes


def weather_maps(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 2, 12, 12) smooth maps, (count, 6, 2) points as shares of their width and height, and at each point what
    the first map says and the product of both."""
    maps = F.interpolate(torch.randn(count, 2, 4, 4, generator=own), size=(12, 12), mode="bicubic")
    points = torch.rand(count, 6, 2, generator=own)
    there = F.grid_sample(maps, 2 * points[:, None] - 1, align_corners=False, padding_mode="border")[:, :, 0]
    return maps, points, there[:, 0] + there[:, 0] * there[:, 1]


def clouds(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 10, 6) points of clouds, small and large, the same seen by another instrument, in noise and in another
    order, and for each of the first its place among the second."""
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(seed + 27)))[0]
    a = (0.5 + 2 * torch.rand(count, 1, 1, generator=own)) * torch.randn(count, 10, 6, generator=own)
    seen = (a @ turn).asinh() + 0.3 * torch.randn(count, 10, 6, generator=own)
    order = torch.rand(count, 10, generator=own).argsort(1)
    return a, seen.gather(1, order[..., None].expand_as(seen)), order.argsort(1)


def swings(count: int, length: int = 64, own: torch.Generator | None = None) -> Tensor:
    """(count, length) series in which a reading follows from those three and six before it."""
    rows = list(torch.randn(6, count, generator=own))
    for _ in range(length + 10):
        chance = 0.4 * torch.randn(count, generator=own)
        rows.append(1.2 * (2 * rows[-6]).sin() - 0.4 * rows[-3] + chance)
    return torch.stack(rows[-length:], 1)


def films(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 6, 1, 8, 8): a spot of two pixels by two that wanders by up to a pixel a frame, in noise; and in which
    quarter of the picture it is in the end."""
    moves = torch.randint(-1, 2, (count, 6, 2), generator=own)
    moves[:, 0] = torch.randint(0, 7, (count, 2), generator=own)
    at = moves.cumsum(1).clamp(0, 6)
    x = 0.6 * torch.randn(count, 6, 8, 8, generator=own)
    row, time = torch.arange(count)[:, None], torch.arange(6)
    for down in (0, 1):
        for across in (0, 1):
            x[row, time, at[..., 0] + down, at[..., 1] + across] += 1
    return x[:, :, None], 2 * (at[:, -1, 0] > 3) + (at[:, -1, 1] > 3)


def wells(sites: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(sites, 32, 3) samples, of which those of one site are near one another, and what they yield: (sites, 32)."""
    level = 9 * torch.randn(sites, 1, 3, generator=own)
    x = level + torch.randn(sites, 32, 3, generator=own)
    u = x / 9
    return x + torch.tensor([40.0, 15.0, 70.0]), (1.5 * u[..., 0]).sin() + 0.5 * u[..., 1] + 0.4 * u[..., 1] * u[..., 2]


def gauges(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 6, 4) what six gauges read, (count, 6) how far off they stand, in kilometres, and what falls here: the
    nearer a gauge, the more its own fall counts, which its four readings decide."""
    x, far = torch.randn(count, 6, 4, generator=own), 5 + 35 * torch.rand(count, 6, generator=own)
    fell = 3 + x[..., 0] + (2 * x[..., 1]).sin() + 0.5 * x[..., 2] * x[..., 3]
    weight = (-far / 10).exp()
    noise = 0.1 * torch.randn(count, generator=own)
    return x, far, (weight * fell).sum(1) / weight.sum(1) + noise


def slides(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 10, 10) noisy pictures of two bright rectangles on a dark ground, and the same without noise."""
    clean = torch.full((count, 1, 10, 10), 0.1)
    for row in range(count):
        for top, left in torch.randint(0, 7, (2, 2), generator=own).tolist():
            high, wide = torch.randint(2, 5, (2,), generator=own).tolist()
            clean[row, 0, top : top + high, left : left + wide] = 0.9
    return clean + 0.3 * torch.randn(clean.shape, generator=own), clean


def orders(count: int, sizes: list[int], seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, columns) categories, each column numbered from nought, and a number that depends on each and on pairs."""
    fixed = torch.Generator().manual_seed(seed + 28)
    ids = torch.stack([torch.randint(0, size, (count,), generator=own) for size in sizes], 1)
    alone = [torch.randn(size, generator=fixed) for size in sizes]
    pairs = [0.7 * torch.randn(size, 3, generator=fixed) for size in sizes]
    y = torch.stack([a[ids[:, i]] for i, a in enumerate(alone)]).sum(0)
    v = torch.stack([p[ids[:, i]] for i, p in enumerate(pairs)], 1)
    y = y + (v.sum(1) ** 2 - (v**2).sum(1)).sum(-1) / 2
    return ids, y + 0.2 * torch.randn(count, generator=own)


def machines(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12, 12): twelve readings of twelve sensors, each around a level and in a unit of its own, and which of
    three faults the machine has: sensors drift, each by as much of its spread as the fault says."""
    fixed = torch.Generator().manual_seed(seed + 29)
    drift = 0.4 * torch.randn(3, 12, generator=fixed)
    unit = 10 ** (4 * torch.rand(12, generator=fixed) - 2)
    level = 2 * torch.randn(12, generator=fixed)
    y = torch.randint(0, 3, (count,), generator=own)
    grows = torch.arange(12)[:, None] / 11
    x = level + drift[y][:, None] * grows + torch.randn(count, 12, 12, generator=own)
    return x * unit, y
