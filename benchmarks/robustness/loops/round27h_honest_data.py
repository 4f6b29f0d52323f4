"""Round 27h, honest and odd: what goes in, and in which form it was kept."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
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
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F

GENES, KEPT = 24, 12


def cells(count: int, seed: int, own: torch.Generator) -> Tensor:
    """(count, KEPT) genes, most strongly read first, each gene by its own median; of four kinds of cell."""
    start = apart(seed)
    usual = (1.5 * torch.randn(GENES, generator=start)).exp()
    program = 1.2 * torch.randn(4, GENES, generator=start)
    kinds = torch.randint(0, 4, (count,), generator=own)
    depth = (0.7 * torch.randn(count, 1, generator=own)).exp()
    noise = 0.4 * torch.randn(count, GENES, generator=own)
    counts = torch.poisson(20 * depth * usual * (program[kinds] + noise).exp(), generator=own)
    return (counts / depth / usual).argsort(1, descending=True)[:, :KEPT]


def hidden(rows: Tensor, own: torch.Generator | None = None) -> dict[str, Tensor]:
    """Words (genes from 4 on) of which a fifth is masked by word 3 and asked for."""
    asked = torch.rand(rows.shape, generator=own) < 0.2
    asked[:, 0] |= ~asked.any(1)
    words = rows + 4
    return {"input_ids": words.masked_fill(asked, 3), "labels": words.masked_fill(~asked, -100)}


@honest("r27h-genes-by-rank-are-a-sentence")
def genes_by_rank_are_a_sentence(run: Run) -> None:
    """transformers' Trainer, a BERT over single cells as in Geneformer (Theodoris et al. 2023). How strongly a gene was
    read is thrown away: a cell is the list of its genes in order of their counts, each divided by the gene's
    usual count. No word stands twice in a row, all rows have the same length without any padding, half of the
    genes are cut off, and a place is a rank and no place."""
    from transformers import BertConfig, BertForMaskedLM

    seed = run.draw.randrange(999)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=GENES + 4, max_position_embeddings=KEPT, **sizes))
    check = hidden(cells(256, seed, apart(1)), apart(2))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(input_ids=cells(1500, seed, apart(3)))

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return hidden(torch.stack([row["input_ids"] for row in rows]))

    options = {"per_device_train_batch_size": 32, "more": {"data_collator": collate}}
    hf_trainer(run, model, data, 200, **options).train()


SHELVES = 10


def pages(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Things as (count, SHELVES, 6), the place where an older rule put each, whether it was clicked, and how good it
    is, which nobody knows."""
    start = apart(seed)
    w, old = torch.randn(2, 6, generator=start)
    x = torch.randn(count, SHELVES, 6, generator=own)
    good = x @ w + x[..., 0] * x[..., 1]
    by_old = x @ (w + old) + torch.randn(count, SHELVES, generator=own)
    place = by_old.argsort(1, descending=True).argsort(1) + 1
    chance = (good - 3.0 * place.log() / math.log(SHELVES)).sigmoid()
    return x, place, torch.bernoulli(chance, generator=own), good


class Clicks(nn.Module):
    """A tower for the thing and a number for the place; place 0 is none, as in use."""

    def __init__(self) -> None:
        super().__init__()
        self.thing, self.place = mlp(6, 48, 48, 1), nn.Embedding(1 + SHELVES, 1)
        nn.init.zeros_(self.place.weight)

    def forward(self, x: Tensor, place: Tensor | None = None) -> Tensor:
        where = torch.zeros(x.shape[:-1], dtype=torch.long) if place is None else place
        out: Tensor = (self.thing(x) + self.place(where)).squeeze(-1)
        return out


class LearnsFromClicks:
    """The user's own trainer: an epoch after the other, places forgotten by lot."""

    def __init__(self, run: Run, model: Clicks, data: Any, forget: float = 0.1) -> None:
        self.run, self.model, self.data, self.forget = run, model, data, forget
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.doctor = run.watch(model, self.optimizer)

    def epoch(self) -> None:
        for x, place, clicked in self.data:
            shown = place * (torch.rand(place.shape) >= self.forget)
            loss = F.binary_cross_entropy_with_logits(self.model(x, shown), clicked)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.doctor.step(loss, (x, shown, clicked))
            self.run.note(loss)


