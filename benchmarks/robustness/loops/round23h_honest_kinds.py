"""Round 23h, honest and odd: models that say something else than a class or a number for a row."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    fit,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from torch import Tensor, nn
from torch.nn import functional as F


class HiddenStates(nn.Module):
    """A hidden Markov model whose chances are computed from a vector for each state."""

    def __init__(self, words: int, states: int = 32, width: int = 24) -> None:
        super().__init__()
        self.states = nn.Parameter(torch.randn(states, width))
        self.start, self.follow, self.say = mlp(width, width, 1), mlp(width, width, states), mlp(width, width, words)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows,) log chances of whole rows, all ways through the states summed over."""
        follow = self.follow(self.states).log_softmax(1)
        say = self.say(self.states).log_softmax(1)
        seen = say.T[rows]
        so_far = self.start(self.states).squeeze(1).log_softmax(0) + seen[:, 0]
        for t in range(1, rows.shape[1]):
            so_far = (so_far[:, :, None] + follow).logsumexp(1) + seen[:, t]
        return so_far.logsumexp(1)


@honest("r23h-states-that-are-summed-over")
def states_that_are_summed_over(run: Run) -> None:
    """Plain loop, a language model that is a neural hidden Markov model (Tran et al. 2016; Chiu and Rush 2020). There
    are no logits of next words and no targets: the network gets a row and returns its log chance, by the forward
    algorithm in logarithms, and less that, by the word, is the loss. The networks in it read no data, their inputs are
    weights, the same in each step, and the batch comes in only as an index."""
    language = Language(run.draw.randrange(999), sharp=2.4)
    model = HiddenStates(12)
    check = language.rows(128, 16, apart(901))

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return -model(rows).mean() / rows.shape[1]

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 2e-2), lambda: language.rows(32, 16), loss, 150)


