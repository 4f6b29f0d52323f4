"""What the loops of round 24c share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round24c_keys.json, what each loop is meant to do in round24c_intents.json; categories are
those of round8b_parts.

round24c_proofs.json repeats by `python -m benchmarks.robustness.prove round24c`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Decoder, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round24c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Captions(nn.Module):
    """Pictures of 8 by 8 and captions of six words, each as a vector of length one."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.seen = nn.Sequential(
            nn.Conv2d(1, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.last, self.words = nn.Linear(256, width), nn.EmbeddingBag(24, width)

    def picture(self, x: Tensor) -> Tensor:
        return F.normalize(self.last(self.seen(x)), dim=1)

    def caption(self, ids: Tensor) -> Tensor:
        return F.normalize(self.words(ids), dim=1)


class Phrases(nn.Module):
    """Convolutions of two and three words, the largest over all places, a head."""

    def __init__(self, words: int, classes: int = 3, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.sizes = nn.ModuleList(nn.Conv1d(width, 16, size) for size in (2, 3))
        self.head = nn.Linear(32, classes)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids).transpose(1, 2)
        out: Tensor = self.head(torch.cat([size(h).relu().amax(2) for size in self.sizes], 1))
        return out


class Floors(Decoder):
    """A small GPT that also tells its states: those of the embeddings first, then those after each block."""

    def states(self, ids: Tensor) -> tuple[list[Tensor], Tensor]:
        out = [self.tokens(ids) + self.places(torch.arange(ids.shape[1]))]
        for block in self.blocks:
            out.append(block(out[-1]))
        return out, self.head(self.norm(out[-1]))


class Slots(nn.Module):
    """Five learned questions look at a cloud of points, and each names one place: (rows, points, 2) to (rows, 5, 2)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.points, self.asked = mlp(2, width, width), nn.Parameter(torch.randn(5, width))
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.head = mlp(width, 48, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, asked = self.points(x), self.asked.expand(len(x), -1, -1)
        out: Tensor = self.head(asked + self.look(asked, h, h, need_weights=False)[0])
        return out


class TwoQuestions(nn.Module):
    """Six columns; whether there is anything (a score), and how much, as a logarithm: (rows, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.whether, self.amount = nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return torch.cat([self.whether(h), self.amount(h)], 1)


class ActorCritic(nn.Module):
    """For each of nine places two scores of moves, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Embedding(9, 64), nn.Tanh())
        self.moves, self.value = nn.Linear(64, 2, bias=False), nn.Linear(64, 1)

    def forward(self, place: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(place)
        return self.moves(h), self.value(h).squeeze(-1)


class Fading(nn.Module):
    """A language model: two blocks that add to each place what a fading memory of all places before it holds."""

    def __init__(self, words: int, scan: Callable[[Tensor, Tensor], Tensor], width: int = 32) -> None:
        super().__init__()
        self.scan, self.tokens = scan, nn.Embedding(words, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.enter = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.keep = nn.ParameterList(nn.Parameter(torch.linspace(-3, 3, width)) for _ in range(2))
        self.leave = nn.ModuleList(mlp(width, 48, width, act=nn.GELU) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.tokens(ids)
        for i in range(2):
            h = h + self.leave[i](self.scan(self.enter[i](self.norms[i](h)), self.keep[i].sigmoid()))
        out: Tensor = self.head(self.norms[2](h))
        return out


class Routed(nn.Module):
    """A layer of four experts of which each row gets one, and a part for all rows; `shared_out` makes the weights of
    the chosen experts add up to one."""

    def __init__(self, shared_out: bool, columns: int = 6) -> None:
        super().__init__()
        self.shared_out, self.router = shared_out, nn.Linear(columns, 4, bias=False)
        self.experts = nn.ModuleList(mlp(columns, 4, 1) for _ in range(4))
        self.common = nn.Linear(columns, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        chances = self.router(x).softmax(1)
        weight, chosen = chances.topk(1, 1)
        if self.shared_out:
            weight = weight / weight.sum(1, keepdim=True)
        every = torch.cat([expert(x) for expert in self.experts], 1)
        found = (self.common(x) + weight * every.gather(1, chosen)).squeeze(1)
        if labels is None:
            return {"logits": found}
        used = F.one_hot(chosen.squeeze(1), 4).float().mean(0)
        balance = 4 * (used * chances.mean(0)).sum()
        return {"loss": F.mse_loss(found, labels) + 0.01 * balance, "logits": found}


class Sketch(nn.Module):
    """A variational autoencoder of pictures of 8 by 8 with a code of eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 48), nn.ReLU())
        self.mean, self.spread = nn.Linear(48, 8), nn.Linear(48, 8)
        self.decoder = nn.Sequential(mlp(8, 64, 64), nn.Unflatten(1, (1, 8, 8)))

    def code(self, x: Tensor) -> torch.distributions.Normal:
        h = self.encoder(x)
        return torch.distributions.Normal(self.mean(h), F.softplus(self.spread(h)) + 1e-3)