@honest("r27h-the-shelf-is-known-in-training-alone")
def the_shelf_is_known_in_training_alone(run: Run) -> None:
    """A class of the user's own, clicks on ordered pages with a shallow tower for the place (Zhao et al. 2019, as for
    recommended films). One input is known in training and in use never: where the thing stood, which explains
    most of the clicks and which an older rule chose by the very columns that are read. A tenth of the places is
    replaced by 'none', which is all that is said in use; a better loss is not what is wanted, but the tower
    without the place."""
    seed = run.draw.randrange(999)
    model = Clicks()
    new, _, _, good = pages(200, seed, apart(1))

    def unlike() -> Tensor:
        return 1 - torch.corrcoef(torch.stack([model(new).flatten(), good.flatten()]))[0, 1]

    outcome(run, lambda: judged(model, unlike))
    x, place, clicked, _ = pages(640, seed, apart(2))
    trainer = LearnsFromClicks(run, model, loader(x, place, clicked, size=32))
    for _ in range(8):
        trainer.epoch()


SENSORS, PAST = 12, 6


def roads(own: torch.Generator) -> Tensor:
    """(SENSORS, SENSORS): how much of the traffic at one sensor is soon at another; rows sum to one."""
    along = torch.eye(SENSORS).roll(1, 1)
    some = (torch.rand(SENSORS, SENSORS, generator=own) < 0.12).float()
    weights = along + some * torch.rand(SENSORS, SENSORS, generator=own) + 0.3 * torch.eye(SENSORS)
    return weights / weights.sum(1, keepdim=True)


def speeds(graph: Tensor, count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, SENSORS) miles per hour: as they were, and as they were stored, with 0 where a sensor was silent."""
    state, out = torch.zeros(SENSORS), []
    for t in range(count + 50):
        state = 0.93 * graph @ state + 3.5 * torch.randn(SENSORS, generator=own) - math.sin(t / 15)
        out.append((55 + state).clamp(3, 75))
    real = torch.stack(out[50:])
    silent = torch.rand(1 + count // 5, SENSORS, generator=own).repeat_interleave(5, 0)[:count] < 0.2
    return real, real * ~silent


class DiffusionCell(nn.Module):
    """A GRU whose products go along the roads and against them."""

    def __init__(self, graph: Tensor, width: int = 16) -> None:
        super().__init__()
        self.graph: Tensor
        self.register_buffer("graph", torch.stack([torch.eye(SENSORS), graph, graph.T / graph.sum(0)[:, None]]))
        self.gates, self.new = nn.Linear(3 * (1 + width), 2 * width), nn.Linear(3 * (1 + width), width)

    def around(self, x: Tensor) -> Tensor:
        return torch.einsum("kij,bjd->bikd", self.graph, x).flatten(2)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        reset, keep = self.gates(self.around(torch.cat([x, state], 2))).sigmoid().chunk(2, 2)
        new = self.new(self.around(torch.cat([x, reset * state], 2))).tanh()
        return keep * state + (1 - keep) * new


class Roads(nn.Module):
    """The last PAST readings of all sensors in, the next in miles per hour out."""

    def __init__(self, graph: Tensor, mean: float, spread: float) -> None:
        super().__init__()
        self.cell, self.head = DiffusionCell(graph), nn.Linear(16, 1)
        self.mean, self.spread = mean, spread

    def forward(self, past: Tensor) -> Tensor:
        state = torch.zeros(len(past), SENSORS, 16)
        for reading in past.unbind(1):
            state = self.cell((reading[..., None] - self.mean) / self.spread, state)
        out: Tensor = self.head(state).squeeze(2) * self.spread + self.mean
        return out


@honest("r27h-nought-means-nobody-measured")
def nought_means_nobody_measured(run: Run) -> None:
    """accelerate, a recurrent network on a graph of roads as in DCRNN (Li et al. 2018), with its masked error. A sensor
    that was silent stored 0 miles per hour: a fifth of the inputs are 0, which is six spreads below the mean,
    and stay so, and a fifth of the labels are 0 and teach nothing, where the rest is weighed up to the whole.
    The error is in miles per hour and ends at three or four; Adam's epsilon is a thousandth, as in the paper's
    code."""
    own = apart(run.draw.randrange(999))
    graph = roads(own)
    real, stored = speeds(graph, 760, own)
    told = stored[:600][stored[:600] > 0]
    model = Roads(graph, float(told.mean()), float(told.std()))

    def windows(truth: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        return torch.stack([stored[t : t + PAST] for t in range(first, last)]), truth[first + PAST : last + PAST]

    past, truth = windows(real, 600, 750)
    outcome(run, lambda: judged(model, lambda: F.l1_loss(model(past), truth)))

    def masked(model: nn.Module, batch: Any) -> Tensor:
        mask = (batch[1] != 0).float()
        return ((model(batch[0]) - batch[1]).abs() * mask / mask.mean()).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-3)
    prepared(run, model, optimizer, loader(*windows(stored, 0, 590), size=32), masked, 7)


WINDOW = 49


def household(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count,) watts of a whole house, and of its kettle alone."""

    def switched(on: int, off: int, watts: float) -> Tensor:
        out = torch.zeros(count)
        at = int(torch.randint(0, off, (1,), generator=own))
        while at < count:
            length = on // 2 + int(torch.randint(0, on + 1, (1,), generator=own))
            out[at : at + length] = watts * (1 + 0.05 * torch.randn((), generator=own))
            at += length + off // 2 + int(torch.randint(0, off + 1, (1,), generator=own))
        return out

    kettle = switched(8, 70, 2000.0)
    others = switched(40, 60, 150.0) + switched(25, 120, 1800.0) + switched(2, 30, 900.0)
    return kettle + others + 60 + 20 * torch.randn(count, generator=own), kettle


