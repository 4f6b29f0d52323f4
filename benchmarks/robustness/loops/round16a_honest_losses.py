"""Round 16a, honest and odd: losses."""

import heapq
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Classifier,
    Decoder,
    Language,
    apart,
    cnn,
    documents,
    endless,
    fit,
    judged,
    lit,
    loader,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_parts import Reader, SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw, plain
from torch import Tensor, nn
from torch.nn import functional as F


def huffman(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For each word the inner nodes on its way, (words, words - 1), 1 or 0, and whether it goes right there."""
    words = len(counts)
    heap = [(int(c), i, [i]) for i, c in enumerate(counts)]
    heapq.heapify(heap)
    on_way, right = torch.zeros(words, words - 1), torch.zeros(words, words - 1)
    for node in range(words - 1):
        (a, _, left), (b, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        on_way[left + other, node] = 1
        right[other, node] = 1
        heapq.heappush(heap, (a + b, words + node, left + other))
    return on_way, right


@honest("r16a-turns-on-the-way-to-a-word")
def turns_on_the_way_to_a_word(run: Run) -> None:
    """Plain loop, a GRU with a hierarchical softmax over a Huffman tree, as in word2vec. The model has no output
    for a word: eleven outputs say left or right at the nodes of a tree, a word's label is its turns, fewer for
    frequent words than for rare ones, and the loss is a sum of yes-no losses over these, the rest without
    gradient."""
    language = Language(run.draw.randrange(999))
    on_way, right = huffman(torch.bincount(language.rows(200, 24, apart(3)).flatten(), minlength=12))
    model = Reader(12)
    model.head = nn.Linear(32, 11)

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        turns, words = m(rows[:, :-1]), rows[:, 1:]
        return F.binary_cross_entropy_with_logits(turns, right[words], on_way[words], reduction="sum") / words.numel()

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), lambda: language.rows(12, 24), loss, 120)


def sparsemax(scores: Tensor) -> Tensor:
    """The nearest point of the simplex."""
    ordered = scores.sort(-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1)
    sums = ordered.cumsum(-1) - 1
    size = (count * ordered > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, size - 1) / size).clamp_min(0)


@honest("r16a-most-words-at-zero-exactly")
def most_words_at_zero_exactly(run: Run) -> None:
    """Lightning, a small GPT with sparsemax in place of softmax (Martins and Astudillo 2016). Most words get a
    probability of zero exactly, the right one too now and then, of which a logarithm would be infinite; the loss
    is the one that belongs to sparsemax, its gradient is zero for all words that have zero, and is zero as a whole
    once one is sure."""
    language = Language(run.draw.randrange(999), sharp=2.0)
    model = Decoder(12)

    def loss(net: nn.Module, rows: Tensor) -> Tensor:
        scores = net(rows[:, :-1])
        p = sparsemax(scores.detach())
        right = scores.gather(2, rows[:, 1:, None]).squeeze(2)
        return ((p * scores).sum(-1) - p.square().sum(-1) / 2 + 0.5 - right).mean()

    check = language.rows(96, 24, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, lambda net, batch: loss(net, batch[0]), adamw(5e-3)), loader(language.rows(480, 24)), 110)


@honest("r16a-points-at-a-vector")
def points_at_a_vector(run: Run) -> None:
    """Plain loop, a Llama of one's own with continuous outputs (Kumar and Tsvetkov 2019), for vocabularies too
    large for a softmax. The model says sixteen numbers, and the loss is one less the cosine with the frozen vector
    of the right word; wrong words are never looked at, there is no softmax at all, and how long the output is
    means nothing."""
    language = Language(run.draw.randrange(999), sharp=4.0)
    vectors = F.normalize(torch.randn(12, 16, generator=apart(7)), dim=1)
    model = SmallLlama(12)
    model.head = nn.Linear(32, 16, bias=False)

    def loss(rows: Tensor) -> Tensor:
        return (1 - F.cosine_similarity(model(rows[:, :-1]), vectors[rows[:, 1:]], dim=-1)).mean()

    check = language.rows(96, 20, apart(901))
    outcome(run, lambda: judged(model, lambda: loss(check)))
    plain(run, model, lambda: language.rows(16, 20), loss, 110)


def twins(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of eight words of 30, and the same words in another order, two of them replaced."""
    first = torch.randint(0, 30, (count, 8), generator=own)
    second = first.gather(1, torch.rand(count, 8, generator=own).argsort(1))
    second[:, :2] = torch.randint(0, 30, (count, 2), generator=own)
    return first, second


@honest("r16a-each-beginning-of-the-vector")
def each_beginning_of_the_vector(run: Run) -> None:
    """accelerate, an encoder that brings texts together, with Matryoshka vectors (Kusupati et al. 2022). The same
    loss is taken four times, over the first 4, 8, 16 and all 32 numbers of a vector, and summed, so that it begins
    at four times the logarithm of the batch; the first numbers are in all four, the last in one, and so have less
    gradient."""
    own = apart(run.draw.randrange(999))
    model = Classifier(30, classes=32)

    def loss(m: nn.Module, batch: Any) -> Tensor:
        keep = torch.ones(len(batch[0]), 8, dtype=torch.bool)
        a, b = m(batch[0], keep), m(batch[1], keep)
        target, out = torch.arange(len(a)), torch.zeros(())
        for size in (4, 8, 16, 32):
            out = out + F.cross_entropy(
                10 * F.normalize(a[:, :size], dim=1) @ F.normalize(b[:, :size], dim=1).T, target
            )
        return out

    check = twins(32, own)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    prepared(run, model, adam(model), loader(*twins(640, own), size=32, drop_last=True), loss, 6)


@honest("r16a-weight-goes-to-the-worst-group")
def weight_goes_to_the_worst_group(run: Run) -> None:
    """Plain loop, an encoder of texts with Group DRO (Sagawa et al. 2020). A mark in front of a text agrees with
    its topic in nine texts of ten; the four groups of topic and mark have weights that grow with their own losses,
    outside of any optimizer, so that a twentieth of the rows soon has most of the loss, and what is told may rise
    as they do."""
    own = apart(run.draw.randrange(999))

    def marked(count: int, share: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, keep, y = documents(count, own, classes=2)
        mark = torch.where(torch.rand(count, generator=own) < share, y, 1 - y)
        x[:, 0] = 16 + mark
        return x, keep, y, 2 * y + mark

    def by_group(m: nn.Module, batch: Any) -> Tensor:
        x, keep, y, group = batch
        losses = F.cross_entropy(m(x, keep), y, reduction="none")
        of = F.one_hot(group, 4).float()
        return (losses @ of) / of.sum(0).clamp_min(1)

    model, weights = Classifier(18, classes=2), torch.full((4,), 0.25)
    check = marked(256, 0.5)
    outcome(run, lambda: judged(model, lambda: by_group(model, check).max()))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        groups = by_group(m, batch)
        weights.mul_((0.1 * groups.detach()).exp()).div_(weights.sum())
        return weights @ groups

    data = endless(loader(*marked(1600, 0.9), size=40))
    train(run, model, adam(model, 3e-3), lambda: next(data), loss, 240)


class Cosines(nn.Module):
    """Convolutions, sixteen features, and their cosines with a vector for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.centres = cnn(classes=16), nn.Parameter(torch.randn(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).T


@honest("r16a-handicap-for-the-right-class")
def handicap_for_the_right_class(run: Run) -> None:
    """Plain loop, a small CNN with ArcFace (Deng et al. 2019), as recognition of faces and many Kaggle winners
    have it. The right class alone has 0.4 added to its angle before a scale of 16, so that the loss begins near
    seven and accuracy of these logits stays below the true one; there is no bias, and lengths of features and of
    class vectors mean nothing."""
    seed = run.draw.randrange(999)
    model = Cosines()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        angles = m(x).clamp(-0.999, 0.999).acos() + 0.4 * F.one_hot(y, 4)
        return F.cross_entropy(16 * angles.cos(), y)

    x, y = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(16 * model(x), y)))
    data = endless(loader(*pictures(384, seed), size=24))
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), lambda: next(data), loss, 100)
