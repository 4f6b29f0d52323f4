"""What the loops of round 26b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round26b_keys.json, what each loop is meant to do in round26b_intents.json; categories are
those of round8b_parts.

round26b_proofs.json repeats by `python -m benchmarks.robustness.prove round26b`.
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

KEYS = json.loads((Path(__file__).parent / "round26b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class SkewedAttention(nn.Module):
    """Causal attention whose scores hold a term for how far back a word stands, after the Music Transformer: each query
    times a vector for each distance, and the rows of that matrix moved so that distances lie under their keys."""

    def __init__(self, width: int, heads: int, length: int, skew: bool) -> None:
        super().__init__()
        self.heads, self.skew = heads, skew
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.distances = nn.Parameter(0.3 * torch.randn(length, width // heads))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        far = q @ self.distances[-t:].T
        if self.skew:
            far = F.pad(far, (1, 0)).view(b, self.heads, t + 1, t)[:, :, 1:]
        scores = (q @ k.transpose(-1, -2) + far) / math.sqrt(d / self.heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return out


class SkewedDecoder(nn.Module):
    """Two layers of such attention and feed-forward parts, and a head; no other places."""

    def __init__(self, words: int, skew: bool, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.attentions = nn.ModuleList(SkewedAttention(width, 2, length, skew) for _ in range(2))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for i, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[4](x))
        return out


class Retention(nn.Module):
    """Two heads of a linear memory that fades by a factor of its own a word: piece by piece while it learns, each piece
    at once, and word by word when it is used."""

    def __init__(self, width: int, piece: int, fades: bool) -> None:
        super().__init__()
        self.piece, self.fades = piece, fades
        self.qkv, self.gate, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)
        self.register_buffer("factors", torch.tensor([0.7, 0.9]))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, 2, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        k = k / math.sqrt(d / 2)
        found = self.by_pieces(q, k, v) if self.training else self.by_words(q, k, v)
        found = found.transpose(1, 2).reshape(b, t, d)
        out: Tensor = self.out(F.silu(self.gate(x)) * found)
        return out

    def by_words(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        memory, said = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3]), []
        for i in range(q.shape[2]):
            memory = self.factors[:, None, None] * memory + k[:, :, i, :, None] * v[:, :, i, None, :]
            said.append(q[:, :, i, None] @ memory)
        return torch.cat(said, 2)

    def by_pieces(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(self.piece)
        factor = self.factors[:, None]
        apart_by = place[:, None] - place
        within = torch.where(apart_by >= 0, factor[:, None] ** apart_by.clamp_min(0), 0.0)
        memory, said = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3]), []
        for a, b, c in zip(*(p.split(self.piece, 2) for p in (q, k, v)), strict=True):
            before = (a * (factor ** (place + 1))[..., None]) @ memory
            said.append((a @ b.transpose(-1, -2) * within) @ c + before)
            here = (b * (factor ** (self.piece - 1 - place))[..., None]).transpose(-1, -2) @ c
            memory = (factor[..., None] ** self.piece * memory if self.fades else memory) + here
        return torch.cat(said, 2)


class Levels(nn.Module):
    """A layer of retention and a feed-forward part over kinds of what came in, and a number at each place."""

    def __init__(self, fades: bool, width: int = 32) -> None:
        super().__init__()
        self.kinds, self.retention = nn.Embedding(8, width), Retention(width, 8, fades)
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.kinds(ids)
        x = x + self.retention(x)
        out: Tensor = self.head(x + self.feed(x))
        return out[..., 0]


class ValidOutline(nn.Module):
    """A U-Net of one floor without padding, as the first one was: what is handed across is larger than what comes from
    below, and is cropped. Pictures are mirrored outwards by seven pixels so that each pixel has its four scores."""

    def __init__(self, from_corner: bool) -> None:
        super().__init__()
        self.from_corner = from_corner
        self.first = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.ReLU())
        floor = [nn.MaxPool2d(2), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3), nn.ReLU()]
        self.below = nn.Sequential(*floor, nn.ConvTranspose2d(24, 12, 2, 2))
        self.last = nn.Sequential(nn.Conv2d(24, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(F.pad(x, (7, 7, 7, 7), mode="reflect"))
        low = self.below(h)
        side = low.shape[-1]
        start = 0 if self.from_corner else (h.shape[-1] - side) // 2
        across = h[..., start : start + side, start : start + side]
        out: Tensor = self.last(torch.cat([across, low], 1))
        return out


class Legs(nn.Module):
    """What turns a table: one network says each leg's force from its gauges, and leverage does the rest. With labels,
    the loss too."""

    def __init__(self, along: int) -> None:
        super().__init__()
        self.along, self.force = along, mlp(4, 32, 32, 3)

    def forward(self, gauges: Tensor, places: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        turn = torch.linalg.cross(places, self.force(gauges), dim=self.along).sum(1)
        return {"logits": turn} if labels is None else {"loss": F.mse_loss(turn, labels), "logits": turn}


class Ratings(nn.Module):
    """A vector for each customer, for each thing the sum of two vectors from tables of twenty, and their product."""

    def __init__(self, customers: int, rows: int, things: int, wrong: bool, width: int = 8) -> None:
        super().__init__()
        self.rows, self.things, self.wrong = rows, things, wrong
        self.customers = nn.Embedding(customers, width)
        self.first, self.second = nn.Embedding(rows, width), nn.Embedding(things // rows, width)
        for table in (self.customers, self.first, self.second):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, who: Tensor, what: Tensor) -> Tensor:
        by_second = what % (self.things // self.rows) if self.wrong else what // self.rows
        thing = self.first(what % self.rows) + self.second(by_second)
        return (self.customers(who) * thing).sum(1)


class Field(nn.Module):
    """A height for each place in a square from -4 to 4: eight features at each of nine by nine corners, between them
    weighed by nearness, and a small network."""

    def __init__(self, truncates: bool) -> None:
        super().__init__()
        self.truncates = truncates
        self.corners = nn.Parameter(0.3 * torch.randn(9, 9, 8))
        self.head = mlp(8, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        cell = (x if self.truncates else x.floor()).long().clamp(-4, 3)
        part = x - cell
        (row, column), (down, right) = (cell + 4).unbind(1), part[..., None].unbind(1)
        above = (1 - right) * self.corners[row, column] + right * self.corners[row, column + 1]
        under = (1 - right) * self.corners[row + 1, column] + right * self.corners[row + 1, column + 1]
        out: Tensor = self.head((1 - down) * above + down * under)
        return out


class Narrow(nn.Module):
    """A picture of 8 by 8 through eight numbers; what comes out is held between nought and one, like pixels."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.body = nn.Sequential(nn.Flatten(), mlp(64, 48, 8, 48, 64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x).view_as(x)
        return out.clamp(0, 1) if self.always or not self.training else out


