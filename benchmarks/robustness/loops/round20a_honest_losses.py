"""Round 20a, honest and odd: what is asked of the outputs."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Classifier,
    apart,
    cnn,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def subjects(count: int, words: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Texts of twelve words, no padding, and which of ten subjects have one of their two words in them."""
    ids = torch.randint(1, 80, (count, 12), generator=own)
    tags = (ids[:, :, None, None] == words).any(3).any(1).float()
    return ids, torch.ones(count, 12, dtype=torch.bool), tags


@honest("r20a-easy-noes-count-nothing")
def easy_noes_count_nothing(run: Run) -> None:
    """Lightning, an encoder for many labels at once with the asymmetric loss (Ridnik et al. 2021). Few labels apply; a
    wrong label's chance is first lowered by 0.05, so that most places of the matrix give neither loss nor gradient,
    and what is left of it is weighed by its fourth power, unlike the labels that apply."""
    own = apart(run.draw.randrange(999))
    words = 1 + torch.randperm(79, generator=own)[:20].view(10, 2)
    model = Classifier(80, classes=10)
    ids, keep, tags = subjects(512, words, own)
    *inputs, truth = subjects(256, words, apart(1))

    def pairs_out_of_order() -> Tensor:
        scores = model(*inputs)
        wrong = [(s[t > 0][:, None] <= s[t == 0]).float().mean() for s, t in zip(scores.T, truth.T, strict=True)]
        return torch.stack(wrong).mean()

    outcome(run, lambda: judged(model, pairs_out_of_order))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        ids, keep, tags = batch
        chances = model(ids, keep).sigmoid()
        lowered = (chances - 0.05).clamp_min(0)
        applies = tags * chances.clamp_min(1e-8).log()
        other = (1 - tags) * lowered**4 * (1 - lowered).clamp_min(1e-8).log()
        return -(applies + other).sum(1).mean()

    fit(run, lit(model, loss, lambda net: adam(net, 5e-3)), loader(ids, keep, tags, size=32), 150)


@honest("r20a-asked-for-any-quantile")
def asked_for_any_quantile(run: Run) -> None:
    """accelerate, a table by simultaneous quantile regression (Tagasovska and Lopez-Paz 2019). In every pass each row
    is asked for another quantile, drawn within the loss and shown to the network as one more column, so that the same
    row has other inputs and another loss each time."""
    seed = run.draw.randrange(999)
    x, y = table(512, seed, apart(seed))
    new, truth = table(256, seed, apart(1))
    own, other = torch.randn(512, generator=apart(2)), torch.randn(256, generator=apart(3))
    y, truth = y + own * x[:, 3].exp(), truth + other * new[:, 3].exp()
    model = mlp(7, 64, 64, 1)

    def error(model: nn.Module, x: Tensor, y: Tensor, level: Tensor) -> Tensor:
        below = y - model(torch.cat([x, 2 * level[:, None] - 1], 1)).squeeze(1)
        return torch.maximum(level * below, (level - 1) * below).mean()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return error(model, *batch, torch.rand(len(batch[0])))

    levels = torch.linspace(0.02, 0.98, 256)[torch.randperm(256, generator=apart(4))]
    outcome(run, lambda: judged(model, lambda: error(model, new, truth, levels)))
    prepared(run, model, adam(model, 4e-3), loader(x, y, size=64), loss, 20)


class Forecaster(nn.Module):
    """Reads a way so far, says four ways on and how likely each is."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = nn.GRU(2, 32, batch_first=True)
        self.ways, self.chances = mlp(32, 64, 4 * 6 * 2), nn.Linear(32, 4)

    def forward(self, past: Tensor) -> tuple[Tensor, Tensor]:
        state = self.reads(past)[1][0]
        return self.ways(state).view(-1, 4, 6, 2), self.chances(state)


def drives(count: int, turns: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Eight steps towards a fork and six steps after it, in one of three directions that nothing announces."""
    heading = 0.5 * torch.randn(count, generator=own)
    speed = 0.7 + 0.6 * torch.rand(count, generator=own)
    after = heading + turns[torch.randint(0, 3, (count,), generator=own)]
    ways = []
    for direction, steps in ((heading, torch.arange(-7, 1)), (after, torch.arange(1, 7))):
        along = steps[:, None] / 3 * torch.stack([direction.cos(), direction.sin()], 1)[:, None]
        ways.append(speed[:, None, None] * along + 0.03 * torch.randn(count, len(steps), 2, generator=own))
    return ways[0], ways[1]


@honest("r20a-only-the-nearest-of-four-is-taught")
def only_the_nearest_of_four_is_taught(run: Run) -> None:
    """Plain loop, ways of cars at a fork by several hypotheses (Rupprecht et al. 2017, MTP, Cui et al. 2019). A GRU
    says four ways; the one that comes nearest to what happened is taught and the rest next to nothing, and which that
    was is the label of a second head, which so learns labels that the network made itself."""
    turns = torch.tensor([-1.0, 0.0, 1.0]) * (0.8 + 0.6 * run.draw.random())
    model = Forecaster()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        ways, chances = model(batch[0])
        errors = (ways - batch[1][:, None]).square().mean((2, 3))
        nearest = errors.detach().argmin(1)
        weights = torch.full_like(errors, 0.05 / 3).scatter(1, nearest[:, None], 0.95)
        return (weights * errors).sum(1).mean() + 0.1 * F.cross_entropy(chances, nearest)

    past, future = drives(256, turns, apart(1))

    def missed() -> Tensor:
        return (model(past)[0] - future[:, None]).square().mean((2, 3)).amin(1).mean()

    outcome(run, lambda: judged(model, missed))
    train(run, model, adam(model, 4e-3), lambda: drives(64, turns), loss, 150)


