"""Round 22h, honest and odd: networks of unusual build."""

import math
import random
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Block,
    Decoder,
    Language,
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    train,
)
from benchmarks.robustness.loops.round7b_parts import sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.text import VOCABULARY, corpus
from torch import Tensor, nn
from torch.nn import functional as F


class ReadsApart(nn.Module):
    """T5 whose encoder reads each passage with the question by itself; the decoder looks at all of them at once."""

    def __init__(self, words: int) -> None:
        from transformers import T5Config, T5ForConditionalGeneration

        super().__init__()
        settings = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
        self.t5 = T5ForConditionalGeneration(T5Config(vocab_size=words, decoder_start_token_id=0, **settings))

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        rows, passages, length = input_ids.shape
        states = self.t5.encoder(input_ids=input_ids.view(-1, length)).last_hidden_state
        together = BaseModelOutput(last_hidden_state=states.view(rows, passages * length, -1))
        return self.t5(encoder_outputs=together, labels=labels)


def asked(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Three passages for each question, (rows, 3, 4): the question, whom the passage is about, a word on him and one
    that says nothing; the word of the one who was asked for, and the end."""
    whom = torch.stack([torch.randperm(4, generator=own)[:3] for _ in range(count)])
    right, at = torch.randint(0, 3, (count,), generator=own), torch.arange(count)
    words = torch.randint(10, 18, (count, 3), generator=own)
    rest = torch.randint(18, 20, (count, 3), generator=own)
    question = 2 + whom[at, right][:, None].expand(-1, 3)
    answers = torch.stack([words[at, right], torch.ones(count, dtype=torch.long)], 1)
    return torch.stack([question, 6 + whom, words, rest], 2), answers


@honest("r22h-each-passage-read-by-itself")
def each_passage_read_by_itself(run: Run) -> None:
    """transformers' Trainer around a T5, fusion in the decoder (Izacard and Grave 2021). A row of the batch is three
    passages, which the encoder takes for three rows that do not see one another; then they are laid end to end without
    telling the decoder where one ends. Places begin anew in each, every row repeats its question three times, and two
    of three passages say nothing of the answer."""
    model = ReadsApart(20)
    check, answers = asked(192, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: model(check, answers).loss))
    ids, labels = asked(4800)
    data = examples(input_ids=ids, labels=labels)
    hf_trainer(run, model, data, 160, learning_rate=8e-3, per_device_train_batch_size=64).train()


class ManyKeys(nn.Module):
    """A memory of 576 vectors in the place of a feed-forward part; a key is a pair out of two sets of 24."""

    def __init__(self, width: int, heads: int = 2, side: int = 24, best: int = 4) -> None:
        super().__init__()
        self.heads, self.side, self.best = heads, side, best
        self.ask, self.norm = nn.Linear(width, heads * width), nn.BatchNorm1d(heads * width)
        self.keys = nn.Parameter(torch.randn(heads, 2, side, width // 2) / math.sqrt(width))
        self.values = nn.Embedding(side * side, width)
        nn.init.normal_(self.values.weight, std=1 / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        asked_for = self.norm(self.ask(x).flatten(0, 1)).view(-1, self.heads, 2, x.shape[2] // 2)
        scores, places = torch.einsum("nhpd,hpsd->nhps", asked_for, self.keys).topk(self.best, 3)
        pairs = (scores[:, :, 0, :, None] + scores[:, :, 1, None]).flatten(2)
        of_pairs = (places[:, :, 0, :, None] * self.side + places[:, :, 1, None]).flatten(2)
        weights, first = pairs.topk(self.best, 2)
        found = self.values(of_pairs.gather(2, first))
        return (weights.softmax(2)[..., None] * found).sum((1, 2)).view(x.shape)


@honest("r22h-a-memory-of-many-keys")
def a_memory_of_many_keys(run: Run) -> None:
    """Plain loop, a GPT with a layer of product keys (Lample et al. 2019). Each word reads eight vectors of 576, chosen
    by the best of two halves, all the others have no gradient in that step, some of them never; there is batch norm
    within a language model, on the queries, as the paper has it, and the vectors have four times the network's rate."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=1)
    memory = ManyKeys(32)
    model.blocks[0].feed = memory  # type: ignore[union-attr]
    language_outcome(run, model, language)
    others = [p for p in model.parameters() if p is not memory.values.weight]
    optimizer = torch.optim.Adam([{"params": others}, {"params": memory.values.parameters(), "lr": 1.2e-2}], lr=3e-3)
    train(run, model, optimizer, lambda: language.rows(24, 24), next_loss, 140)


class Patchwise(nn.Module):
    """A model of letters in two: one over groups of four, and a smaller one within each of them."""

    def __init__(self, words: int = VOCABULARY, group: int = 4, width: int = 48, low: int = 24) -> None:
        super().__init__()
        self.group, self.low = group, low
        self.letters, self.places = nn.Embedding(words, width // group), nn.Embedding(24, width)
        self.above, self.down = Block(width), nn.Linear(width, group * low)
        self.begin = nn.Parameter(0.02 * torch.randn(width))
        self.near, self.within, self.norm = nn.Embedding(words + 1, low), Block(low), nn.LayerNorm(low)
        self.head = nn.Linear(low, words)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of each letter, from those before it."""
        rows, length = ids.shape
        groups = self.letters(ids).view(rows, length // self.group, -1)
        groups = torch.cat([self.begin.expand(rows, 1, -1), groups[:, :-1]], 1)
        told = self.down(self.above(groups + self.places.weight[: groups.shape[1]])).view(-1, self.group, self.low)
        before = F.pad(ids.view(-1, self.group)[:, :-1], (1, 0), value=self.near.num_embeddings - 1)
        out: Tensor = self.head(self.norm(self.within(told + self.near(before))))
        return out.view(rows, length, -1)


@honest("r22h-letters-by-fours")
def letters_by_fours(run: Run) -> None:
    """Plain loop, a GPT in two levels (MegaByte, Yu et al. 2023). Inputs and labels are the same letters, and no row is
    cut by one at either end: the shift is within the model, by a whole group of four above and by one letter within a
    group, where the batch is sixteen times as large and each row four letters long."""
    tokens = corpus(run.draw.randrange(999))
    model = Patchwise()

    def crops(rows: int, own: torch.Generator | None = None) -> Tensor:
        starts = torch.randint(0, len(tokens) - 64, (rows, 1), generator=own)
        return tokens[starts + torch.arange(64)]

    def loss(m: nn.Module, rows: Tensor) -> Tensor:
        return F.cross_entropy(m(rows).flatten(0, 1), rows.flatten())

    check = crops(48, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), lr=4e-3), lambda: crops(12), loss, 160, clip=1.0)


def gauges(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Six series, each of which follows the one before it four moments later, in noise: 24 moments, and the next 8."""
    waves = torch.rand(count, 1, 3, generator=own) * 0.5 + 0.15
    phases = 6.28 * torch.rand(count, 1, 3, generator=own)
    source = (waves * torch.arange(60)[:, None] + phases).sin().sum(2)
    x = torch.stack([source[:, 24 - 4 * k : 56 - 4 * k] for k in range(6)], 2)
    x = 10 ** torch.randn(count, 1, 6, generator=own) * (x + 0.2 * torch.randn(x.shape, generator=own))
    return x[:, :24], x[:, 24:]


class SeriesAreWords(nn.Module):
    """Each series as a whole is one vector; they look at one another."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(24, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(Block(width, causal=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.transpose(1, 2))
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.leave(h).transpose(1, 2)
        return out


@honest("r22h-a-whole-series-is-one-word")
def a_whole_series_is_one_word(run: Run) -> None:
    """Lightning, forecasts by an inverted transformer (iTransformer, Liu et al. 2024). Attention does not go along the
    time but across the columns, of which there are six and which have no places, a linear layer reads all moments of a
    column at once, and nothing is causal; columns differ a thousandfold in size, and each is brought to one scale by
    its own past, by which the labels are measured too and may lie far from it."""
    own = apart(run.draw.randrange(999))
    model = SeriesAreWords()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        past, future = batch
        mean, spread = past.mean(1, keepdim=True), past.std(1, keepdim=True)
        return F.mse_loss(m((past - mean) / spread), (future - mean) / spread)

    check = gauges(256, own)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, lambda m: adam(m, 2e-3)), loader(*gauges(800, own), size=32), 150)


class TwoNumbersAFilter(nn.Module):
    """Band passes, each described by where it begins and how wide it is."""

    def __init__(self, filters: int = 12, length: int = 31) -> None:
        super().__init__()
        self.begin = nn.Parameter(torch.linspace(0.01, 0.2, filters))
        self.wide = nn.Parameter(torch.full((filters,), 0.03))
        self.register_buffer("at", torch.arange(length) - (length - 1) / 2)
        self.register_buffer("window", torch.hamming_window(length, periodic=False))

    def low_pass(self, cut: Tensor) -> Tensor:
        return 2 * cut[:, None] * torch.sinc(2 * cut[:, None] * self.at)  # type: ignore[operator]

    def forward(self, x: Tensor) -> Tensor:
        low = self.begin.abs()
        filters = (self.low_pass(low + self.wide.abs()) - self.low_pass(low)) * self.window  # type: ignore[operator]
        return F.conv1d(x, filters[:, None] / (2 * self.wide.abs()[:, None, None] + 1e-3), padding=15)


@honest("r22h-two-numbers-describe-a-filter")
def two_numbers_describe_a_filter(run: Run) -> None:
    """Plain loop, raw sound by SincNet (Ravanelli and Bengio 2018; SpeechBrain). The first layer has twenty-four
    parameters and no matrix, filters are built from them anew in every step, all of the widths begin equal, and what
    they mean is the same under another sign; RMSprop with the paper's settings, apart from a higher rate."""
    filters = [TwoNumbersAFilter(), nn.BatchNorm1d(12), nn.LeakyReLU(0.2), nn.MaxPool1d(4)]
    rest = [nn.Conv1d(12, 16, 5), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool1d(1), nn.Flatten()]
    model = nn.Sequential(*filters, *rest, nn.Linear(16, 4))
    class_outcome(run, model, sounds(256, apart(run.draw.randrange(999)), 1.2))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.95, eps=1e-7)
    train(run, model, optimizer, lambda: sounds(32, noise=1.2), lambda m, b: F.cross_entropy(m(b[0]), b[1]), 140)


Tree = int | tuple[str, "Tree", "Tree"]


def expression(draw: random.Random, depth: int) -> Tree:
    """A number from 0 to 4, or the larger or the smaller of two expressions."""
    if depth == 0 or draw.random() < 0.15:
        return draw.randrange(5)
    return draw.choice(["max", "min"]), expression(draw, depth - 1), expression(draw, depth - 1)


def value_of(tree: Tree) -> int:
    if isinstance(tree, int):
        return tree
    return {"max": max, "min": min}[tree[0]](value_of(tree[1]), value_of(tree[2]))


class TreeCell(nn.Module):
    """A tree's state from those of its two branches, each with a gate of its own that forgets."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.leaves, self.kinds = nn.Embedding(5, 2 * width), nn.Embedding(2, width)
        self.gates, self.head = nn.Linear(3 * width, 5 * width), nn.Linear(width, 5)

    def state(self, tree: Tree) -> tuple[Tensor, Tensor]:
        if isinstance(tree, int):
            h, c = self.leaves.weight[tree].chunk(2)
            return h.tanh(), c
        (h1, c1), (h2, c2) = self.state(tree[1]), self.state(tree[2])
        given = torch.cat([self.kinds.weight[int(tree[0] == "max")], h1, h2])
        into, out, new, one, two = self.gates(given).chunk(5)
        c = into.sigmoid() * new.tanh() + (one + 1).sigmoid() * c1 + (two + 1).sigmoid() * c2
        return out.sigmoid() * c.tanh(), c

    def forward(self, trees: list[Tree]) -> Tensor:
        out: Tensor = self.head(torch.stack([self.state(tree)[0] for tree in trees]))
        return out


class Arithmetic:
    """The user's own loop: trees are drawn, read one by one, and answered together."""

    def __init__(self, seed: int) -> None:
        self.draw, self.model = random.Random(seed), TreeCell()
        self.optimizer = torch.optim.Adagrad(self.model.parameters(), lr=0.1)

    def some(self, count: int) -> tuple[list[Tree], Tensor]:
        trees = [expression(self.draw, 1 + i % 3) for i in range(count)]
        return trees, torch.tensor([value_of(tree) for tree in trees])

    def step(self, run: Run, doctor: Any) -> None:
        trees, values = self.some(16)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(trees), values)
        loss.backward()
        self.optimizer.step()
        doctor.step(loss, (trees, values))
        run.note(loss)


