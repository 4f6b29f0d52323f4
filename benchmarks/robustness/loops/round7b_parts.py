"""Networks and small tasks of round 7b."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.round5_tools import Attention, Block, Decoder, mlp
from torch import Tensor, nn
from torch.nn import functional as F


class Gated(nn.Module):
    """Llama's feed-forward part: two projections up, one of them through a SiLU, and one down."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return out


class Rotary(nn.Module):
    """Angles of rotary positions; the frequencies are a buffer that no checkpoint holds, as in most libraries."""

    def __init__(self, width: int, base: float = 1000.0) -> None:
        super().__init__()
        self.width, self.base = width, base
        self.register_buffer("frequencies", self.computed(), persistent=False)

    def computed(self) -> Tensor:
        return self.base ** (-torch.arange(0, self.width, 2) / self.width)

    def forward(self, x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[-2])[:, None] * self.frequencies
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class RotaryAttention(Attention):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__(width, heads)
        self.rotary = Rotary(width // heads)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        scores = self.rotary(q) @ self.rotary(k).transpose(-1, -2) / math.sqrt(d / self.heads)
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -1e9)
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return out


class LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.feed = RotaryAttention(width, heads), Gated(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class SmallLlama(nn.Module):
    """RMS norms, rotary positions, gated feed-forward parts, a head of its own."""

    def __init__(self, words: int = 12, width: int = 32, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class Reader(nn.Module):
    """A recurrent language model: an embedding, a GRU or an LSTM, a head."""

    def __init__(self, words: int, width: int = 16, hidden: int = 32, core: Any = nn.GRU) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), core(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, words)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(ids))[0])
        return out


class Listener(nn.Module):
    """Convolutions over frames of a sound, their mean over time, a head."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 12, 5, 2, 2), nn.ReLU(), nn.Conv1d(12, 24, 5, 2, 2), nn.ReLU())
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean(2))
        return out


def sounds(count: int, own: torch.Generator | None = None, noise: float = 0.8) -> tuple[Tensor, Tensor]:
    """Tones of one of four pitches, of any phase, in noise: (rows, 1, 64)."""
    y = torch.randint(0, 4, (count,), generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own)
    clean = (torch.arange(64) * (0.3 + 0.25 * y[:, None]) + phase).sin()
    return (clean + noise * torch.randn(count, 64, generator=own))[:, None], y


class Translator(nn.Module):
    """An encoder's last state is where the decoder begins."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Embedding(words, 16), nn.GRU(16, 48, batch_first=True)])
        self.decoder = nn.ModuleList([nn.Embedding(words + 1, 16), nn.GRU(16, 48, batch_first=True)])
        self.head = nn.Linear(48, words)

    def forward(self, source: Tensor, shown: Tensor) -> Tensor:
        state = self.encoder[1](self.encoder[0](source))[1]
        out: Tensor = self.head(self.decoder[1](self.decoder[0](shown), state)[0])
        return out


