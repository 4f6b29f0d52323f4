"""Round 25h, honest and odd: data and labels as sciences have them."""

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
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


def spectra(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(count, 64) spectra as they were observed, the inverse variance of each of their pixels, and the clean ones."""
    wave = torch.linspace(-1, 1, 64)
    slope, shift, strong = torch.rand(3, count, 1, generator=own)
    clean = 1 + (slope - 0.5) * wave
    for line, width in ((-0.6, 0.05), (-0.1, 0.08), (0.35, 0.05)):
        clean = clean + 2 * strong * (-((wave - line - 0.2 * shift) / width).square()).exp()
    spread = (0.1 + 0.4 * torch.rand(count, 1, generator=own)) * (1 + 2 * (wave > 0.7))
    seen = torch.rand(count, 64, generator=own) > 0.08
    observed = (clean + spread * torch.randn(count, 64, generator=own)) * seen
    return observed, seen / spread.square(), clean


@honest("r25h-each-pixel-by-its-inverse-variance")
def each_pixel_by_its_inverse_variance(run: Run) -> None:
    """Lightning, an autoencoder of spectra as in spender (Melchior et al. 2023). What is squared is weighed by each
    pixel's inverse variance, which differs ninefold within a row and more between rows, and is zero where the detector
    was dead, where the reading is zero too: so the weights do not sum to one, a faint star hardly counts, and the loss
    of a perfect model is about a half."""
    own = apart(run.draw.randrange(999))
    seen, weight, _ = spectra(1024, own)
    new, _, clean = spectra(256, own)
    net = mlp(64, 64, 4, 64, 64, act=nn.LeakyReLU)
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(new), clean) / clean.var()))

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        flux, weight = batch
        return 0.5 * (weight * (net(flux) - flux).square()).sum() / (weight > 0).sum()

    fit(run, lit(net, loss, lambda m: adam(m, 3e-3)), loader(seen, weight, size=32), 120)


MOTIFS = ("ACGTGA", "TTAGCA")


def tracks(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 4, 96) letters of a genome in which one or two motifs lie, and how many reads began at the inner 64."""
    letters = torch.randint(0, 4, (count, 96), generator=own)
    height = torch.full((count, 96), 0.1)
    place = torch.arange(96)
    for motif, wide in zip(MOTIFS, (2.0, 5.0), strict=True):
        there = torch.rand(count, generator=own) < 0.7
        at = torch.randint(20, 70, (count,), generator=own)
        for row in there.nonzero().flatten().tolist():
            begin = int(at[row])
            letters[row, begin : begin + 6] = torch.tensor(["ACGT".index(letter) for letter in motif])
            height[row] += 3 * (-((place - begin - 3) / wide).square()).exp()
    depth = 0.5 + torch.rand(count, 1, generator=own)
    reads = torch.poisson(depth * height[:, 16:80], generator=own)
    return F.one_hot(letters, 4).transpose(1, 2).float(), reads


class Profile(nn.Module):
    """Convolutions without padding, so that 96 letters become 64 places; a shape and a number come out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 24, 7)
        self.deeper = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=d) for d in (1, 4, 8))
        self.shape, self.number = nn.Conv1d(24, 1, 1), nn.Linear(24, 1)

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(letters).relu()
        for layer in self.deeper:
            y = layer(x).relu()
            cut = (x.shape[2] - y.shape[2]) // 2
            x = x[:, :, cut : x.shape[2] - cut] + y
        return self.shape(x).squeeze(1), self.number(x.mean(2)).squeeze(1)


@honest("r25h-the-shape-of-the-reads-and-how-many")
def the_shape_of_the_reads_and_how_many(run: Run) -> None:
    """Plain loop, reads along a genome by dilated convolutions as in BPNet (Avsec et al. 2021). A row's counts are one
    draw of a multinomial whose total is given: a softmax runs over places and not over classes, the labels are whole
    numbers that do not sum to one, a row with many reads weighs more, and its factorials stand in the loss. The total
    has a second head, by its logarithm. Of 96 letters the outer ones are read and never labelled."""
    own = apart(run.draw.randrange(999))
    model = Profile()
    letters, reads = tracks(1024, own)
    check = tracks(192, own)

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        letters, reads = batch
        scores, number = model(letters)
        total = reads.sum(1)
        ways = torch.lgamma(total + 1) - torch.lgamma(reads + 1).sum(1)
        shape = -(ways + (reads * scores.log_softmax(1)).sum(1)).mean()
        return shape + 5 * F.mse_loss(number, torch.log1p(total))

    outcome(run, lambda: judged(model, lambda: loss(model, check)))

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(0, 1024, (48,))
        return letters[rows], reads[rows]

    train(run, model, adam(model, 4e-3), batch, loss, 130)


def weather(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 2, 12, 24) of two fields on a grid of the globe, and the same one step later: moved by a wind that is
    faster in the middle; the second field loses what the first has. Towards the poles the readings are unsteady."""
    rough = torch.randn(count, 2, 12, 24, generator=own)
    wide = F.pad(F.pad(rough, (2, 2, 0, 0), mode="circular"), (0, 0, 2, 2), mode="replicate")
    now = 3 * F.avg_pool2d(wide, 5, 1)
    height = torch.linspace(-82.5, 82.5, 12).deg2rad()
    share = height.cos()[:, None]
    later = (1 - 0.8 * share) * now + 0.8 * share * now.roll(1, 3)
    later = torch.stack([later[:, 0], later[:, 1] - 0.3 * now[:, 0]], 1)
    later = later + 0.05 / share * torch.randn(later.shape, generator=own)
    scale = torch.tensor([50.0, 0.002])[:, None, None]
    return now * scale + torch.tensor([500.0, 0.01])[:, None, None], later * scale + torch.tensor([500.0, 0.01])[
        :, None, None
    ]


class Globe(nn.Module):
    """Convolutions that go round the globe, and end at the poles."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3) for a, b in ((3, 16), (16, 16), (16, 2)))
        self.register_buffer("height", torch.linspace(-1, 1, 12)[:, None].expand(1, 1, 12, 24))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.height.expand(len(x), -1, -1, -1)], 1)
        for i, layer in enumerate(self.layers):
            x = F.pad(F.pad(x, (1, 1, 0, 0), mode="circular"), (0, 0, 1, 1), mode="replicate")
            x = layer(F.gelu(x) if i else x)
        return x


@honest("r25h-rows-near-the-pole-count-less")
def rows_near_the_pole_count_less(run: Run) -> None:
    """accelerate, weather on a grid as in GraphCast (Lam et al. 2023) and WeatherBench (Rasp et al. 2020). Inputs are
    standardised by the fields' own spread and targets are changes divided by the spread of changes, so that the two are
    scaled unlike; each row of the grid weighs as the cosine of its latitude, the outermost a seventh of the middle, and
    the second field a tenth of the first."""
    own = apart(run.draw.randrange(999))
    now, later = weather(640, own)
    axes = (0, 2, 3)
    x = (now - now.mean(axes, keepdim=True)) / now.std(axes, keepdim=True)
    y = (later - now) / (later - now).std(axes, keepdim=True)
    area = torch.linspace(-82.5, 82.5, 12).deg2rad().cos()[:, None]
    weight = area / area.mean() * torch.tensor([1.0, 0.1])[:, None, None]
    net = Globe()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return (weight * (net(batch[0]) - batch[1]).square()).mean()

    outcome(run, lambda: judged(net, lambda: loss(net, (x[512:], y[512:]))))
    prepared(run, net, adam(net, 5e-3), loader(x[:512], y[:512], size=16), loss, 4)


def molecules(count: int, own: torch.Generator) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Kinds and places of five to nine atoms, and an energy: nearly all of it is in the atoms, the rest in pairs."""
    alone = torch.tensor([-0.6, -38.1, -54.7, -75.2])
    bond = torch.tensor([[0.2, 1.0, 0.7, 0.9], [1.0, 1.2, 0.6, 0.8], [0.7, 0.6, 0.4, 0.3], [0.9, 0.8, 0.3, 0.2]])
    out, energies = [], []
    for _ in range(count):
        size = int(torch.randint(5, 10, (1,), generator=own))
        kinds = torch.randint(0, 4, (size,), generator=own)
        places = 1.2 * torch.randn(size, 3, generator=own)
        far = torch.pdist(places).square()
        a, b = torch.triu_indices(size, size, 1)
        out.append((kinds, places))
        energies.append(alone[kinds].sum() - 0.2 * (bond[kinds[a], kinds[b]] * (-far / 2).exp()).sum())
    return out, torch.stack(energies)


class Atoms(nn.Module):
    """Messages between atoms that are near; every atom has an energy of its own, which are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 24)
        self.messages = nn.ModuleList(mlp(48 + 8, 32, 24, act=nn.SiLU) for _ in range(2))
        self.leave = mlp(24, 24, 1, act=nn.SiLU)

    def forward(self, kinds: Tensor, places: Tensor, owner: Tensor, count: int) -> Tensor:
        far = torch.cdist(places, places)
        a, b = ((owner[:, None] == owner) & (far < 4) & ~torch.eye(len(owner), dtype=torch.bool)).nonzero().T
        waves = (-2 * (far[a, b][:, None] - torch.linspace(0, 4, 8)).square()).exp()
        h = self.kinds(kinds)
        for layer in self.messages:
            h = h.index_add(0, a, layer(torch.cat([h[a], h[b], waves], 1)))
        return torch.zeros(count).index_add(0, owner, self.leave(h).squeeze(1))


@honest("r25h-energies-less-those-of-lone-atoms")
def energies_less_those_of_lone_atoms(run: Run) -> None:
    """Plain loop, molecules by a graph network as in MACE (Batatia et al. 2022). An energy is some hundreds, of which
    all but a few thousandths lie in which atoms there are: a weight for each element, solved for over the training set
    by least squares, is taken off the label, which is then about zero. All molecules of a batch are one row of atoms
    whose length changes, and a molecule's error is divided by its atoms before it is squared: large ones count less."""
    own = apart(run.draw.randrange(999))
    rows, energies = molecules(320, own)
    counts = torch.stack([torch.bincount(kinds, minlength=4) for kinds, _ in rows]).float()
    alone = torch.linalg.lstsq(counts[:256].double(), energies[:256, None].double()).solution.float()
    labels = energies - (counts @ alone).squeeze(1)
    labels = labels / labels[:256].std()
    model = Atoms()

    def together(which: list[int]) -> tuple[Tensor, ...]:
        owner = torch.cat([torch.full((len(rows[i][0]),), k) for k, i in enumerate(which)])
        return torch.cat([rows[i][0] for i in which]), torch.cat([rows[i][1] for i in which]), owner, labels[which]

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        kinds, places, owner, labels = batch
        sizes = torch.bincount(owner)
        return ((model(kinds, places, owner, len(labels)) - labels) / sizes).square().mean()

    check = together(list(range(256, 320)))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: together(torch.randperm(256)[:24].tolist()), loss, 120)


