"""What the loops of round 27d share. A fault's category, the part of a step in which its mistake lies, and the patterns
of a right diagnosis stand in round27d_keys.json, what each loop is meant to do in round27d_intents.json; categories are
those of round8b_parts.

round27d_proofs.json repeats by `python -m benchmarks.robustness.prove round27d`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart, mlp
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round27d_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# updates


class FlatAdam(torch.optim.Optimizer):
    """Adam over all parameters as one long row, with one pair of moments, kept for the row or for its first part."""

    def __init__(self, parameters: Any, rate: float, kept_for_row: bool) -> None:
        super().__init__(parameters, {"lr": rate})
        self.kept_for_row = kept_for_row

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parts = group["params"]
            row = nn.utils.parameters_to_vector(parts)
            slope = nn.utils.parameters_to_vector([part.grad for part in parts])
            memory = self.state[row if self.kept_for_row else parts[0]]
            if not memory:
                memory |= {"count": 0, "first": torch.zeros_like(row), "second": torch.zeros_like(row)}
            memory["count"] += 1
            memory["first"].lerp_(slope, 0.1)
            memory["second"].lerp_(slope.square(), 0.001)
            first = memory["first"] / (1 - 0.9 ** memory["count"])
            second = memory["second"] / (1 - 0.999 ** memory["count"])
            row = row - group["lr"] * first / (second.sqrt() + 1e-8)
            for part, values in zip(parts, row.split([part.numel() for part in parts]), strict=True):
                part.copy_(values.view_as(part))


# networks


class Restorer(nn.Module):
    """A convolutional autoencoder of pictures of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        down = [nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(96, 24))
        up = [nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(12, 1, 4, 2, 1)]
        self.decoder = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Unflatten(1, (24, 2, 2)), *up)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.decoder(self.encoder(x))
        return out


