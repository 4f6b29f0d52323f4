"""Round 19a, honest and odd: models and what they are built of."""

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
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam, text_outcome
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F

KNOTS = 8


class Curves(nn.Module):
    """A layer with a curve on each edge: weights of bumps along the input, beside a SiLU."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, KNOTS))
        self.bumps = nn.Parameter(0.1 / KNOTS * torch.randn(a, KNOTS, b))
        self.base = nn.Linear(a, b, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        heights = (-(((x[..., None] - self.knots) * (KNOTS - 1) / 4) ** 2)).exp()
        out: Tensor = torch.einsum("rak,akb->rb", heights, self.bumps) + self.base(F.silu(x))
        return out


@honest("r19a-a-curve-on-each-edge")
def a_curve_on_each_edge(run: Run) -> None:
    """Plain loop, a Kolmogorov-Arnold network on a table (Liu et al. 2024; FastKAN, Li 2024). There are no activations
    between the layers and no biases; each edge has eight weights of its own, and a row moves only those near its
    values, so that at the rim of the grid many get next to no gradient, and an input beyond it is seen by a straight
    part alone. The curves begin next to zero, and AdamW has a rate of 0.02."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(Curves(6, 12), Curves(12, 1))
    number_outcome(run, model, table(256, seed, apart(1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=1e-4)
    falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    train(run, model, optimizer, lambda: table(64, seed), regress, 170, scheduler=falling)


class Forks(nn.Module):
    """A soft tree of depth four: at each fork a chance of going left, at each leaf answers that read nothing."""

    def __init__(self, columns: int, classes: int, depth: int = 4) -> None:
        super().__init__()
        self.depth = depth
        self.forks = nn.Linear(columns, 2**depth - 1)
        self.leaves = nn.Parameter(torch.zeros(2**depth, classes))

    def paths(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows, leaves) chances of the leaves, and how one-sided the forks are."""
        left = self.forks(x).sigmoid()
        reached, uneven = torch.ones(len(x), 1), torch.zeros(())
        for level in range(self.depth):
            here = left[:, 2**level - 1 : 2 ** (level + 1) - 1]
            share = (reached * here).sum(0) / reached.sum(0)
            uneven = uneven - 0.5**level * (share.log() + (1 - share).log()).mean() / 2
            reached = torch.stack([reached * here, reached * (1 - here)], 2).flatten(1)
        return reached, uneven

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.paths(x)[0] @ self.leaves.softmax(1)).log()
        return out


@honest("r19a-forks-in-place-of-layers")
def forks_in_place_of_layers(run: Run) -> None:
    """accelerate, a tree whose forks are soft (Frosst and Hinton 2017; Irsoy et al. 2012). The only weights that see a
    row decide which way it goes; the answers are sixteen distributions that read nothing and begin all the same, at
    zero, by which the forks have no gradient at the first step but that of a penalty, which asks that half of the rows
    go each way. What comes out are logarithms of chances, never scores."""
    seed = run.draw.randrange(999)
    x, y = table(900, seed, apart(2))
    new, truth = table(300, seed, apart(1))
    limits = y.quantile(torch.tensor([0.33, 0.67]))
    model = Forks(6, 3)
    asked = torch.bucketize(truth, limits)
    outcome(run, lambda: judged(model, lambda: F.nll_loss(model(new), asked)))

    def loss(model: Any, batch: list[Tensor]) -> Tensor:
        reached, uneven = model.paths(batch[0])
        scores = (reached @ model.leaves.softmax(1)).log()
        return F.nll_loss(scores, batch[1]) + 0.1 * uneven

    data = loader(x, torch.bucketize(y, limits), size=60)
    prepared(run, model, adam(model, 2e-2), data, loss, 9)


class Masked(nn.Linear):
    """A matrix of which some entries are held out of every product."""

    def __init__(self, seen: Tensor, asking: Tensor, strict: bool) -> None:
        super().__init__(len(seen), len(asking))
        self.register_buffer("mask", (asking[:, None] > seen if strict else asking[:, None] >= seen).float())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mask * self.weight, self.bias)


class OneAfterAnother(nn.Module):
    """Each column is shifted and scaled by what those before it say, in two rounds, the second backwards."""

    def __init__(self, columns: int = 6, hidden: int = 48) -> None:
        super().__init__()
        order, within = torch.arange(columns) + 1, torch.arange(hidden) % (columns - 1) + 1
        self.rounds = nn.ModuleList(
            nn.Sequential(Masked(order, within, False), nn.Tanh(), Masked(within, order.repeat(2), True))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(rows,) log densities."""
        room: Any = 0.0
        for part in self.rounds:
            shift, log_scale = part(x).chunk(2, 1)
            log_scale = 2 * (log_scale / 2).tanh()
            x = ((x - shift) * (-log_scale).exp()).flip(1)
            room = room - log_scale.sum(1)
        out: Tensor = room - 0.5 * (x.square() + math.log(2 * math.pi)).sum(1)
        return out


def chained(count: int, own: torch.Generator | None = None) -> Tensor:
    """Six columns, each a crooked function of the one before it, little noise, and not of the same size."""
    x = torch.randn(count, 6, generator=own)
    for i in range(1, 6):
        x[:, i] = (1.5 * x[:, i - 1]).sin() + 0.1 * i * x[:, i]
    return x * torch.tensor([1.0, 0.2, 0.2, 0.2, 0.2, 0.2])


@honest("r19a-each-column-from-those-before")
def each_column_from_those_before(run: Run) -> None:
    """Plain loop, a masked autoregressive flow (Papamakarios et al. 2017; MADE, Germain et al. 2015). Half of every
    matrix is held out by a mask and has a gradient of nought for ever, as has its start; input and label are the
    same numbers, and the first column is told by biases alone. The loss is a sum over columns of a density, which has
    no floor, and goes from positive to well below nought."""
    model = OneAfterAnother()
    check = chained(512, apart(1))
    outcome(run, lambda: judged(model, lambda: -model(check).mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-6)
    train(run, model, optimizer, lambda: chained(100), lambda m, x: -m(x).mean(), 190, clip=5.0)


def squashed(x: Tensor) -> Tensor:
    """Vectors with their direction, and lengths from nought to one."""
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


class Capsules(nn.Module):
    """Vectors of small parts vote for vectors of classes, and agree in three rounds."""

    def __init__(self, parts: int = 36, classes: int = 4) -> None:
        super().__init__()
        self.look = nn.Conv2d(1, 16, 3)
        self.parts = nn.Conv2d(16, 16, 3, 2)
        self.votes = nn.Parameter(0.1 * torch.randn(parts // 9 * 4, classes, 8, 4))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, classes) lengths."""
        h = self.parts(self.look(x).relu()).flatten(2)
        h = squashed(h.view(len(x), 4, 4, -1).transpose(2, 3).flatten(1, 2))
        votes = torch.einsum("rpi,pcoi->rpco", h, self.votes)
        settled = votes.detach()
        trust = torch.zeros(settled.shape[:3])
        for _ in range(2):
            agreed = squashed((trust.softmax(2)[..., None] * settled).sum(1))
            trust = trust + (settled * agreed[:, None]).sum(3)
        out = squashed((trust.softmax(2)[..., None] * votes).sum(1))
        return (out.square().sum(2) + 1e-8).sqrt()


def by_length(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Above 0.9 for the right class, below 0.1 for the others, which count half."""
    lengths, right = model(batch[0]), F.one_hot(batch[1], 4)
    short, long = (0.9 - lengths).clamp_min(0).square(), (lengths - 0.1).clamp_min(0).square()
    return (right * short + 0.5 * (1 - right) * long).sum(1).mean()


@honest("r19a-lengths-are-the-chances")
def lengths_are_the_chances(run: Run) -> None:
    """Plain loop, capsules with routing by agreement (Sabour et al. 2017). What comes out are lengths of vectors, one
    for each class, which need not sum to one and are put through no softmax; the softmax within is over weights that
    no gradient goes through, found anew for each row in three rounds. The loss is of margins, and where a length is
    beyond 0.9 or below 0.1 nothing is taught."""
    seed = run.draw.randrange(999)
    model = Capsules()
    check = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: (model(check[0]).argmax(1) != check[1]).float().mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    train(run, model, optimizer, lambda: pictures(32, seed), by_length, 130, scheduler=falling)


class PlacesGate(nn.Module):
    """gMLP's block: half of the features, mixed along the places by one matrix, multiply the other half."""

    def __init__(self, width: int, places: int) -> None:
        super().__init__()
        self.norm, self.enter = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.leave = nn.Linear(2 * width, width)
        self.gate_norm, self.along = nn.LayerNorm(2 * width), nn.Linear(places, places)
        nn.init.uniform_(self.along.weight, -1e-3 / places, 1e-3 / places)
        nn.init.ones_(self.along.bias)

    def forward(self, x: Tensor) -> Tensor:
        stays, gate = F.gelu(self.enter(self.norm(x))).chunk(2, 2)
        gate = self.along(self.gate_norm(gate).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.leave(stays * gate)
        return out


class HiddenWords(nn.Module):
    """A reader without attention and without positions, with a matrix over places in each block."""

    def __init__(self, words: int, places: int, width: int = 24) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.blocks = nn.Sequential(PlacesGate(width, places), PlacesGate(width, places))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.norm(self.blocks(self.tokens(input_ids))))
        out = {"logits": logits}
        if labels is not None:
            out["loss"] = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return out


@honest("r19a-gates-that-begin-at-one")
def gates_that_begin_at_one(run: Run) -> None:
    """Trainer, hidden words told by a gMLP (Liu et al. 2021). There is no attention and there are no positions: words
    meet in one matrix over places, which holds for texts of just this length, reads from right to left as well, and
    begins a thousandth of the usual size with biases of one, as the paper has it, so that at first every place is told
    without the others. transformers' collator hides one word in four."""
    language = Language(run.draw.randrange(999))

    def hidden(rows: Tensor) -> dict[str, Tensor]:
        asked = torch.rand(rows.shape) < 0.25
        return {"input_ids": rows.masked_fill(asked, 12), "labels": rows.masked_fill(~asked, -100)}

    model = HiddenWords(13, 16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        check = hidden(language.rows(256, 16, apart(1)))
    outcome(run, lambda: judged(model, lambda: model(**check)["loss"]))
    more = {"data_collator": lambda rows: hidden(torch.stack([row["input_ids"] for row in rows]))}
    data = examples(input_ids=language.rows(2400, 16, apart(2)))
    options: dict[str, Any] = {"learning_rate": 8e-3, "lr_scheduler_type": "cosine", "warmup_steps": 15}
    hf_trainer(run, model, data, 190, per_device_train_batch_size=32, more=more, **options).train()


class NoStateInTheGate(nn.Module):
    """minGRU: how much is kept and what is new are told by the word alone, so that all states come of one sum."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.news = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for gate, new, norm in zip(self.gates, self.news, self.norms, strict=True):
            h = norm(x)
            score, candidate = gate(h), new(h)
            log_new = torch.where(candidate >= 0, (candidate.relu() + 0.5).log(), F.logsigmoid(candidate))
            kept = F.logsigmoid(-score).cumsum(1)
            x = x + (kept + torch.logcumsumexp(F.logsigmoid(score) + log_new - kept, 1)).exp()
        out: Tensor = self.head(x)
        return out


@honest("r19a-gates-that-see-no-state")
def gates_that_see_no_state(run: Run) -> None:
    """Lightning, a recurrent model of language without a loop over time (minGRU, Feng et al. 2024). Its gates read the
    word and not what was read before, states are always above nought, and all are found at once, as logarithms of
    running sums of exponentials; where a GRU has a tanh there is a crooked function that nobody else uses."""
    language = Language(run.draw.randrange(999))
    model = NoStateInTheGate(12)
    text_outcome(run, model, language)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        rows = batch[0]
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    fit(run, lit(model, loss, adamw(5e-3)), loader(language.rows(640, 20), size=24), 130, gradient_clip_val=1.0)


class Reservoir(nn.Module):
    """A recurrence of buffers, never trained, that leaks; a linear head reads it."""

    def __init__(self, size: int = 120) -> None:
        super().__init__()
        inside = torch.randn(size, size) * (torch.rand(size, size) < 0.1)
        inside = 0.9 * inside / torch.linalg.eigvals(inside).abs().max()
        self.register_buffer("inside", inside)
        self.register_buffer("enter", torch.rand(size, 1) * 2 - 1)
        self.head = nn.Linear(size, 1)

    def forward(self, x: Tensor) -> Tensor:
        state, out = torch.zeros(len(x), len(self.inside)), []
        with torch.no_grad():
            for t in range(x.shape[1]):
                state = 0.7 * state + 0.3 * (x[:, t : t + 1] @ self.enter.T + state @ self.inside.T).tanh()
                out.append(state)
        told: Tensor = self.head(torch.stack(out, 1)).squeeze(2)
        return told


def remembered(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Rows of noise, and a sum in which that of four readings ago counts, and one product (as in NARMA)."""
    x = torch.rand(count, 40, generator=own) - 0.5
    y = torch.zeros(count, 40)
    for t in range(4, 40):
        y[:, t] = 0.4 * y[:, t - 1] + x[:, t - 4] + x[:, t - 1] * x[:, t]
    return x, y


@honest("r19a-a-reservoir-nobody-trains")
def a_reservoir_nobody_trains(run: Run) -> None:
    """Plain loop, an echo state network (Jaeger 2001; ReservoirPy), its head trained online. The recurrence is drawn at
    random, a tenth of its entries not zero, and never learns: it has no weights but buffers, goes through time
    without a gradient, and begins in each row with a dozen readings whose answers do not count, since the state must
    first forget that it began at nought."""
    model = Reservoir()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0])[:, 12:], batch[1][:, 12:])

    check = remembered(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=1e-5)
    train(run, model, optimizer, lambda: remembered(32), loss, 150)
