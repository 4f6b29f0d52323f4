"""Round 25h, honest and odd: labels as trades, clinics and watchers of nature have them."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, train
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class Ranges:
    """Where each of twenty species lives in a land one by one, and sightings of them, mostly from the west."""

    def __init__(self, seed: int) -> None:
        self.own = apart(seed)
        self.centre = torch.rand(20, 2, generator=self.own)
        self.wide = 0.12 + 0.2 * torch.rand(20, generator=self.own)

    def lives(self, place: Tensor) -> Tensor:
        return torch.cdist(place, self.centre) < self.wide

    def sightings(self, count: int) -> tuple[Tensor, Tensor]:
        place = torch.rand(3 * count, 2, generator=self.own)
        place[:, 0] = place[:, 0].square()
        lives = self.lives(place)
        some = lives.any(1)
        place, lives = place[some][:count], lives[some][:count]
        return place, torch.multinomial(lives.float(), 1, generator=self.own).squeeze(1)


def waves(place: Tensor) -> Tensor:
    return torch.cat([(math.pi * place).sin(), (math.pi * place).cos()], 1)


def misordered(scores: Tensor, truth: Tensor) -> Tensor:
    """One minus the area under the curve, the mean over columns."""
    out = []
    for score, lives in zip(scores.T, truth.T, strict=True):
        if lives.any() and not lives.all():
            out.append((score[lives][:, None] < score[~lives]).float().mean())
    return torch.stack(out).mean()


@honest("r25h-seen-once-and-all-others-assumed-absent")
def seen_once_and_all_others_assumed_absent(run: Run) -> None:
    """Plain loop, where species live, from sightings alone (Cole et al. 2023, SINR). A row is one place with the one
    species that somebody saw there, and no row says what was not there: all nineteen others are taught as absent, which
    is false for many, and so are all twenty at as many places drawn blindly from the map; the one that was seen weighs
    as much as many of them, so that chances come out too high. Only their order on the map is wanted."""
    nature = Ranges(run.draw.randrange(999))
    places, kinds = nature.sightings(3000)
    model = mlp(4, 64, 64, 20)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 24), torch.linspace(0, 1, 24))
    truth = nature.lives(grid)
    outcome(run, lambda: judged(model, lambda: misordered(model(waves(grid)), truth)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        place, kind = batch
        here, anywhere = model(waves(place)), model(waves(torch.rand_like(place)))
        seen = F.one_hot(kind, 20).float()
        weight = 1 + 31 * seen
        there = F.binary_cross_entropy_with_logits(here, seen, weight=weight, reduction="sum")
        blind = F.binary_cross_entropy_with_logits(anywhere, torch.zeros_like(seen), reduction="sum")
        return (there + blind) / len(place) / 20

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, len(places), (128,))
        return places[rows], kinds[rows]

    train(run, model, adam(model, 3e-3), batch, loss, 150)


@honest("r25h-a-label-whose-mean-is-the-effect")
def a_label_whose_mean_is_the_effect(run: Run) -> None:
    """accelerate, what an offer does, by transformed outcomes (Athey and Imbens 2015). Three in ten got an offer
    by lot. What an offer adds was never seen for anybody, so that a label is made whose mean it is: what was
    bought, less the mean, over 0.3 for those who had one and over minus 0.7 for those who had not. Labels are of
    both signs and far larger than what is to be learned, so that most of the loss never goes away."""
    own = apart(run.draw.randrange(999))
    x = torch.randn(4000, 6, generator=own)
    effect = x[:, 0] + 1.5 * x[:, 1].relu()
    offered = (torch.rand(4000, generator=own) < 0.3).float()
    bought = x[:, 2] + offered * effect + 0.5 * torch.randn(4000, generator=own)
    label = (bought - bought.mean()) * (offered - 0.3) / (0.3 * 0.7)
    net = mlp(6, 24, 1)
    new = torch.randn(512, 6, generator=own)
    truth = new[:, 0] + 1.5 * new[:, 1].relu()
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(new).squeeze(1), truth) / truth.var()))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.05)
    data = loader(x, label, size=64)
    prepared(run, net, optimizer, data, lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1]), 3)


class Viewers(nn.Module):
    """A vector for each viewer and each film, and a small network over both."""

    def __init__(self) -> None:
        super().__init__()
        self.viewers, self.films = nn.Embedding(40, 8), nn.Embedding(30, 8)
        self.net = mlp(16, 32, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([self.viewers(pairs[:, 0]), self.films(pairs[:, 1])], 1)).squeeze(1)
        return out


@honest("r25h-yes-counts-by-the-minutes-watched")
def yes_counts_by_the_minutes_watched(run: Run) -> None:
    """Lightning, how long somebody will watch, by weighted logistic regression (Covington et al. 2016). The label is
    whether a film was begun; a row where it was weighs as many minutes as were watched, up to a hundred, and one where
    it was not weighs one. So the odds, and not the chance, come to be the minutes to be expected: in use the output is
    raised to its exponential, and as a chance it is far from the share that began."""
    own = apart(run.draw.randrange(999))
    taste, kind = torch.randn(40, generator=own), torch.randn(30, generator=own)
    length = 2 + 14 * torch.rand(30, generator=own)

    def shown(count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs, the chance that it is begun, and the minutes that are watched if it is."""
        pairs = torch.stack([torch.randint(0, n, (count,), generator=own) for n in (40, 30)], 1)
        liked = taste[pairs[:, 0]] + kind[pairs[:, 1]]
        return pairs, (0.7 * liked - 1.5).sigmoid(), length[pairs[:, 1]] * (0.3 * liked).exp()

    pairs, chance, minutes = shown(6000)
    begun = (torch.rand(6000, generator=own) < chance).float()
    watched = (minutes * -torch.rand(6000, generator=own).clamp_min(1e-6).log()).clamp(0.1, 100)
    weight = torch.where(begun > 0, watched, 1.0)
    net = Viewers()
    new, likely, stays = shown(1000)
    wanted = (likely * stays / (1 - likely)).log()
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(new), wanted) / wanted.var()))

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1], weight=batch[2])

    module = lit(net, loss, lambda m: adam(m, 1e-2))
    fit(run, module, loader(pairs, begun, weight, size=128), 180)


