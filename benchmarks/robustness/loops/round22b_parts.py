"""What the loops of round 22b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round22b_keys.json, what each loop is meant to do in round22b_intents.json; categories are
those of round8b_parts.

round22b_proofs.json repeats by `python -m benchmarks.robustness.prove round22b`.
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

KEYS = json.loads((Path(__file__).parent / "round22b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Lookup(nn.Module):
    """Reads one of twelve records by attention of four heads: a question of one key, records of a key and a value."""

    def __init__(self, scale: float, keys: int = 40, values: int = 6, width: int = 64) -> None:
        super().__init__()
        self.scale = scale
        self.keys, self.values = nn.Embedding(keys, width), nn.Embedding(values, width)
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_kv = nn.Linear(width, width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, values)

    def forward(self, question: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        records = self.norm(self.keys(keys) + self.values(values))
        asked = self.norm(self.keys(question))[:, None]
        q, k, v = (
            p.unflatten(2, (4, -1)).transpose(1, 2) for p in (self.to_q(asked), *self.to_kv(records).chunk(2, 2))
        )
        read = ((q @ k.transpose(2, 3) * self.scale).softmax(3) @ v).transpose(1, 2).flatten(2)
        out: Tensor = self.head(self.out(read)[:, 0])
        return out


class Places(nn.Module):
    """Sines and cosines of places, added to (rows, places, width)."""

    table: Tensor

    def __init__(self, width: int, by_rows: bool, length: int = 2000) -> None:
        super().__init__()
        self.by_rows = by_rows
        angle = torch.arange(length)[:, None] * (-math.log(10000.0) / width * torch.arange(0, width, 2)).exp()
        table = torch.zeros(length, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = angle.sin(), angle.cos()
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        if self.by_rows:
            return x + self.table[: x.size(0)]
        return x + self.table[: x.size(1)].transpose(0, 1)


class Events(nn.Module):
    """torch's own encoder, rows first, over words and their places, the mean, a head."""

    def __init__(self, by_rows: bool, words: int = 12, classes: int = 4, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), Places(width, by_rows)
        layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.core = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.places(self.words(ids))).mean(1))
        return out


class Glance(nn.Module):
    """What a writer reads of a picture's vectors: attention from words to them, a projection that begins at nought, and
    where `gated` a gate that begins at nought as well."""

    def __init__(self, width: int, columns: int, gated: bool) -> None:
        super().__init__()
        self.norm, self.bring = nn.LayerNorm(width), nn.Linear(columns, width)
        self.read = nn.MultiheadAttention(width, 2, batch_first=True)
        self.out = nn.Linear(width, width)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.gate = nn.Parameter(torch.zeros(1)) if gated else None

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        brought = self.bring(seen)
        found: Tensor = self.out(self.read(self.norm(x), brought, brought, need_weights=False)[0])
        return x + (found if self.gate is None else self.gate.tanh() * found)


