"""Round 12, part a, loops that are right though network or loss look odd, each rewritten without harm."""

import math

import torch
from benchmarks.robustness.loops.case import Run, innocent
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Language,
    apart,
    class_outcome,
    fit,
    judged,
    language_outcome,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round9a_tools import accelerated, other_seed, t5, translations
from benchmarks.robustness.loops.round10a_tools import adamw, plain
from benchmarks.robustness.loops.round11a_tools import patches, some
from benchmarks.robustness.loops.round12a_tools import described
from torch import Tensor, nn
from torch.nn import functional as F


class Registers(nn.Module):
    """Darcet et al. 2024: a vision transformer with four learned tokens beside the patches, which nobody reads."""

    def __init__(self, in_front: bool, width: int = 32) -> None:
        super().__init__()
        self.in_front, self.enter = in_front, nn.Linear(4, width)
        self.places = nn.Parameter(0.1 * torch.randn(16, width))
        self.registers = nn.Parameter(0.1 * torch.randn(4, width))
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, shots: Tensor) -> Tensor:
        h, beside = self.enter(patches(shots)) + self.places, self.registers.expand(len(shots), -1, -1)
        h = torch.cat([beside, h] if self.in_front else [h, beside], 1)
        for block in self.blocks:
            h = block(h)
        h = h[:, 4:] if self.in_front else h[:, :16]
        out: Tensor = self.head(self.norm(h).mean(1))
        return out


@innocent("r12a-four-tokens-nobody-reads")
def four_tokens_nobody_reads(run: Run, changed: bool) -> None:
    """Plain loop, a vision transformer with registers, whose last states are thrown away. They stood behind the patches
    and stand in front of them; they have no places."""
    seed = run.draw.randrange(999)
    model = Registers(in_front=changed)
    class_outcome(run, model, pictures(192, seed, own=apart(seed + 2)))
    data = pictures(640, seed, own=apart(seed + 1))
    plain(run, model, some(*data), lambda b: F.cross_entropy(model(b[0]), b[1]), 140, rate=3e-3)


class Universal(nn.Module):
    """Dehghani et al. 2019, without halting: a GPT whose four layers are one block."""

    def __init__(self, words: int, listed: bool, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        block = Block(width)
        self.block = nn.ModuleList([block] * 4) if listed else block
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.block if isinstance(self.block, nn.ModuleList) else [self.block] * 4:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


@innocent("r12a-one-block-four-times")
def one_block_four_times(run: Run, changed: bool) -> None:
    """Plain loop, a small GPT that passes through one block four times. The block was called in a loop, and now stands
    four times in a ModuleList; it is the same one, with the same numbers."""
    language = Language(run.draw.randrange(999))
    model = Universal(12, listed=changed)
    language_outcome(run, model, language)
    plain(run, model, lambda: language.rows(16, 24), lambda rows: next_loss(model, rows), 130, rate=3e-3)


class TwoTowers(nn.Module):
    """Pictures and captions as vectors of length one; a learned temperature, and a bias that begins at -10."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.picture, self.words = mlp(64, 64, width), nn.Embedding(12, 32)
        self.caption = nn.Linear(32, width)
        self.log_scale, self.bias = nn.Parameter(torch.tensor(math.log(10.0))), nn.Parameter(torch.tensor(-10.0))

    def forward(self, shots: Tensor, words: Tensor) -> Tensor:
        """(rows, rows) scores of each picture with each caption."""
        a = F.normalize(self.picture(shots), dim=-1)
        b = F.normalize(self.caption(self.words(words).sum(1)), dim=-1)
        return self.log_scale.exp() * a @ b.T + self.bias


def pair_loss(model: nn.Module, batch: tuple[Tensor, Tensor], soft: bool = False) -> Tensor:
    """Zhai et al. 2023: each pair is a question by itself; the sum over all pairs, divided by the rows."""
    sign = 2 * torch.eye(len(batch[0])) - 1
    scores = sign * model(*batch)
    each = F.softplus(-scores) if soft else -F.logsigmoid(scores)
    return each.sum() / len(batch[0])


@innocent("r12a-each-pair-by-itself")
def each_pair_by_itself(run: Run, changed: bool) -> None:
    """Lightning, pictures and captions by SigLIP: no softmax, a bias of -10, most pairs are negatives. The logarithm of
    the sigmoid became a softplus. Another seed."""
    seed = run.draw.randrange(999)
    train, check = described(960, seed, apart(seed + 1)), described(16, seed, apart(seed + 2))
    other_seed(changed)
    model = TwoTowers()
    outcome(run, lambda: judged(model, lambda: pair_loss(model, check)))
    fit(run, lit(model, lambda m, b: pair_loss(m, b, soft=changed), adamw(3e-3)), loader(*train), 300)


@innocent("r12a-summed-over-all-words")
def summed_over_all_words(run: Run, changed: bool) -> None:
    """accelerate, T5 whose loss is the sum over all words of the batch, in the hundreds; every gradient is clipped. The
    sum was cross_entropy's, and is the model's mean times the number of words."""
    own = apart(run.draw.randrange(999))
    table = 4 + torch.randperm(12, generator=own)
    train, check = translations(640, table, own), translations(128, table, own)
    model = t5(16)

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        out = net(input_ids=batch[0], labels=batch[1])
        if changed:
            total: Tensor = out.loss * batch[1].numel()
            return total
        return F.cross_entropy(out.logits.flatten(0, 1), batch[1].flatten(), reduction="sum")

    outcome(run, lambda: judged(model, lambda: model(input_ids=check[0], labels=check[1]).loss))
    accelerated(run, model, loader(*train), loss, 4)