@honest("r22h-each-row-a-tree-of-its-own")
def each_row_a_tree_of_its_own(run: Run) -> None:
    """A class of the user's own, a recurrent network over trees (Tai et al. 2015; ListOps, Nangia and Bowman 2018). The
    inputs are no tensors but nested tuples of Python, each row another graph of another depth, and one small matrix is
    used dozens of times within a step; Adagrad, as in the paper."""
    task = Arithmetic(run.draw.randrange(999))
    trees, values = task.some(200)
    outcome(run, lambda: judged(task.model, lambda: F.cross_entropy(task.model(trees), values)))
    doctor = run.watch(task.model, task.optimizer)
    for _ in range(100):
        task.step(run, doctor)


class Villages:
    """Nodes of three groups who mostly know those of their own; what each shows of its group is weak."""

    def __init__(self, seed: int, nodes: int = 300) -> None:
        own = apart(seed)
        self.group = torch.randint(0, 3, (nodes,), generator=own)
        self.shown = torch.randn(3, 8, generator=own)[self.group] * 0.6 + torch.randn(nodes, 8, generator=own)
        same = self.group[:, None] == self.group
        knows = torch.rand(nodes, nodes, generator=own) < torch.where(same, 0.07, 0.015)
        self.knows = (knows | knows.T).float().fill_diagonal_(1)

    def some_of(self, nodes: Tensor, count: int) -> Tensor:
        """(…, count) neighbours by lot, the same perhaps more than once."""
        flat = torch.multinomial(self.knows[nodes.flatten()], count, replacement=True)
        return flat.view(*nodes.shape, count)


