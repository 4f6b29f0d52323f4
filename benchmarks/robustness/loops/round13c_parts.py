"""What the loops of round 13c share. A fault's category and the patterns of a right diagnosis stand in
round13c_keys.json, what each loop is meant to do in round13c_intents.json; categories are those of round8b_parts, and
labels.

round13c_proofs.json repeats by `python -m benchmarks.robustness.prove round13c`.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.robustness.loops.case import fault
from benchmarks.robustness.loops.round5_tools import Block, apart
from benchmarks.robustness.loops.round9a_parts import Llama, RotaryAttention, turned
from torch import Tensor, nn
from torch.nn import functional as F

KEYS = json.loads((Path(__file__).parent / "round13c_keys.json").read_text())


def slip(name: str) -> Callable[..., Any]:
    key = KEYS[name]
    return fault(name, key["category"], tuple(key["wanted"]))


# networks


class DiagonalStates(nn.Module):
    """S4D: each channel has `states` linear recurrences, h = exp(step * a) h + step * x, read out together."""

    def __init__(self, width: int, sign: float, states: int = 4) -> None:
        super().__init__()
        self.sign = sign
        self.a_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.log_step = nn.Parameter(torch.empty(width, 1).uniform_(math.log(0.05), math.log(0.3)))
        self.read, self.through = nn.Parameter(torch.randn(width, states) / states), nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, time, width) to the same."""
        step = self.log_step.exp()
        decay = (self.sign * self.a_log.exp() * step).exp()
        state, out = torch.zeros(len(x), *decay.shape), []
        for moment in x.unbind(1):
            state = decay * state + step * moment[..., None]
            out.append((state * self.read).sum(-1) + self.through * moment)
        return torch.stack(out, 1)


class StateModel(nn.Module):
    """A language model of two layers of diagonal states, each with a gate."""

    def __init__(self, words: int, sign: float, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.norm, self.head = nn.Embedding(words, width), nn.LayerNorm(width), nn.Linear(width, words)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.enter = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(2))
        self.states = nn.ModuleList(DiagonalStates(width, sign) for _ in range(2))
        self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for norm, enter, states, leave in zip(self.norms, self.enter, self.states, self.leave, strict=True):
            h, gate = enter(norm(x)).chunk(2, -1)
            x = x + leave(F.silu(gate) * states(h))
        out: Tensor = self.head(self.norm(x))
        return out


class Convolved(nn.Module):
    """A language model of dilated convolutions (a TCN); `ahead` is the share of the padding on the right."""

    def __init__(self, words: int, ahead: float, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.head, self.ahead = nn.Embedding(words, width), nn.Linear(width, words), ahead
        self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, dilation=d) for d in (1, 2, 4))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids).transpose(1, 2)
        for layer in self.layers:
            reach = 2 * layer.dilation[0]
            right = int(self.ahead * reach)
            x = x + layer(F.pad(x, (reach - right, right))).relu()
        out: Tensor = self.head(x.transpose(1, 2))
        return out


class OfAKind(nn.Module):
    """A small GPT whose rows are of a kind, which is added to every word; `spread` makes (rows, width) fit to that."""

    def __init__(self, words: int, kinds: int, spread: Callable[[Tensor], Tensor], width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places, self.kinds = (
            nn.Embedding(words, width),
            nn.Embedding(32, width),
            nn.Embedding(kinds, width),
        )
        self.blocks, self.spread = nn.ModuleList(Block(width) for _ in range(2)), spread
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, kind: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1])) + self.spread(self.kinds(kind))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class CopiedAttention(RotaryAttention):
    """Rotary attention in which the line of the keys was copied from that of the queries."""

    def forward(self, x: Tensor) -> Tensor:
        q, v, angle = self.split(self.wq(x)), self.split(self.wv(x)), self.angle[: x.shape[1]]  # type: ignore[index]
        q, k = turned(q, angle, self.pairs), turned(q, angle, self.pairs)
        out: Tensor = self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return out


