"""What the loops of round 23b share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round23b_keys.json, what each loop is meant to do in round23b_intents.json; categories are
those of round8b_parts.

round23b_proofs.json repeats by `python -m benchmarks.robustness.prove round23b`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round23b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Floors(nn.Module):
    """A U-Net of three floors with as many channels on each: three scores for each pixel of a grey picture.

    A floor of the way up is made as large as what it is joined with, and the scores as large as the picture."""

    def __init__(self, upwards: Callable[[list[Tensor]], list[Tensor]], width: int = 12) -> None:
        super().__init__()
        self.upwards = upwards
        self.down = nn.ModuleList(nn.Conv2d(a, width, 3, padding=1) for a in (1, width, width))
        self.up = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(2))
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, kept = x, []
        for layer in self.down[:2]:
            h = layer(h).relu()
            kept.append(h)
            h = F.max_pool2d(h, 2)
        h = self.down[2](h).relu()
        for layer, skip in zip(self.up, self.upwards(kept), strict=True):
            h = F.interpolate(h, size=skip.shape[2:], mode="bilinear")
            h = layer(torch.cat([h, skip], 1)).relu()
        return F.interpolate(self.head(h), size=x.shape[2:], mode="bilinear")


class Weighed(nn.Module):
    """An LSTM over words, a score for each place, the mean of its outputs weighed by the softmax of the scores."""

    def __init__(self, words: int, classes: int, dim: int | None, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.score, self.head, self.weigh = nn.Linear(width, 1), nn.Linear(width, classes), nn.Softmax(dim)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.core(self.words(ids))[0]
        out: Tensor = self.head((self.weigh(self.score(h)) * h).sum(1))
        return out


class Sloped(nn.Module):
    """A decoder of two layers without places: to the scores is added a slope of each head's own times the distance."""

    def __init__(self, words: int, distances: Callable[[int], Tensor], width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.distances = heads, distances
        self.register_buffer("slopes", 2.0 ** -torch.arange(heads))
        self.tokens = nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feed = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        b, t, d = x.shape
        bias = self.slopes[:, None, None] * self.distances(t)
        bias = bias.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        for i in range(2):
            parts = self.qkv[i](self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in parts)
            read = (q @ k.transpose(-1, -2) / math.sqrt(d / self.heads) + bias).softmax(-1) @ v
            x = x + self.out[i](read.transpose(1, 2).reshape(b, t, d))
            x = x + self.feed[i](self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[4](x))
        return out


class Waves(nn.Module):
    """A SIREN: two coordinates, three layers of sines with a frequency of thirty, a number. `bound` is from how many
    columns enter how far from nought the weights of the second and the third layer are drawn."""

    def __init__(self, bound: Callable[[int], float], width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, width) for a in (2, width, width))
        self.head = nn.Linear(width, 1)
        nn.init.uniform_(self.layers[0].weight, -1 / 2, 1 / 2)
        for layer in self.layers[1:]:
            nn.init.uniform_(layer.weight, -bound(width), bound(width))
        nn.init.uniform_(self.head.weight, -math.sqrt(6 / width) / 30, math.sqrt(6 / width) / 30)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = (30 * layer(x)).sin()
        out: Tensor = self.head(x)
        return out


class Translating(nn.Module):
    """An encoder of two convolutions and a decoder of one layer, with learned places: a source, and a target as far as
    it is known, to scores of the target's next words. `masks` is from how long the target is to the
    masks of its attention to itself and to the source, true where nothing is seen."""

    def __init__(
        self, words: int, length: int, masks: Callable[[int], tuple[Tensor, Tensor | None]], width: int = 32
    ) -> None:
        super().__init__()
        self.masks = masks
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.places = nn.Parameter(0.5 * torch.randn(length, width))
        self.encoder = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(2))
        self.itself = nn.MultiheadAttention(width, 2, batch_first=True)
        self.across = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.feed, self.head = mlp(width, 2 * width, width, act=nn.GELU), nn.Linear(width, words)

    def forward(self, source: Tensor, known: Tensor) -> Tensor:
        read = self.source(source) + self.places
        for layer in self.encoder:
            read = read + layer(read.transpose(1, 2)).transpose(1, 2).relu()
        read = self.norms[0](read)
        x = self.target(known) + self.places[: known.shape[1]]
        ours, theirs = self.masks(known.shape[1])
        h = self.norms[1](x)
        x = x + self.itself(h, h, h, attn_mask=ours, need_weights=False)[0]
        x = x + self.across(self.norms[2](x), read, read, attn_mask=theirs, need_weights=False)[0]
        out: Tensor = self.head(self.norms[4](x + self.feed(self.norms[3](x))))
        return out