def segmenter() -> nn.Sequential:
    """One score for each pixel of a grey picture, by convolutions that look ever farther."""
    layers: list[nn.Module] = []
    for a, step in ((1, 1), (12, 2), (12, 4)):
        layers += [nn.Conv2d(a, 12, 3, padding=step, dilation=step), nn.BatchNorm2d(12), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(12, 1, 1))


def framer() -> nn.Sequential:
    """Four shares of a picture of 16 by 16: a box's centre, across and down, its width and its height."""
    layers = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 4), nn.Sigmoid())


# tasks


def described(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pictures of 8 by 8 that add up six traits of four kinds, in noise, and six words of 24, one for each trait."""
    looks = torch.randn(6, 4, 8, 8, generator=apart(seed + 31))
    kinds = torch.randint(0, 4, (count, 6), generator=own)
    clean = sum(looks[i, kinds[:, i]] for i in range(6))
    x = 0.5 * clean + 0.5 * torch.randn(count, 8, 8, generator=own)
    return x[:, None], kinds + 4 * torch.arange(6)


def complaints(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) words of 30 and one of three kinds, of which 80, 14 and 6 in a hundred are; each kind has six words
    that it likes."""
    y = torch.multinomial(torch.tensor([0.8, 0.14, 0.06]), count, replacement=True, generator=own)
    liked = torch.randperm(30, generator=apart(seed + 32))[:18].view(3, 6)
    theirs = liked[y[:, None], torch.randint(0, 6, (count, 12), generator=own)]
    alike = torch.rand(count, 12, generator=own) < 0.25
    return torch.where(alike, theirs, torch.randint(0, 30, (count, 12), generator=own)), y


def framed(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 16 by 16 with one lighter rectangle, and its centre, width and height as shares of a side."""
    x, size = 0.4 * torch.randn(count, 1, 16, 16, generator=own), torch.randint(3, 9, (count, 2), generator=own)
    begin = (torch.rand(count, 2, generator=own) * (17 - size)).long()
    for picture, (left, top), (wide, high) in zip(x, begin.tolist(), size.tolist(), strict=True):
        picture[0, top : top + high, left : left + wide] += 1
    return x, torch.cat([begin + size / 2, size], 1) / 16


def clouds(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 40, 2) points in no order, eight around each of five places, and the places, in no order either."""
    places = 2 * torch.rand(count, 5, 2, generator=own) - 1
    points = (places[:, :, None] + 0.08 * torch.randn(count, 5, 8, 2, generator=own)).flatten(1, 2)
    return points[:, torch.randperm(40, generator=own)], places


def spotted(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Grey pictures of 20 by 20 with three lighter discs, in noise, and which pixels are in one of them."""
    across = torch.arange(20)
    y = torch.zeros(count, 20, 20)
    for _ in range(3):
        middle = torch.randint(2, 18, (2, count, 1, 1), generator=own)
        radius = 1.5 + 1.5 * torch.rand(count, 1, 1, generator=own)
        far = (across[:, None] - middle[0]) ** 2 + (across - middle[1]) ** 2
        y = torch.maximum(y, (far <= radius**2).float())
    return (y + 0.8 * torch.randn(y.shape, generator=own))[:, None], y[:, None]


def spending(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Six columns of a customer, what he spends (nothing for six in ten), and what he would be expected to spend."""
    own_way = apart(seed + 33)
    whether, much = F.normalize(torch.randn(2, 6, generator=own_way), dim=1)
    x = torch.randn(count, 6, generator=own)
    chance, level = (1.5 * x @ whether - 0.5).sigmoid(), 2 + 0.7 * x @ much + 0.3 * x[:, 0].abs()
    amount = (level + 0.4 * torch.randn(count, generator=own)).exp()
    buys = torch.rand(count, generator=own) < chance
    return x, torch.where(buys, amount, 0.0), chance * (level + 0.08).exp()


def regimes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six columns, and a number that is another weighted sum of them in each of four regions."""
    own_way = apart(seed + 34)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=own_way))[0][:4]
    w = torch.randn(4, 6, generator=own_way)
    x = torch.randn(count, 6, generator=own)
    return x, (x * w[(x @ turned.T).argmax(1)]).sum(1) + 0.1 * torch.randn(count, generator=own)


def demand(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24, 2): a day's load by the hour and whether an event is announced, and the load of the hour after it;
    one day in ten has an event, which adds between three and six to that hour."""
    hour, phase = torch.arange(25), 6.28 * torch.rand(count, 1, generator=own)
    level = 0.5 * torch.randn(count, 1, generator=own)
    load = level + (6.28 * hour / 12 + phase).sin() + 0.2 * torch.randn(count, 25, generator=own)
    event = torch.rand(count, generator=own) < 0.1
    begins = torch.randint(12, 24, (count, 1), generator=own)
    told = (event[:, None] & (hour[:24] >= begins)).float()
    return torch.stack([load[:, :24], told], 2), load[:, 24] + event * (3 + 3 * torch.rand(count, generator=own))
