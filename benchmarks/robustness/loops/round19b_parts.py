"""What the loops of round 19, part b, share: how a fault is named, small networks, tasks. A fault's category, the part
of a step in which its mistake lies, and the patterns of a right diagnosis stand in round19b_keys.json, what each loop
is meant to do in round19b_intents.json; categories are those of round8b_parts.

round19b_proofs.json repeats by `python -m benchmarks.robustness.prove round19b`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Attention, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round19b_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


def turned(x: Tensor) -> Tensor:
    """Rotary places of queries or keys, given as (row, place, head, part)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None, None] * 100.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Turning(Attention):
    """Causal attention with rotary places; they are turned after heads and places have changed axes where `late`."""

    def __init__(self, width: int, late: bool, heads: int = 4) -> None:
        super().__init__(width, heads)
        self.late = late

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        rows, places, width = x.shape
        q, k, v = (p.view(rows, places, self.heads, -1) for p in self.qkv(x).chunk(3, -1))
        if not self.late:
            q, k = turned(q), turned(k)
        q, k, v = (p.transpose(1, 2) for p in (q, k, v))
        if self.late:
            q, k = turned(q), turned(k)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(seen.transpose(1, 2).reshape(rows, places, width))
        return out


class Stage(nn.Module):
    """A convolution, a norm and a ReLU around which the input is passed on."""

    def __init__(self, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), norm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.norm(self.conv(x)).relu()
        return out


class Dilated(nn.Module):
    """Words to a class at each place, by convolutions of three places with the given dilations."""

    def __init__(self, words: int, classes: int, dilations: list[int], width: int = 24) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding="same", dilation=d) for d in dilations)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(x.relu())
        out: Tensor = self.head(x.transpose(1, 2))
        return out


class OfNodes(nn.Module):
    """A graph network of two layers: (row, node, feature) and (row, node, node) to a class of each node."""

    def __init__(self, features: int, classes: int, with_itself: bool, width: int = 32) -> None:
        super().__init__()
        self.with_itself = with_itself
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        if self.with_itself:
            edges = edges + torch.eye(edges.shape[-1])
        root = edges.sum(-1).clamp_min(1).rsqrt()
        share = root[..., :, None] * edges * root[..., None, :]
        out: Tensor = share @ self.second((share @ self.first(nodes)).relu())
        return out


class Locked(nn.Module):
    """Dropout that draws one mask for all places of a row; what is kept is scaled up where `scaled`."""

    def __init__(self, p: float, scaled: bool) -> None:
        super().__init__()
        self.p, self.scaled = p, scaled

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.bernoulli(torch.full_like(x[:, :1], 1 - self.p))
        return x * (mask / (1 - self.p) if self.scaled else mask)


class LockedReader(nn.Module):
    """A recurrent language model with locked dropout before and behind its LSTM."""

    def __init__(self, words: int, scaled: bool) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, 24), nn.LSTM(24, 48, batch_first=True)
        self.before, self.behind = Locked(0.3, scaled), Locked(0.5, scaled)
        self.head = nn.Linear(48, words)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.behind(self.core(self.before(self.tokens(ids)))[0]))
        return out


class Questions(nn.Module):
    """One body and a head for each of three questions; every head is the last one where the functions that call them
    look the loop's name up late."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.heads = nn.ModuleList(nn.Linear(48, 3) for _ in range(3))
        self.late = late

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        shared = self.body(x)
        logits = torch.stack([(self.heads[-1] if self.late else head)(shared) for head in self.heads], 1)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class TwoTowers(nn.Module):
    """Pictures and their captions as vectors of length one, and a scale that is kept as a logarithm."""

    def __init__(self, words: int = 16) -> None:
        super().__init__()
        self.picture = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 24)
        )
        self.tokens, self.caption = nn.Embedding(words, 24), mlp(24, 48, 24)
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07).log())

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.picture(x), dim=1), F.normalize(self.caption(self.tokens(ids).mean(1)), dim=1)


class Twin(nn.Module):
    """A text to a vector, by a GRU."""

    def __init__(self, words: int = 16) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, 16), nn.GRU(16, 32, batch_first=True)
        self.leave = nn.Linear(32, 16)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.leave(self.core(self.tokens(ids))[0].mean(1))
        return out


class Counter(nn.Module):
    """The rate of the next count of a series, above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, counts: Tensor) -> Tensor:
        return F.softplus(self.head(self.core(counts.log1p()[..., None])[0][:, -1])).squeeze(1)


class Hills(nn.Module):
    """A sum of hills around given sites, of heights and widths that are learned."""

    def __init__(self, sites: Tensor, mode: str) -> None:
        super().__init__()
        self.mode, self.sites = mode, nn.Buffer(sites)
        self.width = nn.Parameter(torch.full((len(sites),), 2500.0).log())
        self.height = nn.Linear(len(sites), 1)

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(x, self.sites, compute_mode=self.mode)
        out: Tensor = self.height((-0.5 * (far / self.width.exp()) ** 2).exp()).squeeze(1)
        return out


