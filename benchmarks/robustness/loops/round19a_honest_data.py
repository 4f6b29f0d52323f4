"""Round 19a, honest and odd: what goes in, and what stands beside it as a label."""

import math

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
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F

STEPS_OF_SCALE = 24


def seasons(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24) readings with a period of six and a slope of their own, in any unit, and the next eight."""
    time = torch.arange(32.0)
    shape = 1 + 0.6 * torch.randn(count, 6, generator=own)
    rows = shape[:, torch.arange(32) % 6] + 0.02 * torch.randn(count, 1, generator=own) * time
    rows = rows + 0.1 * torch.randn(rows.shape, generator=own)
    rows = rows * (3 * torch.randn(count, 1, generator=own)).exp()
    return rows[:, :24], rows[:, 24:]


def as_words(rows: Tensor, unit: Tensor) -> Tensor:
    """Words 2 to 25: the step of the scale from -4 to 4 that a reading falls on, in units of its own series."""
    return 2 + ((rows / unit + 4) / 8 * STEPS_OF_SCALE).long().clamp(0, STEPS_OF_SCALE - 1)


@honest("r19a-readings-as-words-without-an-order")
def readings_as_words_without_an_order(run: Run) -> None:
    """Trainer, series foretold by a T5 (Chronos, Ansari et al. 2024). Each series is divided by the mean size of its
    own readings and cut to two dozen steps of a scale, and these are words: cross-entropy is not told that one step is
    next to another, a miss by one costs as much as a miss by twenty, steps far out never occur, and the unit, which
    differs by factors of thousands from row to row, is thrown away before anything is read."""
    from transformers import T5Config, T5ForConditionalGeneration

    def cut(count: int, own: torch.Generator | None = None) -> dict[str, Tensor]:
        past, future = seasons(count, own)
        unit = past.abs().mean(1, keepdim=True)
        return {"input_ids": as_words(past, unit), "labels": as_words(future, unit)}

    options = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(vocab_size=2 + STEPS_OF_SCALE, **options, **special))
    check = cut(128, apart(1))
    outcome(run, lambda: judged(model, lambda: model(**check).loss))
    data = examples(**cut(1600, apart(run.draw.randrange(999))))
    hf_trainer(run, model, data, 120, per_device_train_batch_size=32, learning_rate=1e-2, warmup_steps=10).train()


class BoughtLater(nn.Module):
    """For each click two numbers: whether it will be bought at all, and how fast."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.ReLU())
        self.whether, self.speed = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.whether(h).squeeze(1), self.speed(h).squeeze(1)


def clicks(count: int, seed: int, own: torch.Generator) -> dict[str, Tensor]:
    """Clicks, how long ago they were, and whether they have been bought by now, and after how long."""
    x = torch.randn(count, 6, generator=own)
    w, v = torch.randn(2, 6, generator=apart(seed + 3))
    ever = torch.rand(count, generator=own) < (1.5 * x @ w / w.norm()).sigmoid()
    wait = -torch.rand(count, generator=own).clamp_min(1e-6).log() * (0.5 * x @ v / v.norm()).exp()
    age = 1.5 * torch.rand(count, generator=own)
    bought = ever & (wait < age)
    return {"x": x, "age": age, "bought": bought.float(), "wait": torch.where(bought, wait, 0), "ever": ever.float()}


