"""What the loops of round 24b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round24b_keys.json, what each loop is meant to do in round24b_intents.json; categories are
those of round8b_parts.

round24b_proofs.json repeats by `python -m benchmarks.robustness.prove round24b`.
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

KEYS = json.loads((Path(__file__).parent / "round24b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Atoms(nn.Module):
    """A molecule's energy: the sum of what each atom's surroundings cost, by the network of its element."""

    def __init__(self, networks: dict[str, nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleDict(networks)

    def forward(self, places: Tensor, elements: Tensor) -> Tensor:
        distances = (places[:, :, None] - places[:, None]).square().sum(3).add(1e-9).sqrt()
        shells = (-4 * (distances[..., None] - torch.linspace(0.5, 4, 8)).square()).exp()
        others = ~torch.eye(places.shape[1], dtype=torch.bool)
        around = (shells * others[None, :, :, None]).sum(2)
        energy = torch.zeros(elements.shape)
        for kind, network in enumerate(self.networks.values()):
            energy = energy + network(around).squeeze(2) * (elements == kind)
        return energy.sum(1)


class BothWays(nn.Module):
    """One GRU reads from the left, another from the right; at each place a head sees the state of both."""

    def __init__(self, words: int, tags: int, turned_back: bool, width: int = 24) -> None:
        super().__init__()
        self.turned_back, self.words = turned_back, nn.Embedding(words, width)
        self.onwards, self.backwards = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        left, right = self.onwards(x)[0], self.backwards(x.flip(1))[0]
        if self.turned_back:
            right = right.flip(1)
        out: Tensor = self.head(torch.cat([left, right], 2))
        return out


class Remembering(nn.Module):
    """One block of a transformer that looks at the piece before as well: its words are kept without a gradient."""

    def __init__(self, words: int, piece: int, from_the_corner: bool, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.from_the_corner = heads, from_the_corner
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(2 * piece, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.query, self.keyed = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.feed = nn.Linear(width, width), mlp(width, 2 * width, width, act=nn.GELU)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        x = self.tokens(ids)
        seen = x if memory is None else torch.cat([memory, x], 1)
        before, now = seen.shape[1] - x.shape[1], x.shape[1]
        placed = self.norms[0](seen + self.places.weight[-seen.shape[1] :])
        q = self.split(self.query(placed[:, before:]))
        k, v = (self.split(part) for part in self.keyed(placed).chunk(2, 2))
        if self.from_the_corner:
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            sees = torch.ones(now, before + now, dtype=torch.bool).tril(before)
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=sees)
        h = x + self.out(found.transpose(1, 2).flatten(2))
        h = h + self.feed(self.norms[1](h))
        return self.head(self.norms[2](h)), x.detach()

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class Mixture(nn.Module):
    """For each row the logarithm of five shares, five means and five logarithms of spreads."""

    def __init__(self, columns: int, width: int = 48, parts: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(columns, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 3 * parts)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, mean, spread = self.head(self.body(x)).chunk(3, 1)
        return share.log_softmax(1), mean, spread.clamp(-5, 5)


class FromTheLast(nn.Module):
    """A GRU over a series, and how far the next value is from the last one: (rows, places) to (rows, 1)."""

    def __init__(self, as_column: bool, width: int = 24) -> None:
        super().__init__()
        self.as_column = as_column
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return change + (x[:, -1:] if self.as_column else x[:, -1])


class Weighed(nn.Module):
    """One round of attention along edges (2, edges), from and to, and a number for each node.

    The weights of messages sum to one over the edges that have the same end `of`: 0 where they begin, 1 where they
    lead."""

    def __init__(self, columns: int, of: int, width: int = 24) -> None:
        super().__init__()
        self.of = of
        self.value, self.score = mlp(columns, width, width), mlp(columns, width, 1)
        self.itself, self.head = nn.Linear(columns, width), mlp(width, width, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        weight = self.score(nodes).squeeze(1)[start].exp()
        total = torch.zeros(len(nodes)).index_add(0, edges[self.of], weight)
        weight = weight / total[edges[self.of]]
        heard = torch.zeros(len(nodes), self.itself.out_features)
        heard = heard.index_add(0, end, weight[:, None] * self.value(nodes)[start])
        out: Tensor = self.head((heard + self.itself(nodes)).relu()).squeeze(1)
        return out


class EachPlace(nn.Module):
    """A layer norm over the channels of each place: (rows, channels, places)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out


class Causal(nn.Module):
    """Causal convolutions with growing steps, a norm after each, and at each place a guess of what comes."""

    def __init__(self, norm: Callable[[int], nn.Module], width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=d) for d in (1, 2, 4))
        self.norms = nn.ModuleList(norm(width) for _ in range(3))
        self.head = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x[:, None])
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = h + norm(layer(F.pad(h, (2 * layer.dilation[0], 0)))).relu()
        out: Tensor = self.head(h).squeeze(1)
        return out