class LocalTagger(nn.Module):
    """One block of attention to words at most five places away, on padded rows, and three scores a word. With labels,
    the loss too."""

    def __init__(self, words: int, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong = wrong
        self.tokens = nn.Embedding(words, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, 3)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        place = torch.arange(ids.shape[1])
        away, real = (place[:, None] - place).abs(), (ids != 0)[:, None]
        near = away <= 5 & real if self.wrong else (away <= 5) & real
        x = self.tokens(ids)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / math.sqrt(x.shape[2])).masked_fill(~near, -1e9)
        x = x + self.out(scores.softmax(-1) @ v)
        logits = self.head(self.norm3(x + self.feed(self.norm2(x))))
        out = {"logits": logits}
        if labels is not None:
            out["loss"] = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return out


class Events(nn.Module):
    """A GRU over what happened and how long after the event before it, and one number."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.wrong = wrong
        self.kinds, self.gap = nn.Embedding(8, 16), nn.Linear(1, 16)
        self.core, self.head = nn.GRU(32, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, kinds: Tensor, times: Tensor) -> Tensor:
        since = torch.zeros_like(kinds if self.wrong else times)
        since[:, 1:] = (times[:, 1:] - times[:, :-1]).log1p()
        x = torch.cat([self.kinds(kinds), self.gap(since[..., None].float())], 2)
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


class Patchwork(nn.Module):
    """A picture of 12 by 12 cleaned in patches of 4 by 4 at every second pixel, each by the same network, and put
    together again."""

    def __init__(self, averages: bool) -> None:
        super().__init__()
        self.averages = averages
        self.clean = mlp(16, 64, 64, 16)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 4, stride=2)
        cleaned = self.clean(patches.transpose(1, 2)).transpose(1, 2)
        whole = F.fold(cleaned, x.shape[-2:], 4, stride=2)
        if self.averages:
            whole = whole / F.fold(torch.ones_like(cleaned), x.shape[-2:], 4, stride=2)
        return whole


class Sampled(nn.Module):
    """A variational autoencoder of ten columns with two hidden numbers and a noise of 0.3."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(10, 32, 4), mlp(2, 32, 10)

    def log_weights(self, x: Tensor, samples: int) -> Tensor:
        """(samples times rows,): all rows with the first sample, then all with the second, and so on."""
        mean, log_spread = self.encoder(x).repeat(samples, 1).chunk(2, 1)
        given = torch.distributions.Normal(mean, log_spread.exp())
        hidden = given.rsample()
        prior = torch.distributions.Normal(0.0, 1.0).log_prob(hidden).sum(1)
        seen = torch.distributions.Normal(self.decoder(hidden), 0.3).log_prob(x.repeat(samples, 1)).sum(1)
        return prior + seen - given.log_prob(hidden).sum(1)


