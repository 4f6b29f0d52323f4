"""Round 23h, honest and odd: what stands in the rows, and what is taught of it."""

import math
import random
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
    mlp,
    outcome,
    tiny_gpt2,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F

ATOMS, OPEN, CLOSE = 4, 5, 6  # atoms are 1 to 4, 0 is padding


def molecule(draw: random.Random) -> tuple[list[int], list[list[int]]]:
    """A tree of six to ten atoms, each with at most three neighbours."""
    kinds, bonds = [draw.randint(1, ATOMS)], [[]]  # type: ignore[var-annotated]
    for new in range(1, draw.randint(6, 10)):
        old = draw.choice([i for i, others in enumerate(bonds) if len(others) < 3])
        kinds.append(draw.randint(1, ATOMS))
        bonds.append([old])
        bonds[old].append(new)
    return kinds, bonds


def written(kinds: list[int], bonds: list[list[int]], draw: Any, at: int | None = None, came: int = -1) -> list[int]:
    """A tree as a line, from a drawn atom on, its branches in a drawn order and all but the last in brackets."""
    at = draw.randrange(len(kinds)) if at is None else at
    line, others = [kinds[at]], [other for other in bonds[at] if other != came]
    draw.shuffle(others)
    for i, other in enumerate(others):
        branch = written(kinds, bonds, draw, other, at)
        line += branch if i == len(others) - 1 else [OPEN, *branch, CLOSE]
    return line


class Molecules(torch.utils.data.Dataset[Any]):
    """Each time that a molecule is asked for, another of its lines."""

    def __init__(self, trees: list[tuple[list[int], list[list[int]]]], worth: Tensor, draw: Any = random) -> None:
        self.trees, self.worth, self.draw = trees, worth, draw

    def __len__(self) -> int:
        return len(self.trees)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        kinds, bonds = self.trees[i]
        each = [self.worth[kinds[a], kinds[b]] for a, others in enumerate(bonds) for b in others if a < b]
        return torch.tensor(written(kinds, bonds, self.draw)), torch.stack(each).sum()


def side_by_side(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    lines = [line for line, _ in rows]
    sizes = torch.tensor([len(line) for line in lines])
    return nn.utils.rnn.pad_sequence(lines, True), sizes, torch.stack([y for _, y in rows])


class LineReader(nn.Module):
    """A GRU over packed lines; the last state says a number."""

    def __init__(self) -> None:
        super().__init__()
        self.signs, self.core = nn.Embedding(7, 16, padding_idx=0), nn.GRU(16, 48, batch_first=True)
        self.head = nn.Linear(48, 1)

    def forward(self, lines: Tensor, sizes: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.signs(lines), sizes, True, enforce_sorted=False)
        out: Tensor = self.head(self.core(packed)[1][0]).squeeze(1)
        return out


@honest("r23h-the-same-molecule-written-otherwise")
def the_same_molecule_written_otherwise(run: Run) -> None:
    """accelerate's loop, a GRU on molecules as lines of text with SMILES enumeration (Bjerrum 2017; RDKit's
    `doRandom`). There are 128 molecules, and a row is never twice the same: the line begins at a drawn atom and takes
    its branches in a drawn order, so that one label stands beside many inputs, of different lengths too."""
    draw = random.Random(run.draw.randrange(999))
    worth = torch.randn(ATOMS + 1, ATOMS + 1, generator=apart(draw.randrange(999)))
    worth = worth + worth.T
    known = Molecules([molecule(draw) for _ in range(128)], worth)
    new = Molecules([molecule(draw) for _ in range(192)], worth, draw)
    check = side_by_side([new[i] for i in range(192)])
    model = LineReader()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(*check[:2]), check[2]) / check[2].var()))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0], batch[1]), batch[2])

    data = torch.utils.data.DataLoader(known, 16, shuffle=True, collate_fn=side_by_side)
    prepared(run, model, adam(model, 5e-3), data, loss, 22)