@honest("r19a-no-may-still-become-yes")
def no_may_still_become_yes(run: Run) -> None:
    """Plain loop, advertising with delayed feedback (Chapelle 2014). Many rows that say no are wrong: they have not
    been bought yet, and a second head beside the first learns how long one waits, so that a no on a young click hardly
    counts. No label is ever given to either number alone, and the first head ends far above the share of yes in the
    data, which is right."""
    seed = run.draw.randrange(999)
    rows = clicks(1200, seed, apart(seed))
    check = clicks(512, seed, apart(1))
    model = BoughtLater()
    outcome(run, lambda: judged(model, lambda: F.binary_cross_entropy_with_logits(model(check["x"])[0], check["ever"])))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        whether, speed = model(batch["x"])
        yes = F.logsigmoid(whether) + speed - speed.exp() * batch["wait"]
        no = torch.logaddexp(F.logsigmoid(-whether), F.logsigmoid(whether) - speed.exp() * batch["age"])
        return -torch.where(batch["bought"] > 0, yes, no).mean()

    def some() -> dict[str, Tensor]:
        chosen = torch.randint(0, 1200, (64,))
        return {k: v[chosen] for k, v in rows.items() if k != "ever"}

    train(run, model, adam(model, 5e-3), some, loss, 180)


class Meter(nn.Module):
    """What is expected of a row, and one spread for all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(6, 48, 48, 1, act=nn.Tanh)
        self.log_spread = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x).squeeze(1)
        return out


@honest("r19a-below-what-the-meter-shows")
def below_what_the_meter_shows(run: Run) -> None:
    """Lightning, concentrations with a limit of detection (Tobin 1958; so in assays and water samples). Half of the
    labels are one and the same number, since the meter shows nothing lower; for these the loss is how probable
    anything below would be, and the network's outputs go far under the least label there is. One learned number
    is the spread of all errors, and the loss mixes densities with probabilities."""
    seed = run.draw.randrange(999)
    x, y = table(768, seed, apart(2))
    new, truth = table(256, seed, apart(1))
    limit = float(y.median())
    model = Meter()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new), truth) / truth.var()))

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        expected, spread = model(batch[0]), model.log_spread.exp()  # type: ignore[operator]
        shown = -torch.distributions.Normal(expected, spread).log_prob(batch[1])
        below = -torch.special.log_ndtr((limit - expected) / spread)
        return torch.where(batch[1] <= limit, below, shown).mean()

    fit(run, lit(model, loss, adamw(5e-3)), loader(x, y.clamp_min(limit), size=48), 190)


def waves(count: int, own: torch.Generator | None = None) -> Tensor:
    """(count, 1, 12, 12) waves of any direction and phase."""
    down, along, phase = torch.rand(3, count, 1, 1, 1, generator=own)
    time = torch.arange(12.0)
    return ((0.5 + 0.5 * down) * time[:, None] + along * time + 2 * math.pi * phase).sin()


class BlindSpots:
    """Trains a network on single noisy pictures: a few pixels take a neighbour's value, and are asked as they were."""

    def __init__(self, run: Run, net: nn.Module, noisy: Tensor) -> None:
        self.run, self.net, self.noisy = run, net, noisy
        self.optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def train(self, steps: int) -> None:
        doctor = self.run.watch(self.net, self.optimizer)
        for _ in range(steps):
            clean = self.noisy[torch.randint(0, len(self.noisy), (24,))]
            spots = torch.rand(clean.shape) < 0.1
            row, column = (int(n) for n in torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])[torch.randint(0, 4, ())])
            shown = torch.where(spots, clean.roll((row, column), (-2, -1)), clean)
            errors = (self.net(shown) - clean).square()
            update(self.run, doctor, self.optimizer, (errors * spots).sum() / spots.sum(), (shown, clean, spots))


@honest("r19a-the-noisy-pixel-is-its-own-label")
def the_noisy_pixel_is_its_own_label(run: Run) -> None:
    """A class of its own, microscopy without clean pictures (Noise2Void, Krull et al. 2019; CAREamics). Input and
    label are the same noisy picture but for one pixel in ten, which shows a neighbour's value and is asked as it was;
    nine in ten of the outputs are not taught. The loss cannot go below the noise itself and nearly stands still soon,
    and no clean picture is seen in training."""
    seed = run.draw.randrange(999)
    noisy = waves(400, apart(seed))
    noisy = noisy + 0.5 * torch.randn(noisy.shape, generator=apart(seed + 1))
    truth = waves(96, apart(1))
    check = truth + 0.5 * torch.randn(truth.shape, generator=apart(3))

    def layer(a: int, b: int) -> nn.Conv2d:
        return nn.Conv2d(a, b, 3, padding=1, padding_mode="reflect")

    net = nn.Sequential(layer(1, 16), nn.LeakyReLU(0.1), layer(16, 16), nn.LeakyReLU(0.1), layer(16, 1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(check), truth)))
    BlindSpots(run, net, noisy).train(160)


