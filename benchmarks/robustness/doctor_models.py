"""Small models and data, as people write them, for the doctor's blind round: a transformer with its options, text."""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAD, BOS, EOS, MASK = 0, 1, 2, 3
ALPHABET = " abcdefghijklmnopqrstuvwxyz."
VOCABULARY = 4 + len(ALPHABET)


def text(seed: int = 0, characters: int = 40_000) -> str:
    """Sentences of a small grammar over invented words, the frequent ones first."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprstv" for b in ("a", "e", "i", "o", "un", "ar")]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(90)]
    nouns, verbs, others = words[:40], words[40:65], words[65:]

    def pick(options: list[str]) -> str:
        return options[min(int(draw.expovariate(0.15)), len(options) - 1)]

    out: list[str] = []
    length = 0
    while length < characters:
        sentence = f"{pick(others)} {pick(nouns)} {pick(verbs)} {pick(others)} {pick(nouns)}. "
        out.append(sentence)
        length += len(sentence)
    return "".join(out)


def encode(string: str, first: int = 4) -> Tensor:
    return torch.tensor([first + ALPHABET.index(c) for c in string])


def corpus(seed: int = 0, first: int = 4, characters: int = 40_000) -> Tensor:
    return encode(text(seed, characters), first)


def crops(tokens: Tensor, rows: int = 8, length: int = 32) -> tuple[Tensor, Tensor]:
    """Inputs and next tokens at random places, drawn from torch's own generator."""
    starts = torch.randint(0, len(tokens) - length - 1, (rows,))
    block = torch.stack([tokens[s : s + length + 1] for s in starts.tolist()])
    return block[:, :-1], block[:, 1:]


def sentences(seed: int = 0) -> list[Tensor]:
    """Documents of one to three sentences, with their ends."""
    draw = random.Random(seed + 1)
    parts = [part + ". " for part in text(seed).split(". ") if part]
    documents, at = [], 0
    while at < len(parts):
        count = draw.choice((1, 1, 1, 2, 2, 3))
        ids = encode("".join(parts[at : at + count]).strip())[:46]
        documents.append(torch.cat([torch.tensor([BOS]), ids, torch.tensor([EOS])]))
        at += count
    return documents


def padded(documents: list[Tensor], left: bool = False, fill: int = PAD) -> tuple[Tensor, Tensor]:
    """One batch of unequal documents: the ids and a mask, 1 where there is a token."""
    longest = max(len(d) for d in documents)
    ids = torch.full((len(documents), longest), fill)
    mask = torch.zeros(len(documents), longest, dtype=torch.long)
    for row, document in enumerate(documents):
        place = slice(longest - len(document), longest) if left else slice(0, len(document))
        ids[row, place] = document
        mask[row, place] = 1
    return ids, mask


def some(documents: list[Tensor], rows: int = 8) -> list[Tensor]:
    return [documents[i] for i in torch.randint(0, len(documents), (rows,)).tolist()]


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


class Counting(nn.Module):
    """Passes its input on, and counts: a user's module with a memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.calls += 1
        return x


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


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=shape.bias)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=shape.bias)
        self.relu = shape.slip in ("dead-relu", "honest-relu")

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        out: Tensor = self.down(hidden.relu() if self.relu else F.gelu(hidden))
        return out


class Experts(nn.Module):
    """The best two of a few MLPs for every token, and the load-balancing loss of Switch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(MLP(shape) for _ in range(shape.experts))
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        used = F.one_hot(chosen, len(self.experts)).sum(-2).float()
        self.balance = len(self.experts) * (used.mean((0, 1)) / 2 * probabilities.mean((0, 1))).sum()
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            share = (weights * (chosen == index)).sum(-1)
            rows = share > 0
            if rows.any():
                out[rows] = out[rows] + share[rows].unsqueeze(-1) * expert(x[rows])
        return out


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.norm_1, self.norm_2 = norm_of(shape), norm_of(shape)
        self.attention = Attention(shape)
        self.mlp: nn.Module = Experts(shape) if shape.experts else MLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        if self.shape.slip == "no-residual":
            x = self.attention(self.norm_1(x), positions, mask)
            out: Tensor = self.mlp(self.norm_2(x))
            return out
        keep = 1.0
        if self.training and self.shape.drop_path:
            keep = float(torch.rand(()) >= self.shape.drop_path) / (1 - self.shape.drop_path)
        x = x + keep * self.dropout(self.attention(self.norm_1(x), positions, mask))
        return x + keep * self.dropout(self.mlp(self.norm_2(x)))


class Transformer(nn.Module):
    """Logits of the next token, or of each token where `causal` is off."""

    def __init__(self, shape: Shape | None = None, **options: Any) -> None:
        super().__init__()
        self.shape = shape = replace(shape or Shape(), **options)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        if shape.positions == "learned":
            self.positions = nn.Embedding(shape.length, shape.width)
        self.counting = Counting()
        blocks = [Block(shape) for _ in range(shape.layers)]
        if shape.slip == "python-list":
            self.blocks: Any = blocks
        else:
            self.blocks = nn.ModuleList(blocks)
        self.norm = norm_of(shape)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(self.initialise)
        for block in blocks:
            block.apply(self.initialise)
        if shape.tied:
            self.head.weight = self.embedding.weight

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.shape.init)
            if self.shape.slip == "constant-init" and isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if self.shape.slip == "dead-relu" and isinstance(module, MLP):
            nn.init.constant_(module.up.bias, -8.0)

    def hidden(
        self,
        ids: Tensor | None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        embedded: Tensor | None = None,
    ) -> Tensor:
        x = self.embedding(ids) if embedded is None else embedded
        if positions is None:
            positions = torch.arange(x.shape[1]).expand(x.shape[0], -1)
        if self.shape.slip == "positions-all-zero":
            positions = torch.zeros_like(positions)
        if self.shape.positions == "learned":
            x = x + self.positions(positions)
        x = self.counting(x)
        for block in self.blocks:
            if self.shape.checkpoint and self.training:
                x = torch.utils.checkpoint.checkpoint(block, x, positions, mask, use_reentrant=False)
            else:
                x = block(x, positions, mask)
        out: Tensor = self.norm(x)
        return out

    def forward(self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        hidden = self.hidden(ids, mask, positions)
        if self.shape.slip == "hidden-detached":
            hidden = hidden.detach()
        logits: Tensor = self.head(hidden)
        return logits


class Classifier(nn.Module):
    """A trunk, a pooled hidden state, a linear head."""

    def __init__(self, classes: int = 4, pool: str = "mean", **options: Any) -> None:
        super().__init__()
        self.trunk = Transformer(causal=options.pop("causal", False), **options)
        self.trunk.head = nn.Identity()  # type: ignore[assignment]
        self.pool = pool
        self.classes = nn.Linear(self.trunk.shape.width, classes)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.trunk.hidden(ids, None if mask is None else mask.bool())
        if self.pool == "very-last":
            pooled = hidden[:, -1]
        elif mask is None:
            pooled = hidden.mean(1)
        elif self.pool == "last":
            pooled = hidden[torch.arange(len(ids)), mask.sum(1) - 1]
        else:
            pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        out: Tensor = self.classes(pooled)
        return out


def next_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def topics(documents: list[Tensor], classes: int = 4) -> Tensor:
    """A class that can be read off a document: by its first letters."""
    return torch.tensor([int(d[1] + d[2]) % classes for d in documents])


def moved(model: nn.Module) -> Tensor:
    """All the model's weights in one row, as float64."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])
