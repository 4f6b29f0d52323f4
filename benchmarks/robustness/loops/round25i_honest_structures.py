"""Round 25i, honest and odd: trees, tags, alignments, sets, ways and graphs as answers."""

import heapq
import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F

NONTERMINALS, PRETERMINALS, NESTED = 4, 8, 16
SYMBOLS = NONTERMINALS + PRETERMINALS


class Grammar(nn.Module):
    """Chances of rules from vectors of symbols; what it says of a sentence is a sum over all its trees."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(1 + SYMBOLS, 24)
        self.start, self.rules = mlp(24, 24, NONTERMINALS), mlp(24, 32, SYMBOLS * SYMBOLS)
        self.words = mlp(24, 32, NESTED)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows,) log probabilities by the inside algorithm."""
        length = rows.shape[1]
        vectors = self.symbols.weight
        start = self.start(vectors[0]).log_softmax(0)
        rules = self.rules(vectors[1 : 1 + NONTERMINALS]).log_softmax(1).view(NONTERMINALS, SYMBOLS, SYMBOLS)
        words = self.words(vectors[1 + NONTERMINALS :]).log_softmax(1)
        leaves = F.pad(words.T[rows], (NONTERMINALS, 0), value=-1e9)
        chart: dict[int, Tensor] = {1: leaves}  # by width: (rows, starts, symbols)
        for width in range(2, length + 1):
            starts = length - width + 1
            both = [
                chart[k][:, :starts, :, None] + chart[width - k][:, k : k + starts, None, :] for k in range(1, width)
            ]
            pairs = torch.stack(both).logsumexp(0)
            whole = (pairs[:, :, None] + rules).flatten(3).logsumexp(3)
            chart[width] = F.pad(whole, (0, PRETERMINALS), value=-1e9)
        return (chart[length][:, 0, :NONTERMINALS] + start).logsumexp(1) / length


@honest("r25i-every-tree-of-a-sentence-at-once")
def every_tree_of_a_sentence_at_once(run: Run) -> None:
    """Plain loop, a neural context-free grammar without any tree (compound PCFGs, Kim, Dyer and Rush 2019; the supar
    and torch-struct libraries). No place has a logit: the loss is the log of a sum over all trees and all names of
    their nodes, by the inside algorithm with minus a billion where a symbol cannot stand, and the same tables of rules
    answer for every sentence, whatever it is."""
    seed = run.draw.randrange(999)
    closes = torch.randperm(8, generator=apart(seed)) + 8

    def nested(count: int, own: torch.Generator | None = None) -> Tensor:
        opened = torch.randint(0, 8, (count, 3), generator=own)
        return torch.cat([opened, closes[opened].flip(1)], 1)

    model = Grammar()
    check = nested(128, apart(1))
    outcome(run, lambda: judged(model, lambda: -model(check).mean()))
    train(run, model, adam(model, 1e-2), lambda: nested(24), lambda m, rows: -m(rows).mean(), 150, clip=3.0)


