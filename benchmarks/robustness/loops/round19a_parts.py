"""What the loops of round 19a share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round19a_keys.json, what each loop is meant to do in round19a_intents.json; categories are
those of round8b_parts.

round19a_proofs.json repeats by `python -m benchmarks.robustness.prove round19a`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round19a_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class Series(nn.Module):
    """A GRU over a series, and a few numbers from its last state: (rows, places, columns) to (rows, out)."""

    def __init__(self, columns: int, width: int = 24, out: int = 1) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(columns, width, batch_first=True), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


class Points(nn.Module):
    """A PointNet: the same small network for each point, the maximum over points, a head."""

    def __init__(self, columns: int = 6, classes: int = 4, width: int = 48) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.each(x).max(1).values)
        return out


class Tagger(nn.Module):
    """A GRU in both directions over letters, and a tag for each."""

    def __init__(self, letters: int = 16, tags: int = 2, width: int = 24) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.core, self.head = nn.GRU(width, width, batch_first=True, bidirectional=True), nn.Linear(2 * width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.letters(ids))[0])
        return out


class Torchs(nn.Module):
    """A language model of PyTorch's own TransformerEncoder, with a causal mask and learned places."""

    def __init__(self, words: int = 12, width: int = 32, norm_first: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 2, 64, 0.0, batch_first=True, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        places = ids.shape[1]
        hidden = torch.ones(places, places, dtype=torch.bool).triu(1)
        out: Tensor = self.head(self.body(self.tokens(ids) + self.places(torch.arange(places)), hidden))
        return out


def painter() -> nn.Sequential:
    """Two scores for each pixel: (rows, 1, 12, 12) to (rows, 2, 12, 12)."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 2, 1)
    )


def finder() -> nn.Sequential:
    """Four numbers from a picture of 16 by 16."""
    convolutions = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 4))


def listener(classes: int = 4) -> nn.Sequential:
    """Two convolutions over a sound, the mean over time, a head."""
    first, second = nn.Conv1d(1, 12, 5, 2, 2), nn.Conv1d(12, 24, 5, 2, 2)
    pool = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), pool, nn.Linear(24, classes))


def normed(net: nn.Sequential) -> nn.Sequential:
    """The same network, with weight_norm on its convolutions."""
    for layer in net:
        if isinstance(layer, nn.Conv1d):
            torch.nn.utils.parametrizations.weight_norm(layer)
    return net


def unnormed(net: nn.Sequential) -> nn.Sequential:
    """The same network without, for use."""
    for layer in net:
        if torch.nn.utils.parametrize.is_parametrized(layer):
            torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")
    return net


# tasks


def machines(count: int, length: int = 24, own: torch.Generator | None = None) -> Tensor:
    """(count, length) readings, one machine a row: a level and a wave of its own, with a little noise."""
    level = 1.5 * torch.randn(count, 1, generator=own)
    turn = 6.28 * torch.rand(count, 1, generator=own) + torch.arange(length) * (
        0.5 + 0.5 * torch.rand(count, 1, generator=own)
    )
    return level + turn.sin() + 0.1 * torch.randn(count, length, generator=own)


def gappy(count: int, length: int = 13, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, length) noisy waves and which readings there are, five in eight."""
    turn = 6.28 * torch.rand(count, 1, generator=own) + 0.8 * torch.arange(length)
    values = turn.sin() + 0.4 * torch.randn(count, length, generator=own)
    return values, torch.rand(count, length, generator=own) < 0.625


def forwards(values: Tensor, known: Tensor) -> Tensor:
    """A missing reading is the last known one, nought where there is none: along each row."""
    at = torch.where(known, torch.arange(values.shape[1]), -1).cummax(1).values
    return torch.where(at >= 0, values.gather(1, at.clamp_min(0)), 0.0)


def backwards(values: Tensor, known: Tensor) -> Tensor:
    """A missing reading is the next known one, nought where there is none: along each row."""
    return forwards(values.flip(1), known.flip(1)).flip(1)


def walls(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Scans of 24 points and their normals, (count, 24, 6): pipes and balls, each from outside, where normals point
    away from the axis, or from inside, where they point to it; the scan is of the half that faces the x axis."""
    y = torch.randint(0, 4, (count,), generator=own)
    round_about = 3.14 * (torch.rand(count, 24, generator=own) - 0.5)
    up = 2 * torch.rand(count, 24, generator=own) - 1
    ball = (y // 2 == 1)[:, None]
    lean = torch.where(ball, (1 - up**2).sqrt(), torch.ones_like(up))
    flat = torch.stack([round_about.cos(), round_about.sin()], 2)
    normal = torch.cat([flat * lean[..., None], torch.where(ball, up, torch.zeros_like(up))[..., None]], 2)
    place = torch.cat([flat * lean[..., None], up[..., None]], 2)
    place = place + 0.05 * torch.randn(place.shape, generator=own)
    inside = torch.where(y % 2 == 1, -1.0, 1.0)[:, None, None]
    return torch.cat([place, inside * normal], 2), y


def turned(vectors: Tensor, angle: Tensor) -> Tensor:
    """(rows, points, 3) turned about the vertical axis, each row by its angle."""
    a, b = angle.cos()[:, None], angle.sin()[:, None]
    x, y, z = vectors.unbind(2)
    return torch.stack([a * x - b * y, b * x + a * y, z], 2)


def blobs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Noisy pictures of 12 by 12 with one bright rectangle, and which pixels are its: (count, 1, 12, 12) and without
    the channel."""
    rows, columns = torch.arange(12)[None, :, None], torch.arange(12)[None, None]
    at = torch.randint(0, 8, (2, count, 1, 1), generator=own)
    size = torch.randint(2, 6, (2, count, 1, 1), generator=own)
    inside = (rows >= at[0]) & (rows < at[0] + size[0]) & (columns >= at[1]) & (columns < at[1] + size[1])
    return (inside + 0.5 * torch.randn(count, 12, 12, generator=own))[:, None], inside.long()


def framed(count: int, own: torch.Generator | None = None) -> list[tuple[Tensor, Tensor]]:
    """Pictures of 16, 24 or 32 pixels a side with one bright thing, and its box in pixels: left, top, right, bottom."""
    out = []
    for side in torch.tensor([16, 24, 32])[torch.randint(0, 3, (count,), generator=own)].tolist():
        w, h = (int(side * (0.2 + 0.3 * s)) for s in torch.rand(2, generator=own).tolist())
        x, y = (int(s) for s in (torch.rand(2, generator=own) * torch.tensor([side - w, side - h])).tolist())
        picture = 0.3 * torch.randn(1, side, side, generator=own)
        picture[:, y : y + h, x : x + w] += 1
        out.append((picture, torch.tensor([x, y, x + w, y + h]).float()))
    return out


def levels(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Six columns, and one of five levels, as often each."""
    w = torch.randn(6, generator=torch.Generator().manual_seed(seed))
    x = torch.randn(count, 6, generator=own)
    hidden = x @ (w / w.norm()) + 0.5 * x[:, 0].abs() - 0.4 + 0.2 * torch.randn(count, generator=own)
    return x, torch.bucketize(hidden, torch.tensor([-0.9, -0.3, 0.3, 0.9]))


def patients(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Eight visits of three values, the time that each patient was seen for, and whether it ended with the event;
    else the study was over."""
    x = torch.randn(count, 8, 3, generator=own)
    rate = (math.sqrt(8) * x[..., 0].mean(1) + 0.7 * x[:, -1, 1]).exp()
    event = -(1 - torch.rand(count, generator=own)).log() / rate
    over = 0.3 + 2.2 * torch.rand(count, generator=own)
    return x, torch.minimum(event, over), (event <= over).float()


def survival(log_rate: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """The mean negative log likelihood of times with a constant rate for each patient."""
    return (log_rate.exp() * time - event * log_rate).mean()


def measured(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 12) readings of a patient, nan where none was taken, and what they are about; the higher that is, the
    fewer are taken."""
    y = torch.randn(count, generator=own)
    x = y[:, None] + 1.5 * torch.randn(count, 12, generator=own)
    return torch.where(torch.rand(count, 12, generator=own) < y.sigmoid()[:, None], torch.nan, x), y


def named(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 16) letters 4 to 15, of which 12 and above are two bytes long, and a span of three or four after a 4, as
    its first and its last byte, the last excluded."""
    ids = torch.randint(5, 16, (count, 16), generator=own)
    first = torch.randint(5, 12, (count,), generator=own)
    rows = torch.arange(count)
    ids[rows, first - 1] = 4
    end = first + torch.randint(3, 5, (count,), generator=own)
    ids[rows, end] = 5
    return ids, torch.stack([starts(ids)[rows, first], starts(ids)[rows, end]], 1)


def starts(ids: Tensor) -> Tensor:
    """The byte at which each letter starts."""
    bytes_ = 1 + (ids >= 12).long()
    return bytes_.cumsum(1) - bytes_


def pixel_loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
