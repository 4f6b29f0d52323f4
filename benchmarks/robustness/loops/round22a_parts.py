"""What the loops of round 22a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round22a_keys.json, what each loop is meant to do in round22a_intents.json; categories are
those of round8b_parts.

round22a_proofs.json repeats by `python -m benchmarks.robustness.prove round22a`.
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

KEYS = json.loads((Path(__file__).parent / "round22a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Clouds(nn.Module):
    """A small PointNet: each point by itself, the largest of each channel over the points, four scores."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.point, self.head = mlp(3, 32, width), mlp(width, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.point(x).amax(1))
        return out


class Skimmer(nn.Module):
    """A GRU over words, the largest of each of its outputs over the places, five scores."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.words, self.core = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.words(ids))[0].amax(1))
        return out


class Level(nn.Module):
    """A GRU over readings, (rows, places), and one number from its last state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x[..., None])[0][:, -1])
        return out


class Neighbours(nn.Module):
    """Two residual rounds in which a node takes in itself and the mean of its neighbours; one number for each node."""

    def __init__(self, columns: int = 4, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(columns, width)
        self.rounds = nn.ModuleList(mlp(2 * width, width, width) for _ in range(2))
        self.head = nn.Linear(width, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes).relu()
        share = edges / edges.sum(2, keepdim=True).clamp_min(1)
        for layer in self.rounds:
            h = h + layer(torch.cat([h, share @ h], 2))
        out: Tensor = self.head(h).squeeze(2)
        return out


class Ground(nn.Module):
    """A U-Net of one floor: four scores for each pixel of a picture in three colours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.below = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.last = nn.Sequential(nn.Conv2d(36, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out: Tensor = self.last(torch.cat([h, self.below(h)], 1))
        return out


class Counter(nn.Module):
    """A vision transformer on pictures of 12 by 12: patches of 3 by 3, one block, the mean over patches, a head."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.cut, self.places = nn.Conv2d(1, width, 3, 3), nn.Parameter(0.1 * torch.randn(1, 16, width))
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.head = mlp(width, 64, classes)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.cut(x).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(self.norm(self.block(parts)).mean(1))
        return out


def listener(numbers: int) -> nn.Sequential:
    """Numbers from a recording of one channel: two strided convolutions, the mean over time, two linear layers."""
    layers = [nn.Conv1d(1, 16, 15, 2), nn.ReLU(), nn.Conv1d(16, 32, 9, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, numbers))


def bert(kind: str, words: int, **options: Any) -> Any:
    """One of transformers' small BERTs, by the name of its head."""
    import transformers

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"intermediate_size": 64, "max_position_embeddings": 32, "vocab_size": words}
    config = transformers.BertConfig(**(settings | options))
    return getattr(transformers, f"BertFor{kind}")(config)


class Stream(torch.utils.data.IterableDataset[Any]):
    """Rows as they come."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(self.rows)


# tasks


def notes(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Recordings, (count, 128), in noise, of one of four notes; which note; and whether it is an old recorder's, which
    takes twice as many samples of the same time. A new one's 64 samples are followed by nothing."""
    y = torch.randint(0, 4, (count,), generator=own)
    old = torch.rand(count, generator=own) < 0.4
    pitch = torch.tensor([0.3, 0.45, 0.6, 0.9])[y] / (1 + old)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    x = (torch.arange(128) * pitch[:, None] + phase).sin()
    x = x + torch.where(old, 1.2, 0.85)[:, None] * torch.randn(count, 128, generator=own)
    x[:, 64:] *= old[:, None]
    return x, y, old


def clouds(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 40, 3) points on an ellipsoid or within a box, flat or tall, of any size: four classes."""
    y = torch.randint(0, 4, (count,), generator=own)
    inside = 2 * torch.rand(count, 40, 3, generator=own) - 1
    around = F.normalize(torch.randn(count, 40, 3, generator=own), dim=2)
    shape = torch.where((y % 2 == 0)[:, None, None], around, inside)
    high = 0.3 + 0.5 * torch.rand(count, generator=own)
    sizes = torch.where((y < 2)[:, None], *(torch.stack(s, 1) for s in high_and_wide(high)))
    shape = shape * sizes[:, None] * (1 + 9 * torch.rand(count, 1, 1, generator=own))
    return shape + 5 * torch.randn(count, 1, 3, generator=own), y


def high_and_wide(low: Tensor) -> list[list[Tensor]]:
    """Half sizes across, along and up of what lies flat and of what stands tall."""
    one = torch.ones_like(low)
    return [[one, one, low], [low, low, one]]


def reports(count: int, source: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 14) words and one of five topics. Words 1 to 25 are everybody's, five for each topic; 26 to 50, 51 to 75
    and 76 to 100 are those of one source each, again five for each topic."""
    y = torch.randint(0, 5, (count,), generator=own)
    kind = torch.rand(count, 14, generator=own)
    word = 1 + 5 * y[:, None] + torch.randint(0, 5, (count, 14), generator=own)
    others = torch.randint(1, 26, (count, 14), generator=own)
    of_source = 25 * (1 + source)
    x = torch.where(kind < 0.1, word, torch.where(kind < 0.5, word + of_source, others + of_source))
    return x, y


def doses(length: int, own: torch.Generator | None = None) -> Tensor:
    """(length,) hourly readings of a drug in somebody's blood: one more, one time in ten; each hour a quarter goes."""
    level, out = 0.5, []
    for more in (torch.rand(length, generator=own) < 0.1).tolist():
        level = 0.75 * level + more
        out.append(level)
    return torch.tensor(out) + 0.02 * torch.randn(length, generator=own)


