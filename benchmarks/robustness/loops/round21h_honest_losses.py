"""Round 21h, honest and odd: losses that look beside what is wanted."""

import itertools
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    endless,
    fit,
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


def ways_over_a_grid(side: int = 4) -> Tensor:
    """(ways, edges) which edges each way from one corner to the other has, going right or down alone."""
    edges = {}
    for r, c in itertools.product(range(side), repeat=2):
        for down, right in ((1, 0), (0, 1)):
            if r + down < side and c + right < side:
                edges[r, c, down] = len(edges)
    steps = 2 * (side - 1)
    ways = []
    for downs in itertools.combinations(range(steps), side - 1):
        way, r, c = torch.zeros(len(edges)), 0, 0
        for step in range(steps):
            down = int(step in downs)
            way[edges[r, c, down]] = 1
            r, c = r + down, c + 1 - down
        ways.append(way)
    return torch.stack(ways)


def costs(count: int, seed: int, edges: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Five columns, and what each edge costs; no linear model can say it."""
    b = (torch.rand(5, edges, generator=apart(seed)) < 0.5).float()
    x = torch.randn(count, 5, generator=own)
    c = ((x @ b / 5**0.5 + 3) ** 4 / 3.5**4 + 0.1) * (0.75 + 0.5 * torch.rand(count, edges, generator=own))
    return x, c


@honest("r21h-right-if-the-way-is-right")
def right_if_the_way_is_right(run: Run) -> None:
    """Plain loop, a linear model says what edges cost, from which the cheapest way is chosen, by the loss SPO+ (smart
    predict, then optimize, Elmachtoub and Grigas 2022, PyEPO). The loss has nothing of a distance between said and true
    costs: it takes the dearest way under a difference of both, its gradient is a difference of two ways in zeros and
    twos, and all that makes no other way cheapest costs nothing."""
    seed = run.draw.randrange(999)
    ways = ways_over_a_grid()
    model = nn.Linear(5, ways.shape[1])
    x, c = costs(600, seed, ways.shape[1], apart(2))
    new, truth = costs(300, seed, ways.shape[1], apart(1))

    def regret() -> Tensor:
        paid = (ways[(model(new) @ ways.T).argmin(1)] * truth).sum(1)
        best = (truth @ ways.T).amin(1)
        return (paid - best).sum() / best.sum()

    outcome(run, lambda: judged(model, regret))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        said, true = model(batch[0]), batch[1]
        least, best = (true @ ways.T).min(1)
        return (((true - 2 * said) @ ways.T).amax(1) + 2 * (said * ways[best]).sum(1) - least).mean()

    batches = endless(loader(x, c, size=32))
    train(run, model, adam(model, 2e-2), lambda: next(batches), loss, 150)


class Members(nn.Module):
    """Several forecasts for each row, each from noise of its own, drawn in use as well."""

    def __init__(self, members: int = 4) -> None:
        super().__init__()
        self.members, self.net = members, mlp(6 + 8, 64, 64, 1, act=nn.SiLU)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), self.members, 8)
        shown = torch.cat([x[:, None].expand(-1, self.members, -1), noise], 2)
        out: Tensor = self.net(shown).squeeze(2)
        return out


def ranked(members: Tensor, y: Tensor, fair: float = 1.0) -> Tensor:
    """The continuous ranked probability score of a few members, corrected for their number."""
    count = members.shape[1]
    far = (members - y[:, None]).abs().mean(1)
    spread = (members[:, :, None] - members[:, None]).abs().sum((1, 2)) / (2 * count * (count - 1))
    return (far - (1 - (1 - fair) / count) * spread).mean()


def uncertain(count: int, seed: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """A table whose numbers are the less certain the larger the second column is."""
    x, y = table(count, seed, own, noise=0.0)
    return x, y + x[:, 1].exp().clamp_max(3) * torch.randn(count, generator=own)


@honest("r21h-members-that-may-differ")
def members_that_may_differ(run: Run) -> None:
    """accelerate's loop, an ensemble of forecasts from one network with noise at its entry, by the almost fair score of
    AIFS-CRPS (Lang et al. 2024). The members' distances from one another are subtracted, so that two that differ are
    rewarded for it; a batch's loss may be below zero, and two passes over a row never agree."""
    seed = run.draw.randrange(999)
    net = Members()
    check = uncertain(400, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: ranked(net(check[0]), check[1])))
    data = loader(*uncertain(1200, seed, apart(2)), size=48)
    prepared(run, net, adam(net, 3e-3), data, lambda model, batch: ranked(model(batch[0]), batch[1], 0.95), 6)


