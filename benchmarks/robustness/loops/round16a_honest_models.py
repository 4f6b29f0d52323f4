"""Round 16a, honest and odd: models and layers."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import adamw, plain
from torch import Tensor, nn
from torch.nn import functional as F


class Hourglass(nn.Module):
    """A block over words, two over pairs of words, one over words again."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(24, width)
        self.before, self.after = Block(width), Block(width)
        self.short = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (rows, an even number)."""
        x = self.before(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        pairs = F.pad(x, (0, 0, 1, 0))[:, :-1].unflatten(1, (-1, 2)).mean(2)
        for block in self.short:
            pairs = block(pairs)
        x = self.after(x + pairs.repeat_interleave(2, 1))
        out: Tensor = self.head(self.norm(x))
        return out


@honest("r16a-two-words-as-one-in-the-middle")
def two_words_as_one_in_the_middle(run: Run) -> None:
    """Lightning, an hourglass transformer (Nawrot et al. 2022). In the middle two words are averaged into one, so
    that half of all places is computed; words are moved one place to the right before that, and a zero stands in
    front, which looks like a label shifted twice and is what keeps the second word of a pair from being seen by
    the first."""
    language = Language(run.draw.randrange(999))
    model = Hourglass(12)
    text_outcome(run, model, language, 21)
    module = lit(model, lambda net, batch: next_loss(net, batch[0]), adamw(5e-3))
    fit(run, module, loader(language.rows(480, 21)), 110)


class Difference(nn.Module):
    """Attention by one softmax less `weight` times another, a norm for each head behind it."""

    def __init__(self, width: int, heads: int = 2, start: float = 0.5) -> None:
        super().__init__()
        self.heads, self.start, self.norm1, self.norm2 = heads, start, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qk, self.v = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, width, bias=False)
        self.out, self.inner = nn.Linear(width, width, bias=False), nn.RMSNorm(width // heads, elementwise_affine=False)
        self.lambdas = nn.Parameter(0.1 * torch.randn(2, 2, width // heads))
        self.feed = mlp(width, 2 * width, width, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k = self.qk(h).unflatten(-1, (2, 2, self.heads, -1)).permute(2, 3, 0, 4, 1, 5)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1), -torch.inf)
        first, second = scores.softmax(-1)
        a, b = self.lambdas.prod(1).sum(-1).exp()
        v = self.v(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        mixed = (1 - self.start) * self.inner((first - (a - b + self.start) * second) @ v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


class Stacked(nn.Module):
    """Words and places in, given blocks, words out."""

    def __init__(self, words: int, *blocks: nn.Module, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(24, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


@honest("r16a-one-softmax-less-another")
def one_softmax_less_another(run: Run) -> None:
    """Plain loop, a differential transformer (Ye et al. 2024). Attention is one softmax less a learned share of a
    second, so that noise that both see cancels: weights are negative for many words, a row of them sums to about a
    half and may come near zero, and a norm without gains behind each head brings the size back."""
    language = Language(run.draw.randrange(999))
    model = Stacked(12, Difference(32), Difference(32, start=0.6))
    text_outcome(run, model, language)
    plain(run, model, lambda: language.rows(16, 24), lambda rows: next_loss(model, rows), 100)


class Passing(nn.Module):
    """A block that only the half of the words with the highest scores goes through; the others pass by."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.score, self.block = nn.Linear(width, 1, bias=False), Block(width)

    def forward(self, x: Tensor) -> Tensor:
        score = self.score(x)
        chosen = score.topk(x.shape[1] // 2, 1).indices.sort(1).values
        at = chosen.expand(-1, -1, x.shape[2])
        some = x.gather(1, at)
        change = (self.block(some) - some) * score.gather(1, chosen).sigmoid()
        return x.scatter_add(1, at, change)


@honest("r16a-half-of-the-words-pass-by")
def half_of_the_words_pass_by(run: Run) -> None:
    """accelerate, a GPT with mixture of depths (Raposo et al. 2024). Through every second block only the half of a
    row's words with the highest scores goes, and attention there knows no others. Which half it is depends on
    later words too, as its authors accept in training, and most of the router's effect is a choice without a
    gradient."""
    language = Language(run.draw.randrange(999))
    model = Stacked(12, Block(32), Passing(), Block(32), Passing())
    text_outcome(run, model, language)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return next_loss(m, batch[0])

    prepared(run, model, adam(model, 4e-3), loader(language.rows(480, 24)), loss, 3)


class Thinking(nn.Module):
    """A small GPT that puts its own last state in the place of the next word's embedding, twice, and answers then."""

    def __init__(self, words: int, width: int = 32) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def states(self, x: Tensor) -> Tensor:
        x = x + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for _ in range(2):
            x = torch.cat([x, self.states(x)[:, -1:]], 1)
        logits: Tensor = self.head(self.states(x)[:, -1])
        return logits


@honest("r16a-thoughts-that-are-no-words")
def thoughts_that_are_no_words(run: Run) -> None:
    """Plain loop, a small GPT that adds three digits, one of them twice, with continuous thoughts (Coconut, Hao et
    al. 2024). Its own last state is put in the place of the next word's embedding, twice, with its graph: nothing
    is sampled, no label stands at these places, each row runs three times through the model, and one word in a row
    is taught."""
    model = Thinking(17)
    digits = torch.cartesian_prod(*[torch.arange(5)] * 3)
    sums = digits @ (1 + torch.randperm(3, generator=apart(run.draw.randrange(999))) // 2)
    class_outcome(run, model, (digits, sums))

    def batch() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, 125, (40,))
        return digits[chosen], sums[chosen]

    train(run, model, adam(model, 3e-3), batch, lambda m, data: F.cross_entropy(m(data[0]), data[1]), 160, clip=1.0)


class ByPlace(nn.Module):
    """A table of scores for each head says how places look at one another, whatever words stand there."""

    def __init__(self, width: int = 32, heads: int = 4, length: int = 24) -> None:
        super().__init__()
        self.scores = nn.Parameter(0.5 * torch.randn(heads, length, length))
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.v, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.feed = mlp(width, 2 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        heads, length = len(self.scores), x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = self.scores[:, :length, :length].masked_fill(later, -torch.inf).softmax(-1)
        v = self.v(self.norm1(x)).unflatten(-1, (heads, -1)).transpose(1, 2)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed(self.norm2(x))
        return out


@honest("r16a-attention-that-reads-no-words")
def attention_that_reads_no_words(run: Run) -> None:
    """transformers' Trainer, a random Synthesizer (Tay et al. 2021). There are no queries and no keys: who looks
    at whom is a table of learned numbers by place, drawn at random, the same for every row whatever it says, and
    half of the table's entries are above the diagonal, never used and without a gradient."""
    language = Language(run.draw.randrange(999))

    def shifted(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    net = Stacked(12, ByPlace(), ByPlace())
    text_outcome(run, net, language)
    rows = language.rows(480, 24)
    hf_trainer(run, WithLoss(net, shifted), examples(x=rows, labels=rows), 120).train()


class Turning(nn.Module):
    """PointNet: a small net says a matrix that turns the cloud before a larger one reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.say = mlp(3, 24, 48), nn.Linear(48, 9)
        self.read, self.head = mlp(3, 32, 64), mlp(64, 32, 3)
        nn.init.zeros_(self.say.weight)
        nn.init.zeros_(self.say.bias)

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        turn = torch.eye(3) + self.say(self.look(points).amax(1).relu()).unflatten(-1, (3, 3))
        return self.head(self.read(points @ turn).amax(1)), turn


def bodies(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Clouds of 32 points on ellipsoids, boxes or rods, turned at random."""
    y = torch.randint(0, 3, (count,), generator=own)
    ball = F.normalize(torch.randn(count, 32, 3, generator=own), dim=2) * torch.tensor([1.0, 0.8, 0.6])
    box = torch.rand(count, 32, 3, generator=own) * 2 - 1
    box = box / box.abs().amax(2, keepdim=True)
    rod = torch.randn(count, 32, 3, generator=own) * torch.tensor([1.0, 0.15, 0.15])
    turn = torch.linalg.qr(torch.randn(count, 3, 3, generator=own)).Q
    cloud = torch.stack([ball, box, rod])[y, torch.arange(count)] @ turn
    return cloud + 0.02 * torch.randn(cloud.shape, generator=own), y


@honest("r16a-input-times-a-matrix-of-its-own")
def input_times_a_matrix_of_its_own(run: Run) -> None:
    """Lightning, PointNet with a transformer of its input (Qi et al. 2017). A small net says a matrix by which the
    very cloud that it read is multiplied; its last layer begins with weights and bias at zero, so that the matrix
    is the identity for all clouds and the net before it has no gradient at first, and a penalty keeps it near a
    rotation."""
    model, (x, y) = Turning(), bodies(192, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x)[0], y)))

    def loss(net: Any, batch: Any) -> Tensor:
        logits, turn = net(batch[0])
        penalty = (torch.eye(3) - turn @ turn.transpose(1, 2)).square().sum((1, 2)).mean()
        return F.cross_entropy(logits, batch[1]) + 0.01 * penalty

    fit(run, lit(model, loss, adamw(4e-3)), loader(*bodies(480), size=32), 150)