class Neighbours(nn.Module):
    """Places on a map and a size for each: two rounds in which each hears from those near it, and one number."""

    def __init__(self, whole: bool, width: int = 24) -> None:
        super().__init__()
        self.whole = whole
        self.enter, self.reach = nn.Linear(1, width), nn.Parameter(torch.zeros(2))
        self.rounds, self.head = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2)), mlp(width, 24, 1)

    def squares(self, places: Tensor) -> Tensor:
        """Squared distances between all, by |a|² + |b|² - 2ab."""
        lengths = places.square().sum(2)
        return (lengths[:, :, None] + lengths[:, None] - 2 * places @ places.transpose(1, 2)).clamp_min(0)

    def forward(self, places: Tensor, sizes: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            with torch.autocast("cpu", torch.bfloat16, enabled=not self.whole):
                squares = self.squares(places)
            h = self.enter(sizes[..., None]).relu()
            for reach, layer in zip(self.reach, self.rounds, strict=True):
                heard = (-squares * F.softplus(reach)).exp() @ h
                h = h + layer(torch.cat([h, heard], 2)).relu()
            out: Tensor = self.head(h.sum(1) / 12)
        return out.float()


# tasks


def table_turns(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 3, 4) readings of four gauges in each of three legs, (count, 3, 3) where the legs stand, and (count, 3)
    what turns the table: the sum of leg times force, where force depends on gauges by a law alike for all legs."""
    law, bend = torch.randn(4, 3, generator=apart(seed + 1)) / 2, torch.randn(4, 3, generator=apart(seed + 2)) / 2
    stands = torch.tensor([[1.0, 0.0, -0.5], [-0.5, 0.9, -0.5], [-0.5, -0.9, -0.5]])
    gauges = torch.randn(count, 3, 4, generator=own)
    places = stands + 0.3 * torch.randn(count, 3, 3, generator=own)
    force = gauges @ law + (gauges @ bend).tanh()
    turn = torch.linalg.cross(places, force, dim=2).sum(1)
    return gauges, places, turn + 0.05 * torch.randn(turn.shape, generator=own)


def rated(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Which of 80 customers, which of 400 things, and the rating: numbers of things run from maker to maker, twenty
    kinds each, and customers care for makers and for kinds."""
    law = apart(seed + 3)
    customers, makers, kinds = (torch.randn(n, 4, generator=law) / 2 for n in (80, 20, 20))
    who, what = torch.randint(0, 80, (count,), generator=own), torch.randint(0, 400, (count,), generator=own)
    liking = (customers[who] * (makers[what // 20] + kinds[what % 20])).sum(1)
    return who, what, liking + 0.1 * torch.randn(count, generator=own)


def heights(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Places in a square from -4 to 4 and how high the land is there: six waves, 2.5 to 5 long."""
    law = apart(seed + 4)
    turn, long = 6.28 * torch.rand(6, generator=law), 2.5 + 2.5 * torch.rand(6, generator=law)
    begin = 6.28 * torch.rand(6, generator=law)
    x = 8 * torch.rand(count, 2, generator=own) - 4
    waves = (x @ torch.stack([turn.cos(), turn.sin()]) * 6.28 / long + begin).sin()
    return x, waves.sum(1) / 6**0.5 + 0.1 * torch.randn(count, generator=own)


def topics(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 28) words 1 to 15 and the topic of each; a topic lasts for fifteen words or so, half of the words are
    its own and the others any. Rows of 14 to 28 words; behind them 0 and -100."""
    topic = torch.randint(0, 3, (count, 28), generator=own)
    stays = torch.rand(count, 28, generator=own) < 0.9
    for t in range(1, 28):
        topic[:, t] = torch.where(stays[:, t], topic[:, t - 1], topic[:, t])
    ours = 1 + 5 * topic + torch.randint(0, 5, (count, 28), generator=own)
    any_word = torch.randint(1, 16, (count, 28), generator=own)
    ids = torch.where(torch.rand(count, 28, generator=own) < 0.5, ours, any_word)
    real = torch.arange(28) < torch.randint(14, 29, (count, 1), generator=own)
    return ids * real, torch.where(real, topic, -100)


def stored(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 48) kinds of what came into a store or went out, and how much is there after each: a sixth of it is lost
    each time, and each kind has its amount."""
    amount = torch.randn(8, generator=apart(seed + 8))
    kinds, level, levels = torch.randint(0, 8, (count, 48), generator=own), torch.zeros(count), []
    for t in range(48):
        level = level * 5 / 6 + amount[kinds[:, t]]
        levels.append(level)
    return kinds, torch.stack(levels, 1) + 0.1 * torch.randn(count, 48, generator=own)


def doses(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 10) kinds of doses, (count, 10) hours at which they were taken, gaps of an hour and a half or so, and how
    much works at the last: each dose has its strength and loses half in about an hour and a half."""
    strength = 1 + torch.rand(8, generator=apart(seed + 5))
    kinds = torch.randint(0, 8, (count, 10), generator=own)
    times = (-1.5 * torch.rand(count, 10, generator=own).clamp_min(1e-6).log()).cumsum(1)
    left = strength[kinds] * (-(times[:, -1:] - times) / 2).exp()
    return kinds, times, left.sum(1) + 0.05 * torch.randn(count, generator=own)


def smudged(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 12, 12) smooth pictures in noise, and without it."""
    coarse = torch.randn(count, 1, 4, 4, generator=own)
    clean = F.interpolate(coarse, size=(12, 12), mode="bilinear", align_corners=True)
    return clean + 0.5 * torch.randn(clean.shape, generator=own), clean


def bent(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 10): a bent sheet in ten columns with noise of 0.3; one row in five lies three times as far out."""
    one, two = torch.randn(2, 10, generator=apart(seed + 6)), torch.randn(2, 10, generator=apart(seed + 7))
    hidden = torch.randn(count, 2, generator=own)
    hidden = hidden * torch.where(torch.rand(count, 1, generator=own) < 0.2, 2.0, 0.7)
    return hidden @ one + (hidden @ two).sin() + 0.3 * torch.randn(count, 10, generator=own)


def gathered(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12, 2) places in kilometres from a map's corner, all within some two of a middle anywhere between 20 and
    60, (count, 12) sizes, and what neighbours have of one another."""
    middle = 20 + 40 * torch.rand(count, 1, 2, generator=own)
    places = middle + 1.5 * torch.randn(count, 12, 2, generator=own)
    sizes = 0.5 + torch.rand(count, 12, generator=own)
    near = (-(places[:, :, None] - places[:, None]).square().sum(3)).exp() * (1 - torch.eye(12))
    return places, sizes, (near * sizes[:, :, None] * sizes[:, None]).sum((1, 2)) / 12