class Masked(nn.Conv2d):
    """A convolution of 3 by 3 that sees what was before a pixel, row after row; kind "B" sees the pixel, too."""

    def __init__(self, enter: int, leave: int, kind: str) -> None:
        super().__init__(enter, leave, 3, padding=1)
        seen = torch.zeros(3, 3)
        seen[0], seen[1, 0], seen[1, 1] = 1, 1, float(kind == "B")
        self.register_buffer("seen", seen)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight * self.seen, self.bias, padding=1)


class PixelByPixel(nn.Module):
    """A PixelCNN of three masked convolutions of the given kinds: for each pixel the logit that it is set."""

    def __init__(self, kinds: str, width: int = 24) -> None:
        super().__init__()
        sizes = (1, width, width)
        self.layers = nn.ModuleList(Masked(a, width, kind) for a, kind in zip(sizes, kinds, strict=True))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        out: Tensor = self.head(x)
        return out


class WideAndDeep(nn.Module):
    """A weighted sum of columns, and a network beside it, whose answers are added."""

    def __init__(self, columns: int, joined: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.wide, self.level = nn.Parameter(torch.zeros(columns)), nn.Parameter(torch.zeros(()))
        self.deep, self.joined = mlp(columns, 48, 48, 1), joined

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x @ self.wide + self.level + self.joined(self.deep(x))
        return out


class Pieces(nn.Module):
    """A causal transformer over one piece of a text, with vectors of a memory in front and as many places behind, at
    which the next memory is written."""

    def __init__(self, words: int, size: int, width: int = 32, memory: int = 2) -> None:
        super().__init__()
        self.tokens, self.count = nn.Embedding(words, width), memory
        self.begin = nn.Parameter(0.5 * torch.randn(memory, width))
        self.write = nn.Parameter(0.5 * torch.randn(memory, width))
        self.places = nn.Parameter(0.5 * torch.randn(size + 2 * memory, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits of the piece's next words, and the memory for the next piece."""
        front = self.begin.expand(len(ids), -1, -1) if memory is None else memory
        x = torch.cat([front, self.tokens(ids), self.write.expand(len(ids), -1, -1)], 1) + self.places
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.head(x[:, self.count : -self.count]), x[:, -self.count :]


class LooksUp(nn.Module):
    """Reads from a set of things by attention between vectors of length one: a question (rows, 8), things (rows, 8,
    8 + 4), and four scores for what the thing says that was asked for."""

    def __init__(self, scale: float | None, width: int = 32) -> None:
        super().__init__()
        self.scale = scale
        self.labels, self.values = nn.Linear(8, width), nn.Linear(12, width)
        self.leave = mlp(width, width, 4, act=nn.GELU)

    def forward(self, question: Tensor, things: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        q, k = (F.normalize(self.labels(x), dim=2) for x in (question[:, None], things[..., :8]))
        read = F.scaled_dot_product_attention(q, k, self.values(things), scale=self.scale)
        logits = self.leave(read[:, 0])
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Sums(nn.Module):
    """Hits of several showers in one list, each through the same two layers in bfloat16; what came of a shower's hits
    is added up by running sums, of which one is subtracted from another, then a head: one number for each shower."""

    def __init__(self, running: Callable[[Tensor], Tensor], width: int = 32) -> None:
        super().__init__()
        self.running = running
        self.each, self.head = mlp(3, width, width), nn.Linear(width, 1)

    def forward(self, hits: Tensor, sizes: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            each = self.each(hits).relu()
        until = self.running(each)[sizes.cumsum(0) - 1].float()
        share = torch.cat([until[:1], until[1:] - until[:-1]]) / sizes[:, None]
        out: Tensor = self.head(share)[:, 0]
        return out


class Timbre(nn.Module):
    """Two convolutions over frames, a gate for each channel (squeeze and excitation), mean and standard deviation over
    time of what comes out, a head."""

    def __init__(self, eps: float, width: int = 24) -> None:
        super().__init__()
        self.eps = eps
        self.body = nn.Sequential(nn.Conv1d(6, width, 3), nn.ReLU(), nn.Conv1d(width, width, 3), nn.ReLU())
        self.gate, self.head = mlp(width, 8, width), nn.Linear(2 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        h = h * self.gate(h.mean(2)).sigmoid()[..., None]
        spread = (((h - h.mean(2, keepdim=True)) ** 2).mean(2) + self.eps).sqrt()
        out: Tensor = self.head(torch.cat([h.mean(2), spread], 1))
        return out


# tasks


def rings(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures of 20 by 20 with four discs, bright with a dark border one pixel wide, and each pixel's
    class: ground, disc or border. A later one hides what it lies on."""
    down, across = torch.arange(20)[:, None], torch.arange(20)[None]
    y = torch.zeros(count, 20, 20, dtype=torch.long)
    for _ in range(4):
        centre = 20 * torch.rand(2, count, 1, 1, generator=own)
        size = 1.5 + 3 * torch.rand(count, 1, 1, generator=own)
        away = ((down - centre[0]) ** 2 + (across - centre[1]) ** 2).sqrt()
        y = torch.where(away < size, 1, torch.where(away < size + 1, 2, y))
    x = torch.tensor([0.0, 1.0, -0.6])[y] + 0.4 * torch.randn(y.shape, generator=own)
    return x[:, None], y


def one_word_tells(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 16) words 2 to 13, somewhere among them a mark, 1, and the class: which third the next word is of."""
    ids = torch.randint(2, 14, (count, 16), generator=own)
    at = torch.randint(0, 15, (count,), generator=own)
    y = torch.randint(0, 3, (count,), generator=own)
    row = torch.arange(count)
    ids[row, at], ids[row, at + 1] = 1, 2 + 4 * y + torch.randint(0, 4, (count,), generator=own)
    return ids, y


def relief(seed: int) -> tuple[Tensor, Tensor]:
    """The coordinates, from -1 to 1, of 40 by 40 pixels and how bright each is: six waves of other directions."""
    own = apart(seed + 31)
    line = torch.linspace(-1, 1, 40)
    at = torch.cartesian_prod(line, line)
    waves = 5 * torch.randn(2, 6, generator=own)
    begin = 6.28 * torch.rand(6, generator=own)
    return at, (at @ waves + begin).sin().mean(1)


def turned_sentences(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8) words 1 to 12, and the same in another language, whose sentences are the other way round: 0, which
    begins, and eight words."""
    table = torch.randperm(12, generator=apart(seed + 38)) + 1
    source = torch.randint(1, 13, (count, 8), generator=own)
    return source, torch.cat([torch.zeros(count, 1, dtype=torch.long), table[source.flip(1) - 1]], 1)


def weave(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 1, 12, 12) noughts and ones: the chance of each depends on the pixel at its left and the one above."""
    table = 3.0 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]) * (1 if seed % 2 else -1)
    table = table + 0.3 * torch.randn(2, 2, generator=apart(seed + 32))
    x = torch.zeros(count, 13, 13, dtype=torch.long)
    x[:, 0], x[:, :, 0] = (
        torch.randint(0, 2, (count, 13), generator=own),
        torch.randint(0, 2, (count, 13), generator=own),
    )
    for i in range(1, 13):
        for j in range(1, 13):
            chance = table[x[:, i, j - 1], x[:, i - 1, j]].sigmoid()
            x[:, i, j] = (torch.rand(count, generator=own) < chance).long()
    return x[:, None, 1:, 1:].float()


def prices(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8) columns, and a number: a weighted sum, bends and products of some, and chance."""
    w = torch.randn(8, generator=apart(seed + 33))
    x = torch.randn(count, 8, generator=own)
    bent = x[:, 0] * x[:, 1] + 1.5 * (2 * x[:, 2]).sin() + x[:, 3].abs() * x[:, 4].sign()
    return x, x @ w + bent + 0.2 * torch.randn(count, generator=own)


def notebooks(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 25) words: a title, 0 to 5, and twelve questions, 6 to 11, each with its answer, 12 to 17, behind it,
    that depends on the title."""
    answers = torch.stack([torch.randperm(6, generator=apart(seed + 34 + k)) for k in range(6)])
    title = torch.randint(0, 6, (count,), generator=own)
    asked = torch.randint(0, 6, (count, 12), generator=own)
    pairs = torch.stack([6 + asked, 12 + answers[title[:, None], asked]], 2)
    return torch.cat([title[:, None], pairs.flatten(1)], 1)


def shelves(count: int, seed: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Eight things, each with another of twelve labels of eight numbers, in noise, and one of four messages, and a
    question: one of the labels, in other noise. What is right is the message of the thing with this label."""
    names = torch.randn(12, 8, generator=apart(seed + 35))
    which = torch.rand(count, 12, generator=own).argsort(1)[:, :8]
    says = torch.randint(0, 4, (count, 8), generator=own)
    asked = torch.randint(0, 8, (count, 1), generator=own)
    things = torch.cat([names[which], 1.5 * F.one_hot(says, 4)], 2)
    things = things + 0.2 * torch.randn(things.shape, generator=own)
    question = names[which.gather(1, asked)[:, 0]]
    question = question + 0.2 * torch.randn(question.shape, generator=own)
    return {"question": question, "things": things, "labels": says.gather(1, asked)[:, 0]}


def blocks_sent(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 4) readings of a line, how many bits a block had, and whether any of them was wrong. A bit is wrong
    about once in a hundred million times, from a hundred times less to a hundred times more, by the readings."""
    x = torch.randn(count, 4, generator=own)
    power = -8 + 0.7 * x[:, 0] - 0.5 * x[:, 1] + 0.5 * x[:, 2].tanh() + 0.4 * x[:, 0] * x[:, 3]
    bits = 10 ** (7 + 2 * torch.rand(count, generator=own).double())
    fails = -torch.expm1(-bits * 10 ** power.double())
    return x, bits.float(), (torch.rand(count, generator=own) < fails).float()


def showers(count: int, own: torch.Generator | None = None) -> tuple[list[Tensor], Tensor]:
    """Showers of 10 to 30 hits with three columns, and a number for each: the mean over its hits of what a hit is
    worth, which isn't known, in units of its usual deviation."""
    hits = [torch.randn(n, 3, generator=own) for n in torch.randint(10, 31, (count,), generator=own).tolist()]
    worth = torch.stack([(h.norm(dim=1) + (2 * h[:, 0]).sin() + 0.5 * h[:, 1] * h[:, 2]).mean() for h in hits])
    return hits, 4 * (worth - 1.6)


def strokes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 6, 12): the loudness of six bands in twelve frames, of one of four instruments, each with a beat and a
    spectrum of its own, and which."""
    y = torch.randint(0, 4, (count,), generator=own)
    spectrum = torch.rand(4, 6, 1, generator=apart(seed + 36))
    phase = 6.28 * torch.rand(count, 1, 1, generator=own)
    beat = (torch.tensor([0.8, 1.4, 2.0, 2.6])[y][:, None, None] * torch.arange(12) + phase).sin()
    loud = spectrum[y] * (1 + 0.9 * beat) + 0.6 * torch.randn(count, 6, 12, generator=own)
    return loud, y


def heated_rod(seed: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Heat that is put into a rod from 0 to 1, a sum of three waves, and how much warmer the rod is for it, where both
    ends are held: the second derivative is the heat with the other sign."""
    size = 10 * (1 + torch.rand(3, generator=apart(seed + 37))) * torch.tensor([1.0, 1.0, -1.0])
    turns = math.pi * torch.arange(1, 4)
    return lambda x: (x * turns).sin() @ size, lambda x: (x * turns).sin() @ (size / turns**2)