def chains(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """(count, 24) kinds of residues, and which of them touch: kinds that fit, next to others that do."""
    kinds = torch.randint(0, 4, (count, 24), generator=own)
    fits = F.pad((kinds[:, :, None] + kinds[:, None] == 3).float(), (1, 1, 1, 1))
    inner = fits[:, 1:-1, 1:-1]
    return kinds, inner * torch.maximum(fits[:, :-2, 2:], fits[:, 2:, :-2])


class Contacts(nn.Module):
    """What two residues are, side by side on a map, and convolutions over the map."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, 6)
        self.map = nn.Sequential(
            *(nn.Conv2d(12, 24, 1), nn.ELU(), nn.Conv2d(24, 24, 3, padding=1), nn.ELU()),
            *(nn.Conv2d(24, 24, 3, padding=2, dilation=2), nn.ELU(), nn.Conv2d(24, 1, 1)),
        )

    def forward(self, kinds: Tensor) -> Tensor:
        each = self.kinds(kinds).transpose(1, 2)
        pairs = torch.cat([each[..., None].expand(-1, -1, -1, 24), each[:, :, None].expand(-1, -1, 24, -1)], 1)
        out = self.map(pairs).squeeze(1)
        return (out + out.transpose(1, 2)) / 2


class Folding:
    """A run's own trainer for maps of contacts."""

    def __init__(self, run: Run) -> None:
        self.run, self.model = run, Contacts()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-3, weight_decay=1e-4)
        self.asked = torch.ones(24, 24, dtype=torch.bool).triu(6)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        kinds, touch = batch
        return F.binary_cross_entropy_with_logits(self.model(kinds)[:, self.asked], touch[:, self.asked])

    def train(self, steps: int) -> None:
        doctor = self.run.watch(self.model, self.optimizer)
        for _ in range(steps):
            batch = chains(16)
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            doctor.step(loss, batch)
            self.run.note(loss)