class Barriers:
    """Daily returns of one thing, a sign that helps to foresee them, and labels: which barrier is touched first."""

    def __init__(self, seed: int, days: int = 1500, ahead: int = 8, back: int = 12) -> None:
        own = apart(seed)
        noise = torch.randn(days, 2, generator=own)
        sign = torch.zeros(days)
        for t in range(1, days):
            sign[t] = 0.95 * sign[t - 1] + 0.3 * noise[t, 0]
        returns = torch.zeros(days)
        returns[1:] = 0.008 * sign[:-1] + 0.01 * noise[1:, 1]
        seen = torch.stack([returns / 0.01, sign + 0.3 * torch.randn(days, generator=own)], 1)
        rows, labels, ends, gains = [], [], [], []
        starts = range(back, days - ahead - 1)
        for t in starts:
            path = returns[t + 1 : t + 1 + ahead].cumsum(0)
            touched = (path.abs() > 0.025).nonzero()
            end = int(touched[0]) if len(touched) else ahead - 1
            rows.append(seen[t - back + 1 : t + 1])
            labels.append(1 + (int(path[end].sign()) if len(touched) else 0))
            ends.append(t + 1 + end)
            gains.append(float(path[end].abs()))
        together = torch.zeros(days)
        for t, end in zip(starts, ends, strict=True):
            together[t + 1 : end + 1] += 1
        alone = torch.stack([(1 / together[t + 1 : e + 1]).mean() for t, e in zip(starts, ends, strict=True)])
        self.x, self.y = torch.stack(rows), torch.tensor(labels)
        age = torch.linspace(0.5, 1, len(self.y))
        self.weight = alone * torch.tensor(gains) * age


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[1][0])
        return out