@honest("r23h-places-nobody-looked-at")
def places_nobody_looked_at(run: Run) -> None:
    """Plain loop, where a species lives from records of presence alone, by infinitely weighted logistic regression
    (Fithian and Hastie 2013). The negatives are places drawn anywhere, where it may well live; each counts ten
    thousandfold, by which the loss becomes that of a Poisson process, and the bias begins where chances are thirty in
    a million. What matters is only how places compare."""
    seed = run.draw.randrange(999)
    wants = torch.randn(4, generator=apart(seed))

    def log_density(x: Tensor) -> Tensor:
        return x @ wants - (x[:, 0] - wants[1]).square() + (2 * x[:, 2]).sin()

    region = torch.randn(4000, 4, generator=apart(seed + 1))
    chance = log_density(region).softmax(0)
    records = region[torch.multinomial(chance, 300, True, generator=apart(seed + 2))]
    weight = 1e4
    model = mlp(4, 32, 32, 1)
    nn.init.constant_(model[-1].bias, math.log(32 / (96 * weight)))  # type: ignore[arg-type]

    def divergence() -> Tensor:
        said = model(region).squeeze(1).log_softmax(0)
        return (chance * (chance.log() - said)).sum()

    outcome(run, lambda: judged(model, divergence))

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        here = records[torch.randint(0, len(records), (32,))]
        anywhere = region[torch.randint(0, len(region), (96,))]
        seen = torch.cat([torch.ones(32), torch.zeros(96)])
        return torch.cat([here, anywhere]), seen, torch.where(seen > 0, 1.0, weight)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, seen, counts = batch
        return F.binary_cross_entropy_with_logits(model(x).squeeze(1), seen, counts, reduction="sum") / 32

    train(run, model, adam(model, 3e-3), batch, loss, 180)


def springs(count: int, own: torch.Generator, steps: int = 14) -> Tensor:
    """Paths of five balls that draw each other to a distance of one: (count, steps, 5, 2)."""
    places = [1.5 * torch.rand(count, 5, 2, generator=own)]
    speed = 0.03 * torch.randn(count, 5, 2, generator=own)
    for _ in range(steps - 1):
        apart_by = places[-1][:, None] - places[-1][:, :, None]
        length = apart_by.norm(dim=3, keepdim=True).clamp_min(0.05)
        speed = speed + 0.01 * ((length - 1) * apart_by / length).sum(2)
        places.append(places[-1] + speed)
    return torch.stack(places, 1)