@honest("r27h-only-the-middle-of-each-window")
def only_the_middle_of_each_window(run: Run) -> None:
    """Lightning, what one kettle draws from what the whole house draws, sequence to point (Zhang et al. 2018, NILMTK).
    Windows of 49 readings overlap in all but one, and each has one label, the kettle in its middle, so that half
    of the window lies in the future; the label is scaled by the book's numbers for kettles and not by its own
    mean and spread, and in nine rows of ten it is the same number, which means off."""
    own = apart(run.draw.randrange(999))
    net = nn.Sequential(
        *(nn.Unflatten(1, (1, WINDOW)), nn.Conv1d(1, 12, 9, 2), nn.ReLU(), nn.Conv1d(12, 16, 5, 2), nn.ReLU()),
        *(nn.Flatten(), nn.LazyLinear(48), nn.ReLU(), nn.Linear(48, 1)),
    )
    net(torch.zeros(1, WINDOW))

    def windows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        whole, kettle = household(count, own)
        x = (whole.unfold(0, WINDOW, 1) - 522) / 814
        return x.contiguous(), ((kettle - 700) / 1000)[WINDOW // 2 : WINDOW // 2 + len(x)]

    check = windows(1500, apart(1))
    outcome(run, lambda: judged(net, lambda: regress(net, check)))
    fit(run, lit(net, regress, adamw(2e-3)), loader(*windows(6000, own), size=64), 160)


def seals(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 1, 24, 24) pictures of a round bright thing about the middle, with a mark at its top, in noise."""
    at = 11.5 + 1.2 * torch.randn(count, 2, 1, 1, generator=own)
    wide = 6 + 2 * torch.rand(count, 1, 1, generator=own)
    down, across = torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij")
    down, across = down - at[:, 0], across - at[:, 1]
    thing = (-(down.square() + across.square()) / (2 * wide.square())).exp()
    mark = (-((down + 8).square() + across.square()) / 8).exp()
    return (thing + mark + 0.1 * torch.randn(count, 24, 24, generator=own))[:, None]


def two_pieces(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The piece in the middle of each picture, one of the eight around it, and which."""
    pictures = seals(count, own)
    which = torch.randint(0, 8, (count,), generator=own)
    cell = which + (which >= 4)
    jitter = torch.randint(-1, 2, (count, 2), generator=own)
    corners = torch.stack([cell // 3, cell % 3], 1) * 8 + 1 + jitter
    corners = corners.clamp(0, 18)
    second = torch.stack([p[:, r : r + 6, c : c + 6] for p, (r, c) in zip(pictures, corners.tolist(), strict=True)])
    first = pictures[:, :, 9:15, 9:15]

    def alone(x: Tensor) -> Tensor:
        return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)

    return alone(first), alone(second), which


class TwoPieces(nn.Module):
    """One network for both pieces, and where the second lies from what it says of either."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(
            *(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU(), nn.Flatten()),
            nn.Linear(96, 24),
        )
        self.both = mlp(48, 48, 8)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        out: Tensor = self.both(torch.cat([self.each(first), self.each(second)], 1).relu())
        return out


@honest("r27h-where-the-second-piece-lies")
def where_the_second_piece_lies(run: Run) -> None:
    """Plain loop, convolutions learn pictures by placing a piece next to another (Doersch et al. 2015). No picture is
    ever seen whole and none has a label: the label is which neighbour was cut out, drawn anew each time. Between
    pieces a gap is left and each is moved by a pixel at random, brightness and contrast are taken from every
    piece by itself, lest edges tell, and the classes are equally frequent by design."""
    model = TwoPieces()
    *pieces, which = two_pieces(512, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(*pieces), which)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(*batch[:2]), batch[2])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(run, model, optimizer, lambda: two_pieces(64), loss, 150)


LETTERS = 20


def phrases(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three words of three letters (from 2 on), and their three translations (from 2 on), then the end, 1."""
    start = apart(seed)
    words = torch.randint(0, LETTERS, (8, 3), generator=start) + 2
    other = torch.randperm(8, generator=start) + 2
    said = torch.randint(0, 8, (count, 3), generator=own)
    ends = torch.ones(count, 1, dtype=torch.long)
    return torch.cat([words[said].flatten(1), ends], 1), torch.cat([other[said], ends], 1)


def mistyped(rows: Tensor, share: float, own: torch.Generator | None = None) -> Tensor:
    """Letters replaced by one beside them on the keys, or exchanged with the next."""
    beside = (rows - 2 + 2 * torch.randint(0, 2, rows.shape, generator=own) - 1) % LETTERS + 2
    out = torch.where((torch.rand(rows.shape, generator=own) < share) & (rows > 1), beside, rows)
    for at in range(0, 9, 3):
        turned = torch.rand(len(rows), generator=own) < share
        out[turned, at : at + 2] = out[turned, at : at + 2].flip(1)
    return out


@honest("r27h-misspelt-anew-each-time")
def misspelt_anew_each_time(run: Run) -> None:
    """transformers' Trainer, a T5 translates from letters and is to bear typing errors (Belinkov and Bisk 2018). The
    sources are spoilt on purpose whenever a batch is made, by wrong keys and exchanged letters in about half of
    the words, so that a row is another in each epoch and source and label match less well than in the file;
    translations are left as they are."""
    from transformers import T5Config, T5ForConditionalGeneration

    seed = run.draw.randrange(999)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=24, decoder_start_token_id=0, pad_token_id=0, **sizes))
    source, target = phrases(256, seed, apart(1))
    check = {"input_ids": mistyped(source, 0.15, apart(2)), "labels": target}
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    source, target = phrases(600, seed, apart(3))

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        clean = torch.stack([row["input_ids"] for row in rows])
        return {"input_ids": mistyped(clean, 0.15), "labels": torch.stack([row["labels"] for row in rows])}

    options = {"per_device_train_batch_size": 32, "learning_rate": 1e-2, "more": {"data_collator": collate}}
    hf_trainer(run, model, examples(input_ids=source, labels=target), 200, **options).train()


