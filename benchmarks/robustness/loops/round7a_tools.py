"""What the loops of the seventh round, part a, share: small networks of tokens, graphs and frames, and their tasks."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import Attention, Language, apart, judged, mlp, outcome
from torch import Tensor, nn
from torch.nn import functional as F


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


class Pairs:
    """Rows of tokens whose next one depends on the pair before it, by a table of pairs."""

    def __init__(self, seed: int, words: int = 6) -> None:
        self.words, self.table = words, 2.5 * torch.randn(words, words, words, generator=apart(seed))

    def rows(self, count: int, length: int, own: torch.Generator | None = None) -> Tensor:
        out = torch.randint(0, self.words, (count, length), generator=own)
        for t in range(2, length):
            chance = self.table[out[:, t - 2], out[:, t - 1]].softmax(-1)
            out[:, t] = torch.multinomial(chance, 1, generator=own).squeeze(1)
        return out


class Recurrent(nn.Module):
    """A language model by a GRU."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.tokens(ids))[0])
        return out


class Layer(nn.Module):
    """A block whose attention multiplies its scores by `scale`, adds `mask` to them, and whose MLP may be another one."""

    def __init__(self, width: int, heads: int, scale: float, mask: Tensor, feed: nn.Module | None = None) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.register_buffer("mask", mask, persistent=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = feed or mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = self.scale * (q @ k.transpose(-1, -2)) + self.mask[:t, :t]
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


def causal(length: int = 64) -> Tensor:
    return torch.full((length, length), -math.inf).triu(1)


class Stack(nn.Module):
    """A small GPT of such blocks."""

    def __init__(self, words: int, layers: list[nn.Module], width: int = 32, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers, self.norm = nn.Sequential(*layers), nn.LayerNorm(width)
        self.head = nn.Linear(width, words)

    def hidden(self, ids: Tensor) -> Tensor:
        x: Tensor = self.layers(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return x

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.hidden(ids)))
        return out


def last_word_outcome(run: Run, model: nn.Module, language: Any, length: int = 13) -> None:
    """Cross-entropy of the last word, where nothing comes after it."""
    check = language.rows(256, length, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[:, :-1])[:, -1], check[:, -1])))


MASK = 1


def masked_bert(words: int = 16) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    return BertForMaskedLM(BertConfig(vocab_size=words, intermediate_size=64, max_position_embeddings=32, **settings))


def masked_outcome(run: Run, model: Any, language: Language) -> None:
    """Cross-entropy of hidden words."""
    check, hide = language.rows(128, 20, apart(1)), torch.rand(128, 20, generator=apart(2)) < 0.15
    seen = check.masked_fill(hide, MASK)
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(input_ids=seen).logits[hide], check[hide])))


def community(seed: int, nodes: int = 120) -> tuple[Tensor, Tensor, Tensor]:
    """A graph of four groups: noisy features, groups, and the list of edges, most of them within a group."""
    own = apart(seed)
    y = torch.randint(0, 4, (nodes,), generator=own)
    x = 0.6 * torch.randn(4, 8, generator=own)[y] + torch.randn(nodes, 8, generator=own)
    chance = torch.where(y[:, None] == y[None], 0.14, 0.008)
    edges = (torch.rand(nodes, nodes, generator=own) < chance).triu(1).nonzero()
    return x, y, edges


class Graph(nn.Module):
    """Two layers of graph convolution, given the normalised adjacency."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        out: Tensor = a @ self.second((a @ self.first(x)).relu())
        return out


class Translator(nn.Module):
    """An encoder and a decoder; the decoder's second attention reads `memory`, or itself by mistake."""

    def __init__(self, itself: bool) -> None:
        super().__init__()
        self.source, self.target, self.places = nn.Embedding(13, 32), nn.Embedding(13, 32), nn.Embedding(16, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.own, self.cross = (nn.MultiheadAttention(32, 2, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.feed, self.head, self.itself = mlp(32, 64, 32), nn.Linear(32, 13), itself

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        places = self.places(torch.arange(source.shape[1]))
        memory = self.encoder(self.source(source) + places)
        x = self.target(before) + places[: before.shape[1]]
        hide = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = self.norms[0](x + self.own(x, x, x, attn_mask=hide, need_weights=False)[0])
        if self.itself:
            x = self.norms[1](x + self.cross(x, x, x, attn_mask=hide, need_weights=False)[0])
        else:
            x = self.norms[1](x + self.cross(x, memory, memory, need_weights=False)[0])
        out: Tensor = self.head(self.norms[2](x + self.feed(x)))
        return out


class Reversed(torch.autograd.Function):
    """a + f(b), b + g(a): nothing is kept but the output, from which the inputs are worked out in backward."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, f: nn.Module, g: nn.Module, *weights: Tensor) -> tuple[Tensor, Tensor]:
        a = a + f(b)
        b = b + g(a)
        ctx.f, ctx.g = f, g
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx: Any, da: Tensor, db: Tensor) -> tuple[Any, ...]:
        a, b = (x.detach() for x in ctx.saved_tensors)
        with torch.enable_grad():
            a.requires_grad_()
            ga = ctx.g(a)
            at_a, *of_g = torch.autograd.grad(ga, [a, *ctx.g.parameters()], db)
            da = da + at_a
            b = (b - ga.detach()).requires_grad_()
            at_b, *of_f = torch.autograd.grad(ctx.f(b), [b, *ctx.f.parameters()], da)
        return da, db + at_b, None, None, *of_f, *of_g


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.LayerNorm(16), Attention(16))
        self.g = nn.Sequential(nn.LayerNorm(16), mlp(16, 48, 16, act=nn.GELU))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat(Reversed.apply(a, b, self.f, self.g, *self.f.parameters(), *self.g.parameters()), -1)