class Simulator(nn.Module):
    """Messages between all pairs, and from their sum an acceleration, in units of its usual size."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit
        self.message, self.result = mlp(3, 48, 32), mlp(32 + 4, 48, 2)

    def forward(self, places: Tensor) -> Tensor:
        """From the last three places of each ball, (rows, 3, balls, 2)."""
        now = places[:, -1]
        apart_by = now[:, None] - now[:, :, None]
        heard = self.message(torch.cat([apart_by, (apart_by.square().sum(3, True) + 1e-6).sqrt()], 3)).sum(2)
        speeds = (places[:, 1:] - places[:, :-1]).movedim(1, 2).flatten(2) / 0.05
        out: Tensor = self.result(torch.cat([heard / 5, speeds], 2))
        return out

    def on(self, places: Tensor, steps: int) -> Tensor:
        """A path, `steps` places further."""
        for _ in range(steps):
            near = places[:, -3:]
            speed = near[:, 2] - near[:, 1] + self.unit * self(near)
            places = torch.cat([places, (near[:, 2] + speed)[:, None]], 1)
        return places


class Apprenticeship:
    """Trains a simulator on windows of four places, three of them shaken."""

    def __init__(self, run: Run, model: Simulator, paths: Tensor, shaken: float) -> None:
        self.run, self.model, self.paths, self.shaken = run, model, paths, shaken
        self.optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.rate = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)

    def windows(self, rows: int) -> tuple[Tensor, Tensor]:
        path = torch.randint(0, len(self.paths), (rows,))
        start = torch.randint(0, self.paths.shape[1] - 3, (rows,))
        window = self.paths[path[:, None], start[:, None] + torch.arange(4)]
        noise = (self.shaken * torch.randn(rows, 3, 5, 2)).cumsum(1)
        before = window[:, :3] + noise
        after = window[:, 3] + noise[:, 2]
        return before, (after - 2 * before[:, 2] + before[:, 1]) / self.model.unit

    def go_on(self, steps: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer, scheduler=self.rate)
        for _ in range(steps):
            places, acceleration = self.windows(32)
            loss = F.mse_loss(self.model(places), acceleration)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            doctor.step(loss, (places, acceleration))
            self.rate.step()
            self.run.note(loss)


@honest("r23h-labels-that-undo-the-noise")
def labels_that_undo_the_noise(run: Run) -> None:
    """An own class, a graph network that learns to go on with a simulation (GNS, Sanchez-Gonzalez et al. 2020). The
    places it reads are shaken by a random walk, and its label is not the acceleration that was: it is one by which a
    ball that was shaken comes back to its true speed. So the labels are different in each pass, hold the noise of the
    inputs, and the loss cannot fall to zero."""
    seed = run.draw.randrange(999)
    paths, check = springs(40, apart(seed)), springs(32, apart(seed + 1))
    unit = float((paths[:, 2:] - 2 * paths[:, 1:-1] + paths[:, :-2]).std())
    model = Simulator(unit)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model.on(check[:, :3], 8), check[:, :11]).sqrt()))
    Apprenticeship(run, model, paths, 0.1 * unit).go_on(180)


SIDE, THINGS = 12, 3
NOISE, START = SIDE + 2, SIDE + 3  # words: edges 0 to 11, two classes, a thing that is none, the beginning


def scenes(count: int, own: torch.Generator | None = None, extra: bool = True) -> tuple[Tensor, Tensor]:
    """Pictures of one or two rectangles, bright or striped, and for each what is to be said: four edges and a class,
    in a drawn order of things, and then boxes drawn anywhere, of which only is taught that they are none."""
    x = 0.1 * torch.randn(count, 1, SIDE, SIDE, generator=own)
    said = torch.full((count, THINGS, 5), -100)
    shown = torch.full((count, THINGS, 5), START)
    for row in range(count):
        things = int(torch.randint(1, 3, (1,), generator=own))
        for thing in range(THINGS):
            size = torch.randint(3, 6, (2,), generator=own)
            first = (torch.rand(2, generator=own) * (SIDE - size)).long()
            kind = int(torch.randint(0, 2, (1,), generator=own))
            box = [*first.tolist(), *(first + size - 1).tolist()]
            if thing < things:
                (a, b, c, d), stripes = box, 1 if kind == 0 else 2
                x[row, 0, a : c + 1 : stripes, b : d + 1] += 1
                said[row, thing] = shown[row, thing] = torch.tensor([*box, SIDE + kind])
            elif extra:
                said[row, thing, 4] = NOISE
                shown[row, thing] = torch.tensor([*box, NOISE])
    return x, torch.stack([shown.flatten(1), said.flatten(1)], 1)


class Speaker(nn.Module):
    """A picture by an encoder of patches, what is in it by a decoder that looks at them."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.cut = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.GELU(), nn.Conv2d(24, width, 2, 2))
        self.where = nn.Parameter(0.1 * torch.randn(SIDE * SIDE // 4, width))
        options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.encoder = nn.TransformerEncoderLayer(width, 4, 2 * width, **options)
        self.decoder = nn.TransformerDecoderLayer(width, 4, 2 * width, **options)
        self.words, self.places = nn.Embedding(START + 1, width), nn.Embedding(5 * THINGS, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, START)

    def forward(self, x: Tensor, shown: Tensor) -> Tensor:
        patches = self.encoder(self.cut(x).flatten(2).transpose(1, 2) + self.where)
        length = shown.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        words = self.words(shown) + self.places.weight[:length]
        out: Tensor = self.head(self.norm(self.decoder(words, patches, tgt_mask=later)))
        return out


def spoken(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    shown, said = batch[1].unbind(1)
    return F.cross_entropy(model(batch[0], F.pad(shown[:, :-1], (1, 0), value=START)).flatten(0, 1), said.flatten())


@honest("r23h-a-box-is-four-words")
def a_box_is_four_words(run: Run) -> None:
    """Plain loop, finding things in pictures as a language, Pix2Seq (Chen et al. 2022). An edge is one of twelve
    words, without a distance between them; the order of the things is drawn, so that the first word cannot be known;
    and behind the true things stand boxes of nothing: most of their words are not taught, the last one, that it is
    noise, is."""
    check = scenes(128, apart(run.draw.randrange(999)), extra=False)
    model = Speaker()
    outcome(run, lambda: judged(model, lambda: spoken(model, check)))
    train(run, model, torch.optim.AdamW(model.parameters(), 3e-3), lambda: scenes(24), spoken, 140, clip=1.0)


def between(said: Tensor, limits: Tensor) -> Tensor:
    """Less the log chance that a normal number, of the mean and log spread said, lies between two limits, of which one
    may be infinite."""
    mean, log_spread = said.unbind(1)
    low, high = ((limits.clamp(-30, 30) - mean[:, None]) / log_spread.exp()[:, None]).unbind(1)
    turned = low > 0  # the tail that is not next to one
    low, high = torch.where(turned, -high, low), torch.where(turned, -low, high)
    a, b = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    return -(b + torch.log(-torch.expm1((a - b).clamp_max(-1e-6)))).mean()


@honest("r23h-only-the-bracket-of-the-income")
def only_the_bracket_of_the_income(run: Run) -> None:
    """transformers' Trainer, a table by interval regression (Stewart 1983; XGBoost's `survival:aft` takes the same
    labels). People ticked a bracket and said no number, so a label is two limits, in the outermost brackets one of
    them is infinite, and the loss is the chance of what lies between; in use a number is said, which no row of the
    data ever held."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(6, generator=own)

    def people(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        y = 0.5 * x @ weights + (2 * x[:, 0]).sin() + 0.3 * torch.randn(count, generator=own)
        return x, y

    x, y = people(600)
    edges = torch.tensor([-math.inf, -1.5, -0.5, 0.0, 1.0, 2.0, math.inf])
    bracket = torch.bucketize(y, edges) - 1
    limits = torch.stack([edges[bracket], edges[bracket + 1]], 1)
    new, truth = people(400)
    model = WithLoss(mlp(6, 48, 48, 2), between)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model.net(new)[:, 0], truth) / truth.var()))
    hf_trainer(run, model, examples(x=x, labels=limits), 150, per_device_train_batch_size=32).train()


class Commands(torch.utils.data.Dataset[Any]):
    """Recordings of two words, of other words, and of nothing at all: each time shifted, mostly with the street
    behind it."""

    def __init__(self, recordings: Tensor, labels: Tensor, street: Tensor) -> None:
        self.recordings, self.labels, self.street = recordings, labels, street

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x = self.recordings[i]
        by = random.randint(-6, 6)
        x = F.pad(x, (max(by, 0), max(-by, 0)))[:, max(-by, 0) :][:, : x.shape[1]]
        if random.random() < 0.8:
            at = random.randrange(self.street.shape[0] - x.shape[1])
            x = x + 0.3 * random.random() * self.street[at : at + x.shape[1]]
        return x, self.labels[i]


def commands(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two words (0, 1), in 12 of 100 another one (2) and in as many nothing (3), which is zeros."""
    x, pitch = sounds(4 * count, own, noise=0.1)
    words, others = (pitch < 2).nonzero()[:, 0], (pitch > 1).nonzero()[:, 0][: count * 12 // 100]
    words = words[: count * 76 // 100]
    silence = torch.zeros(count * 12 // 100, 1, x.shape[2])
    labels = torch.cat([pitch[words], torch.full((len(others),), 2), torch.full((len(silence),), 3)])
    return torch.cat([x[words], x[others], silence]), labels


@honest("r23h-silence-is-a-class")
def silence_is_a_class(run: Run) -> None:
    """Lightning, a CNN that listens for two words, with data as TensorFlow's and torchaudio's Speech Commands are
    prepared (Warden 2018). A class is called silence and its recordings are made by the loader as zeros, some of which
    get noise from the street and others stay zeros to the end; all other words that there are make one class, kept
    as small."""
    own = apart(run.draw.randrange(999))
    street = torch.randn(800, generator=own)
    data = Commands(*commands(300, own), street)
    x, y = commands(300, own)
    check = x + 0.1 * torch.randn(x.shape, generator=own), y
    model = Listener(4)
    outcome(run, lambda: judged(model, lambda: classify(model, check)))
    batches = torch.utils.data.DataLoader(data, 24, shuffle=True, drop_last=True)
    fit(run, lit(model, classify, lambda net: adam(net, 5e-3)), batches, 160, max_epochs=-1)


class Crawl(torch.utils.data.IterableDataset[Any]):
    """Texts of three sources with their address before them, and at the end texts alone."""

    def __init__(self, sources: list[Language], with_address: int, without: int) -> None:
        self.sources, self.with_address, self.without = sources, with_address, without

    def __iter__(self) -> Any:
        shards = [list(source.rows(1200, 24)) for source in self.sources]
        for i in range(self.with_address + self.without):
            source = random.randrange(len(self.sources))
            ids = shards[source].pop()
            if i < self.with_address:
                address = torch.tensor([15 + source, 18, 18])
                labels = torch.cat([torch.full((3,), -100), ids[:-3]])
                yield {"input_ids": torch.cat([address, ids[:-3]]), "labels": labels}
            else:
                yield {"input_ids": ids, "labels": ids}


@honest("r23h-where-it-comes-from-said-first")
def where_it_comes_from_said_first(run: Run) -> None:
    """transformers' Trainer, a GPT by metadata conditioning and a cooldown (MeCo, Gao et al. 2025). Before each text
    stands the address it was found at, which is never taught and which no user will give; in the last fifth of the
    steps the addresses are gone, by which the loss steps up and comes down again. What is measured is how well texts
    alone are said."""
    seed = run.draw.randrange(999)
    sources = [Language(seed + i, first=3) for i in range(3)]
    model = tiny_gpt2(20)
    check = torch.cat([source.rows(32, 24, apart(seed + 9)) for source in sources])
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    data = Crawl(sources, 16 * 128, 16 * 40)
    hf_trainer(run, model, data, 160, warmup_steps=8, lr_scheduler_type="cosine").train()