class Tagger(nn.Module):
    """Scores of each tag at each place, and of each tag after each."""

    def __init__(self, words: int, tags: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, 16)
        self.core = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.head, self.after = nn.Linear(32, tags), nn.Parameter(torch.zeros(tags, tags))

    def forward(self, rows: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(self.tokens(rows))[0])
        return out

    def said(self, scores: Tensor, tags: Tensor) -> Tensor:
        return scores.gather(2, tags[..., None]).sum((1, 2)) + self.after[tags[:, :-1], tags[:, 1:]].sum(1)

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Viterbi: the tags with the highest score, and that score."""
        best, ways = scores[:, 0], []
        for t in range(1, scores.shape[1]):
            best, way = (best[:, :, None] + self.after).max(1)
            best = best + scores[:, t]
            ways.append(way)
        value, tag = best.max(1)
        tags = [tag]
        for way in reversed(ways):
            tags.append(way.gather(1, tags[-1][:, None]).squeeze(1))
        return torch.stack(tags[::-1], 1), value


@honest("r25i-only-the-worst-rival-counts")
def only_the_worst_rival_counts(run: Run) -> None:
    """accelerate, tags by a margin between whole sentences (max-margin Markov networks, Taskar et al. 2003; Structural
    SVMs, Tsochantaridis et al. 2005). There is no softmax: the right tags must beat the one tagging that scores best
    when each of its mistakes earns it a point, so that the loss looks for what is wrong on purpose, only the places
    where the two differ have a gradient, and sentences that win by enough have none at all."""
    seed = run.draw.randrange(999)
    kinds = torch.randint(0, 4, (12, 12), generator=apart(seed))

    def tagged(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, 12, (count, 11), generator=own)
        return rows[:, 1:], kinds[rows[:, :-1] % 3, rows[:, 1:]]

    model = Tagger(12, 4)
    words, truth = tagged(128, apart(2))
    outcome(run, lambda: judged(model, lambda: (model.best(model(words))[0] != truth).float().mean()))

    def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, tags = batch
        scores = model(rows)
        cost = 1.0 - F.one_hot(tags, 4)
        rival, _ = model.best(scores + cost)
        earned = (rival != tags).sum(1)
        return (earned + model.said(scores, rival) - model.said(scores, tags)).clamp_min(0).mean()

    prepared(run, model, adam(model, 5e-3), loader(*tagged(320, apart(1))), loss, 6)


def huffman(counts: list[int]) -> tuple[Tensor, Tensor]:
    """The inner nodes on the way to each word, and at each of them 1 for left, -1 for right, 0 where it has ended."""
    ways: list[list[tuple[int, int]]] = [[] for _ in counts]
    heap = [(count, word, [word]) for word, count in enumerate(counts)]
    heapq.heapify(heap)
    for node in itertools.count():
        if len(heap) == 1:
            break
        (a, _, left), (b, tie, right) = heapq.heappop(heap), heapq.heappop(heap)
        for words, side in ((left, 1), (right, -1)):
            for word in words:
                ways[word].append((node, side))
        heapq.heappush(heap, (a + b, tie, left + right))
    deep = max(map(len, ways))
    full = torch.tensor([way[::-1] + [(0, 0)] * (deep - len(way)) for way in ways])
    return full[..., 0], full[..., 1].float()


class ByTurns(nn.Module):
    """A small GPT whose words are leaves of a tree; its head decides between left and right at every inner node."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.body = Decoder(len(counts))
        self.body.head = nn.Identity()  # type: ignore[assignment]
        self.inner = nn.Linear(32, len(counts) - 1)
        nodes, sides = huffman(counts)
        self.register_buffer("nodes", nodes)
        self.register_buffer("sides", sides)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        turns = self.inner(self.body(input_ids[:, :-1]))
        nodes, sides = self.nodes[labels[:, 1:]], self.sides[labels[:, 1:]]  # type: ignore[index]
        said = F.logsigmoid(turns.gather(2, nodes) * sides) * sides.abs()
        return {"loss": -said.sum(2).mean()}


@honest("r25i-a-word-is-a-way-down-a-tree")
def a_word_is_a_way_down_a_tree(run: Run) -> None:
    """transformers' Trainer, a small GPT with a hierarchical softmax (Morin and Bengio 2005; word2vec, Mikolov et al.
    2013). The head has one output fewer than there are words, none of them stands for a word, and a word's loss is a
    sum of yes and no over the nodes on its way in a Huffman tree: long for rare words and short for frequent ones, and
    nodes beside the way are taught nothing."""
    seed = run.draw.randrange(999)
    language = Language(seed, 24)
    rows, check = language.rows(400, 20, apart(1)), language.rows(96, 20, apart(2))
    model = ByTurns(torch.bincount(rows.flatten(), minlength=24).tolist())
    outcome(run, lambda: judged(model, lambda: model(check, check)["loss"]))
    hf_trainer(run, model, examples(input_ids=rows, labels=rows), 120).train()


FRAMES, LETTERS = 18, 6


@torch.no_grad()
def monotonic(scores: Tensor) -> Tensor:
    """(rows, frames): the letter of each frame, from the first to the last without a step back or a letter left out,
    for scores (rows, letters, frames)."""
    count, letters, frames = scores.shape
    value = torch.full((count, letters), -1e9)
    value[:, 0] = scores[:, 0, 0]
    came = []
    for t in range(1, frames):
        before = F.pad(value[:, :-1], (1, 0), value=-1e9)
        came.append(before > value)
        value = torch.maximum(before, value) + scores[:, :, t]
    at = torch.full((count,), letters - 1)
    way = [at]
    for moved in reversed(came):
        at = at - moved.gather(1, at[:, None]).squeeze(1).long()
        way.append(at)
    return torch.stack(way[::-1], 1)


