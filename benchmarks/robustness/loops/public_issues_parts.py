"""What the re-enactments of public issues share: a small decoder, made-up data, and the callbacks of three trainers."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE = -100


def outcome(run: Run, measure: Callable[[], float]) -> None:
    """What the run was for, lower is better; asked for by the proof, after the loop."""
    run.outcome = measure  # type: ignore[attr-defined]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, allowed: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if tables is not None:
            q, k = turned(q, *tables), turned(k, *tables)
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=drop)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout)
        self.wide, self.narrow = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, allowed: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.drop(self.attention(self.before(x), allowed, tables))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.between(x)))))


class Decoder(nn.Module):
    """A causal decoder; `rotary` with its tables in `table_dtype`, or learned positions."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        length: int = 64,
        rotary: bool = False,
        dropout: float = 0.0,
        table_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = None if rotary else nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.size, self.table_dtype = width // heads, table_dtype
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if "out" not in name and "narrow" not in name else 0.02 / layers**0.5)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        rates = 1 / 10000 ** (torch.arange(0, self.size, 2) / self.size)
        angles = positions.to(self.table_dtype)[:, None, :, None] * rates.to(self.table_dtype)
        return angles.cos().float(), angles.sin().float()

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, pieces: Tensor | None = None
    ) -> Tensor:
        """`mask`: 1 where a token is; `pieces`: the number of the document that a token belongs to."""
        length = ids.shape[1]
        if positions is None:
            positions = torch.arange(length).expand(len(ids), -1)
        allowed = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        if pieces is not None:
            allowed = allowed & (pieces[:, None, :, None] == pieces[:, None, None, :])
        if mask is not None:
            allowed = allowed & (mask.bool()[:, None, None, :] | torch.eye(length, dtype=torch.bool))
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(positions)
        tables = self.tables(positions) if self.places is None else None
        for layer in self.layers:
            x = layer(x, allowed, tables)
        out: Tensor = self.norm(x)
        return out

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, positions: Tensor | None = None, pieces: Tensor | None = None
    ) -> Tensor:
        logits: Tensor = self.head(self.hidden(ids, mask, positions, pieces))
        return logits


def shifted(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """The usual loss of a causal model: labels as the ids, -100 where nothing is asked."""
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORE, reduction=reduction
    )


def step_down(optimizer: Any, steps: int, warmup: int = 5) -> Any:
    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return max(0.02, 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def rows_of(sequences: list[list[int]], fill: int = 0, left: bool = False) -> tuple[Tensor, Tensor]:
    """Padded ids and their mask."""
    longest = max(len(s) for s in sequences)
    ids = torch.full((len(sequences), longest), fill)
    mask = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        place = slice(longest - len(sequence), longest) if left else slice(0, len(sequence))
        ids[row, place], mask[row, place] = torch.tensor(sequence), 1
    return ids, mask


def pick(options: list[Any], count: int) -> list[Any]:
    return [options[i] for i in torch.randint(0, len(options), (count,)).tolist()]


class Chats:
    """Conversations: a prompt of random letters; an answer that goes on from the prompt's last letter by a fixed
    rule from letter to letter, as long as the prompt; an end."""

    BOS, EOS, PAD, USER, ANSWER = 1, 2, 0, 3, 4
    VOCABULARY = 32

    def __init__(self, seed: int, shortest: int = 3, longest: int = 9) -> None:
        draw = random.Random(seed)
        letters = list(range(5, self.VOCABULARY))
        self.rule = dict(zip(letters, draw.sample(letters, len(letters)), strict=True))
        self.draw, self.letters, self.span = draw, letters, (shortest, longest)

    def one(self) -> tuple[list[int], list[int]]:
        prompt = self.draw.choices(self.letters, k=self.draw.randint(*self.span))
        answer = [prompt[-1]]
        for _ in prompt:
            answer.append(self.rule[answer[-1]])
        return [self.BOS, self.USER, *prompt, self.ANSWER], [*answer, self.EOS]

    def some(self, count: int) -> list[tuple[list[int], list[int]]]:
        return [self.one() for _ in range(count)]


def batch_of(pairs: list[tuple[list[int], list[int]]], fill: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask, and labels of the answers only."""
    ids, mask = rows_of([p + a for p, a in pairs], fill)
    labels = torch.full_like(ids, IGNORE)
    for row, (prompt, answer) in enumerate(pairs):
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, mask, labels


def answer_loss(model: nn.Module, pairs: list[tuple[list[int], list[int]]]) -> float:
    ids, mask, labels = batch_of(pairs)
    was = model.training
    model.eval()
    with torch.no_grad():
        loss = shifted(model(ids, mask), labels)
    model.train(was)
    return float(loss)