def shapes(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 8, 8) clean pictures of one of eight patterns, with some pixels the other way round, and which one."""
    templates = (torch.randn(8, 1, 8, 8, generator=apart(seed + 31)) > 0.3).float()
    y = torch.randint(0, 8, (count,), generator=own)
    other = torch.rand(count, 1, 8, 8, generator=own) < 0.06
    return (templates[y] - other.float()).abs(), y


def changed(x: Tensor, own: torch.Generator | None = None) -> Tensor:
    """Pictures moved round by up to one pixel each way, made lighter or darker, with noise."""
    by = torch.randint(-1, 2, (len(x), 2), generator=own).tolist()
    moved = torch.stack([picture.roll(shift, (1, 2)) for picture, shift in zip(x, by, strict=True)])
    light = 0.8 * torch.randn(len(x), 1, 1, 1, generator=own)
    return moved + light + 0.2 * torch.randn(x.shape, generator=own)


def nearest_wrong(features: Tensor, y: Tensor, known: Tensor, their: Tensor) -> Tensor:
    """The share of rows whose five nearest known ones, by cosine, mostly have another class."""
    close = (F.normalize(features, dim=1) @ F.normalize(known, dim=1).T).topk(5, 1).indices
    votes = F.one_hot(their[close], 8).sum(1)
    return (votes.argmax(1) != y).float().mean()


def networks(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 12, 4) nodes, (count, 12, 12) edges without direction, and which nodes are kept: about two in three."""
    nodes = torch.randn(count, 12, 4, generator=own)
    upper = (torch.rand(count, 12, 12, generator=own) < 0.3).float().triu(1)
    return nodes, upper + upper.transpose(1, 2), torch.rand(count, 12, generator=own) < 0.67


def beats(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 160) noisy recordings of a beat, and the beats in a hundred samples, 4 to 12."""
    rate = 4 + 8 * torch.rand(count, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    wave = (torch.arange(160) * 2 * math.pi * rate[:, None] / 100 + phase).sin()
    return wave.clamp_min(0) ** 2 + 0.25 * torch.randn(wave.shape, generator=own), rate


def played(x: Tensor, speed: Tensor) -> Tensor:
    """A hundred samples of each recording at a speed of its own, up to 1.5, (count, 1, 100); between samples lines."""
    at = torch.arange(100) * speed[:, None]
    low = at.long()
    part = at - low
    return ((1 - part) * x.gather(1, low) + part * x.gather(1, low + 1))[:, None]


def fields(count: int, own: torch.Generator | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Noisy pictures in three colours, 8 to 16 pixels high and wide, each with three rectangles; and each pixel's
    class: 0 is bare ground, dark; 1, 2 and 3 are red, green and blue."""
    pictures, masks = [], []
    for high, wide in torch.randint(8, 17, (count, 2), generator=own).tolist():
        mask = torch.zeros(high, wide, dtype=torch.long)
        for kind in torch.randint(1, 4, (3,), generator=own).tolist():
            top, left = (int(torch.randint(0, size - 3, (1,), generator=own)) for size in (high, wide))
            down, across = torch.randint(3, 6, (2,), generator=own).tolist()
            mask[top : top + down, left : left + across] = kind
        colours = torch.cat([torch.zeros(1, 3), torch.eye(3)])[mask].permute(2, 0, 1)
        pictures.append(colours + 0.5 * torch.randn(colours.shape, generator=own))
        masks.append(mask)
    return pictures, masks


def filled(rows: list[Tensor], value: float, side: int = 16) -> Tensor:
    """Pictures or masks of unequal sizes as one tensor, filled up to the right and below."""
    return torch.stack([F.pad(row, (0, side - row.shape[-1], 0, side - row.shape[-2]), value=value) for row in rows])


def dots(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 1, 12, 12) noisy pictures with 0 to 11 bright dots, and how many there are."""
    many = torch.randint(0, 12, (count,), generator=own)
    rank = torch.rand(count, 144, generator=own).argsort(1).argsort(1)
    x = (rank < many[:, None]).float().view(count, 1, 12, 12)
    return 1.5 * x + 0.25 * torch.randn(x.shape, generator=own), many


def asked(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Four wordings of one question, 4 to 7, texts of twenty words, (count, 20), and the answer's place: one word of 8
    to 23; all others are 24 to 39."""
    question = torch.randint(4, 8, (count,), generator=own)
    texts = torch.randint(24, 40, (count, 20), generator=own)
    place = torch.randint(0, 20, (count,), generator=own)
    texts[torch.arange(count), place] = torch.randint(8, 24, (count,), generator=own)
    return question, texts, place


def pushed(state: Tensor, action: Tensor) -> Tensor:
    """Where a cart is, and how fast, after a push: (rows, 2) of place and speed on a line."""
    place, speed = state.unbind(1)
    speed = 0.95 * speed + 0.6 * action.clamp(-2, 2)
    return torch.stack([place + 0.6 * speed, speed], 1)


def steered(state: Tensor) -> Tensor:
    """What a good driver does: towards nought, and not too fast."""
    return (-0.7 * state[:, 0] - 1.1 * state[:, 1]).clamp(-2, 2)


def driven(episodes: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """A log: each row has an action and the state that it led to: (episodes, 16, 2) and (episodes, 16)."""
    state = torch.randn(episodes, 2, generator=own) * torch.tensor([2.0, 1.0])
    states, actions = [], []
    for _ in range(16):
        action = steered(state) + 0.3 * torch.randn(episodes, generator=own)
        state = pushed(state, action)
        states.append(state)
        actions.append(action)
    return torch.stack(states, 1), torch.stack(actions, 1)