class TwoHeads(nn.Module):
    """One body, a head for the language it was made for and one for the next."""

    def __init__(self, words: int = 12) -> None:
        super().__init__()
        self.body = Decoder(words, layers=2)
        self.body.head = nn.Identity()  # type: ignore[assignment]
        self.first, self.second = nn.Linear(32, words), nn.Linear(32, words)

    def loss(self, rows: Tensor, second: bool) -> Tensor:
        logits = (self.second if second else self.first)(self.body(rows[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


class Ensemble(nn.Module):
    """Five networks at once, with a matrix (members, inputs, outputs) for each layer."""

    def __init__(self, *sizes: int, as_kernel: bool) -> None:
        super().__init__()
        shapes = itertools.pairwise(sizes)
        self.matrices = nn.ParameterList(nn.Parameter(torch.empty(5, a, b)) for a, b in shapes)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(5, 1, b)) for b in sizes[1:])
        for matrix in self.matrices:
            if as_kernel:
                nn.init.kaiming_uniform_(matrix, nonlinearity="relu")
            else:
                for k in range(5):
                    nn.init.kaiming_uniform_(matrix.data[k].T, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y = x.expand(5, *x.shape)
        for i, (matrix, bias) in enumerate(zip(self.matrices, self.biases, strict=True)):
            y = torch.baddbmm(bias, y if i == 0 else y.relu(), matrix)
        return y


class Patches(nn.Module):
    """A vision transformer: patches of 2 by 2, a class token, learned places."""

    def __init__(self, side: int, width: int = 24) -> None:
        super().__init__()
        self.cut = nn.Conv2d(1, width, 2, 2)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.5 * torch.randn(1, 1 + side * side, width))
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.cut(x).flatten(2).transpose(1, 2)
        parts = torch.cat([self.first.expand(len(x), -1, -1), parts], 1) + self.places
        out: Tensor = self.head(self.norm(self.block(parts))[:, 0])
        return out


def spots(count: int, side: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """One bright patch; the class is its quarter of the picture."""
    at = torch.randint(0, side, (2, count), generator=own)
    x = 0.2 * torch.randn(count, 1, 2 * side, 2 * side, generator=own)
    for picture, (row, column) in zip(x, at.T.tolist(), strict=True):
        picture[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2] += 2
    return x, 2 * (at[0] * 2 // side) + at[1] * 2 // side


class Codes(nn.Module):
    """A row of tokens through four codes of eight words each, drawn softly while it learns (Gumbel-softmax)."""

    def __init__(self, words: int, by_pass: bool) -> None:
        super().__init__()
        self.by_pass, self.passes, self.epoch = by_pass, 0, 0
        self.tokens = nn.Embedding(words, 16)
        self.write, self.read = nn.Linear(6 * 16, 32), nn.Linear(32, 6 * words)

    def forward(self, rows: Tensor) -> Tensor:
        scores = self.write(self.tokens(rows).flatten(1)).view(-1, 4, 8)
        if self.training:
            self.passes += 1
            codes = F.gumbel_softmax(scores, max(0.01, 0.7 ** (self.passes if self.by_pass else self.epoch)))
        else:
            codes = F.one_hot(scores.argmax(2), 8).float()
        out: Tensor = self.read(codes.flatten(1)).view(len(rows), 6, -1)
        return out


class Shifted(torch.utils.data.Dataset[Any]):
    """Pictures, moved at random while `augment` is set."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.augment = x, y, True

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return (moved(self.x[i]) if self.augment else self.x[i]), self.y[i]


def moved(x: Tensor, own: torch.Generator | None = None) -> Tensor:
    by = torch.randint(-3, 4, (2,), generator=own).tolist()
    return x.roll(by, (-2, -1))


class Graphs(nn.Module):
    """Three rounds of messages over a dense adjacency, then the mean over nodes, at unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 24)
        self.rounds = nn.ModuleList(nn.Linear(48, 24) for _ in range(3))
        self.leave = mlp(24, 24, 12)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes)
        share = edges / edges.sum(2, keepdim=True).clamp_min(1)
        for layer in self.rounds:
            h = (h + layer(torch.cat([h, share @ h], 2))).relu()
        return F.normalize(self.leave(h.mean(1)), dim=1)


def two_views(count: int, own: torch.Generator | None = None, edges_kept: float = 1.0) -> list[tuple[Tensor, Tensor]]:
    """Small graphs twice, with other noise on their nodes and other edges missing: nodes (rows, 8, 5), edges (rows, 8, 8)."""
    nodes = torch.randn(count, 8, 5, generator=own)
    edges = (torch.rand(count, 8, 8, generator=own) < 0.4).float()
    return [
        (
            nodes + 0.3 * torch.randn(nodes.shape, generator=own),
            edges * (torch.rand(edges.shape, generator=own) < edges_kept),
        )
        for _ in range(2)
    ]