class Steered(nn.Module):
    """Four residual parts whose norms are shifted and scaled, and whose gates are set, by a condition; all three begin
    at nought."""

    def __init__(self, columns: int, classes: int, one_more: float, width: int = 48) -> None:
        super().__init__()
        self.one_more = one_more
        self.enter, self.kinds, self.level = (
            nn.Linear(columns, width),
            nn.Embedding(classes, width),
            mlp(1, width, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(5))
        self.parts = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(4))
        self.steers = nn.ModuleList(nn.Linear(width, size * width) for size in (3, 3, 3, 3, 2))
        self.head = nn.Linear(width, columns)
        for steer in self.steers:
            nn.init.zeros_(steer.weight)
            nn.init.zeros_(steer.bias)

    def forward(self, x: Tensor, level: Tensor, kind: Tensor) -> Tensor:
        h, condition = self.enter(x), F.silu(self.kinds(kind) + self.level(level[:, None]))
        for i in range(4):
            shift, scale, gate = self.steers[i](condition).chunk(3, 1)
            h = h + gate * self.parts[i](self.norms[i](h) * (self.one_more + scale) + shift)
        shift, scale = self.steers[4](condition).chunk(2, 1)
        out: Tensor = self.head(self.norms[4](h) * (self.one_more + scale) + shift)
        return out


class Turning(nn.Module):
    """A block of a transformer with rotary places over long rows; places are of the type `kind`, or of that of
    queries."""

    def __init__(self, words: int, kind: torch.dtype | None, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kind = heads, kind
        self.tokens, self.norms = nn.Embedding(words, width), nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, words)

    def turned(self, x: Tensor) -> Tensor:
        kind = self.kind or x.dtype
        half = x.shape[-1] // 2
        frequencies = (1000.0 ** (-torch.arange(half) / half)).to(kind)
        angle = torch.arange(x.shape[-2]).to(kind)[:, None] * frequencies
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, 2)
        )
        found = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        x = x + self.feed(self.norms[1](x))
        out: Tensor = self.head(self.norms[2](x))
        return out