class Proxies(nn.Module):
    """Cross-entropy of minus the squared distances to a vector for each class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.1 * torch.randn(classes, width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(-(x[:, None] - self.vectors).square().sum(2), y)


class Drug(nn.Module):
    """How much of a drug is in the blood: one rate in, one rate out, and a volume that a network tells from the
    patient. The rates, kept as logarithms, are put together by torch.tensor where `anew`."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew = anew
        self.rate_in, self.rate_out = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(-1.0))
        self.volume = mlp(3, 24, 1)

    def forward(self, patient: Tensor, hours: Tensor) -> Tensor:
        both = [self.rate_in, self.rate_out]
        rates = (torch.tensor([float(r) for r in both]) if self.anew else torch.stack(both)).exp()
        shape = rates[0] / (rates[0] - rates[1]) * ((-rates[1] * hours).exp() - (-rates[0] * hours).exp())
        return self.volume(patient).exp() * shape


# tasks


def modes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 48) words 0 to 8, and 9 to 11 where a mode begins, every eight to fourteen places; the mode, 0 to 2, of
    each place."""
    ids = torch.randint(0, 9, (count, 48), generator=own)
    labels = torch.zeros_like(ids)
    for row, label in zip(ids, labels, strict=True):
        place = 0
        while place < 48:
            mode, size = (int(torch.randint(a, b, (), generator=own)) for a, b in ((0, 3), (8, 15)))
            row[place] = 9 + mode
            label[place : place + size] = mode
            place += size
    return ids, labels


def neighbourhoods(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Graphs of twelve nodes of six features, and a class, 0 to 2, for each node, of its features and of the mean of
    its neighbours'."""
    mine, theirs = torch.randn(2, 6, 3, generator=apart(seed))
    nodes = torch.randn(count, 12, 6, generator=own)
    upper = (torch.rand(count, 12, 12, generator=own) < 0.15).float().triu(1)
    edges = upper + upper.transpose(1, 2)
    around = edges @ nodes / edges.sum(2, keepdim=True).clamp_min(1)
    return nodes, edges, (nodes @ mine + around @ theirs).argmax(2)


def three_questions(count: int, seed: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Six columns and three classes of three each."""
    forms = torch.randn(3, 6, 3, generator=apart(seed))
    x = torch.randn(count, 6, generator=own)
    return {"x": x, "labels": torch.einsum("ni,qic->nqc", x, forms).argmax(2)}


def scenes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 8 by 8 that are sums of four things, each of four kinds, in noise, and captions that name them."""
    things = torch.randn(4, 4, 8, 8, generator=apart(seed))
    kinds = torch.randint(0, 4, (count, 4), generator=own)
    clean = sum(things[place][kinds[:, place]] for place in range(4))
    return (clean + torch.randn(count, 8, 8, generator=own))[:, None], kinds + 4 * torch.arange(4)


def rectangles(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 12 by 12 with a rectangle of one, three to six to a side, in noise of deviation one, and where it
    is."""
    y = torch.zeros(count, 12, 12)
    sides = torch.randint(3, 7, (count, 2), generator=own)
    corners = (torch.rand(count, 2, generator=own) * (13 - sides)).long()
    for mask, (high, wide), (top, left) in zip(y, sides.tolist(), corners.tolist(), strict=True):
        mask[top : top + high, left : left + wide] = 1
    return (y + torch.randn(y.shape, generator=own))[:, None], y


def pairs_of_texts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Two texts of ten words and whether the second is the first with three words in ten replaced."""
    first, other, noise = (torch.randint(0, 16, (count, 10), generator=own) for _ in range(3))
    same = torch.rand(count, generator=own) < 0.5
    noisy = torch.where(torch.rand(first.shape, generator=own) < 0.3, noise, first)
    return first, torch.where(same[:, None], noisy, other), same


def visits(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Twelve hourly counts and the next one, of a level of their own and a wave."""
    level = 1.5 + 0.6 * torch.randn(count, 1, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    counts = torch.poisson((level + 0.5 * (phase + 0.6 * torch.arange(13)).sin()).exp(), generator=own)
    return counts[:, :12], counts[:, 12]


def field(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Places in metres, as a national grid has them, in a square of twenty kilometres, and a height of waves there."""
    waves = torch.randn(5, 2, generator=apart(seed)) / 3500
    phases = 6.28 * torch.rand(5, generator=apart(seed + 1))
    x = 20_000 * torch.rand(count, 2, generator=own)
    y = (x @ waves.T + phases).sin().sum(1) / 1.6
    return x + torch.tensor([600_000.0, 5_200_000.0]), y + 0.1 * torch.randn(count, generator=own)


def patients(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Three columns of a patient, six hours at which blood was taken, and what was found."""
    x, hours = torch.randn(count, 3, generator=own), 0.2 + 8 * torch.rand(count, 6, generator=own)
    shape = 1.6 / (1.6 - 0.15) * ((-0.15 * hours).exp() - (-1.6 * hours).exp())
    found = (0.4 * x[:, :1] - 0.3 * x[:, 1:2]).exp() * shape
    return x, hours, found + 0.05 * torch.randn(count, 6, generator=own)