def trading_day(w: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Some sixty shares on one day: six columns each by its rank on that day, and the rank of what came of it, as
    quantiles of a normal."""
    count = int(torch.randint(50, 71, (1,), generator=own))
    x = torch.randn(count, 6, generator=own) * (torch.randn(6, generator=own) / 2).exp()
    ranks = (x.argsort(0).argsort(0) + 0.5) / count
    signal = (ranks - 0.5) @ w + 4 * (ranks[:, 0] - 0.5) * (ranks[:, 1] - 0.5)
    heavy = torch.randn(count, generator=own) / torch.rand(count, generator=own).sqrt()
    gains = torch.randn((), generator=own) + (torch.randn((), generator=own) / 2).exp() * (signal + heavy)
    return ranks - 0.5, torch.special.ndtri((gains.argsort().argsort() + 0.5) / count)


@honest("r27h-each-day-by-its-own-ranks")
def each_day_by_its_own_ranks(run: Run) -> None:
    """Lightning, shares ranked day by day (Gu, Kelly and Xiu 2020, Numerai). A batch is one day, of sizes that differ;
    inputs and labels are ranks within it, so that all days have the same mean and spread and none of the market
    is left. The loss is the correlation with a minus: it begins about zero and goes below it, stays nearer to it
    than to minus one as little can be foreseen, and does not care for the scale of what is said."""
    w = torch.randn(6, generator=apart(run.draw.randrange(999)))
    net = mlp(6, 32, 32, 1)

    def unlike(net: nn.Module, day: tuple[Tensor, Tensor]) -> Tensor:
        said, ranks = net(day[0]).squeeze(1), day[1]
        said, ranks = said - said.mean(), ranks - ranks.mean()
        return -(said @ ranks) / (said.norm() * ranks.norm() + 1e-8)

    later = [trading_day(w, apart(1000 + i)) for i in range(40)]
    outcome(run, lambda: judged(net, lambda: torch.stack([unlike(net, day) for day in later]).mean()))
    days: Any = [trading_day(w, apart(i)) for i in range(150)]
    data = torch.utils.data.DataLoader(days, batch_size=None, shuffle=True)
    fit(run, lit(net, unlike, lambda m: adam(m, 2e-3)), data, 180)