class Sampled(nn.Module):
    """Two layers over a node, the mean of its neighbours, and theirs; states have the length one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(16, 24), nn.Linear(48, 24), nn.Linear(24, 3)

    def forward(self, own: Tensor, near: Tensor, far: Tensor) -> Tensor:
        """What is shown by the nodes (rows, 8), by their neighbours (rows, n, 8), and theirs (rows, n, m, 8)."""
        middle = F.normalize(self.first(torch.cat([own, near.mean(1)], 1)).relu(), dim=1)
        around = F.normalize(self.first(torch.cat([near, far.mean(2)], 2)).relu(), dim=2)
        last = F.normalize(self.second(torch.cat([middle, around.mean(1)], 1)).relu(), dim=1)
        out: Tensor = self.head(last)
        return out


@honest("r22h-neighbours-by-lot")
def neighbours_by_lot(run: Run) -> None:
    """Plain loop, one graph by sampled neighbours (GraphSAGE, Hamilton et al. 2017; NeighborLoader of PyTorch
    Geometric). Of a node's neighbours six are drawn, with repeats, and four of each of theirs, so that the same node
    has other inputs each time, nodes kept for the test are read as neighbours without their labels, a node often is
    its own neighbour's neighbour, and all states are brought to the length one."""
    world = Villages(run.draw.randrange(999))
    model = Sampled()

    def read(nodes: Tensor, counts: tuple[int, int]) -> tuple[Tensor, ...]:
        near = world.some_of(nodes, counts[0])
        return world.shown[nodes], world.shown[near], world.shown[world.some_of(near, counts[1])]

    with torch.random.fork_rng():
        check, truth = read(torch.arange(200, 300), (24, 12)), world.group[200:]
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*check), truth)))

    def batch() -> tuple[Tensor, ...]:
        nodes = torch.randint(0, 200, (32,))
        return (*read(nodes, (6, 4)), world.group[nodes])

    train(run, model, adam(model, 5e-3), batch, lambda m, b: F.cross_entropy(m(*b[:3]), b[3]), 160)
