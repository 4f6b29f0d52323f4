"""A small decoder, and the loop that everybody writes, with one place for each fault."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import limpid
from limpid.doctor import Doctor

VOCAB, WIDTH, HEADS, LENGTH, ROWS = 97, 32, 2, 24, 6


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, rotary: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.rotary, self.residual, self.causal, self.scale = rotary, True, True, None
        self.turned = ("query", "key")
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:2], HEADS, -1)
        query, key, value = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        if self.rotary:
            query = turn(query) if "query" in self.turned else query
            key = turn(key) if "key" in self.turned else key
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal, scale=self.scale)
        attended = self.dropout(self.out(mixed.transpose(1, 2).flatten(-2)))
        x = x + attended if self.residual else attended
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A language model of 30,000 parameters."""

    def __init__(self, rotary: bool = False, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.places = None if rotary else nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(rotary) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def turn(x: Tensor) -> Tensor:
    """Rotary positions, half-split layout."""
    half = x.shape[-1] // 2
    place, feature = torch.arange(x.shape[-2], device=x.device), torch.arange(half, device=x.device)
    angle = place[:, None] * 100.0 ** (-feature / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def batch(step: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Rows of a made-up language: each token depends on the one before."""
    ids = _drawn(step, rows).clone()
    return ids[:, :-1], ids[:, 1:].clone()


@functools.cache
def _drawn(step: int, rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, VOCAB, (rows, LENGTH + 1), generator=generator)
    noise = torch.rand(ids.shape, generator=generator) < 0.7
    for t in range(1, LENGTH + 1):
        ids[:, t] = torch.where(noise[:, t], (3 * ids[:, t - 1] + 5) % VOCAB, ids[:, t] % (VOCAB // 2))
    return ids


def groups(model: nn.Module) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def mean_loss(model: nn.Module, given: Any) -> Tensor:
    return F.cross_entropy(model(given[0]).flatten(0, 1), given[1].flatten())


def rules(found: list[Any]) -> list[str]:
    """Alarms and choices that may be meant, in their order."""
    return [finding.rule for finding in found if finding.is_said]


def preflight(
    model: nn.Module, given: Any = None, loss: Any = mean_loss, optimizer: Any = None, **options: Any
) -> list[str]:
    optimizer = optimizer or torch.optim.AdamW(groups(model), lr=1e-3)
    with limpid.watch(model, optimizer, say=False) as doctor:
        found = doctor.preflight(given or batch(0), loss=loss, **options)
        assert not doctor.skipped, doctor.skipped
        return rules(found)


def warm(step: int) -> float:
    return min(1.0, (step + 1) / 5) * (0.55 + 0.45 * math.cos(math.pi * step / 60))


class Loop:
    """The step that everybody writes; a fault replaces one method."""

    def __init__(self, model: nn.Module | None = None, rate: float = 3e-3, k: int = 1) -> None:
        self.model = model or Decoder()
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm)
        self.scaler: Any = None
        self.k, self.number = k, 0

    def batch(self, number: int) -> Any:
        return batch(number)

    def loss(self, given: Any) -> Tensor:
        return mean_loss(self.model, given) / self.k

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

    def clear(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> tuple[float, list[Any]]:
        batches = [self.batch(self.k * self.number + j) for j in range(self.k)]
        total = 0.0
        for given in batches:
            loss = self.loss(given)
            self.backward(loss)
            total += float(loss.detach())
        self.clip()
        self.optimizer.step()
        self.scheduler.step()
        self.clear()
        return total, batches

    def run(self, steps: int = 40, tell: bool = True, **options: Any) -> tuple[list[float], Doctor]:
        with limpid.watch(self.model, self.optimizer, scheduler=self.scheduler, say=False, **options) as doctor:
            losses = []
            for self.number in range(steps):
                loss, batches = self.step()
                losses.append(loss)
                if tell:
                    doctor.step(loss, batches)
        return losses, doctor