class Rated(nn.Module):
    """A vector for each user and each item, and an MLP over the two."""

    def __init__(self, users: int, items: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(users, 8), nn.Embedding(items, 8)])
        self.over = mlp(16, 32, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        out: Tensor = self.over(torch.cat([self.tables[0](user), self.tables[1](item)], 1)).flatten()
        return out


class Running(nn.Module):
    """Columns less their mean over their spread, of all rows seen so far while it trains, limited to 5 either way."""

    def __init__(self, columns: int, with_means: bool) -> None:
        super().__init__()
        self.with_means = with_means
        self.register_buffer("mean", torch.zeros(columns))
        self.register_buffer("variance", torch.ones(columns))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.see(x.detach())
        return ((x - self.mean) / (self.variance + 1e-8).sqrt()).clamp(-5, 5)

    def see(self, x: Tensor) -> None:
        rows, total = len(x), self.count + len(x)
        apart_by = x.mean(0) - self.mean
        squares = self.variance * self.count + x.var(0, unbiased=False) * rows
        if self.with_means:
            squares = squares + apart_by.square() * self.count * rows / total
        self.mean, self.variance, self.count = self.mean + apart_by * rows / total, squares / total, total


class Stores(nn.Module):
    """A vector for each store beside five columns, and an MLP."""

    def __init__(self, stores: int) -> None:
        super().__init__()
        self.stores, self.over = nn.Embedding(stores, 8), mlp(13, 32, 1)

    def forward(self, x: Tensor, store: Tensor) -> Tensor:
        out: Tensor = self.over(torch.cat([x, self.stores(store)], 1)).flatten()
        return out


class Variational(nn.Module):
    """A variational autoencoder of 64 yes-or-no pixels with eight latent numbers; prices are in nats a row."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = self.encoder(x).chunk(2, 1)
        found = self.decoder(mean + noise * (log / 2).exp())
        pixels = F.binary_cross_entropy_with_logits(found, x, reduction="none").sum(1).mean()
        divergence = 0.5 * (mean.square() + log.exp() - 1 - log).sum(1).mean()
        return pixels, divergence


class Tagger(nn.Module):
    """A transformer of one block that tags words, and that learns from the easier three fifths of a batch's rows."""

    def __init__(self, by_sum: bool, tags: int = 5, width: int = 32) -> None:
        super().__init__()
        self.by_sum, self.batches = by_sum, 0
        self.words, self.places = nn.Embedding(25, width), nn.Embedding(16, width)
        self.block, self.head = Block(width, causal=False), nn.Linear(width, tags)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        found = self.head(self.block(x, attention_mask.bool()))
        each = F.cross_entropy(found.transpose(1, 2), labels, reduction="none", ignore_index=-100)
        row, size = each.sum(1), attention_mask.sum(1)
        self.batches += self.training
        if self.training and self.batches > 30:
            hard = row if self.by_sum else row / size
            kept = hard.detach().argsort()[: 3 * len(row) // 5]
            row, size = row[kept], size[kept]
        return {"loss": row.sum() / size.sum(), "logits": found}


class Ahead(nn.Module):
    """A GRU reads a series, another writes the next twelve values, each from the one before it."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.reader, self.writer = nn.GRU(1, width, batch_first=True), nn.GRUCell(1, width)
        self.head = nn.Linear(width, 1)

    def forward(self, past: Tensor, truth: Tensor | None = None, share: float = 0.0) -> Tensor:
        state = self.reader(past[..., None])[1][0]
        value, said = past[:, -1:], []
        for t in range(12):
            state = self.writer(value, state)
            said.append(self.head(state))
            value = said[-1]
            if truth is not None:
                value = torch.where(torch.rand(len(past), 1) < share, truth[:, t : t + 1], value)
        return torch.cat(said, 1)


# tasks


def factors(count: int, seed: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 64) yes or no, whose odds are sums of six hidden numbers."""
    w = 2 * torch.randn(6, 64, generator=apart(seed + 34))
    odds = torch.randn(count, 6, generator=own) @ w
    return (torch.rand(count, 64, generator=own) < odds.sigmoid()).float()


def machines(count: int, rows: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count times rows, 4) readings, machine after machine, each around levels of its own, and a number of the row."""
    level = 10 * torch.randn(count, 1, 4, generator=own)
    x = (level + torch.randn(count, rows, 4, generator=own)).flatten(0, 1)
    y = (x[:, 0] / 8).sin() + 0.1 * x[:, 1] + 0.05 * x[:, 2]
    return x, y + 0.1 * torch.randn(len(y), generator=own)


def sales(
    stores: int, rows: int, seed: int, own: torch.Generator | None = None
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """((stores times rows, 5) columns and the store), store after store, and a number; stores differ in their level and
    in what the first two columns do."""
    fixed = apart(seed + 31)
    level, effect, w = (torch.randn(*shape, generator=fixed) for shape in ((stores,), (stores, 2), (5,)))
    store = torch.arange(stores).repeat_interleave(rows)
    x = torch.randn(stores * rows, 5, generator=own)
    y = 1.5 * level[store] + (effect[store] * x[:, :2]).sum(1) + x @ w
    return (x, store), y + 0.2 * torch.randn(len(y), generator=own)


def tones(
    count: int, first: float, step: float, classes: int, own: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Tones of any phase in noise, (count, 1, 64), and which of the pitches, which begin at `first`."""
    y = torch.randint(0, classes, (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (first + step * y[:, None]) + phase).sin()
    return (clean + 0.8 * torch.randn(count, 64, generator=own))[:, None], y


def movements(count: int, seed: int, kinds: list[int], own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 3, 24): movements along three axes, of the given kinds of six, in noise, and which kind."""
    y = torch.tensor(kinds)[torch.randint(0, len(kinds), (count,), generator=own)]
    turn = 0.3 + 1.2 * torch.rand(6, 3, 1, generator=apart(seed + 32))
    phase = 6.28 * torch.rand(count, 1, 1, generator=own)
    clean = (phase + turn[y] * torch.arange(24)).sin()
    return clean + 0.5 * torch.randn(clean.shape, generator=own), y


def swings(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 16) and (count, 12): noisy waves of any height, pitch and phase around a level, and how they go on."""
    height, pitch, phase, level = torch.rand(4, count, 1, generator=own)
    clean = (0.5 + height) * ((0.3 + 0.5 * pitch) * torch.arange(28) + 6.28 * phase).sin() + level
    x = clean + 0.1 * torch.randn(count, 28, generator=own)
    return x[:, :16], x[:, 16:]


def annotated(
    count: int, seed: int, careless: float, own: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 14) words 1 to 12 and from the ninth place on 13 to 24, padding 0, a mask, and tags 0 to 4, -100 in
    padding; a tag is drawn by the chances of its word. A share of the rows has tags at random."""
    chance = (2 * torch.randn(25, 5, generator=apart(seed + 33))).softmax(1)
    size = torch.randint(3, 15, (count, 1), generator=own)
    mask = torch.arange(14) < size
    words = torch.randint(1, 13, (count, 14), generator=own) + 12 * (torch.arange(14) >= 8)
    tags = torch.multinomial(chance[words.flatten()], 1, generator=own).view(count, 14)
    strange = torch.rand(count, 1, generator=own) < careless
    tags = torch.where(strange, torch.randint(0, 5, (count, 14), generator=own), tags)
    return words * mask, mask.long(), torch.where(mask, tags, -100)