def one_spot(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 1, 16, 16) noise with a small bright ellipse, and where it is."""
    grid = torch.arange(16.0)
    centre = 4 + 8 * torch.rand(count, 2, 1, 1, generator=own)
    radii = 1.2 + 1.5 * torch.rand(count, 2, 1, 1, generator=own)
    down, right = (grid[:, None] - centre[:, 0]) / radii[:, 0], (grid - centre[:, 1]) / radii[:, 1]
    inside = (down.square() + right.square() < 1).float()
    return (0.9 * inside + 0.5 * torch.randn(count, 16, 16, generator=own))[:, None], inside[:, None]


def from_the_edge(inside: Tensor) -> Tensor:
    """How far each pixel is from the edge of what is marked, below zero within."""
    places = torch.cartesian_prod(torch.arange(16.0), torch.arange(16.0))
    far = torch.cdist(places, places)
    out = []
    for mask in inside.flatten(1).bool():
        to_inside, to_outside = far[:, mask].amin(1), far[:, ~mask].amin(1)
        out.append(torch.where(mask, 1 - to_outside, to_inside))
    return torch.stack(out).view_as(inside)


def overlap_missed(model: nn.Module, x: Tensor, inside: Tensor) -> Tensor:
    p = model(x).sigmoid()
    return 1 - (2 * (p * inside).sum((1, 2, 3)) + 1).div((p + inside).sum((1, 2, 3)) + 1).mean()


@honest("r21h-distance-times-how-sure")
def distance_times_how_sure(run: Run) -> None:
    """Lightning, small spots are outlined with the boundary loss (Kervadec et al. 2019). It is the mean of a map of
    distances, below zero within the spot, times the probability: linear in what the network says, without a logarithm,
    and negative where it is good. Its share grows by a hundredth every other step from the overlap's, which is wound
    down."""
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        *(nn.Conv2d(12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU()),
        nn.Conv2d(12, 1, 3, padding=1),
    )
    check = one_spot(96, apart(1))
    outcome(run, lambda: judged(net, lambda: overlap_missed(net, *check)))
    x, inside = one_spot(384, apart(run.draw.randrange(999)))
    seen = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal seen
        share = min(0.5, 0.01 + 0.01 * (seen // 2))
        seen += 1
        boundary = (model(batch[0]).sigmoid() * batch[2]).mean()
        return (1 - share) * overlap_missed(model, *batch[:2]) + share * boundary

    data = loader(x, inside, from_the_edge(inside), size=16)
    fit(run, lit(net, loss, lambda m: torch.optim.Adam(m.parameters(), lr=4e-3)), data, 120)


class Centred(nn.Module):
    """Convolutions to two numbers, in which each class is to lie around a centre, and a head on them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 12, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 24, 3, padding=1), nn.PReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(96, 2), nn.PReLU()),
        )
        self.head = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


@honest("r21h-centres-at-half-a-rate")
def centres_at_half_a_rate(run: Run) -> None:
    """Plain loop, pictures by a softmax and the distance from a centre of their class (Wen et al. 2016, as in the
    public code for PyTorch). The centres have an optimizer of their own, plain steps at a rate of a half; the share of
    the distance in the loss is small, and the centres' gradients are divided by it before their step, so that they do
    not feel it. The two numbers of a picture stand before a head of four classes."""
    seed = run.draw.randrange(999)
    model, centres = Centred(), nn.Embedding(4, 2)
    x, y = pictures(800, seed, own=apart(2))
    new, truth = pictures(256, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(new), truth)))
    main = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    of_centres = torch.optim.SGD(centres.parameters(), lr=0.5)
    doctor = run.watch(model, main)
    share = 0.05
    for _, batch in zip(range(150), endless(loader(x, y, size=32)), strict=False):
        features = model.body(batch[0])
        near = (features - centres(batch[1])).square().sum(1).mean()
        loss = F.cross_entropy(model.head(features), batch[1]) + share * near
        main.zero_grad()
        of_centres.zero_grad()
        loss.backward()
        main.step()
        for p in centres.parameters():
            p.grad.mul_(1 / share)
        of_centres.step()
        doctor.step(loss, batch)
        run.note(loss)


@honest("r21h-all-drawn-to-one-point")
def all_drawn_to_one_point(run: Run) -> None:
    """accelerate's loop, what is usual is learned for finding what is not (Deep SVDD, Ruff et al. 2018). All pictures
    are of one kind and have the same target, a point that was written down from the network's first outputs; no layer
    has a bias, so that the point cannot be reached by forgetting the picture, and the loss goes towards zero."""
    seed = run.draw.randrange(999)
    x, y = pictures(1600, seed, own=apart(2))
    new, kinds = pictures(600, seed, own=apart(1))
    usual = x[y == 0]
    net = nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.LeakyReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.LeakyReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(96, 8, bias=False)),
    )
    with torch.no_grad():
        point = net(usual).mean(0)
    point = torch.where(point.abs() < 0.1, torch.where(point < 0, -0.1, 0.1), point)

    def away(model: nn.Module, rows: Tensor) -> Tensor:
        return (model(rows) - point).square().sum(1)

    outcome(run, lambda: judged(net, lambda: away(net, new[kinds == 0]).mean() / away(net, new[kinds > 0]).mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-5)
    prepared(run, net, optimizer, loader(usual, size=32), lambda model, batch: away(model, batch[0]).mean(), 9)
