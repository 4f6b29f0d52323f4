"""Round 8, part a, innocent changes of the model: written in another way, it does the same."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    apart,
    fit,
    language_outcome,
    lit,
    mlp,
    next_loss,
)
from benchmarks.robustness.loops.round8a_parts import Body, heads_of
from benchmarks.robustness.loops.round8a_tools import adam, language, shuffled, told
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ v


class ThreeMatrices(nn.Module):
    """Causal attention in its usual lines, or by SDPA."""

    def __init__(self, width: int = 32, fused: bool = False) -> None:
        super().__init__()
        self.fused, self.q, self.k, self.v = fused, *(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part(x), 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True) if self.fused else by_hand(q, k, v)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class OneMatrix(nn.Module):
    """The same attention, its three matrices one below the other."""

    def __init__(self, of: ThreeMatrices) -> None:
        super().__init__()
        width = of.out.in_features
        self.qkv, self.out = nn.utils.skip_init(nn.Linear, width, 3 * width), of.out
        with torch.no_grad():
            for name in ("weight", "bias"):
                getattr(self.qkv, name).copy_(torch.cat([getattr(part, name) for part in (of.q, of.k, of.v)]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, 2) for part in self.qkv(x).chunk(3, -1))
        out: Tensor = self.out(by_hand(q, k, v).transpose(1, 2).flatten(2))
        return out


@innocent("r8-attention-by-sdpa")
def attention_by_sdpa(run: Run, changed: bool) -> None:
    """Plain GPT. Attention by hand becomes scaled_dot_product_attention with is_causal=True, where queries and keys are
    the same words."""
    words = language(run)
    model = Body(12, [ThreeMatrices(fused=changed) for _ in range(2)])
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 120)


@innocent("r8-one-matrix-for-three")
def one_matrix_for_three(run: Run, changed: bool) -> None:
    """Lightning, a GPT. The matrices of queries, keys and values become one of three times the height, with the same
    numbers; three names are gone and one is new."""
    words = language(run)
    parts: list[Any] = [ThreeMatrices() for _ in range(2)]
    model = Body(12, [OneMatrix(part) for part in parts] if changed else parts)
    language_outcome(run, model, words)
    fit(run, lit(model, next_loss, adam), shuffled(words.rows(480, 24, apart(run.draw.randrange(999)))), 120)


class Nested(nn.Module):
    """A GPT of the same parts under other names, made in another order."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.lm_head = nn.Linear(32, words, bias=False)
        parts = {"ln_f": nn.LayerNorm(32), "h": nn.ModuleList(nn.ModuleDict(self.layer()) for _ in range(2))}
        self.transformer = nn.ModuleDict(parts | {"wpe": nn.Embedding(48, 32), "wte": nn.Embedding(words, 32)})

    @staticmethod
    def layer() -> dict[str, nn.Module]:
        feed = mlp(32, 64, 32, act=nn.GELU)
        return {"mlp": feed, "attn": ThreeMatrices(), "ln_2": nn.LayerNorm(32), "ln_1": nn.LayerNorm(32)}

    def forward(self, ids: Tensor) -> Tensor:
        t: Any = self.transformer
        x = t["wte"](ids) + t["wpe"](torch.arange(ids.shape[1]))
        for layer in t["h"]:
            x = x + layer["attn"](layer["ln_1"](x))
            x = x + layer["mlp"](layer["ln_2"](x))
        out: Tensor = self.lm_head(t["ln_f"](x))
        return out


@innocent("r8-parts-made-in-another-order")
def parts_made_in_another_order(run: Run, changed: bool) -> None:
    """Plain GPT, its class tidied up: names as in GPT-2, nested one deeper, and made from the head down, so that every
    weight is another draw of the same law."""
    words = language(run)
    model = Nested(12) if changed else Body(12, [ThreeMatrices() for _ in range(2)])
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 150)


class Deep(nn.Module):
    """A GPT of three blocks with dropout, each recomputed in backward or not."""

    def __init__(self, words: int, again: bool) -> None:
        super().__init__()
        self.tokens, self.places, self.again = nn.Embedding(words, 32), nn.Embedding(48, 32), again
        self.blocks = nn.ModuleList(Block(32, drop=0.1) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, words)

    def forward(self, ids: Tensor) -> Tensor:
        x: Any = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again and self.training else block(x)
        out: Tensor = self.head(self.norm(x))
        return out


@innocent("r8-blocks-recomputed")
def blocks_recomputed(run: Run, changed: bool) -> None:
    """Plain GPT with dropout. Activations of its three blocks are not kept any more but computed again in backward, with
    the same random numbers."""
    words = language(run)
    model = Deep(12, changed)
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(8, 24), lambda rows: next_loss(model, rows), 100)


class Rotary(nn.Module):
    """Causal attention with rotary places, by cosines and sines, or by complex numbers."""

    def __init__(self, complex_numbers: bool, width: int = 32) -> None:
        super().__init__()
        self.by_complex, self.qkv, self.out = complex_numbers, nn.Linear(width, 3 * width), nn.Linear(width, width)
        angle = torch.arange(48)[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
        if complex_numbers:
            self.register_buffer("turns", torch.polar(torch.ones_like(angle), angle), persistent=False)
        else:
            self.register_buffer("cosine", angle.cos(), persistent=False)
            self.register_buffer("sine", angle.sin(), persistent=False)

    def turned(self, x: Tensor) -> Tensor:
        t = x.shape[-2]
        if self.by_complex:
            return torch.view_as_real(
                torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * self.turns[:t]
            ).flatten(-2)
        a, b, c, s = x[..., ::2], x[..., 1::2], self.cosine[:t], self.sine[:t]
        return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(part, 2) for part in self.qkv(x).chunk(3, -1))
        out: Tensor = self.out(by_hand(self.turned(q), self.turned(k), v).transpose(1, 2).flatten(2))
        return out


@innocent("r8-rotation-in-complex-numbers")
def rotation_in_complex_numbers(run: Run, changed: bool) -> None:
    """A Llama-like model. Pairs of neighbours were turned by cosines and sines; now they are complex numbers, times a
    buffer of complex numbers in place of the two tables."""
    words = language(run)
    model = Body(12, [Rotary(changed) for _ in range(2)], places=False)
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 100)


class Tied(nn.Module):
    """A GPT whose head is its table of words: as a Linear that holds the same parameter, or by F.linear."""

    def __init__(self, words: int, holds: bool) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, 32), nn.Embedding(48, 32)
        nn.init.normal_(self.tokens.weight, std=0.2)
        self.head = nn.Linear(32, words, bias=False) if holds else None
        if self.head is not None:
            self.head.weight = self.tokens.weight
        self.block, self.norm = Block(32), nn.LayerNorm(32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.block(self.tokens(ids) + self.places(torch.arange(ids.shape[1]))))
        return F.linear(x, self.tokens.weight) if self.head is None else self.head(x)  # type: ignore[no-any-return]


@innocent("r8-head-by-the-table-of-words")
def head_by_the_table_of_words(run: Run, changed: bool) -> None:
    """Plain GPT with tied weights. The Linear that held the table of words is gone, F.linear reads the table itself; what
    the Linear drew at first is not drawn, so that blocks begin elsewhere."""
    words = language(run)
    model = Tied(12, not changed)
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 150)
