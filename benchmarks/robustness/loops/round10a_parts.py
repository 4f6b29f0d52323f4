"""Networks written by hand that the loops of the tenth round, part a, train: ports of library models, and others."""

import math

import torch
from benchmarks.robustness.loops.round5_tools import mlp
from benchmarks.robustness.loops.round9a_parts import Gated, Scaled, buckets, turned
from torch import Tensor, nn
from torch.nn import functional as F


class GroupedAttention(nn.Module):
    """Llama's attention: several query heads for each head of keys and values, rotary places of two halves."""

    def __init__(self, width: int, heads: int, kv_heads: int, in_turn: bool) -> None:
        super().__init__()
        inner = width // heads
        self.heads, self.kv_heads, self.in_turn = heads, kv_heads, in_turn
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, kv_heads * inner, bias=False) for _ in range(2))
        angle = torch.arange(64)[:, None] / 10000 ** (torch.arange(0, inner, 2) / inner)
        self.register_buffer("angle", angle, persistent=False)

    def spread(self, x: Tensor) -> Tensor:
        """(rows, kv_heads, time, inner) to as many heads as there are of queries."""
        times = self.heads // self.kv_heads
        return x.repeat(1, times, 1, 1) if self.in_turn else x.repeat_interleave(times, 1)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (p(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        angle = self.angle[: x.shape[1]]  # type: ignore[index]
        q, k = turned(q, angle, pairs=False), turned(k, angle, pairs=False)
        mixed = F.scaled_dot_product_attention(q, self.spread(k), self.spread(v), is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class GroupedBlock(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, in_turn: bool) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Scaled(width), Scaled(width)
        self.self_attn, self.mlp = GroupedAttention(width, heads, kv_heads, in_turn), Gated(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class LeanLlama(nn.Module):
    """A Llama that loads the weights of transformers' by their names."""

    def __init__(self, words: int, width: int = 32, layers: int = 2, in_turn: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(GroupedBlock(width, 4, 2, in_turn) for _ in range(layers))
        self.norm, self.lm_head = Scaled(width), nn.Linear(width, words, bias=False)

    def take(self, weights: dict[str, Tensor]) -> None:
        names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
        renamed = {}
        for name, value in weights.items():
            for old, new in names.items():
                name = name.replace(old, new)
            renamed[name.removeprefix("model.")] = value
        self.load_state_dict(renamed)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.lm_head(self.norm(x))
        return out


class LeanT5(nn.Module):
    """T5's encoder with a head for tags; loads the weights of transformers' T5EncoderModel."""

    def __init__(self, words: int, tags: int, scale: float | None, width: int = 32, heads: int = 2, inner: int = 16):
        super().__init__()
        self.heads, self.scale = heads, scale
        self.shared, self.relative_attention_bias = nn.Embedding(words, width), nn.Embedding(16, heads)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * heads * inner, bias=False) for _ in range(2))
        self.o = nn.ModuleList(nn.Linear(heads * inner, width, bias=False) for _ in range(2))
        self.wi = nn.ModuleList(nn.Linear(width, 64, bias=False) for _ in range(2))
        self.wo = nn.ModuleList(nn.Linear(64, width, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(Scaled(width) for _ in range(5))
        self.head = nn.Linear(width, tags)

    def take(self, encoder: nn.Module, head: nn.Module) -> None:
        weights, new = encoder.state_dict(), {}
        new["shared.weight"] = weights["shared.weight"]
        first = "encoder.block.0.layer.0.SelfAttention."
        new["relative_attention_bias.weight"] = weights[f"{first}relative_attention_bias.weight"]
        for i in range(2):
            at, feed = f"encoder.block.{i}.layer.0.", f"encoder.block.{i}.layer.1."
            new[f"qkv.{i}.weight"] = torch.cat([weights[f"{at}SelfAttention.{n}.weight"] for n in "qkv"])
            new[f"o.{i}.weight"] = weights[f"{at}SelfAttention.o.weight"]
            new[f"wi.{i}.weight"] = weights[f"{feed}DenseReluDense.wi.weight"]
            new[f"wo.{i}.weight"] = weights[f"{feed}DenseReluDense.wo.weight"]
            new[f"norms.{2 * i}.weight"] = weights[f"{at}layer_norm.weight"]
            new[f"norms.{2 * i + 1}.weight"] = weights[f"{feed}layer_norm.weight"]
        new["norms.4.weight"] = weights["encoder.final_layer_norm.weight"]
        new |= {f"head.{name}": value for name, value in head.state_dict().items()}
        self.load_state_dict(new)

    def forward(self, ids: Tensor) -> Tensor:
        x, place = self.shared(ids), torch.arange(ids.shape[1])
        distance = place[None] - place[:, None]
        bias = self.relative_attention_bias(buckets(distance, bidirectional=True)).permute(2, 0, 1)[None]
        for i, (qkv, o, wi, wo) in enumerate(zip(self.qkv, self.o, self.wi, self.wo, strict=True)):
            parts = qkv(self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, bias, scale=self.scale)
            x = x + o(mixed.transpose(1, 2).flatten(2))
            x = x + wo(wi(self.norms[2 * i + 1](x)).relu())
        out: Tensor = self.head(self.norms[-1](x))
        return out


class LinearAttention(nn.Module):
    """Katharopoulos et al. 2020: running sums of keys times values, and of keys."""

    def __init__(self, width: int, heads: int, summed: int) -> None:
        super().__init__()
        self.heads, self.summed = heads, summed
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = (k[..., :, None] * v[..., None, :]).cumsum(self.summed)  # (rows, heads, time, inner, inner)
        weight = (q * k.cumsum(self.summed)).sum(-1, keepdim=True)
        mixed = (q[..., None, :] @ state).squeeze(-2) / (weight + 1e-6)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class LinearLM(nn.Module):
    """A language model of linear attention, without positions."""

    def __init__(self, words: int, summed: int, width: int = 32, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.mixers = nn.ModuleList(LinearAttention(width, heads, summed) for _ in range(layers))
        self.feeds = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for i, (mixer, feed) in enumerate(zip(self.mixers, self.feeds, strict=True)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        out: Tensor = self.head(self.norms[-1](x))
        return out


class Masked(nn.Module):
    """Blocks of attention in which `seen`, (time, time), says what sees what; learned places where `length` is
    given."""

    def __init__(self, words: int, length: int = 0, by_hand: bool = False, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width) if length else None
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.feed = nn.ModuleList(mlp(width, 2 * width, width, act=nn.GELU) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.head = nn.Linear(width, words, bias=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        if not self.by_hand:
            return F.scaled_dot_product_attention(q, k, v, seen)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return (scores + torch.zeros_like(scores).masked_fill(~seen, -math.inf)).softmax(-1) @ v

    def forward(self, ids: Tensor, seen: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(ids.shape[1]))
        for i, (qkv, out, feed) in enumerate(zip(self.qkv, self.out, self.feed, strict=True)):
            parts = qkv(self.norms[2 * i](x)).chunk(3, -1)
            q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
            x = x + out(self.mix(q, k, v, seen).transpose(1, 2).flatten(2))
            x = x + feed(self.norms[2 * i + 1](x))
        logits: Tensor = self.head(self.norms[-1](x))
        return logits
