"""Round 19a, honest and odd: sciences and trades."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    fit,
    judged,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared, regress
from benchmarks.robustness.loops.round7b_parts import spots
from benchmarks.robustness.loops.round7b_tools import update
from torch import Tensor, nn
from torch.nn import functional as F


class TwoArms(nn.Module):
    """What would come of each of two treatments."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU())
        self.arms = nn.ModuleList(mlp(48, 24, 1, act=nn.ELU) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return torch.cat([arm(h) for arm in self.arms], 1), h


def trial(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Patients, who was treated (rather the worse off), and what would come of both."""
    x, y = table(count, seed, own)
    effect = 1 + x[:, 3].tanh()
    treated = torch.rand(count, generator=own) < (x[:, 0] - 1.5).sigmoid()
    return x, treated.long(), torch.stack([y, y + effect], 1)


@honest("r19a-only-the-arm-that-was-given")
def only_the_arm_that_was_given(run: Run) -> None:
    """accelerate, effects of a treatment by a network with two heads (TARNet and CFR, Shalit et al. 2017). Each row
    teaches one head and leaves the other without a gradient; what is asked in the end, the difference of both, has no
    label in any row. One row in five was treated, and a small penalty draws the two groups' features together, which
    a good fit alone would not do."""
    seed = run.draw.randrange(999)
    x, treated, both = trial(960, seed, apart(2))
    new, _, truth = trial(256, seed, apart(1))
    model = TwoArms()

    def measure() -> Tensor:
        return F.mse_loss(model(new)[0].diff(dim=1), truth.diff(dim=1)) + F.mse_loss(model(new)[0], truth)

    outcome(run, lambda: judged(model, measure))
    given = both.gather(1, treated[:, None]).squeeze(1)

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        x, arm, y = batch
        arms, h = model(x)
        share = arm.float().mean()
        weight = torch.where(arm == 1, 0.5 / share.clamp_min(0.02), 0.5 / (1 - share))
        fits = (weight * (arms.gather(1, arm[:, None]).squeeze(1) - y).square()).mean()
        if not 0 < share < 1:
            return fits
        return fits + 0.1 * (h[arm == 1].mean(0) - h[arm == 0].mean(0)).square().sum()

    data = loader(x, treated, given, size=64)
    prepared(run, model, torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-4), data, loss, 10)


class HashedCorners(nn.Module):
    """Four grids of growing fineness; a corner's vector is found by a hash in a table that is too small."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = (4, 8, 16, 32)
        self.tables = nn.ModuleList(nn.Embedding(256, 2) for _ in self.sides)
        for part in self.tables:
            nn.init.uniform_(part.weight, -1e-4, 1e-4)
        self.net = mlp(8, 32, 32, 1)

    def forward(self, at: Tensor) -> Tensor:
        found = []
        for side, part in zip(self.sides, self.tables, strict=True):
            low = (at * side).floor().long()
            share = at * side - low
            level: Any = 0.0
            for down in (0, 1):
                for along in (0, 1):
                    row, column = low[:, 0] + down, low[:, 1] + along
                    weight = (share[:, 0] if down else 1 - share[:, 0]) * (share[:, 1] if along else 1 - share[:, 1])
                    level = level + weight[:, None] * part((row ^ (column * 2654435761)) % 256)
            found.append(level)
        out: Tensor = self.net(torch.cat(found, 1)).squeeze(1)
        return out


@honest("r19a-corners-that-share-by-a-hash")
def corners_that_share_by_a_hash(run: Run) -> None:
    """Plain loop, a picture by places in grids of several sizes (instant NGP, Müller et al. 2022), with the paper's
    Adam: a rate of 0.01, epsilon at 1e-15, a decay for the network's matrices alone. The tables begin at a
    ten-thousandth, so that all places look alike at first, corners of the fine grids share rows by chance and nothing
    keeps them apart, and most rows have no gradient in a step."""
    picture = spots(9, 8, apart(run.draw.randrange(999)))[0].view(3, 3, 16, 16).transpose(1, 2).reshape(1, 1, 48, 48)

    def points(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        at = torch.rand(count, 2, generator=own)
        seen = F.grid_sample(picture, 2 * at[None, None].flip(3) - 1, align_corners=False, padding_mode="border")
        return at, seen.flatten()

    model = HashedCorners()
    number_outcome(run, model, points(1024, apart(1)))
    tables = {"params": model.tables.parameters(), "weight_decay": 0.0}
    optimizer = torch.optim.Adam(
        [tables, {"params": model.net.parameters()}], lr=1e-2, betas=(0.9, 0.99), eps=1e-15, weight_decay=1e-6
    )
    doctor = run.watch(model, optimizer)
    for _ in range(180):
        batch = points(256)
        update(run, doctor, optimizer, regress(model, batch), batch)


class Turning(nn.Module):
    """A round of messages that turns with the points: who is how far apart decides how each is pulled or pushed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width + 2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.pull = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.speed, self.node = mlp(width, width, 1, act=nn.SiLU), mlp(2 * width, width, width, act=nn.SiLU)
        nn.init.xavier_uniform_(self.pull[2].weight, gain=0.001)  # type: ignore[arg-type]

    def forward(self, h: Tensor, at: Tensor, moves: Tensor, charges: Tensor) -> tuple[Tensor, Tensor]:
        n = h.shape[1]
        gaps = at[:, :, None] - at[:, None]
        pairs = [h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1)]
        signs = charges[:, :, None, None] * charges[:, None, :, None]
        m = self.message(torch.cat([*pairs, gaps.square().sum(3, keepdim=True), signs], 3))
        m = m * (1 - torch.eye(n))[..., None]
        at = at + (gaps * self.pull(m)).sum(2) / (n - 1) + self.speed(h) * moves
        return h + self.node(torch.cat([h, m.sum(2)], 2)), at


class Bodies(nn.Module):
    """Where charged bodies will be, by rounds of messages between all of them."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.rounds = nn.ModuleList(Turning(width) for _ in range(2))

    def forward(self, at: Tensor, moves: Tensor, charges: Tensor) -> Tensor:
        h = self.enter(moves.square().sum(2, keepdim=True).sqrt())
        for part in self.rounds:
            h, at = part(h, at, moves, charges)
        return at


def bodies(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Five charged bodies in a box of three dimensions, and where they are a while later."""
    at, moves = torch.randn(2, count, 5, 3, generator=own)
    moves, charges = 0.5 * moves, torch.randint(0, 2, (count, 5), generator=own) * 2.0 - 1
    now, speed = at.clone(), moves.clone()
    for _ in range(20):
        gaps = now[:, :, None] - now[:, None]
        force = charges[:, :, None, None] * charges[:, None, :, None] * gaps
        speed = speed + 0.05 * (force / (gaps.square().sum(3, keepdim=True) + 0.3) ** 1.5).sum(2)
        now = now + 0.05 * speed
    return at, moves, charges, now


@honest("r19a-what-turns-with-the-world")
def what_turns_with_the_world(run: Run) -> None:
    """Plain loop, charged bodies by a graph network that turns with them (EGNN, Satorras et al. 2021). The network
    never reads a coordinate, only distances; what it says are multiples of gaps and velocities, added to where a body
    was, so that it begins near the right answer. The last layer of each pull begins at a thousandth and has no bias,
    and the second round's features of nodes are read by nobody: their weights have no gradient, as in the authors'
    code."""
    model = Bodies()
    *check, truth = bodies(256, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(*check), truth)))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-12)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.mse_loss(model(*batch[:3]), batch[3])

    train(run, model, optimizer, lambda: bodies(32), loss, 160)


def bent(pictures: Tensor, flow: Tensor) -> Tensor:
    """Pictures read at places that are moved by `flow`, (rows, 2, height, width), in pixels."""
    side = pictures.shape[-1]
    place = torch.arange(side) + 0.5
    grid = torch.stack(torch.meshgrid(place, place, indexing="ij")[::-1], 2) + flow.permute(0, 2, 3, 1)
    return F.grid_sample(pictures, 2 * grid / side - 1, align_corners=False, padding_mode="border")


def scans(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Pairs of soft forms, the second a smoothly bent copy of the first, each in noise of its own."""
    place = torch.arange(16.0)
    at, size = 5 + 6 * torch.rand(count, 3, 2, generator=own), 1.5 + torch.rand(count, 3, generator=own)
    down = (place[:, None] - at[..., 0, None, None]) ** 2
    along = (place - at[..., 1, None, None]) ** 2
    first = (-(down + along) / (2 * size[..., None, None] ** 2)).exp().sum(1, keepdim=True)
    rough = 1.5 * torch.randn(count, 2, 3, 3, generator=own)
    second = bent(first, F.interpolate(rough, size=16, mode="bicubic", align_corners=True))
    noise = 0.03 * torch.randn(2, *first.shape, generator=own)
    return first + noise[0], second + noise[1]


class Registration:
    """Trains a network that says how each point of one scan must move to lie on another."""

    def __init__(self, run: Run) -> None:
        self.run = run
        layers: list[nn.Module] = []
        for a, b in ((2, 16), (16, 24), (24, 24)):
            layers += [nn.Conv2d(a, b, 3, padding=1), nn.LeakyReLU(0.2)]
        self.flow = nn.Sequential(*layers, nn.Conv2d(24, 2, 3, padding=1))
        nn.init.normal_(self.flow[-1].weight, std=1e-5)  # type: ignore[arg-type]
        nn.init.zeros_(self.flow[-1].bias)  # type: ignore[arg-type]
        self.optimizer = torch.optim.Adam(self.flow.parameters(), lr=3e-3)

    def unlike(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """How unlike the scans are when the first is bent, and the bending."""
        flow = self.flow(torch.cat(batch, 1))
        return F.mse_loss(bent(batch[0], flow), batch[1]), flow

    def train(self, steps: int) -> None:
        doctor = self.run.watch(self.flow, self.optimizer)
        for _ in range(steps):
            batch = scans(24)
            unlike, flow = self.unlike(batch)
            rough = flow.diff(dim=2).square().mean() + flow.diff(dim=3).square().mean()
            update(self.run, doctor, self.optimizer, unlike + 1e-3 * rough, batch)


@honest("r19a-one-scan-bent-onto-another")
def one_scan_bent_onto_another(run: Run) -> None:
    """A class of its own, registration of scans without labels (VoxelMorph, Balakrishnan et al. 2019). What the network
    says, a move for each pixel, is never compared with anything: the first scan is bent by it, and that is compared
    with the second, which is an input as well. The last layer begins at a hundred-thousandth, so that nothing moves at
    first and hardly a gradient goes below; a small term asks for neighbours to move alike and grows while it learns."""
    task = Registration(run)
    check = scans(128, apart(run.draw.randrange(999)))
    outcome(run, lambda: judged(task.flow, lambda: task.unlike(check)[0]))
    task.train(140)


GENES = 40


class Cells(nn.Module):
    """Counts of genes: an encoder to five numbers, a decoder to shares of genes, one spread for each gene."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.hidden = (
            nn.Sequential(nn.Linear(GENES, 48), nn.BatchNorm1d(48), nn.ReLU()),
            nn.Linear(48, 10),
        )
        self.decoder = mlp(5 + 2, 48, GENES, norm=True)
        self.log_spread = nn.Parameter(torch.randn(GENES))

    def forward(self, counts: Tensor, laboratory: Tensor) -> tuple[Tensor, Tensor]:
        """(rows,) sums of negative log likelihoods over the genes, and divergences."""
        mean, log_variance = self.hidden(self.encoder(counts.log1p())).chunk(2, 1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean) if self.training else mean
        shares = self.decoder(torch.cat([z, F.one_hot(laboratory, 2).float()], 1)).softmax(1)
        expected, spread = counts.sum(1, keepdim=True) * shares + 1e-8, self.log_spread.exp()
        spreads = torch.distributions.NegativeBinomial(spread, logits=expected.log() - self.log_spread)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return -spreads.log_prob(counts).sum(1), divergence


def cells(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Counts of 40 genes in cells of four kinds from two laboratories, read to very different depths."""
    kinds, tilt = 1.2 * torch.randn(4, GENES, generator=apart(seed)), 0.5 * torch.randn(2, GENES, generator=apart(seed))
    kind, laboratory = torch.randint(0, 4, (count,), generator=own), torch.randint(0, 2, (count,), generator=own)
    depth = (5 + 0.7 * torch.randn(count, 1, generator=own)).exp()
    rate = depth * (kinds[kind] + tilt[laboratory] + 0.5 * torch.randn(count, GENES, generator=own)).softmax(1)
    return torch.poisson(rate, generator=own), laboratory


@honest("r19a-genes-counted-to-any-depth")
def genes_counted_to_any_depth(run: Run) -> None:
    """Lightning, counts of genes in single cells (scVI, Lopez et al. 2018; scvi-tools). What goes in are raw counts
    from nought to hundreds, of which the network sees logarithms, and how many there are in all is not told but copied
    from the input into the output. The loss is a sum over genes, above a hundred, most of it noise of the counts; the
    divergence weighs nothing in the first epoch and a tenth more in each, so that the loss may rise."""
    import lightning

    seed = run.draw.randrange(999)
    model = Cells()
    check = cells(384, seed, apart(1))
    outcome(run, lambda: judged(model, lambda: sum(model(*check)).mean()))

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            unlikely, divergence = self.net(*batch)
            loss: Tensor = (unlikely + min(1.0, self.current_epoch / 10) * divergence).mean()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=5e-3, eps=0.01, weight_decay=1e-6)

    fit(run, Lit(), loader(*cells(768, seed, apart(2)), size=64), 150)
