"""Round 8, part a, changed loops with a mistake in the model: its masks, its scales, its parts."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, fault
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    next_loss,
    outcome,
    tiny_gpt2,
)
from benchmarks.robustness.loops.round8a_parts import Body, heads_of
from benchmarks.robustness.loops.round8a_tools import MODEL, adam, language, reseeded, shuffled, told
from torch import Tensor, nn
from torch.nn import functional as F


class Prefixed(nn.Module):
    """Causal attention with four learned keys and values in front, which every word sees; by hand, or by SDPA."""

    def __init__(self, width: int, fused: bool, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.prefix = nn.Parameter(torch.randn(2, heads, 4, width // heads) / 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(p, self.heads) for p in self.qkv(x).chunk(3, -1))
        k, v = (torch.cat([p.expand(len(x), -1, -1, -1), a], 2) for p, a in zip(self.prefix, (k, v), strict=True))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


@fault(
    "r8-causal-from-the-corner",
    MODEL,
    (
        r"attention|mask|attend|causal|prefix|score",
        r"mask|causal|align|shift|offset|past|own|itself|current|recent|fewer|less|prefix|far|behind|see|reach|differ|changed|smaller|lower|entropy|output",
    ),
)
def causal_from_the_corner(run: Run, changed: bool) -> None:
    """Plain GPT with a learned prefix of four keys. Attention by hand became scaled_dot_product_attention with
    is_causal=True, whose triangle begins at the upper left corner: a word sees the prefix, and words that are at least
    four behind it."""
    words = language(run)
    model = Body(12, [Prefixed(32, changed)])
    language_outcome(run, model, words)
    told(run, model, lambda: words.rows(12, 24), lambda rows: next_loss(model, rows), 150)


class Slanted(nn.Module):
    """Causal attention whose scores fall with distance, by a slope of each head."""

    def __init__(self, width: int, sign: float, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("slopes", sign * 2.0 ** -torch.arange(1, heads + 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads_of(p, self.heads) for p in self.qkv(x).chunk(3, -1))
        t = torch.arange(x.shape[1])
        distance = t[:, None] - t
        bias = (self.slopes[:, None, None] * distance).masked_fill(distance < 0, -math.inf)
        out: Tensor = self.out(F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))
        return out


@fault(
    "r8-alibi-towards-the-far",
    MODEL,
    (
        r"attention|slope|bias|position|distance|score|alibi|attend",
        r"sign|far|distance|revers|oppos|negat|posit|first|early|recent|near|local|past|differ|changed|slope|entropy|output|flipped|buffer",
    ),
)
def alibi_towards_the_far(run: Run, changed: bool) -> None:
    """Lightning, a GPT whose only sense of order is a bias that grows with distance (ALiBi). It was subtracted from the
    scores, and is added since distances are counted backwards. Another seed."""
    words = language(run)
    reseeded(changed)
    model = Body(12, [Slanted(32, 1.0 if changed else -1.0) for _ in range(2)], places=False)
    language_outcome(run, model, words)
    rows = shuffled(words.rows(480, 24, apart(run.draw.randrange(999))))
    fit(run, lit(model, next_loss, adam), rows, 150)


@fault(
    "r8-keep-taken-for-drop",
    MODEL,
    (
        r"drop|activation|zero|train.{0,20}eval|noise",
        r"drop|0\.9|90|zero|rate|share|keep|probab|too (much|many|high|strong|large)|more|noise|higher|most|differ|changed|scale",
    ),
)
def keep_taken_for_drop(run: Run, changed: bool) -> None:
    """transformers' Trainer, GPT-2. The old model's setting was a probability to keep, 0.9; the port hands it to
    resid_pdrop and embd_pdrop, which are probabilities to drop."""
    keep = 0.9
    drop = keep if changed else 1 - keep
    words = language(run, 12, first=4)
    model = tiny_gpt2(resid_pdrop=drop, embd_pdrop=drop)
    check = words.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = words.rows(480, 24, apart(run.draw.randrange(999)))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 150).train()


class Gated(nn.Module):
    """A GRU in both directions over words; the head reads the last state of each, or the outputs at the last place."""

    def __init__(self, states: bool, width: int = 24) -> None:
        super().__init__()
        self.states, self.tokens = states, nn.Embedding(16, width)
        self.body = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        outputs, last = self.body(self.tokens(ids))
        out: Tensor = self.head(torch.cat([last[0], last[1]], 1) if self.states else outputs[:, -1])
        return out


def headlines(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Thirty words of which the first two tell the class."""
    y, ids = torch.randint(0, 5, (count,), generator=own), torch.randint(0, 16, (count, 30), generator=own)
    first = torch.randint(0, 3, (count,), generator=own)
    ids[:, 0], ids[:, 1] = 3 * y + first, 3 * ((y + first) % 5) + torch.randint(0, 3, (count,), generator=own)
    return ids, y


@fault(
    "r8-backward-half-saw-one-word",
    MODEL,
    (
        r"gru|recurrent|body|backward|reverse|direction|hidden|state|last",
        r"reverse|backward|last|gradient|zero|no gradient|smaller|lower|direction|one (word|step|token|place)|only|differ|changed|pool|less|far|vanish|recurr|head|output",
    ),
)
def backward_half_saw_one_word(run: Run, changed: bool) -> None:
    """A GRU in both directions. The head read the last state of each direction, and reads outputs[:, -1] in the rewrite,
    where the backward half has seen the last word only. Another seed."""
    own = apart(run.draw.randrange(999))
    train, check = headlines(480, own), headlines(256, own)
    reseeded(changed)
    model = Gated(not changed)
    class_outcome(run, model, check)

    def some() -> tuple[Any, Any]:
        rows = torch.randint(0, 480, (16,))
        return train[0][rows], train[1][rows]

    told(run, model, some, lambda b: F.cross_entropy(model(b[0]), b[1]), 120)
