"""Decoders and an encoder written by hand, which several changed loops of the ninth round, part a, train."""

import math

import torch
from benchmarks.robustness.loops.round5_tools import mlp
from torch import Tensor, nn
from torch.nn import functional as F


class Scaled(nn.Module):
    """RMSNorm in its usual lines."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


def turned(x: Tensor, angle: Tensor, pairs: bool) -> Tensor:
    """Rotary places: pairs of neighbours, or of the two halves."""
    a, b = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
    parts = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.stack(parts, -1).flatten(-2) if pairs else torch.cat(parts, -1)


class RotaryAttention(nn.Module):
    def __init__(self, width: int, heads: int, pairs: bool = False, viewed: bool = False) -> None:
        super().__init__()
        self.heads, self.pairs, self.viewed = heads, pairs, viewed
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))
        inner = width // heads
        angle = torch.arange(48)[:, None] / 10000 ** (torch.arange(0, inner, 2) / inner)
        self.register_buffer("angle", angle, persistent=False)

    def split(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        if self.viewed:
            return x.view(b, self.heads, t, d // self.heads)
        return x.view(b, t, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(matrix(x)) for matrix in (self.wq, self.wk, self.wv))
        angle = self.angle[: x.shape[1]]  # type: ignore[index]
        q, k = turned(q, angle, self.pairs), turned(k, angle, self.pairs)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.reshape(x.shape) if self.viewed else mixed.transpose(1, 2).reshape(x.shape)
        out: Tensor = self.wo(mixed)
        return out


class Gated(nn.Module):
    """SwiGLU by three matrices."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, pairs: bool, viewed: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = Scaled(width), RotaryAttention(width, heads, pairs, viewed)
        self.ffn_norm, self.feed_forward = Scaled(width), Gated(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return out


class Llama(nn.Module):
    """A Llama in its usual lines."""

    def __init__(
        self, words: int, width: int = 32, layers: int = 2, heads: int = 2, pairs: bool = False, viewed: bool = False
    ) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, pairs, viewed) for _ in range(layers))
        self.norm, self.output = Scaled(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok_embeddings(ids)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.output(self.norm(x))
        return out


class CausalAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.c_attn(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.c_proj(mixed.transpose(1, 2).flatten(2))
        return out


class Feed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), CausalAttention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Feed(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class PortedGPT(nn.Module):
    """A GPT-2 with the names of transformers' and Linear in place of its Conv1D; the head is the table of words."""

    def __init__(self, words: int, width: int = 32, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(64, width)
        self.h = nn.ModuleList(GPTBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def buckets(distance: Tensor, bidirectional: bool = False, count: int = 16, farthest: int = 16) -> Tensor:
    """T5's buckets of relative places: exact where near, logarithmic where far."""
    out = torch.zeros_like(distance)
    if bidirectional:
        count //= 2
        out = out + (distance > 0).long() * count
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    exact = count // 2
    far = exact + (distance.clamp(min=1).float().div(exact).log() / math.log(farthest / exact) * (count - exact)).long()
    return out + torch.where(distance < exact, distance, far.clamp(max=count - 1))


class Relative(nn.Module):
    """An encoder whose only places are a bias by distance, and its loss."""

    def __init__(
        self, words: int, marks: int, bidirectional: bool, width: int = 32, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.shared, self.heads, self.bidirectional = nn.Embedding(words, width), heads, bidirectional
        self.relative_attention_bias = nn.Embedding(16, heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.3)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.o = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.feed = nn.ModuleList(mlp(width, 2 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, marks, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x, place = self.shared(input_ids), torch.arange(input_ids.shape[1])
        distance = place[None] - place[:, None]
        bias = self.relative_attention_bias(buckets(distance, bidirectional=self.bidirectional)).permute(2, 0, 1)
        for i, (qkv, o, feed) in enumerate(zip(self.qkv, self.o, self.feed, strict=True)):
            q, k, v = (
                p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in qkv(self.norms[2 * i](x)).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, bias[None])
            x = x + o(mixed.transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        logits = self.head(self.norms[-1](x))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}