class Decaying(nn.Module):
    """A gated linear recurrence over rows, and a number from its last state."""

    def __init__(self, columns: int, scan: Callable[[Tensor, Tensor], Tensor], width: int = 24) -> None:
        super().__init__()
        self.scan = scan
        self.gate, self.value = nn.Linear(columns, width), nn.Linear(columns, width)
        self.head = mlp(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        keeps = self.gate(x).sigmoid()
        out: Tensor = self.head(self.scan(keeps, (1 - keeps) * self.value(x))[:, -1]).squeeze(1)
        return out


# tasks


def molecules(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 6, 3) places of six atoms, which of three elements each is, and an energy: each atom gains by others at a
    distance, and both how much and which distance depend on its own element; and each element costs something alone."""
    made = apart(seed + 31)
    likes, depth = (
        1 + 1.2 * torch.rand(3, generator=made),
        torch.tensor([0.5, 1.5, 3.0])[torch.randperm(3, generator=made)],
    )
    places, elements = 1.3 * torch.randn(count, 6, 3, generator=own), torch.randint(0, 3, (count, 6), generator=own)
    distances = (places[:, :, None] - places[:, None]).square().sum(3).add(1e-9).sqrt()
    pairs = -depth[elements][:, :, None] * (-2 * (distances - likes[elements][:, :, None]).square()).exp()
    energy = (pairs * ~torch.eye(6, dtype=torch.bool)).sum((1, 2)) + depth[elements].sum(1)
    return places, elements, energy + 0.1 * torch.randn(count, generator=own)


def tagged(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 14) words of twelve, and for each one of four tags that it and the next word decide."""
    table = torch.randint(0, 4, (12, 12), generator=apart(seed + 32))
    ids = torch.randint(0, 12, (count, 15), generator=own)
    return ids[:, :-1], table[ids[:, :-1], ids[:, 1:]] * (torch.arange(14) < 13)


def either_way(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3) columns, and a number that lies on one of three curves, which of them by chance."""
    x = 2 * torch.rand(count, 3, generator=own) - 1
    curves = torch.stack([2 + x[:, 0], (3 * x[:, 1]).sin(), -2 + x[:, 0] * x[:, 2]], 1)
    which = torch.randint(0, 3, (count, 1), generator=own)
    return x, curves.gather(1, which).squeeze(1) + 0.15 * torch.randn(count, generator=own)


def walks(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 16) readings of prices, each row around a level of its own, and the next one, (count, 1): six tenths of
    a change return."""
    level = 4 * torch.randn(count, 1, generator=own)
    changes = torch.randn(count, 17, generator=own)
    for t in range(1, 17):
        changes[:, t] = -0.6 * changes[:, t - 1] + 0.8 * changes[:, t]
    rows = level + 0.5 * changes.cumsum(1)
    return rows[:, :16], rows[:, 16:]


def cued(count: int, own: torch.Generator | None = None, length: int = 28) -> tuple[Tensor, Tensor]:
    """(count, length) words: the first is one of four cues, and which it was is asked; all others, 4 to 11, say
    nothing."""
    ids = torch.randint(4, 12, (count, length), generator=own)
    ids[:, 0] = torch.randint(0, 4, (count,), generator=own)
    return ids, ids[:, 0].clone()


def letters(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12, 4) nodes, (count, 36, 2) edges, from and to, a few nodes with many, and for each node the mean of a
    column of those that write to it, weighed by how much each is heard, the second column."""
    nodes = torch.randn(count, 12, 4, generator=own)
    busy = (1.2 * torch.randn(count, 2, 12, generator=own)).softmax(2)
    start = torch.multinomial(busy[:, 0], 36, replacement=True, generator=own)
    end = torch.multinomial(busy[:, 1], 36, replacement=True, generator=own)
    edges, heard = torch.stack([start, end], 2), torch.zeros(count, 12)
    total = torch.zeros(count, 12)
    weight = (1.5 * nodes[..., 1]).exp().gather(1, start)
    heard.scatter_add_(1, end, weight * nodes[..., 0].gather(1, start))
    total.scatter_add_(1, end, weight)
    return nodes, edges, heard / total.clamp_min(1e-9) + 0.3 * nodes[..., 2]


def one_graph(edges: Tensor, nodes: int) -> Tensor:
    """The edges of several graphs, (rows, edges, 2), as those of one: (2, rows times edges)."""
    return (edges + nodes * torch.arange(len(edges))[:, None, None]).flatten(0, 1).T


def slopes(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 33) readings of something that rises or falls from nought, each row at a pace of its own, in noise."""
    pace = 0.25 * torch.randn(count, 1, generator=own)
    return pace * torch.arange(33) + torch.randn(count, 33, generator=own)


def rings(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 6) vectors around one of four curves in six dimensions, and which curve it is."""
    made = apart(seed + 33)
    frames, middles = torch.randn(4, 2, 6, generator=made), torch.randn(4, 6, generator=made)
    kind = torch.randint(0, 4, (count,), generator=own)
    turn = 6.28 * torch.rand(count, 1, generator=own)
    flat = torch.cat([turn.cos(), turn.sin()], 1)
    clean = middles[kind] + torch.einsum("nk,nkd->nd", flat, frames[kind])
    return clean + 0.05 * torch.randn(count, 6, generator=own), kind


def visits(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12) times in whole seconds since 1970, (count, 12) sizes of what was bought then, and how much is left at
    the last time, where a purchase lasts for two minutes or so."""
    start = 1_760_000_000 + torch.randint(0, 9_000_000, (count, 1), generator=own)
    gaps = (10 + 90 * torch.rand(count, 12, generator=own).square() * 3).long()
    times, sizes = start + gaps.cumsum(1), torch.rand(count, 12, generator=own)
    left = (sizes * (-(times[:, -1:] - times) / 120.0).exp()).sum(1)
    return times, sizes, left + 0.02 * torch.randn(count, generator=own)


def marked(count: int, own: torch.Generator | None = None, length: int = 54) -> tuple[Tensor, Tensor]:
    """(count, length, 2): numbers, and marks on three in ten of them; what is asked is the mean of the last two numbers
    that are marked, the last one twice as heavy."""
    numbers = torch.randn(count, length, generator=own)
    marks = torch.rand(count, length, generator=own) < 0.3
    marks[:, 1] = marks[:, 4] = True
    order = (marks * torch.arange(1, length + 1)).topk(2, 1).indices
    last = numbers.gather(1, order)
    return torch.stack([numbers, marks.float()], 2), (2 * last[:, 0] + last[:, 1]) / 3


def stations(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 24): what a station read in the last day, in its own spreads, and the air's temperature in kelvin."""
    made = apart(seed + 34)
    waves = torch.randn(3, 24, generator=made) / math.sqrt(24)
    x = torch.randn(count, 24, generator=own)
    some = x @ waves.T
    kelvin = 288 + 3 * some[:, 0] + 2 * (1.5 * some[:, 1]).tanh() + 0.2 * torch.randn(count, generator=own)
    return x[:, None], kelvin


def carried(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 2) places around the middle (5, 4), and where they are a while later: carried round it by 0.6 and a third
    of the way to a circle of 2.5."""
    turn, far = 6.28 * torch.rand(count, generator=own), 1.5 + 2 * torch.rand(count, generator=own)
    after, later, middle = turn + 0.6, (2 * far + 2.5) / 3, torch.tensor([5.0, 4.0])
    x = far[:, None] * torch.stack([turn.cos(), turn.sin()], 1)
    return middle + x, middle + later[:, None] * torch.stack([after.cos(), after.sin()], 1)
