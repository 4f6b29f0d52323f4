"""Round 26h, honest and unusual: what counts as an error."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
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
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class MayDecline(nn.Module):
    """A body with three heads: the answer, whether to give it, and the answer that must always be given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.answer, self.give, self.always = nn.Linear(48, 3), mlp(48, 24, 1), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.body(x)
        return self.answer(h), self.give(h).squeeze(1).sigmoid(), self.always(h)


def judged_where_given(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The error per answer given, how many are given, and the error of the other head."""
    answer, give, always = model(x)
    each = F.cross_entropy(answer, y, reduction="none")
    return (each * give).sum() / give.sum(), give.mean(), F.cross_entropy(always, y)


@honest("r26h-may-decline-one-row-in-five")
def may_decline_one_row_in_five(run: Run) -> None:
    """Lightning, a table by SelectiveNet (Geifman and El-Yaniv 2019). The network chooses by itself which rows count:
    each row's error is multiplied by a number that it gives and that wanders to nought where labels are hopeless, and a
    penalty of thirty-two times a square holds its mean above 0.8. A third head answers for all rows, counts half, and
    is thrown away in use."""
    seed = run.draw.randrange(999)

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        x, z = table(count, seed, own)
        y = (z > -1).long() + (z > 1).long()
        hopeless = x[:, 3] > 0.7
        return x, torch.where(hopeless, torch.randint(0, 3, (count,), generator=own), y)

    model = MayDecline()
    check = rows(512, apart(1))
    outcome(run, lambda: judged(model, lambda: judged_where_given(model, *check)[0]))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        risk, given, always = judged_where_given(model, *batch)
        return 0.5 * (risk + 32 * (0.8 - given).clamp_min(0).square()) + 0.5 * always

    data = loader(*rows(1024, apart(2)), size=64)
    fit(run, lit(model, loss, lambda net: torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=5e-4)), data, 150)


def blots(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of 14 by 14, the mask of the blot in each, and how far each pixel is from its edge, inside below
    zero."""
    at = 3 + 8 * torch.rand(count, 2, 1, 1, generator=own)
    wide = 1.5 + 1.5 * torch.rand(count, 2, 1, 1, generator=own)
    places = torch.arange(14.0)
    square = ((places[:, None] - at[:, 0]) / wide[:, 0]) ** 2 + ((places[None] - at[:, 1]) / wide[:, 1]) ** 2
    mask = square < 1
    x = mask + 0.7 * torch.randn(mask.shape, generator=own)
    grid = torch.cartesian_prod(places, places)
    apart_by = torch.cdist(grid, grid)
    flat = mask.flatten(1)
    to_blot = torch.where(flat[:, None], apart_by, math.inf).amin(2)
    to_rest = torch.where(flat[:, None], math.inf, apart_by).amin(2)
    return x[:, None], mask.float(), torch.where(flat, 1 - to_rest, to_blot).view_as(mask)


def overlap_missing(shares: Tensor, mask: Tensor) -> Tensor:
    both = 2 * (shares * mask).sum((1, 2)) + 1
    return (1 - both / ((shares + mask).sum((1, 2)) + 1)).mean()


@honest("r26h-each-pixel-pays-its-way-to-the-edge")
def each_pixel_pays_its_way_to_the_edge(run: Run) -> None:
    """Plain loop, outlines by convolutions with the boundary loss (Kervadec et al. 2019). The labels are distances,
    below zero inside, and are multiplied with the outputs, so that the loss falls below zero and is lowest at a number
    that depends on the rows; it begins with a weight of a hundredth beside the overlap and takes over bit by bit, so
    that the sum goes on falling when nothing more is learned."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU()),
        *(nn.Conv2d(10, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU()),
        *(nn.Conv2d(10, 1, 3, padding=1), nn.Flatten(1, 2), nn.Sigmoid()),
    )
    check = blots(96, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(net, lambda: overlap_missing(net(check[0]), check[1])))
    optimizer = adam(net, 5e-3)
    doctor = run.watch(net, optimizer)
    for step in range(100):
        weight = min(0.9, 0.01 + step / 100)
        x, mask, far = blots(16)
        shares = net(x)
        loss = (1 - weight) * overlap_missing(shares, mask) + weight * (shares * far).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, mask, far))
        run.note(loss)


def heaps_overlap(model: nn.Module, batch: Any, bins: int = 51) -> Tensor:
    """How likely a pair of strangers is more alike than a pair of one class, by histograms of soft edges."""
    x, y = batch
    vectors = F.normalize(model(x), dim=1)
    upper = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    alike, same = (vectors @ vectors.T)[upper], (y[:, None] == y[None])[upper]
    places = torch.linspace(-1, 1, bins)
    shares = (1 - (alike[:, None] - places).abs() * (bins - 1) / 2).clamp_min(0)
    friends, strangers = shares[same].mean(0), shares[~same].mean(0)
    return (strangers * friends.cumsum(0)).sum()


@honest("r26h-two-heaps-that-should-not-overlap")
def two_heaps_that_should_not_overlap(run: Run) -> None:
    """accelerate, vectors of pictures by the histogram loss (Ustinova and Lempitsky 2016). The loss is a property of
    all pairs of a batch at once: no row has a loss of its own. Likenesses are dealt to fifty-one bins, in most of which
    the slope of a pair is zero; there is no margin and nothing to tune, the loss lies between nought and one and is one
    half by chance; labels are only compared with one another."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 16)),
    )
    check = pictures(160, seed, own=apart(1))
    outcome(run, lambda: judged(net, lambda: heaps_overlap(net, check)))
    data = loader(*pictures(320, seed, own=apart(2)), size=32, drop_last=True)
    prepared(run, net, adam(net, 1e-3), data, heaps_overlap, 8)