class Qubits(nn.Module):
    """Three qubits, turned in five layers by angles that hold the input too; what is read is how often the first is
    found up."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.turns = nn.Parameter(2 * math.pi * torch.rand(layers, 3, 2))
        self.gains = nn.Parameter(torch.ones(layers, 3, 2))
        self.pick = [[0, 1], [1, 0], [0, 1]]
        signs = torch.ones(2, 2, 2)
        signs[1, 1, :] *= -1
        signs[:, 1, 1] *= -1
        self.register_buffer("entangle", signs)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 2, 2, 2, dtype=torch.complex64)
        state[:, 0, 0, 0] = 1
        for turns, gains in zip(self.turns, self.gains, strict=True):
            for qubit in range(3):
                angles = turns[qubit] + gains[qubit] * x[:, self.pick[qubit]]
                state = self.turned(state, qubit, angles)
            state = state * self.entangle
        chances = state.abs().square()
        return chances.sum((2, 3))[:, 0].float()

    def turned(self, state: Tensor, qubit: int, angles: Tensor) -> Tensor:
        """About y by the first angle and about z by the second."""
        about_y, about_z = (angles / 2)[:, :, None, None].unbind(1)
        up, down = state.unbind(1 + qubit)
        up, down = about_y.cos() * up - about_y.sin() * down, about_y.sin() * up + about_y.cos() * down
        phase = torch.polar(torch.ones_like(about_z), about_z)
        return torch.stack([up * phase.conj(), down * phase], 1 + qubit)


class Laboratory:
    """Tunes the angles of a circuit by what is read from it."""

    def __init__(self, run: Run, circuit: Qubits, rate: float) -> None:
        self.run, self.circuit = run, circuit
        self.optimizer = torch.optim.Adam(circuit.parameters(), lr=rate)

    def fidelity_loss(self, x: Tensor, inside: Tensor) -> Tensor:
        return F.mse_loss(self.circuit(x), inside.float())

    def tune(self, data: Any, steps: int) -> None:
        doctor = self.run.watch(self.circuit, self.optimizer)
        batches = endless(data)
        for _ in range(steps):
            x, inside = next(batches)
            loss = self.fidelity_loss(x, inside)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            doctor.step(loss, (x, inside))
            self.run.note(loss)


@honest("r23h-angles-of-three-qubits")
def angles_of_three_qubits(run: Run) -> None:
    """An own class, a quantum circuit into which the data are loaded again and again (Pérez-Salinas et al. 2020;
    PennyLane's example), simulated. All sixty weights are angles or gains of angles, periodic and drawn from a whole
    turn, the state is complex and of length one for ever, of the last layer's six angles five change nothing that is
    read, and the loss is a squared error of chances."""
    own = apart(run.draw.randrange(999))

    def points(count: int) -> tuple[Tensor, Tensor]:
        x = 2 * torch.rand(count, 2, generator=own) - 1
        return x, x.square().sum(1) < 2 / math.pi

    known, check = points(400), points(400)
    laboratory = Laboratory(run, Qubits(), 0.05)
    outcome(run, lambda: judged(laboratory.circuit, lambda: laboratory.fidelity_loss(*check)))
    laboratory.tune(loader(*known, size=32), 160)


SITES, LETTERS = 10, 4


class Potts(nn.Module):
    """A field for each letter at each site, and a coupling for each two letters at two sites."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Parameter(torch.zeros(SITES, LETTERS))
        self.coupling = nn.Parameter(torch.zeros(SITES, LETTERS, SITES, LETTERS))
        self.register_buffer("others", 1 - torch.eye(SITES)[:, None, :, None])

    def symmetric(self) -> Tensor:
        return (self.coupling + self.coupling.permute(2, 3, 0, 1)) / 2 * self.others

    def forward(self, rows: Tensor) -> Tensor:
        """For each site the logits of its letter, where all others are as they stand in the row."""
        return self.field + torch.einsum("rjb,iajb->ria", F.one_hot(rows, LETTERS).float(), self.symmetric())


def family(count: int, own: torch.Generator, truth: Potts) -> Tensor:
    """Rows of letters by Gibbs sampling, the second half of them near relatives of the first."""
    rows = torch.randint(0, LETTERS, (count // 2, SITES), generator=own)
    for _ in range(30):
        for site in range(SITES):
            chances = truth(rows)[:, site].softmax(1)
            rows[:, site] = torch.multinomial(chances, 1, generator=own).squeeze(1)
    relatives = rows[torch.randint(0, 20, (count // 2,), generator=own)].clone()
    at = torch.randint(0, SITES, (count // 2, 1), generator=own)
    return torch.cat([rows, relatives.scatter(1, at, torch.randint(0, LETTERS, at.shape, generator=own))])


@honest("r23h-each-site-from-all-other-sites")
def each_site_from_all_other_sites(run: Run) -> None:
    """Plain loop, an energy for proteins by pseudo-likelihood (plmDCA, Ekeberg et al. 2013; GREMLIN). All weights
    begin at zero and a tenth of them stay there, for a site has no coupling with itself; the batch is all rows in each
    step, inputs are the labels, each site's letter told by all others; rows count less the more relatives they have;
    and a penalty that grows with the number of sites asks for small couplings."""
    own = apart(run.draw.randrange(999))
    truth = Potts().requires_grad_(False)
    for _ in range(8):
        i, j = torch.randperm(SITES, generator=own)[:2].tolist()
        truth.coupling[i, :, j] = 3 * torch.randn(LETTERS, LETTERS, generator=own)
    rows, check = family(300, own, truth), family(300, own, truth)[:150]
    alike = (rows[:, None] == rows[None]).float().mean(2)
    weights = 1 / (alike >= 0.8).sum(1)
    model = Potts()
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check).flatten(0, 1), check.flatten())))

    def loss(model: Potts, batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, weights = batch
        each = F.cross_entropy(model(rows).transpose(1, 2), rows, reduction="none").sum(1)
        penalty = 0.01 * model.field.square().sum() + 0.02 * (SITES - 1) * model.symmetric().square().sum() / 2
        return (weights * each).sum() / weights.sum() + penalty

    train(run, model, adam(model, 2e-2), lambda: (rows, weights), loss, 120)  # type: ignore[arg-type]


class Density(nn.Module):
    """How dense it is at a place, from waves of the place; never below zero."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", 2.5 * torch.randn(2, 32))
        self.net = mlp(64, 64, 64, 1)

    def forward(self, places: Tensor) -> Tensor:
        angle = places @ self.waves
        out: Tensor = F.softplus(self.net(torch.cat([angle.sin(), angle.cos()], -1)).squeeze(-1) - 2)
        return out


@honest("r23h-only-what-a-ray-has-lost")
def only_what_a_ray_has_lost(run: Run) -> None:
    """Plain loop, a slice of a body by a coordinate network from few X-rays (Zha et al. 2022, after NeRF, Mildenhall
    et al. 2020). There is one body and no label for any place: the network's values at places by lot along a ray are
    summed up, and only what the ray has lost in all is known. It is to learn the body by heart, its inputs are no
    data, and how well rays are foretold says little of how well the slice is seen."""
    own = apart(run.draw.randrange(999))
    centre, radius = 0.8 * torch.rand(4, 2, generator=own) - 0.4, 0.15 + 0.25 * torch.rand(4, 2, generator=own)

    def body(places: Tensor) -> Tensor:
        return (((places[..., None, :] - centre) / radius).square().sum(-1) < 1).float().sum(-1)

    def along(angle: Tensor, offset: Tensor, t: Tensor) -> Tensor:
        way = torch.stack([angle.cos(), angle.sin()], -1)
        across = torch.stack([-way[..., 1], way[..., 0]], -1)
        return offset[..., None, None] * across[..., None, :] + t[..., None] * way[..., None, :]

    angles, offsets = torch.meshgrid(math.pi * torch.arange(20) / 20, torch.linspace(-0.9, 0.9, 31), indexing="ij")
    angles, offsets = angles.flatten(), offsets.flatten()
    lost = 2 * body(along(angles, offsets, torch.linspace(-1, 1, 400).expand(len(angles), -1))).mean(1)
    model = Density()
    slice_ = torch.cartesian_prod(torch.linspace(-0.8, 0.8, 40), torch.linspace(-0.8, 0.8, 40))
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(slice_), body(slice_)) / body(slice_).var()))

    def rays() -> tuple[Tensor, Tensor]:
        some = torch.randint(0, len(lost), (64,))
        t = (torch.arange(40) + torch.rand(64, 40)) / 20 - 1
        return along(angles[some], offsets[some], t), lost[some]

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(2 * model(batch[0]).mean(1), batch[1])

    train(run, model, adam(model, 3e-3), rays, loss, 200)


class Guesser(nn.Module):
    """What was seen of a function, each point by itself and then their mean, and from it any other point."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.look, self.guess = mlp(2, width, width, width), mlp(width + 1, width, width, 2)

    def forward(self, seen_x: Tensor, seen_y: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        known = self.look(torch.stack([seen_x, seen_y], 2)).mean(1, keepdim=True).expand(-1, x.shape[1], -1)
        mean, spread = self.guess(torch.cat([known, x[..., None]], 2)).unbind(2)
        return mean, 0.05 + 0.95 * F.softplus(spread)


def functions(count: int, own: torch.Generator, points: int = 24) -> tuple[Tensor, Tensor]:
    """Draws from a Gaussian process, each at places of its own."""
    x = 4 * torch.rand(count, points, generator=own) - 2
    kernel = (-(x[:, :, None] - x[:, None]).square() / 0.7).exp() + 1e-3 * torch.eye(points)
    noise = torch.randn(count, points, 1, generator=own)
    return x, (torch.linalg.cholesky(kernel) @ noise).squeeze(2)


def surprise(model: nn.Module, batch: Any, seen: int) -> Tensor:
    x, y = batch
    mean, spread = model(x[:, :seen], y[:, :seen], x)
    return -torch.distributions.Normal(mean, spread).log_prob(y).mean()


@honest("r23h-each-row-is-another-function")
def each_row_is_another_function(run: Run) -> None:
    """accelerate's loop, a conditional neural process (Garnelo et al. 2018). A row is a whole small data set of one
    function, some of whose points are inputs with their labels and are asked for with the others, so that labels stand
    among the inputs; how many is drawn anew for each batch, by which the loss goes up and down; places stand in no
    order. The loss is a density and may go below zero, the spread never below a twentieth."""
    own = apart(run.draw.randrange(999))
    data, check = functions(640, own), functions(200, own)
    model = Guesser()
    outcome(run, lambda: judged(model, lambda: surprise(model, check, 10)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return surprise(model, batch, int(torch.randint(2, 16, (1,))))

    prepared(run, model, adam(model, 2e-3), loader(*data, size=32), loss, 10)


def charged(size: int, points: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Places around some of the points, in one dimension more, and the direction in which all points together push
    what is there."""
    near = points[torch.randint(0, len(points), (size,), generator=own)]
    grown = 1.1 ** (40 * torch.rand(size, 1, generator=own)) * 0.05
    way = F.normalize(torch.randn(size, 2, generator=own), dim=1)
    places = near + grown * torch.randn(size, 1, generator=own).abs() * way
    height = grown * torch.randn(size, 1, generator=own).abs()
    away = torch.cat([places[:, None] - points, height[:, None].expand(-1, len(points), -1)], 2)
    push = (away / (away.norm(dim=2, keepdim=True) ** 3 + 1e-6)).sum(1)
    return torch.cat([places, height], 1), math.sqrt(2) * F.normalize(push, dim=1)


class Charges(torch.utils.data.IterableDataset[Any]):
    """For each batch a few hundred points anew, which together make its labels."""

    def __init__(self, shapes: Any) -> None:
        self.shapes = shapes

    def __iter__(self) -> Any:
        while True:
            yield charged(128, self.shapes(256))


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 64, 64, 3, act=nn.SiLU)

    def forward(self, places: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([places, (places[:, 2:] + 1e-3).log()], 1))
        return out


@honest("r23h-charges-in-one-more-dimension")
def charges_in_one_more_dimension(run: Run) -> None:
    """Lightning, a generative model by Poisson flow (PFGM, Xu et al. 2022). Data are charges on a plane, and the
    network learns the direction of their field in the space above it; so a row's label depends on all other rows of
    its batch, is of one length always, next to the data changes within a hair's breadth, and many of the inputs
    lie far outside of the data, some of them forty times as far as others."""
    kind = run.draw.random()

    def moons(count: int, own: torch.Generator | None = None) -> Tensor:
        angle = math.pi * torch.rand(count, generator=own)
        upper = (torch.rand(count, generator=own) < 0.5).float()
        x = (2 * upper - 1) * angle.cos() + (1 - upper) * (0.5 + kind)
        y = (2 * upper - 1) * angle.sin() + (1 - upper) * 0.5
        return torch.stack([x, y], 1) + 0.05 * torch.randn(count, 2, generator=own)

    check = charged(1000, moons(1000, apart(1)), apart(2))
    model = Field()

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    data = torch.utils.data.DataLoader(Charges(moons), None)
    fit(run, lit(model, loss, lambda net: adam(net, 3e-3)), data, 200, max_epochs=-1)