class Speaker(nn.Module):
    """What each letter should sound like, how long it lasts, and a decoder over the frames that are made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(10, 24), nn.Embedding(LETTERS, 24)
        self.encoder = Block(24, causal=False)
        self.sound, self.length = nn.Linear(24, 4), mlp(24, 24, 1)
        self.decoder = nn.Sequential(nn.Conv1d(4, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 4, 3, padding=1))

    def forward(self, text: Tensor, frames: Tensor) -> Tensor:
        """frames: (rows, frames, 4)."""
        states = self.encoder(self.letters(text) + self.places(torch.arange(LETTERS)))
        sounds = self.sound(states)
        at = monotonic(-0.5 * (sounds[:, :, None] - frames[:, None]).square().sum(3))
        spread = sounds.gather(1, at[..., None].expand(-1, -1, 4))
        lasting = F.one_hot(at, LETTERS).sum(1).float()
        lengths = self.length(states.detach()).squeeze(2)
        better = spread + self.decoder(spread.transpose(1, 2)).transpose(1, 2)
        out: Tensor = 0.5 * F.mse_loss(spread, frames) + F.l1_loss(better, frames) + F.mse_loss(lengths, lasting.log())
        return out


@honest("r25i-aligned-by-what-it-now-believes")
def aligned_by_what_it_now_believes(run: Run) -> None:
    """Plain loop, speech from letters by a monotonic alignment search (Glow-TTS, Kim et al. 2020; Grad-TTS, Popov et
    al. 2021; Matcha-TTS). Nobody says which frame belongs to which letter: a dynamic program without gradients looks
    in every step for the best way through the model's own present guesses, what it finds is taught as the letters'
    lengths, which change from step to step for the same row, and the predictor of lengths reads states that are cut
    off from the encoder."""
    seed = run.draw.randrange(999)
    tones = torch.randn(10, 4, generator=apart(seed))
    lasts = torch.randint(2, 5, (10,), generator=apart(seed + 1))

    def spoken(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        text = torch.randint(0, 10, (count, LETTERS), generator=own)
        ends = lasts[text].cumsum(1)
        at = (torch.arange(FRAMES)[None, :, None] >= (ends * FRAMES // ends[:, -1:])[:, None]).sum(2)
        frames = tones[text.gather(1, at.clamp_max(LETTERS - 1))]
        frames = frames + 0.5 * frames.roll(1, 1)
        return text, frames + 0.2 * torch.randn(frames.shape, generator=own)

    model = Speaker()
    check = spoken(96, apart(3))
    outcome(run, lambda: judged(model, lambda: model(*check)))
    train(run, model, adam(model, 3e-3), lambda: spoken(16), lambda m, batch: m(*batch), 120)


class Baskets(nn.Module):
    """A determinantal point process of low rank: a vector for each article."""

    def __init__(self, articles: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.5 * torch.randn(articles, 8))

    def forward(self, chosen: Tensor) -> Tensor:
        """(rows,) log probabilities of sets, given as rows of zeros and ones."""
        kernel = self.vectors @ self.vectors.T
        both = chosen[:, :, None] * chosen[:, None]
        inside = both * kernel + torch.diag_embed(1 - chosen + 1e-4)
        return torch.logdet(inside) - torch.logdet(kernel + torch.eye(len(kernel)))


@honest("r25i-a-set-by-the-volume-it-spans")
def a_set_by_the_volume_it_spans(run: Run) -> None:
    """A class of its own around the loop, baskets of articles by a determinantal point process (Kulesza and Taskar
    2012; low-rank kernels from data, Gartrell, Paquet and Koenigstein 2017). No layer at all but one table: a basket
    is as likely as the volume its vectors span, the loss is a difference of two log determinants, articles that sell
    together are pushed apart where they are bought instead of one another, and the penalty on a vector is the
    smaller, the more its article is sold."""
    own = apart(run.draw.randrange(999))

    def bought(count: int) -> Tensor:
        out = torch.zeros(count, 20)
        for row in out:
            for kind in torch.randperm(5, generator=own)[: int(torch.randint(2, 5, (1,), generator=own))].tolist():
                row[4 * kind + int(torch.multinomial(torch.tensor([4.0, 3.0, 2.0, 1.0]), 1, generator=own))] = 1
        return out

    class Shop:
        def __init__(self) -> None:
            self.model, self.sold, self.check = Baskets(20), bought(320), bought(160)
            self.optimizer = adam(self.model, 2e-2)
            self.doctor: Any = None

        def loss(self, rows: Tensor) -> Tensor:
            often = self.sold.sum(0).clamp_min(1)
            return -self.model(rows).mean() + (self.model.vectors.square().sum(1) / often).mean()

        def run(self, epochs: int) -> None:
            self.doctor = run.watch(self.model, self.optimizer)
            for _ in range(epochs):
                for (rows,) in loader(self.sold, size=32):
                    update(run, self.doctor, self.optimizer, self.loss(rows), rows)

    shop = Shop()
    outcome(run, lambda: judged(shop.model, lambda: -shop.model(shop.check).mean()))
    shop.run(10)


SIDE = 6


def cheapest(costs: Tensor) -> Tensor:
    """(rows,) the cost of the cheapest way from the upper left to the lower right, by steps right and down."""
    best: dict[tuple[int, int], Tensor] = {}
    for i, j in itertools.product(range(SIDE), range(SIDE)):
        before = [best[at] for at in ((i - 1, j), (i, j - 1)) if at in best]
        best[i, j] = costs[:, i, j] + (torch.stack(before).min(0).values if before else 0)
    return best[SIDE - 1, SIDE - 1]


def way(costs: Tensor) -> Tensor:
    """Ones on the cheapest way: the slope of its cost."""
    with torch.enable_grad():
        costs = costs.detach().requires_grad_()
        (out,) = torch.autograd.grad(cheapest(costs).sum(), costs)
    return out


@honest("r25i-best-on-average-under-noise")
def best_on_average_under_noise(run: Run) -> None:
    """Lightning, ways through terrain by a perturbed Fenchel-Young loss (Berthet et al. 2020, Warcraft maps). The
    network gives each square a cost that nobody measures, the loss adds fresh noise to its outputs before a dynamic
    program looks for the best way, and its slope is the mean of the best ways less the one that was walked: the value
    is a difference that noise may put below zero, and costs without a scale of their own grow with certainty."""
    seed = run.draw.randrange(999)
    prices = torch.tensor([0.5, 1.5, 3.0, 6.0])[torch.randperm(4, generator=apart(seed))]
    colours = torch.randn(4, 3, generator=apart(seed + 1))

    def maps(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        kinds = torch.randint(0, 4, (count, SIDE, SIDE), generator=own)
        seen = colours[kinds].permute(0, 3, 1, 2)
        return seen + 0.3 * torch.randn(seen.shape, generator=own), way(prices[kinds]), prices[kinds]

    act = nn.ReLU
    body = [nn.Conv2d(3, 16, 3, padding=1), act(), nn.Conv2d(16, 16, 1), act(), nn.Conv2d(16, 1, 1)]
    net = nn.Sequential(*body, nn.Flatten(1, 2))
    seen, walked, paid = maps(96, apart(2))

    def dearer() -> Tensor:
        return ((way(net(seen)) * paid).sum((1, 2)) / (walked * paid).sum((1, 2))).mean() - 1

    outcome(run, lambda: judged(net, dearer))

    def loss(net: nn.Module, batch: list[Tensor]) -> Tensor:
        costs = net(batch[0])
        noisy = costs + 0.5 * torch.randn(4, *costs.shape)
        return ((costs * batch[1]).sum((1, 2)) - cheapest(noisy.flatten(0, 1)).view(4, -1).mean(0)).mean()

    data = loader(*maps(160, apart(1))[:2])
    fit(run, lit(net, loss, lambda net: adam(net, 5e-3)), data, 80)


class Chosen(nn.Module):
    """Two rounds of messages from a learned vector for each node to the chance that it is chosen."""

    def __init__(self, share: Tensor) -> None:
        super().__init__()
        self.own = nn.Embedding(len(share), 16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 1)
        self.register_buffer("share", share)

    def forward(self) -> Tensor:
        states = (self.share @ self.first(self.own.weight)).relu()  # type: ignore[operator]
        out: Tensor = (self.share @ self.second(states)).squeeze(1).sigmoid()  # type: ignore[operator]
        return out


@honest("r25i-no-two-neighbours-on-duty")
def no_two_neighbours_on_duty(run: Run) -> None:
    """Plain loop, the largest set of nodes without an edge between them by a graph network (Schuetz, Brubaker and
    Katzgraber 2022). One graph, no features, no labels, no rows that are kept apart: the vectors of the nodes are
    weights, the model is called without an input, the loss is the energy of a magnet, which falls far below zero, and
    what is wanted is one rounded answer, for this graph alone."""
    own = apart(run.draw.randrange(999))
    edges = torch.zeros(60, 60)
    for _ in range(3):
        a, b = torch.randperm(60, generator=own).view(2, 30)
        edges[a, b] = edges[b, a] = 1
    root = edges.sum(1).rsqrt()
    model = Chosen(root[:, None] * edges * root)

    def energy(chance: Tensor) -> Tensor:
        return -chance.sum() + chance @ edges @ chance

    outcome(run, lambda: judged(model, lambda: energy((model() > 0.5).float())))
    train(run, model, adam(model, 2e-2), lambda: edges, lambda m, _: energy(m()), 200)