class Around(nn.Module):
    """Attention of two heads among the patches of a square, with a learned number for each head and offset of two
    patches and no other places."""

    index: Tensor

    def __init__(self, side: int, width: int, added: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        span = 2 * side - 1
        self.table = nn.Parameter(0.02 * torch.randn(span * span, 2))
        spot = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        offset = spot[:, None] - spot[None] + side - 1
        down = offset[..., 0] if added else offset[..., 0] * span
        self.register_buffer("index", down + offset[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(2, (2, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + self.table[self.index].permute(2, 0, 1)
        out: Tensor = self.out((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
        return out


class Winds(nn.Module):
    """A grid of 6 by 6 stations with three readings each, two layers that know only how stations lie to each other, and
    a number for each station."""

    def __init__(self, added: bool, width: int = 24) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(3, width), nn.Linear(width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.around = nn.ModuleList(Around(6, width, added) for _ in range(2))
        self.feed = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for i in range(2):
            h = h + self.around[i](self.norms[2 * i](h))
            h = h + self.feed[i](self.norms[2 * i + 1](h))
        out: Tensor = self.head(h).squeeze(2)
        return out


class Packed(nn.Module):
    """Several texts in a row: a layer of torch's attention in which words see their own text, three scores a word.

    torch takes a mask of its own for each row and head, (rows times heads, places, places), True where it is closed."""

    def __init__(self, in_turn: bool, words: int = 16, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.in_turn, self.heads = in_turn, heads
        self.words = nn.Embedding(words, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, 3)

    def forward(self, ids: Tensor, text: Tensor) -> Tensor:
        closed = text[:, :, None] != text[:, None]
        mask = closed.repeat(self.heads, 1, 1) if self.in_turn else closed.repeat_interleave(self.heads, 0)
        x = self.words(ids)
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        out: Tensor = self.head(x + self.feed(self.norm2(x)))
        return out


class Spread(nn.Module):
    """A graph convolution: each node's own part and the mean of its neighbours', (nodes, columns), (nodes, nodes)."""

    def __init__(self, columns: int, width: int, keep: bool) -> None:
        super().__init__()
        self.own, self.theirs = nn.Linear(columns, width), nn.Linear(columns, width, bias=False)
        self.keep = keep
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        share = self.kept
        if share is None:
            share = edges / edges.sum(1, keepdim=True).clamp_min(1)
            if self.keep:
                self.kept = share
        out: Tensor = self.own(x) + share @ self.theirs(x)
        return out


class Traffic(nn.Module):
    """Two graph convolutions and a number for each node."""

    def __init__(self, keep: bool, columns: int = 3, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = Spread(columns, width, keep), Spread(width, width, keep)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.first(x, edges).relu()
        out: Tensor = self.head(self.second(h, edges).relu()).squeeze(1)
        return out


class Coupled(nn.Module):
    """A normalising flow of six affine couplings over four columns; it gives each row's log density."""

    sides: Tensor

    def __init__(self, alternate: bool, columns: int = 4, width: int = 32) -> None:
        super().__init__()
        side = torch.arange(columns) < columns // 2
        self.register_buffer("sides", torch.stack([side ^ bool(i % 2 and alternate) for i in range(6)]))
        self.parts = nn.ModuleList(mlp(columns, width, 2 * columns) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        volume = torch.zeros(len(x))
        for kept, part in zip(self.sides, self.parts, strict=True):
            scale, shift = part(x * kept).chunk(2, 1)
            scale = scale.tanh() * ~kept
            x = x * scale.exp() + shift * ~kept
            volume = volume + scale.sum(1)
        return volume - 0.5 * (x * x).sum(1) - 0.5 * x.shape[1] * math.log(2 * math.pi)


class Cloud(nn.Module):
    """PointNet for parts: each point by itself, the largest of each channel over the cloud, both together, a head."""

    def __init__(self, over: int, width: int = 32) -> None:
        super().__init__()
        self.over = over
        self.alone, self.both = mlp(3, width, width), mlp(2 * width, width, 3)

    def forward(self, points: Tensor) -> Tensor:
        h = self.alone(points)
        whole = h.amax(self.over, keepdim=True).expand_as(h)
        out: Tensor = self.both(torch.cat([h, whole], 2))
        return out


class Machine(nn.Module):
    """A factorisation machine: a bias, a number for each value of each field, and the product of each two fields'
    vectors, by the square of the sum less the sum of the squares."""

    first: Tensor

    def __init__(self, over: int, fields: int = 5, values: int = 8, width: int = 6) -> None:
        super().__init__()
        self.over = over
        self.register_buffer("first", values * torch.arange(fields))
        self.vectors, self.numbers = nn.Embedding(fields * values, width), nn.Embedding(fields * values, 1)
        self.bias = nn.Parameter(torch.zeros(()))
        nn.init.normal_(self.vectors.weight, std=0.3)
        nn.init.zeros_(self.numbers.weight)

    def forward(self, x: Tensor) -> Tensor:
        v = self.vectors(x + self.first)
        pairs = 0.5 * (v.sum(self.over) ** 2 - (v * v).sum(self.over)).sum(1)
        return self.bias + self.numbers(x + self.first).sum((1, 2)) + pairs


class Barometer(nn.Module):
    """A window of pressure, in pascals, by its own mean and spread, convolutions, the mean over time, a head."""

    def __init__(self, in_one_pass: bool) -> None:
        super().__init__()
        self.in_one_pass = in_one_pass
        self.body = nn.Sequential(nn.Conv1d(1, 16, 5, 2, 2), nn.ReLU(), nn.Conv1d(16, 24, 5, 2, 2), nn.ReLU())
        self.head = nn.Linear(24 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        spread = (
            (x * x).mean(1, keepdim=True) - mean**2 if self.in_one_pass else ((x - mean) ** 2).mean(1, keepdim=True)
        )
        x = (x - mean) / (spread.clamp_min(0) + 1e-2).sqrt()
        out: Tensor = self.head(self.body(x[:, None]).flatten(1))
        return out


class Ride(nn.Module):
    """Minutes of a ride from two places, in degrees, and the hour: the way in kilometres along the globe, sine and
    cosine of the hour, an MLP."""

    def __init__(self, by_cosine: bool) -> None:
        super().__init__()
        self.by_cosine = by_cosine
        self.body = mlp(3, 32, 32, 1)

    def way(self, places: Tensor) -> Tensor:
        a, b, c, d = places.deg2rad().unbind(1)
        if self.by_cosine:
            return 6371 * (a.sin() * c.sin() + a.cos() * c.cos() * (d - b).cos()).clamp(-1, 1).acos()
        half = ((c - a) / 2).sin() ** 2 + a.cos() * c.cos() * ((d - b) / 2).sin() ** 2
        return 6371 * 2 * half.sqrt().asin()

    def forward(self, x: Tensor) -> Tensor:
        angle = x[:, 4] * (2 * math.pi / 24)
        out: Tensor = self.body(torch.stack([self.way(x[:, :4]), angle.sin(), angle.cos()], 1)).squeeze(1)
        return out


class Demand(nn.Module):
    """How much of something is sold: rows hold the thing's number, 0 to 599 with room
    for more, and four columns that describe the day."""

    def __init__(self, whole_row_first: bool, width: int = 12) -> None:
        super().__init__()
        self.whole_row_first = whole_row_first
        self.things, self.body = nn.Embedding(640, width), mlp(width + 4, 48, 1)

    def forward(self, rows: Tensor) -> Tensor:
        if self.whole_row_first:
            rows = rows.to(torch.bfloat16)
        thing, day = rows[:, 0].long(), rows[:, 1:].to(torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.body(torch.cat([self.things(thing).to(torch.bfloat16), day], 1))
        return out.float().squeeze(1)


class RootMeanSquare(nn.Module):
    """RMS norm over the last axis, its statistics in the precision of what comes in or in single precision."""

    def __init__(self, width: int, as_it_comes: bool) -> None:
        super().__init__()
        self.gain, self.as_it_comes = nn.Parameter(torch.ones(width)), as_it_comes

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.as_it_comes else x.float()
        h = h * ((h * h).mean(-1, keepdim=True) + 1e-6).rsqrt()
        return h.to(x.dtype) * self.gain.to(x.dtype)


class Microphone(nn.Module):
    """Frames of sixteen samples of a sound as it was recorded, a norm, two layers, the mean over frames, a head."""

    def __init__(self, as_it_comes: bool, width: int = 32) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(16, width, bias=False), RootMeanSquare(width, as_it_comes)
        self.body, self.head = mlp(width, 48, 48), nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.enter(x.unfold(1, 16, 8)))
        out: Tensor = self.head(self.body(h).relu().mean(1))
        return out


class Fading(nn.Module):
    """A linear recurrence with gates: each state is the one before it times a share between nought and one, plus what
    is new. All places at once: what is new is divided by the product of shares up to its place, summed up, and
    multiplied by the product again; `piece` places at a time, with the state carried over."""

    def __init__(self, piece: int, width: int = 24) -> None:
        super().__init__()
        self.piece, self.width = piece, width
        self.enter, self.gates, self.head = nn.Linear(3, width), nn.Linear(3, width), nn.Linear(width, 1)
        nn.init.constant_(self.gates.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        share, new = self.gates(x).sigmoid(), self.enter(x)
        state, out = torch.zeros(len(x), 1, self.width), []
        for a, b in zip(share.split(self.piece, 1), ((1 - share) * new).split(self.piece, 1), strict=True):
            product = a.cumprod(1)
            h = product * (state + (b / product.clamp_min(1e-6)).cumsum(1))
            state = h[:, -1:]
            out.append(h)
        made: Tensor = self.head(torch.cat(out, 1)).squeeze(2)
        return made


# tasks


def records(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A key that is asked for, twelve records' keys, 0 to 39, all different, their values, 0 to 5, and the value that
    belongs to the key."""
    keys = torch.rand(count, 40, generator=own).argsort(1)[:, :12]
    values = torch.randint(0, 6, (count, 12), generator=own)
    which = torch.randint(0, 12, (count, 1), generator=own)
    return keys.gather(1, which)[:, 0], keys, values, values.gather(1, which)[:, 0]


def logs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) events: 4 to 11 are routine, and at three places stand three different ones of the faults 0 to 3;
    and which fault came first."""
    x = torch.randint(4, 12, (count, 12), generator=own)
    kinds = torch.rand(count, 4, generator=own).argsort(1)[:, :3]
    where = torch.rand(count, 12, generator=own).argsort(1)[:, :3].sort(1).values
    return x.scatter(1, where, kinds), kinds[:, 0]


def captions(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 4, 6) noisy vectors of a picture of one of six kinds, and (count, 16) words 0 to 11 about it; each kind
    has its likings, and each word its likely followers."""
    prototypes = torch.randn(6, 4, 6, generator=apart(seed + 31))
    liked, after = (2 * torch.randn(n, 12, generator=apart(seed + k)) for n, k in ((6, 32), (12, 33)))
    kind = torch.randint(0, 6, (count,), generator=own)
    seen = prototypes[kind] + 0.5 * torch.randn(count, 4, 6, generator=own)
    ids = torch.randint(0, 12, (count, 16), generator=own)
    for t in range(1, 16):
        chance = (liked[kind] + 0.5 * after[ids[:, t - 1]]).softmax(1)
        ids[:, t] = torch.multinomial(chance, 1, generator=own)[:, 0]
    return seen, ids


def winds(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 36, 3) readings of a grid of stations and (count, 36) what each has next: most of it comes with the wind
    from the station to the west, some from the one to the north, some is its own."""
    w = torch.randn(3, 3, generator=apart(seed + 40))
    x = torch.randn(count, 6, 6, 3, generator=own)
    west, north, here = (x @ w).unbind(3)
    y = F.pad(west, (1, 0))[:, :, :-1] + 0.5 * F.pad(north, (0, 0, 1, 0))[:, :-1] + 0.5 * here
    return x.flatten(1, 2), (y + 0.1 * torch.randn(count, 6, 6, generator=own)).flatten(1)


def letters(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 24) words 1 to 15, which of three texts of 4 to 16 words each belongs to, and each word's label: the
    topic, 0 to 2, of its text, whose own five words are more frequent there."""
    ends = 4 + torch.rand(count, 17, generator=own).argsort(1)[:, :2].sort(1).values
    ends[:, 1] = ends[:, 1].maximum(ends[:, 0] + 4).clamp_max(20)
    ends[:, 0] = ends[:, 0].minimum(ends[:, 1] - 4)
    text = (torch.arange(24) >= ends[:, :, None]).sum(1)
    label = torch.randint(0, 3, (count, 3), generator=own).gather(1, text)
    ours = 1 + 5 * label + torch.randint(0, 5, (count, 24), generator=own)
    alike = torch.rand(count, 24, generator=own) < 0.5
    return torch.where(alike, ours, torch.randint(1, 16, (count, 24), generator=own)), text, label


def town(count: int, seed: int, own: torch.Generator | None = None) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Mornings in a town of forty crossings: (40, 3) readings, (40, 40) roads that are open, about two at each
    crossing and other ones each morning, and each crossing's delay, of its own readings and its neighbours'."""
    near, mine = torch.randn(3, generator=apart(seed + 34)), torch.randn(3, generator=apart(seed + 35))
    out = []
    for _ in range(count):
        x = torch.randn(40, 3, generator=own)
        edges = (torch.rand(40, 40, generator=own) < 0.05).float().triu(1)
        edges = edges + edges.T
        share = edges / edges.sum(1, keepdim=True).clamp_min(1)
        out.append((x, edges, 0.5 * (x @ mine).tanh() + 2 * share @ (x @ near).relu()))
    return out


def bent(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 4): the first column is about 1 or about -1, the second is skewed, the third is near the first plus half
    of the second, the fourth near their product."""
    chance = torch.randn(count, 4, generator=own)
    a = torch.randint(0, 2, (count,), generator=own) * 2 - 1 + 0.25 * chance[:, 0]
    b = (0.5 * chance[:, 1]).exp() - 1
    return torch.stack([a, b, a + 0.5 * b + 0.3 * chance[:, 2], a * b + 0.3 * chance[:, 3]], 1)


def clouds(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24, 3): points of a rod somewhere in space, of any length along the first axis, and each point's part:
    the front fifth, the middle, the back fifth."""
    along = torch.rand(count, 24, 1, generator=own)
    length = 0.5 + 1.5 * torch.rand(count, 1, 1, generator=own)
    place = torch.randn(count, 1, 3, generator=own)
    points = torch.cat([along * length, 0.1 * torch.randn(count, 24, 2, generator=own)], 2) + place
    return points, (along[..., 0] > 0.2).long() + (along[..., 0] > 0.8).long()


def crosses(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 5) values 0 to 7 of five fields and a number: a little of each field, and more of which two values come
    together."""
    vectors, numbers = torch.randn(5, 8, 3, generator=apart(seed + 36)), torch.randn(5, 8, generator=apart(seed + 37))
    x = torch.randint(0, 8, (count, 5), generator=own)
    v = vectors[torch.arange(5), x]
    pairs = 0.5 * (v.sum(1) ** 2 - (v * v).sum(1)).sum(1)
    return x, 0.3 * pairs + 0.5 * numbers[torch.arange(5), x].sum(1) + 0.2 * torch.randn(count, generator=own)


def stairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 32) pascals, a reading a second, around a level of the day, and what somebody does: 0 climbs stairs, 1
    descends, 2 takes the lift up, 3 down; up is less pressure, and a lift is quicker."""
    y = torch.randint(0, 4, (count,), generator=own)
    start = 6 + 8 * torch.rand(count, 1, generator=own)
    time = torch.where(y < 2, 16.0, 5.0)[:, None]
    way = ((torch.arange(32) - start) / time).clamp(0, 1) * torch.where(y % 2 == 0, -1.0, 1.0)[:, None]
    height = 25 + 15 * torch.rand(count, 1, generator=own)
    level = 101_325 + 800 * torch.randn(count, 1, generator=own)
    return level + height * way + 4 * torch.randn(count, 32, generator=own), y


def rides(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 5): latitude and longitude of start and end, in degrees, in one town, 0.3 to 6 km apart, and the hour;
    and the minutes, in tens: longer when many are under way."""
    start = torch.tensor([52.5, 13.4]) + 0.05 * torch.randn(count, 2, generator=own)
    way, turn = 0.3 + 5.7 * torch.rand(count, generator=own), 6.28 * torch.rand(count, generator=own)
    degrees = torch.stack([way * turn.sin() / 111.2, way * turn.cos() / (111.2 * start[:, 0].deg2rad().cos())], 1)
    hour = 24 * torch.rand(count, generator=own)
    busy = 1 + 0.4 * ((hour - 6) * (2 * math.pi / 24)).sin()
    minutes = 3 + 3.5 * way * busy + torch.randn(count, generator=own)
    return torch.cat([start, start + degrees, hour[:, None]], 1), minutes / 10


def sales(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 5): which of 600 things, as a float, and four columns of the day; and how much of it is sold: each thing
    has a level of its own."""
    level = torch.randn(600, generator=apart(seed + 38))
    w = 0.8 * F.normalize(torch.randn(4, generator=apart(seed + 39)), dim=0)
    thing = torch.randint(0, 600, (count,), generator=own)
    day = torch.randn(count, 4, generator=own)
    y = level[thing] + day @ w + 0.2 * torch.randn(count, generator=own)
    return torch.cat([thing[:, None].float(), day], 1), y


def recorded(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 64) samples of a tone of one of four pitches, of any phase, in noise, from soft to loud: whole numbers
    within 16 bits; and which pitch."""
    y = torch.randint(0, 4, (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (0.3 + 0.25 * y[:, None]) + phase).sin()
    loud = 10 ** (1.0 + 2.6 * torch.rand(count, 1, generator=own))
    return (loud * (clean + 0.7 * torch.randn(count, 64, generator=own))).round().clamp(-32768, 32767), y


def tanks(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 96, 3): what flows in, and two valves' readings; and the level at each place: a share of the level
    before, lower where the first valve is open, plus what flows in where the second one is."""
    x = torch.randn(count, 96, 3, generator=own)
    share, new = (1.5 - 1.5 * x[..., 1]).sigmoid(), x[..., 0] * x[..., 2].sigmoid()
    levels, level = [], torch.zeros(count)
    for t in range(96):
        level = share[:, t] * level + new[:, t]
        levels.append(level)
    return x, torch.stack(levels, 1) + 0.05 * torch.randn(count, 96, generator=own)


def gates_reordered(state: dict[str, Tensor], order: list[int]) -> dict[str, Tensor]:
    """An LSTM's weights with the four gates in another order; everything else as it is."""
    out = {}
    for name, value in state.items():
        gates = value.chunk(4) if name.startswith("core.") else ()
        out[name] = torch.cat([gates[i] for i in order]) if gates else value.clone()
    return out


def together(m: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of three scores for each word of rows of packed texts, or each point of a cloud."""
    *inputs, y = batch
    return F.cross_entropy(m(*inputs).flatten(0, 1), y.flatten())