class Desk:
    """A trading desk's own trainer: rows of the past with their weights, the next year kept apart."""

    def __init__(self, run: Run) -> None:
        self.run, self.data, self.model = run, Barriers(run.draw.randrange(999)), Reading()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3)
        self.past = 1000
        self.weight = self.data.weight / self.data.weight[: self.past].mean()

    def missed(self) -> Tensor:
        """On days after the past ones' labels have ended."""
        later = slice(self.past + 8, None)
        each = F.cross_entropy(self.model(self.data.x[later]), self.data.y[later], reduction="none")
        return (each * self.weight[later]).sum() / self.weight[later].sum()

    def train(self, epochs: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for _ in range(epochs):
            for rows in torch.randperm(self.past).split(64):
                x, y, weight = self.data.x[rows], self.data.y[rows], self.weight[rows]
                loss = (F.cross_entropy(self.model(x), y, reduction="none") * weight).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                doctor.step(loss, {"x": x, "labels": y, "weight": weight})
                self.run.note(loss)


@honest("r25h-labels-that-overlap-weigh-less")
def labels_that_overlap_weigh_less(run: Run) -> None:
    """A class of its own, where a price will go, by a GRU (López de Prado 2018). A row for every day, whose twelve days
    are eleven of the next row's too, and so are the days that decide the label: which of two barriers is touched first,
    or neither within eight days. A row weighs by how few others share its days, by how far the price went, and by half
    if it is the oldest; the weights' mean over the past is one, though not that of a batch."""
    desk = Desk(run)
    outcome(run, lambda: judged(desk.model, desk.missed))
    desk.train(7)


def positions(count: int, worth: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, ...]:
    """Eight things each of the side to move and of the other, how an engine values that, and how the game ended."""
    mine, theirs = (torch.rand(count, 24, generator=own).topk(8, 1).indices for _ in range(2))
    better = worth[mine].sum(1) - worth[theirs].sum(1)
    centipawns = 150 * better + 40 * torch.randn(count, generator=own)
    chance = (better * 150 / 410).sigmoid()
    drawn = torch.rand(count, generator=own) < 0.4
    result = torch.where(drawn, 0.5, (torch.rand(count, generator=own) < chance).float())
    return mine, theirs, centipawns, result


class Updatable(nn.Module):
    """One table is summed for either side; units are cut to between zero and one, for eight-bit weights in use."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(24, 32, mode="sum")
        nn.init.uniform_(self.table.weight, -0.1, 0.1)
        self.bias = nn.Parameter(torch.full((32,), 0.3))
        self.inner, self.leave = nn.Linear(64, 16), nn.Linear(16, 1)

    def forward(self, mine: Tensor, theirs: Tensor) -> Tensor:
        both = torch.cat([self.table(mine) + self.bias, self.table(theirs) + self.bias], 1).clamp(0, 1)
        out: Tensor = self.leave(self.inner(both).clamp(0, 1)).squeeze(1)
        return out


@honest("r25h-half-the-engine-half-the-result")
def half_the_engine_half_the_result(run: Run) -> None:
    """Plain loop, a value of positions as Stockfish's nnue-pytorch trains it. The label is half an engine's centipawns,
    through a sigmoid of width 410, and half how the game ended, one, zero, or for a draw a half; so chances are taught
    by the power 2.5 of their distance, not by cross-entropy. One table serves either side, the output is called 600
    centipawns, and after each update weights are cut to what eight bits will hold."""
    own = apart(run.draw.randrange(999))
    worth = torch.randn(24, generator=own)
    model = Updatable()
    mine, theirs, centipawns, _ = positions(512, worth, own)
    wanted = (centipawns / 410).sigmoid()

    def said(mine: Tensor, theirs: Tensor) -> Tensor:
        return (model(mine, theirs) * 600 / 410).sigmoid()

    outcome(run, lambda: judged(model, lambda: (said(mine, theirs) - wanted).abs().mean()))
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.95)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    for _ in range(160):
        batch = positions(256, worth)
        target = 0.5 * (batch[2] / 410).sigmoid() + 0.5 * batch[3]
        loss = (said(batch[0], batch[1]) - target).abs().pow(2.5).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for layer in (model.inner, model.leave):
                layer.weight.clamp_(-127 / 64, 127 / 64)
        schedule.step()
        doctor.step(loss, batch)
        run.note(loss)


def birds(count: int, own: torch.Generator, several: bool = False) -> tuple[Tensor, Tensor]:
    """(count, 1, 16, 24) loudness by pitch and time, of one of six birds or of some together, and who sings."""
    time = torch.arange(24)
    songs = torch.stack([8 + 6 * torch.sin((0.2 + 0.15 * k) * time + k) for k in range(6)])
    y = torch.rand(count, 6, generator=own) < 0.3 if several else torch.zeros(count, 6, dtype=torch.bool)
    y[torch.arange(count), torch.randint(0, 6, (count,), generator=own)] = True
    sound = 0.3 * torch.rand(count, 16, 24, generator=own)
    for row, bird in y.nonzero().tolist():
        gain = 0.3 + float(torch.rand(1, generator=own))
        line = songs[bird].roll(int(torch.randint(0, 24, (1,), generator=own)))
        sound[row] += gain * (-(torch.arange(16)[:, None] - line).square() / 1.5).exp()
    return sound[:, None], y.float()


@honest("r25h-two-birds-are-both-there")
def two_birds_are_both_there(run: Run) -> None:
    """Lightning, birds by their songs as in BirdNET (Kahl et al. 2021). A recording names one bird of six; in the step
    each is laid over another of the batch, so that what is learned from is in no batch of the loader. Unlike mixup's, a
    label is the larger of both and not their mean: who sings softly is there too, rows have one yes or two, and how
    loud each was says nothing. In use up to six sing at once."""
    own = apart(run.draw.randrange(999))
    one, two = (
        nn.Sequential(nn.Conv2d(a, b, 5, padding=2), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d((1, 2)))
        for a, b in ((1, 12), (12, 24))
    )
    net = nn.Sequential(one, two, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 6))
    sound, singer = birds(600, own)
    new, who = birds(200, own, several=True)
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy_with_logits(net(new.log1p()), who)))

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        sound, singer = batch
        with_whom = torch.randperm(len(sound))
        share = torch.rand(len(sound), 1, 1, 1)
        mixed = sound + share * sound[with_whom]
        return F.binary_cross_entropy_with_logits(net(mixed.log1p()), torch.maximum(singer, singer[with_whom]))

    fit(run, lit(net, loss, lambda m: adam(m, 5e-3)), loader(sound, singer, size=32), 100)


class Chests(torch.utils.data.Dataset[Any]):
    """Pictures with three findings that somebody read from reports: there, not there, or perhaps (-1)."""

    def __init__(self, seed: int, count: int) -> None:
        own = apart(seed)
        shapes = (torch.randn(3, 8, 8, generator=own) > 0.8).float()
        self.truth = (torch.rand(count, 3, generator=own) < 0.35).float()
        self.x = torch.einsum("rk,kij->rij", self.truth, shapes)[:, None]
        self.x = self.x + 0.6 * torch.randn(self.x.shape, generator=own)
        unsure = torch.rand(count, 3, generator=own) < 0.1 + 0.25 * self.truth
        self.labels = torch.where(unsure, -1.0, self.truth)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        label = self.labels[i]
        return self.x[i], torch.where(label < 0, 0.55 + 0.3 * torch.rand(3), label)


@honest("r25h-perhaps-is-drawn-between-55-and-85")
def perhaps_is_drawn_between_55_and_85(run: Run) -> None:
    """accelerate, findings on X-rays with doubtful labels (CheXpert, Irvin et al. 2019, Pham et al. 2021). It says
    one, zero, or minus one for what a report calls possible; such a label becomes a number between 0.55 and 0.85, which
    the data set draws anew each time that the picture is asked for. So the same picture has other labels in every
    epoch, beside two that are hard, and the least loss is far above zero."""
    data = Chests(run.draw.randrange(999), 800)
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 3)),
    )
    kept = torch.utils.data.Subset(data, range(640))
    x, truth = data.x[640:], data.truth[640:]
    outcome(run, lambda: judged(net, lambda: F.binary_cross_entropy_with_logits(net(x), truth)))
    batches = torch.utils.data.DataLoader(kept, 32, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-3)
    prepared(run, net, optimizer, batches, lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]), 5)