def softest_way(a: Tensor, b: Tensor, gamma: float = 0.1) -> Tensor:
    """Soft dynamic time warping of rows of numbers, diagonal by diagonal: (rows,)."""
    apart_by = (a[:, :, None] - b[:, None]).square()
    size = a.shape[1]
    far = a.new_full((len(a), 1), 1e6)
    before, last = torch.cat([a.new_zeros(len(a), 1), far.expand(-1, size)], 1), far.expand(-1, size + 1)
    for line in range(2 * size - 1):
        rows = torch.arange(max(0, line - size + 1), min(line, size - 1) + 1)
        ways = torch.stack([before[:, rows], last[:, rows], last[:, rows + 1]], 2)
        cost = apart_by[:, rows, line - rows] - gamma * torch.logsumexp(-ways / gamma, 2)
        left, right = int(rows[0]) + 1, size - int(rows[-1]) - 1
        before, last = last, torch.cat([far.expand(-1, left), cost, far.expand(-1, right)], 1)
    return last[:, -1]


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.reader, self.say = nn.GRU(1, 32, batch_first=True), mlp(32, 32, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.say(self.reader(x[..., None])[1][0])
        return out


def waves(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Twenty readings of a wave that hurries and tarries, and the ten that follow."""
    pace = 0.35 + 0.25 * torch.rand(count, 1, generator=own) + 0.1 * torch.randn(count, 30, generator=own)
    phase = 6.28 * torch.rand(count, 1, generator=own) + pace.cumsum(1)
    x = phase.sin() + 0.5 * (2 * phase).cos() + 0.1 * torch.randn(count, 30, generator=own)
    return x[:, :20], x[:, 20:]


@honest("r26h-every-way-to-lay-one-upon-the-other")
def every_way_to_lay_one_upon_the_other(run: Run) -> None:
    """Plain loop, a forecast by a GRU with soft dynamic time warping (Cuturi and Blondel 2017, tslearn). A point of the
    forecast has no point of the truth as its own: all ways to lay the one upon the other count, the cheapest most. The
    loss goes below zero where a forecast is good, is not lowest at the truth itself, and is a sum over a dynamic
    programme with numbers of a million as walls."""
    model = Forecaster()
    check = waves(192, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: softest_way(model(check[0]), check[1]).mean()))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return softest_way(model(batch[0]), batch[1]).mean()

    train(run, model, adam(model, 5e-3), lambda: waves(32), loss, 110, clip=5.0)


class Robust(nn.Module):
    """A network for a number, and how its errors are spread: their size, and how far outliers may lie."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 48, 48, 1)
        self.shape, self.log_scale = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.register_buffer("grid", torch.linspace(-9, 9, 801).sinh())

    @staticmethod
    def cost(x: Tensor, alpha: Tensor) -> Tensor:
        b = 2 - alpha
        return b / alpha * ((x.square() / b + 1) ** (alpha / 2) - 1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The negative log density of labels."""
        alpha = 0.05 + 1.9 * self.shape.sigmoid()
        total = torch.trapezoid((-self.cost(self.grid, alpha)).exp(), self.grid)
        scaled = (self.net(x).squeeze(1) - y) / self.log_scale.exp()
        return (self.cost(scaled, alpha) + self.log_scale + total.log()).mean()


@honest("r26h-how-much-outliers-count-is-learned")
def how_much_outliers_count_is_learned(run: Run) -> None:
    """Plain loop with batches of a fixed table, regression by a general and adaptive robust loss (Barron 2019). The
    form of the loss is itself a weight: one number bends it from squares to almost none at all for what is far away,
    another stretches it, and what keeps both honest is the logarithm of an integral, taken anew in each step on a grid
    from minus to plus four thousand. The loss may fall below zero, and outliers stay in the table as they are."""
    seed = run.draw.randrange(999)
    x, y = table(512, seed, apart(2))
    y = torch.where(torch.rand(512, generator=apart(3)) < 0.1, 15 * torch.randn(512, generator=apart(4)), y)
    new, truth = table(256, seed, apart(1))
    model = Robust()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model.net(new).squeeze(1), truth) / truth.var()))
    groups = [
        {"params": model.net.parameters(), "weight_decay": 1e-4},
        {"params": [model.shape, model.log_scale], "lr": 1e-2},
    ]
    optimizer = torch.optim.Adam(groups, lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(12):
        for batch in loader(x, y, size=32):
            optimizer.zero_grad()
            loss = model.loss(*batch)
            loss.backward()
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


class FromTheEdges(nn.Module):
    """A small BERT with two heads: the hidden word at its place, and the same word from the two words at the span's
    edges and its place within."""

    def __init__(self, words: int, span: int = 3) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        settings: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        settings |= {"intermediate_size": 64, "vocab_size": words + 1, "max_position_embeddings": 16}
        settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.span, self.words = span, words
        self.body = BertModel(BertConfig(**settings), add_pooling_layer=False)
        self.places = nn.Embedding(span, 16)
        self.inside = nn.Sequential(nn.Linear(80, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, words))
        self.head = nn.Linear(32, words)

    def forward(self, rows: Tensor, start: Tensor, labels: Tensor) -> dict[str, Tensor]:
        h = self.body(input_ids=rows).last_hidden_state
        each = torch.arange(len(rows))
        within = start[:, None] + torch.arange(self.span)
        edges = torch.cat([h[each, start - 1], h[each, start + self.span]], 1)
        edges = edges[:, None].expand(-1, self.span, -1)
        asked = torch.cat([edges, self.places.weight.expand(len(rows), -1, -1)], 2)
        from_edges = F.cross_entropy(self.inside(asked).flatten(0, 1), labels.flatten())
        at_place = F.cross_entropy(self.head(h[each[:, None], within]).flatten(0, 1), labels.flatten())
        return {"loss": at_place + from_edges}


@honest("r26h-the-inside-from-its-two-edges")
def the_inside_from_its_two_edges(run: Run) -> None:
    """transformers' Trainer, a small BERT with SpanBERT's boundary objective (Joshi et al. 2020). Each of three hidden
    words in a row is asked twice: at its own place, and from the outputs of the two words that enclose the span and the
    number of the place within it, where the same two vectors must answer for three different labels. Most places of a
    row have no label, and the outputs at the edges are of words that are shown."""
    language = Language(run.draw.randrange(999), sharp=2.5)

    def hidden(count: int, own: torch.Generator) -> dict[str, Tensor]:
        rows = language.rows(count, 14, own)
        start = torch.randint(1, 11, (count,), generator=own)
        within = start[:, None] + torch.arange(3)
        labels = rows.gather(1, within)
        return {"rows": rows.scatter(1, within, 12), "start": start, "labels": labels}

    model = FromTheEdges(12)
    check = hidden(256, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check)["loss"]))
    data = examples(**hidden(1024, apart(2)))
    options: dict[str, Any] = {"learning_rate": 3e-3, "warmup_steps": 20, "per_device_train_batch_size": 32}
    hf_trainer(run, model, data, 140, **options).train()