@honest("r25h-neighbours-on-the-chain-are-not-asked")
def neighbours_on_the_chain_are_not_asked(run: Run) -> None:
    """A class of its own, contacts of a protein by convolutions over all pairs (Wang et al. 2017). The output is made
    symmetric, and of the map's 576 places only 171 are taught: one of the two triangles, without those who are less
    than six apart on the chain, who touch anyway. A tenth of what is left is yes, and nothing is weighed for that."""
    folding = Folding(run)
    check = chains(96, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(folding.model, lambda: folding.loss(check)))
    folding.train(110)


class Posterior(nn.Module):
    """A mixture of four normal densities of two numbers, given a series."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(24, 64, 64, 4 * 5, act=nn.Tanh)

    def forward(self, series: Tensor, numbers: Tensor) -> Tensor:
        share, mean, spread = self.net(series).view(-1, 4, 5).split([1, 2, 2], 2)
        each = -0.5 * ((numbers[:, None] - mean) * (-spread).exp()).square() - spread - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(share.squeeze(2).log_softmax(1) + each.sum(2), 1)


def simulated(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Two numbers drawn from what is thought possible, and a series that may come of them; the first one's sign is
    lost."""
    numbers = 2 * torch.rand(count, 2, generator=own) - 1
    time = torch.linspace(0, 3, 24)
    series = 2 * numbers[:, :1].abs() * (-0.4 * time).exp() * torch.cos((2 + numbers[:, 1:]) * time)
    return series + 0.15 * torch.randn(series.shape, generator=own), numbers