class RotaryModel(nn.Module):
    """A Llama of one's own as transformers' Trainer wants it."""

    def __init__(self, words: int, copied: bool) -> None:
        super().__init__()
        self.net = Llama(words)
        if copied:
            for layer in self.net.layers:
                layer.attention = CopiedAttention(32, 2)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.net(input_ids)
        return {"loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), "logits": logits}


class Stages(nn.Module):
    """A small GPT in two stages, as in a pipeline: each has its own copy of the table of words."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.places, self.first, self.second = nn.Embedding(32, width), Block(width), Block(width)
        self.norm, self.table = nn.LayerNorm(width), nn.Parameter(0.1 * torch.randn(words, width))
        self.table_of_the_last = nn.Parameter(self.table.detach().clone())

    def hidden(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.table) + self.places(torch.arange(ids.shape[1]))
        out: Tensor = self.norm(self.second(self.first(x)))
        return out

    def forward(self, ids: Tensor) -> Tensor:
        return self.hidden(ids) @ self.table_of_the_last.T


class Tagger(nn.Module):
    """A GRU in both directions, scores of tags, and a table of scores from each tag to the next."""

    def __init__(self, words: int, tags: int, width: int = 16) -> None:
        super().__init__()
        self.tokens, self.core = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head, self.step = nn.Linear(2 * width, tags), nn.Parameter(0.1 * torch.randn(tags, tags))

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(ids))[0])
        return out


class Mixture(nn.Module):
    """A GRU over a row of numbers, and four normal distributions of the next: shares, means, log deviations."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, mean, spread = self.head(self.core(x[..., None])[0][:, -1]).chunk(3, -1)
        return share.log_softmax(-1), mean, spread.clamp(-4, 4)


# tasks


def of_topics(seed: int, count: int, length: int, own: torch.Generator | None = None) -> Tensor:
    """(count, length) of twelve words; each text is of one of eight topics, which have frequent words of their own."""
    liked = (1.3 * torch.randn(8, 12, generator=apart(seed + 63))).softmax(-1)
    topic = torch.randint(0, 8, (count,), generator=own)
    return torch.multinomial(liked[topic], length, replacement=True, generator=own)


def tag_rows(count: int, length: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Words 0 to 11 and tags 0 to 3: the next tag is mostly the one after, and a word tells its tag in half of the
    cases."""
    tags = torch.randint(0, 4, (count, length), generator=own)
    for t in range(1, length):
        on = torch.rand(count, generator=own) < 0.85
        tags[:, t] = torch.where(on, (tags[:, t - 1] + 1) % 4, tags[:, t])
    ours = 3 * tags + torch.randint(0, 3, tags.shape, generator=own)
    told = torch.rand(tags.shape, generator=own) < 0.5
    return torch.where(told, ours, torch.randint(0, 12, tags.shape, generator=own)), tags


def spoken(seed: int, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Five letters, 1 to 6, of three to five frames each: noisy frames, (count, 25, 8), and the letters, (count, 5)."""
    voice = torch.randn(7, 8, generator=apart(seed + 61))
    voice[0] = 0
    said = torch.randint(1, 7, (count, 5), generator=own)
    sizes = torch.randint(3, 6, (count, 5), generator=own)
    ends = sizes.cumsum(1)
    at = (torch.arange(25)[None, :, None] >= ends[:, None]).sum(-1)
    letter = torch.cat([said, torch.zeros(count, 1, dtype=torch.long)], 1).gather(1, at)
    return voice[letter] + 0.5 * torch.randn(count, 25, 8, generator=own), said


def either_way(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 8) numbers, and one that is their weighted sum with either sign, in little noise."""
    x = torch.randn(count, 8, generator=own)
    size = 1 + (x * torch.linspace(0.1, 0.8, 8)).sum(1).abs()
    sign = 2.0 * torch.randint(0, 2, (count,), generator=own) - 1
    return x, sign * size + 0.1 * torch.randn(count, generator=own)


def rated(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Padded texts of words 1 to 15, their mask, and a rating from 0 to 4 by the share of words above 7."""
    warm = torch.rand(count, 1, generator=own)
    high = torch.rand(count, 12, generator=own) < warm
    x = torch.where(
        high, torch.randint(8, 16, high.shape, generator=own), torch.randint(1, 8, high.shape, generator=own)
    )
    keep = torch.arange(12) < torch.randint(6, 13, (count, 1), generator=own)
    share = ((x > 7) & keep).sum(1) / keep.sum(1)
    return x * keep, keep, (share * 5).long().clamp(max=4)