class TwoTables(nn.Module):
    """Two vectors and two single numbers for each word: as the one that is looked from, and as the one looked at."""

    def __init__(self, words: int, width: int = 8) -> None:
        super().__init__()
        self.of, self.at = nn.Embedding(words, width), nn.Embedding(words, width)
        self.of_bias, self.at_bias = nn.Embedding(words, 1), nn.Embedding(words, 1)
        for part in self.children():
            nn.init.uniform_(part.weight, -0.5 / width, 0.5 / width)  # type: ignore[arg-type]

    def forward(self, pairs: Tensor) -> Tensor:
        i, j = pairs.T
        out: Tensor = (self.of(i) * self.at(j)).sum(1) + (self.of_bias(i) + self.at_bias(j)).squeeze(1)
        return out


@honest("r19a-logarithms-of-how-often")
def logarithms_of_how_often(run: Run) -> None:
    """Plain loop, vectors of words from a table of counts (GloVe, Pennington et al. 2014), with the paper's Adagrad at
    0.05 and its start at half a width-th. No text is read: a row is two words, its label the logarithm of how often
    they were near each other; pairs never seen are left out and not taught as nought, rare ones weigh a hundredth of
    frequent ones, and each word has two vectors, of which in use the sum is taken."""
    own = apart(run.draw.randrange(999))
    hidden = torch.randn(2, 60, 4, generator=own)
    often = (hidden[0] @ hidden[1].T * 0.8 + 1.5 * torch.randn(60, 1, generator=own) + 2).exp()
    counts = torch.poisson(often, generator=own)
    pairs = counts.nonzero()
    pairs = pairs[torch.randperm(len(pairs), generator=own)]
    seen = counts[pairs[:, 0], pairs[:, 1]]
    model = TwoTables(60)
    kept = len(pairs) - 250

    def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        weight = (batch[1] / 50).clamp(max=1) ** 0.75
        return (weight * (model(batch[0]) - batch[1].log()).square()).mean()

    outcome(run, lambda: judged(model, lambda: error(model, (pairs[kept:], seen[kept:]))))

    def some() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, kept, (256,))
        return pairs[chosen], seen[chosen]

    train(run, model, torch.optim.Adagrad(model.parameters(), lr=0.05), some, error, 200)


@honest("r19a-mixed-half-way-up")
def mixed_half_way_up(run: Run) -> None:
    """Plain loop, pictures by manifold mixup (Verma et al. 2019). In each step one layer is drawn, its features are
    blended with those of the same batch in another order, and the labels with them; sometimes it is the picture
    itself. So the training loss stays far above that of whole pictures, no row of a batch stands for itself, and one
    picture reaches the outputs of another."""
    seed = run.draw.randrange(999)
    parts = nn.ModuleList(
        [
            nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
        ]
    )
    model = nn.Sequential(*parts)
    check, truth = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check), truth)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        for group in optimizer.param_groups:
            group["lr"] = 0.025 * (1 + math.cos(math.pi * step / 120))
        x, y = pictures(32, seed)
        share = float(torch.distributions.Beta(2.0, 2.0).sample())
        where, other = int(torch.randint(0, 3, ())), torch.randperm(len(x))
        h = x
        for index, part in enumerate(parts):
            if index == where:
                h = share * h + (1 - share) * h[other]
            h = part(h)
        loss = share * F.cross_entropy(h, y) + (1 - share) * F.cross_entropy(h, y[other])
        update(run, doctor, optimizer, loss, (x, y))
