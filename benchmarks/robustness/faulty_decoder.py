"""A small decoder with a fault of choice, its rows, and the loop that everybody writes around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import limpid

VOCAB, WIDTH, HEADS, LENGTH, ROWS, PAD, IGNORED = 61, 32, 2, 24, 6, 0, -100
STEPS = 4


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.fault = fault

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        shape = (*x.shape[:2], HEADS, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return F.dropout(x, 0.1) if self.fault == "dropout in evaluation" else x


class Body(nn.Module):
    """Tokens to states; rows are padded at the left, and positions are counted from the first token on."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block(fault) for _ in range(2)), nn.LayerNorm(WIDTH)
        self.fault = fault

    def forward(self, ids: Tensor) -> Tensor:
        text, count = ids != PAD, ids.shape[1]
        seen = torch.ones(count, count, dtype=torch.bool, device=ids.device)
        seen = seen if self.fault == "no causal mask" else seen.tril()
        if self.fault != "padding counts":
            seen = seen & text[:, None, None, :] | torch.eye(count, dtype=torch.bool, device=ids.device)
        places = (text.cumsum(1) - 1).clamp(min=0)
        x = self.tokens(ids) + self.places(torch.zeros_like(places) if self.fault == "positions ignored" else places)
        for block in self.blocks:
            x = block(x, seen)
        if self.fault == "rows mix":
            x = x + x.mean(0, keepdim=True)
        x = self.norm(x)
        if self.fault == "half overflows":
            x = x * torch.rsqrt((x.half() * 1e4).square().mean(-1, keepdim=True)).float()
        return x


class Decoder(nn.Module):
    """A language model of 30,000 parameters whose head is its token table."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = Body(fault), nn.Linear(WIDTH, VOCAB, bias=False)
        for parameter in self.parameters():
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02)
        if fault == "head not tied":
            self.head.weight = nn.Parameter(self.body.tokens.weight.detach().clone())
        elif fault != "head never taught":
            self.head.weight = self.body.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(ids))
        return out


class WithMethods(Decoder):
    """The same as some write it: the loop calls methods of their own."""

    def encode(self, ids: Tensor) -> Tensor:
        states: Tensor = self.body(ids)
        return states

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return loss_of(self.head(self.encode(batch["ids"])), batch["labels"])


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def batch(step: int, fault: str) -> tuple[Tensor, Tensor]:
    """Rows of a made-up language, padded at the left: each token depends on the one before."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, VOCAB, (ROWS, LENGTH + 1), generator=generator)
    follows = torch.rand(ids.shape, generator=generator) < 0.7
    for t in range(1, LENGTH + 1):
        ids[:, t] = torch.where(follows[:, t], (3 * ids[:, t - 1] + 5) % (VOCAB - 1) + 1, ids[:, t])
    for row in range(ROWS):
        ids[row, : 2 * row] = PAD
    labels = ids[:, 1:].clone()
    if fault != "loss over padding":
        labels[labels == PAD] = IGNORED
    return ids[:, :-1].contiguous(), labels


def optimizer_of(model: nn.Module, fault: str) -> torch.optim.Optimizer:
    taught = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if fault == "head never taught":
        taught = [(name, p) for name, p in taught if "tokens" in name or p.shape != (VOCAB, WIDTH)]
    return torch.optim.AdamW([p for _, p in taught], lr=3e-3, weight_decay=0.0)


Loss = Callable[[tuple[Tensor, Tensor]], Tensor]


def loop(watched: nn.Module, fault: str, loss: Loss) -> Any:
    """The loop that everybody writes."""
    optimizer = optimizer_of(watched, fault)
    with limpid.watch(watched, optimizer, say=False) as doctor:
        for step in range(STEPS):
            given = batch(step, fault)
            value = loss(given)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            doctor.step(value, given)
    return doctor


def called(model: nn.Module, fault: str) -> Any:
    """A loop that calls the model."""
    return loop(model, fault, lambda given: loss_of(model(given[0]), given[1]))


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