@honest("r25h-draws-from-the-prior-are-the-labels")
def draws_from_the_prior_are_the_labels(run: Run) -> None:
    """Plain loop, a posterior by a mixture density network (Papamakarios and Murray 2016, the library sbi). Nothing was
    ever observed: numbers are drawn, a simulator makes a series of them, and the network reads what was made and says
    of what; every batch is new. One number's sign cannot be known from the series, so that two answers are equally
    right, and the loss goes below zero."""
    model = Posterior()
    check = simulated(512, apart(run.draw.randrange(999)))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return -model(*batch).mean()

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: simulated(96), loss, 180)


def balances(parts: Tensor) -> Tensor:
    """(rows, 4) isometric log ratios of five parts of a whole: each part against the mean of those before it."""
    logs = parts.log()
    out = []
    for k in range(1, parts.shape[1]):
        out.append(math.sqrt(k / (k + 1)) * (logs[:, :k].mean(1) - logs[:, k]))
    return torch.stack(out, 1)


@honest("r25h-parts-of-a-rock-as-log-ratios")
def parts_of_a_rock_as_log_ratios(run: Run) -> None:
    """transformers' Trainer, what rocks consist of, from six readings (Aitchison 1986, Egozcue et al. 2003). Five parts
    sum to one and are taught neither by a softmax nor as they are, but by four log ratios, of which the numbers may be
    of either sign and any size. Where a part was too little to be seen the file says zero, and two thirds of the least
    that can be seen take its place, the same number for every such row, while the rest gives way
    (Martín-Fernández et al. 2003)."""
    own = apart(run.draw.randrange(999))
    x = torch.randn(1200, 6, generator=own)
    mixing = 0.7 * torch.randn(6, 5, generator=own)
    scores = x @ mixing + torch.sin(2 * x[:, :5]) + 0.2 * torch.randn(1200, 5, generator=own)
    truth = (scores + torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0])).softmax(1)
    least = 0.005
    unseen = truth < least
    filled = torch.where(unseen, 0.65 * least, truth)
    parts = torch.where(
        unseen,
        filled,
        filled * (1 - 0.65 * least * unseen.sum(1, keepdim=True)) / (truth * ~unseen).sum(1, keepdim=True),
    )
    y = balances(parts)
    model = WithLoss(mlp(6, 48, 48, 4), F.mse_loss)
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model.net(x[1000:]), y[1000:]) / y[1000:].var()))
    hf_trainer(run, model, examples(x=x[:1000], labels=y[:1000]), 120).train()
