"""The options of a small transformer, its norms and its attention, and the mistakes that can be in their code."""

import math
from dataclasses import dataclass

import torch
from benchmarks.robustness.loops.text import VOCABULARY
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The options of the small transformer; `slip` is a mistake in its code."""

    vocabulary: int = VOCABULARY
    width: int = 32
    heads: int = 4
    layers: int = 2
    length: int = 64
    positions: str = "learned"
    norm: str = "layer"
    tied: bool = False
    causal: bool = True
    bias: bool = True
    dropout: float = 0.0
    drop_path: float = 0.0
    experts: int = 0
    init: float = 0.02
    attention: str = "softmax"
    checkpoint: bool = False
    slip: str = ""


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


class TimeNorm(nn.Module):
    """A layer norm along the wrong axis: over the sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt() * self.weight + self.bias


class ChannelBatchNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return out


def norm_of(shape: Shape) -> nn.Module:
    if shape.slip == "norm-over-time":
        return TimeNorm(shape.width)
    if shape.slip == "batch-norm":
        return ChannelBatchNorm(shape.width)
    return RMSNorm(shape.width) if shape.norm == "rms" else nn.LayerNorm(shape.width)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    rates = 10_000.0 ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = positions.float()[:, None, :, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1).type_as(x)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.heads = shape, shape.heads
        self.query = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.key = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.value = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.out = nn.Linear(shape.width, shape.width, bias=shape.bias)
        self.dropout = nn.Dropout(shape.dropout)
        if shape.positions == "relative":
            self.relative = nn.Embedding(2 * shape.length, shape.heads)

    def split(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        if self.shape.slip == "heads-by-view":
            return x.reshape(rows, self.heads, length, width // self.heads)
        return x.view(rows, length, self.heads, width // self.heads).transpose(1, 2)

    def allowed(self, length: int) -> Tensor:
        ones = torch.ones(length, length, dtype=torch.bool)
        slip = self.shape.slip
        if not self.shape.causal or slip == "no-mask":
            return ones
        if slip == "mask-one-ahead":
            return ones.tril(1)
        if slip == "mask-other-triangle":
            return ones.triu()
        return ones.tril()

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None = None) -> Tensor:
        slip, length = self.shape.slip, x.shape[1]
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.shape.attention == "linear":
            q, k = F.elu(q) + 1, F.elu(k) + 1
            state = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(2)
            mixed = torch.einsum("bhtd,bhtde->bhte", q, state)
            mixed = mixed / (q * k.cumsum(2)).sum(-1, keepdim=True)
            return self.join(mixed)
        if self.shape.positions == "rope":
            q = rotate(q, positions)
            k = k if slip == "rope-on-queries-only" else rotate(k, positions)
        scores = q @ k.transpose(-2, -1)
        if slip != "no-scale":
            scores = scores / math.sqrt(q.shape[-1])
        if slip == "scale-up":
            scores = scores * q.shape[-1]
        if self.shape.positions == "alibi":
            slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
            scores = scores - slopes[:, None, None] * (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        if self.shape.positions == "relative":
            gap = (positions[:, :, None] - positions[:, None, :]).clamp(-self.shape.length, self.shape.length - 1)
            scores = scores + self.relative(gap + self.shape.length).permute(0, 3, 1, 2)
        allowed = self.allowed(length)[None, None]
        if mask is not None:
            allowed = allowed & (mask[:, None, None, :] if mask.dim() == 2 else mask[:, None])
            allowed = allowed | torch.eye(length, dtype=torch.bool)
        if slip == "mask-after-softmax":
            weights = scores.softmax(-1) * allowed
        elif slip == "masked-with-zero":
            weights = scores.masked_fill(~allowed, 0.0).softmax(-1)
        elif slip == "softmax-over-queries":
            weights = scores.masked_fill(~allowed, float("-inf")).softmax(-2)
        else:
            weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        return self.join(self.dropout(weights) @ v)

    def join(self, mixed: Tensor) -> Tensor:
        rows, heads, length, width = mixed.shape
        if self.shape.slip == "heads-joined-without-transpose":
            out: Tensor = self.out(mixed.reshape(rows, length, heads * width))
        else:
            out = self.out(mixed.transpose(1, 2).reshape(rows, length, heads * width))
        return out