@honest("r20a-each-point-looks-for-its-sample")
def each_point_looks_for_its_sample(run: Run) -> None:
    """Plain loop, a generator without an adversary by implicit likelihood (IMLE, Li and Malik 2018). A hundred samples
    are drawn without gradient, every row of data looks for the one nearest to it, and these alone are made again and
    drawn towards their rows; most samples teach nothing, and which noise belongs to which row changes all the time."""
    own = apart(run.draw.randrange(999))
    turn = torch.randn(2, 8, generator=own)
    rows = (torch.randn(512, 2, generator=own) @ turn + 1).sin()
    model = mlp(4, 64, 64, 8, act=nn.LeakyReLU)
    noise = torch.randn(512, 4, generator=apart(1))
    outcome(run, lambda: judged(model, lambda: torch.cdist(rows[384:], model(noise)).amin(1).mean()))

    def batch() -> tuple[Tensor, Tensor]:
        shown = rows[:384][torch.randint(0, 384, (48,))]
        drawn = torch.randn(100, 4)
        with torch.no_grad():
            nearest = torch.cdist(shown, model(drawn)).argmin(1)
        return drawn[nearest], shown

    train(run, model, adam(model, 3e-3), batch, lambda m, b: F.mse_loss(m(b[0]), b[1]), 200)


class WordVectors(nn.Module):
    """A unit vector for each word of a text, in the light of the others; questions have a mark in front."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.block, self.out = nn.Embedding(64, 32), Block(32, causal=False), nn.Linear(32, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return F.normalize(self.out(self.block(self.tokens(ids))), dim=2)


@honest("r20a-each-word-finds-its-best")
def each_word_finds_its_best(run: Run) -> None:
    """Plain loop, retrieval by late interaction (ColBERT, Khattab and Zaharia 2020, the library PyLate). A text has no
    one vector: each word of the question takes its best word of the text, so that nearly all similarities have no
    gradient, the row's own text is the label, the other rows' texts are wrong, and no encoder has a pooling."""
    other_names = 33 + torch.randperm(30, generator=apart(run.draw.randrange(999)))

    def batch(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        texts = torch.rand(count, 30, generator=own).argsort(1)[:, :10]
        asked = other_names[texts[:, torch.randperm(10, generator=own)[:4]]]
        questions = torch.cat([torch.full((count, 1), 32), asked], 1)
        return questions, torch.cat([torch.full((count, 1), 31), texts], 1)

    model = WordVectors()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        questions, texts = (model(side) for side in batch)
        best = torch.einsum("awd,bvd->abwv", questions, texts).amax(3).sum(2)
        return F.cross_entropy(best / 0.2, torch.arange(len(best)))

    check = batch(64, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 4e-3), batch, loss, 150)


class Prototypes(nn.Module):
    """A network, unit vectors, and how near they are to eight unit prototypes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.prototypes = cnn(classes=16), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.prototypes(F.normalize(self.body(x), dim=1))
        return out


@torch.no_grad()
def shared_out(scores: Tensor) -> Tensor:
    """Sinkhorn's targets: each row sums to one, and every prototype gets as much as another."""
    codes = (scores / 0.1).exp()
    for _ in range(3):
        codes = codes / codes.sum(0)
        codes = codes / codes.sum(1, keepdim=True)
    return codes


@honest("r20a-codes-shared-out-evenly")
def codes_shared_out_evenly(run: Run) -> None:
    """Plain loop, pictures without labels by SwAV (Caron et al. 2020). The targets are the network's own scores of the
    other view, made even over the batch and detached; the prototypes are set to unit length by hand before each pass
    and their gradients are thrown away in the first ten steps, as in the authors' code."""
    seed = run.draw.randrange(999)
    x = pictures(256, seed, own=apart(seed))[0]
    model = Prototypes()
    new, kinds = pictures(192, seed, own=apart(1))

    def spread_within_kinds() -> Tensor:
        vectors = F.normalize(model.body(new), dim=1)
        means = torch.stack([vectors[kinds == k].mean(0) for k in range(4)])
        return (vectors - means[kinds]).square().sum(1).mean() / (vectors - vectors.mean(0)).square().sum(1).mean()

    outcome(run, lambda: judged(model, spread_within_kinds))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        with torch.no_grad():
            model.prototypes.weight.copy_(F.normalize(model.prototypes.weight, dim=1))
        shown = x[torch.randint(0, 256, (48,))]
        views = [shown + 0.15 * torch.randn_like(shown) for _ in range(2)]
        scores = [model(view) for view in views]
        crossed = [F.cross_entropy(scores[i] / 0.2, shared_out(scores[1 - i])) for i in range(2)]
        loss = (crossed[0] + crossed[1]) / 2
        optimizer.zero_grad()
        loss.backward()
        if step < 10:
            model.prototypes.weight.grad = None
        optimizer.step()
        doctor.step(loss, views)
        run.note(loss)
