"""Honest runs whose losses and heads are unusual: ordinal, CTC, mixture density, smoothing, triplets, survival."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F


class CumulativeLink(nn.Module):
    """One score for each row and ordered thresholds: the first one free, the others a positive gap further."""

    def __init__(self, inputs: int, levels: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, 1, bias=False))
        self.first = nn.Parameter(torch.tensor(-1.0))
        self.gaps = nn.Parameter(torch.zeros(levels - 2))

    def forward(self, x: Tensor) -> Tensor:
        thresholds = torch.cat([self.first[None], self.first + F.softplus(self.gaps).cumsum(0)])
        below = torch.sigmoid(thresholds - self.score(x))
        edges = torch.cat([torch.zeros(len(x), 1), below, torch.ones(len(x), 1)], 1)
        return edges.diff(dim=1)


@honest("nh-ordinal-thresholds")
def ordinal(run: Run) -> None:
    """Ratings from 1 to 5 as a cumulative link model: a scalar score against learned, ordered thresholds, no softmax.

    The levels are ordered, so one score is what a rating depends on; the score has no bias because the first
    threshold is one.
    """
    truth = torch.randn(6)
    model = CumulativeLink(6, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)

    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randn(48, 6)
        u = torch.rand(48).clamp(1e-4, 1 - 1e-4)
        latent = x @ truth + x[:, 0] * x[:, 1] + 0.5 * (u / (1 - u)).log()
        return x, torch.bucketize(latent, torch.tensor([-2.0, -0.5, 0.7, 2.5]))

    def negative(network: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        chosen = network(batch[0]).gather(1, batch[1][:, None])
        return -chosen.clamp_min(1e-6).log().mean()

    run.preflight(doctor, draw(), negative)
    for _ in range(120):
        batch = draw()
        loss = negative(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Listener(nn.Module):
    def __init__(self, symbols: int, features: int) -> None:
        super().__init__()
        self.counting = Counting()
        self.rnn = nn.GRU(features, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, symbols + 1)

    def forward(self, frames: Tensor) -> Tensor:
        scores: Tensor = self.out(self.rnn(self.counting(frames))[0])
        return scores.log_softmax(-1)


@honest("nh-ctc-frames")
def ctc(run: Run) -> None:
    """A two-way GRU with the CTC loss: frames three times as many as symbols, targets without alignment.

    The model may see all frames, the later ones too; the loss starts at tens and first falls by saying nothing.
    """
    symbols, features = 5, 8
    codes = torch.randn(symbols + 1, features)
    model = Listener(symbols, features)
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, weight_decay=0.01)
    doctor = run.watch(model, optimizer)
    for _ in range(110):
        frames, lengths, targets, sizes = [], [], [], []
        for _ in range(8):
            word = torch.randint(1, symbols + 1, (run.draw.randint(2, 5),))
            repeats = torch.randint(2, 5, (len(word),))
            frames.append(codes[word].repeat_interleave(repeats, 0))
            lengths.append(int(repeats.sum()) + len(word))
            pause = torch.zeros(len(word), features)  # silence at the end
            frames[-1] = torch.cat([frames[-1], pause]) + 0.2 * torch.randn(lengths[-1], features)
            targets.append(word)
            sizes.append(len(word))
        x = nn.utils.rnn.pad_sequence(frames, batch_first=True)
        y = nn.utils.rnn.pad_sequence(targets, batch_first=True)
        scores = model(x).transpose(0, 1)
        loss = F.ctc_loss(scores, y, torch.tensor(lengths), torch.tensor(sizes), zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(loss, {"frames": x, "symbols": y})
        run.note(loss)


class MixtureDensity(nn.Module):
    def __init__(self, parts: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 3 * parts)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        share, mean, spread = self.head(self.body(x)).chunk(3, -1)
        return {"log_share": share.log_softmax(-1), "mean": mean, "log_spread": spread.clamp(-5.0, 3.0)}


@honest("nh-density-below-zero")
def density(run: Run) -> None:
    """A mixture density network for an inverse problem with several answers; its loss is minus a log density.

    A density of a narrow answer is above one, so the loss passes through zero and ends below it, as it should.
    """
    model = MixtureDensity(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=200)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(200):
        y = torch.rand(96, 1)
        x = y + 0.3 * torch.sin(2 * math.pi * y) + 0.01 * torch.randn(96, 1)
        out = model(x)
        away = (y - out["mean"]) / out["log_spread"].exp()
        log_density = out["log_share"] - out["log_spread"] - 0.5 * away**2 - 0.5 * math.log(2 * math.pi)
        loss = -log_density.logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        scheduler.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-smoothing-of-six-tenths")
def smoothing(run: Run) -> None:
    """A convolutional net with a label smoothing of 0.6, to be distilled from later: scores kept close on purpose.

    The loss cannot fall below the entropy of the smoothed labels, about 1.5 for six classes; accuracy rises all the
    same.
    """
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.Conv2d(12, 24, 3, stride=2),
        nn.SiLU(),
        nn.Conv2d(24, 24, 3, stride=2),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(24 * 4, 6),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3)
    doctor = run.watch(model, optimizer)
    held = shapes(128, classes=6)
    with torch.no_grad():
        quantity(run, accuracy(model(held[0]), held[1]))
    for _ in range(120):
        x, y = shapes(32, classes=6)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
    with torch.no_grad():
        quantity(run, accuracy(model(held[0]), held[1]))


@honest("nh-triplets-that-run-out")
def triplets(run: Run) -> None:
    """Triplets with a margin, the hardest of the batch; more and more batches have none left that violates it.

    The loss is then exactly zero and so are the gradients: the embedding is what it should be for that batch.
    """
    centres = torch.randn(10, 12)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.5)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        classes = torch.randperm(10)[:4]
        labels = classes.repeat_interleave(3)
        x = centres[labels] + 0.7 * torch.randn(12, 12)
        places = F.normalize(model(x), dim=-1)
        apart = 2 - 2 * places @ places.T
        same = labels[:, None] == labels[None, :]
        furthest = apart.masked_fill(~same, -1.0).amax(1)
        nearest = apart.masked_fill(same, 9.0).amin(1)
        loss = F.relu(furthest - nearest + 0.2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"x": x, "labels": labels})
        run.note(loss)


def concordance(risk: Tensor, time: Tensor, event: Tensor) -> float:
    pairs = (time[:, None] < time[None, :]) & event[:, None].bool()
    return float((risk[:, None] > risk[None, :])[pairs].float().mean())


@honest("nh-survival-sorted")
def survival(run: Run) -> None:
    """Cox's partial likelihood: rows sorted by time in each batch, half of them censored, no bias anywhere at the end.

    The likelihood compares each death with those still alive, so the rows belong together and their order is used;
    a constant added to all risks changes nothing, hence no bias in the last layer.
    """
    truth = torch.randn(8)
    model = nn.Sequential(nn.Linear(8, 24), nn.ELU(), nn.Linear(24, 1, bias=False))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)

    def draw(rows: int) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(rows, 8)
        death = torch.empty(rows).exponential_() / (x @ truth + (x[:, 0] * x[:, 1])).exp()
        leaving = torch.empty(rows).exponential_()
        time, event = torch.minimum(death, leaving), (death <= leaving).float()
        order = time.argsort(descending=True)
        return x[order], time[order], event[order]

    held = draw(200)
    with torch.no_grad():
        quantity(run, concordance(model(held[0]).squeeze(1), held[1], held[2]))
    for _ in range(120):
        x, time, event = draw(48)
        risk = model(x).squeeze(1)
        loss = -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum().clamp_min(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, time, event))
        run.note(loss)
    with torch.no_grad():
        quantity(run, concordance(model(held[0]).squeeze(1), held[1], held[2]))
