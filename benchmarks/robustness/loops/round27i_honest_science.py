"""Round 27i, honest and odd: models of genes, animals, mixtures, collisions and crystals."""

import itertools
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
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F

PAIRS = list(itertools.combinations(range(4), 2))


class Evolution(nn.Module):
    """A tree of eight kinds whose form is known: how long each branch is, how easily letters change into others, and
    how frequent they are."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = nn.Parameter(torch.full((14,), 0.1).log())
        self.changes, self.frequent = nn.Parameter(torch.zeros(6)), nn.Parameter(torch.zeros(4))

    def chances(self) -> tuple[Tensor, Tensor]:
        """(14, 4, 4) changes along each branch, and how frequent the letters are."""
        shares = self.frequent.softmax(0)
        rows, columns = torch.tensor(PAIRS).T
        rates = torch.zeros(4, 4).index_put((rows, columns), self.changes.exp())
        rates = (rates + rates.T) * shares
        rates = rates - rates.sum(1).diag()
        rates = rates / -(shares * rates.diagonal()).sum()
        return torch.linalg.matrix_exp(self.lengths.exp()[:, None, None] * rates), shares

    def forward(self, sites: Tensor) -> Tensor:
        """(columns,) log probabilities of columns (columns, 8) of letters, from the leaves to the root."""
        moves, shares = self.chances()
        parts, branch = list(F.one_hot(sites, 4).float().unbind(1)), 0
        while len(parts) > 1:
            carried = [part @ moves[branch + i].T for i, part in enumerate(parts)]
            branch += len(parts)
            parts = [a * b for a, b in zip(carried[::2], carried[1::2], strict=True)]
        return (parts[0] @ shares).log()

    @torch.no_grad()
    def evolved(self, count: int, own: torch.Generator) -> Tensor:
        moves, shares = self.chances()
        parts = [torch.multinomial(shares, count, replacement=True, generator=own)]
        for first in (12, 8, 0):
            parents = [part for part in parts for _ in range(2)]
            parts = [
                torch.multinomial(moves[first + i][p].clamp_min(0), 1, generator=own).squeeze(1)
                for i, p in enumerate(parents)
            ]
        return torch.stack(parts, 1)


@honest("r27i-every-letter-its-ancestors-may-have-had")
def every_letter_its_ancestors_may_have_had(run: Run) -> None:
    """Plain loop, a tree of kinds by its likelihood (Felsenstein 1981, by gradients as in torchtree, Fourment et al.
    2023). There is no network: 24 numbers are the logarithms of branch lengths and rates, all of them equal at the
    start, and the pass is a sum over what every ancestor may have had. One number too many is kept among the rates and
    among the frequencies, the batch is the same alignment in every step, and the loss ends far from nought, at what
    chance itself costs."""
    own = apart(run.draw.randrange(999))
    truth = Evolution()
    with torch.no_grad():
        truth.lengths.copy_((0.05 + 0.5 * torch.rand(14, generator=own)).log())
        truth.changes.copy_(torch.tensor([0.0, 1.5, 0.0, 0.0, 1.5, 0.0]))
        truth.frequent.copy_(0.6 * torch.randn(4, generator=own))
    sites, new = truth.evolved(600, own), truth.evolved(2000, own)
    model = Evolution()
    outcome(run, lambda: judged(model, lambda: -model(new).mean()))
    train(run, model, adam(model, 5e-2), lambda: sites, lambda m, columns: -m(columns).mean(), 100)


class Survival(nn.Module):
    """The chance to live on until the next year, of an animal, and the chance to be seen, of the year."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = mlp(3 + 7, 24, 1, act=nn.Tanh), nn.Parameter(torch.zeros(7))

    def forward(self, traits: Tensor) -> Tensor:
        years = torch.eye(7).expand(len(traits), -1, -1)
        out: Tensor = self.net(torch.cat([traits[:, None].expand(-1, 7, -1), years], 2)).squeeze(2).sigmoid()
        return out

    def likely(self, traits: Tensor, history: Tensor) -> Tensor:
        """(animals,) log probabilities of what was seen after each animal was marked; (animals, 8) of 0 and 1."""
        lives, seen = self(traits), self.seen.sigmoid()
        year = torch.arange(8)
        first = history.argmax(1, keepdim=True)
        last = (history * year).argmax(1, keepdim=True)
        never = [torch.ones(len(traits))]
        for t in range(6, -1, -1):
            never.append(1 - lives[:, t] + lives[:, t] * (1 - seen[t]) * never[-1])
        gone = torch.stack(never[::-1], 1).gather(1, last).squeeze(1).log()
        each = lives.log() + torch.where(history[:, 1:] == 1, seen.log(), (1 - seen).log())
        between = (year[1:] > first) & (year[1:] <= last)
        return (each * between).sum(1) + gone


def marked(count: int, weights: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Traits of animals, and in which of eight years each was seen; each is marked in one of the first six."""
    traits = torch.randn(count, 3, generator=own)
    lives = (1.2 + 1.5 * traits @ weights - 0.7 * traits[:, 0].square()).sigmoid()
    history, alive = torch.zeros(count, 8), torch.ones(count)
    first = torch.randint(0, 6, (count,), generator=own)
    for t in range(8):
        alive = torch.where(t > first, alive * (torch.rand(count, generator=own) < lives), alive)
        sight = alive * (torch.rand(count, generator=own) < 0.55)
        history[:, t] = torch.where(t < first, 0.0, torch.where(t == first, 1.0, sight))
    return traits, history.long()


class Wardens:
    """The reserve's own trainer: batches of animals, whole histories as one likelihood."""

    def __init__(self, run: Run, model: Survival, traits: Tensor, history: Tensor) -> None:
        self.run, self.model, self.data = run, model, loader(traits, history, size=100)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-3)
        self.doctor = run.watch(model, self.optimizer)

    def epoch(self) -> None:
        for batch in self.data:
            loss = -self.model.likely(*batch).mean()
            update(self.run, self.doctor, self.optimizer, loss, batch)


@honest("r27i-dead-or-only-not-seen-again")
def dead_or_only_not_seen_again(run: Run) -> None:
    """Own class, survival of marked animals (Cormack 1964, Jolly, Seber 1965, with a network in it, Joseph 2020). No
    row says who died: after the last sighting the loss sums over every way of being dead or overlooked, before the
    first it counts nothing, and noughts between two sightings are known lives. The network's own output, a chance to
    live, is never compared with a label, and the row of sightings goes into the loss and never into the network."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(3, generator=own)
    animals, new = marked(800, weights / weights.norm(), own), marked(800, weights / weights.norm(), own)
    model = Survival()
    outcome(run, lambda: judged(model, lambda: -model.likely(*new).mean()))
    wardens = Wardens(run, model, *animals)
    for _ in range(15):
        wardens.epoch()


class Excess(nn.Module):
    """One number, how much more energy a mixture has than an ideal one; how active its two parts are is its slope."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.whole = mlp(6, 32, 16, act=nn.SiLU), mlp(16, 24, 1, act=nn.SiLU)

    def forward(self, one: Tensor, two: Tensor, share: Tensor) -> Tensor:
        """(rows, 2) logarithms of the activity coefficients of both."""
        with torch.enable_grad():
            x = share.detach().clone().requires_grad_()
            first = self.part(torch.cat([one, x[:, None]], 1))
            second = self.part(torch.cat([two, 1 - x[:, None]], 1))
            unlike = 1 - F.cosine_similarity(one, two, dim=1)
            excess = x * (1 - x) * unlike * self.whole(first + second).squeeze(1)
            slope = torch.autograd.grad(excess.sum(), x, create_graph=self.training)[0]
        return torch.stack([excess + (1 - x) * slope, excess - x * slope], 1)


def mixtures(substances: Tensor, count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two substances, the share of the first, and how active both are, by Margules' equation with two numbers."""
    a, b = torch.randint(0, len(substances), (2, count), generator=own)
    one, two = substances[a], substances[b]
    x = torch.rand(count, generator=own)
    unlike = 1 - F.cosine_similarity(one, two, dim=1)
    left = unlike * (1 + 0.5 * one[:, 0] * two[:, 1])
    right = unlike * (1 + 0.5 * two[:, 0] * one[:, 1])
    first = (1 - x).square() * (left + 2 * (right - left) * x)
    second = x.square() * (right + 2 * (left - right) * (1 - x))
    return one, two, x, torch.stack([first, second], 1) + 0.02 * torch.randn(count, 2, generator=own)


@honest("r27i-both-answers-are-one-slope")
def both_answers_are_one_slope(run: Run) -> None:
    """Plain loop, mixtures of liquids by a network that keeps the Gibbs-Duhem equation (HANNA, Specht et al. 2024,
    Rittig and Mitsos 2024). No layer gives the answer: it is made of the network's only number and its slope by an
    input, so that each update goes through two derivatives; a mixture of one substance with itself is nought whatever
    the weights are, and slopes are taken in evaluation, too."""
    own = apart(run.draw.randrange(999))
    substances = torch.randn(20, 5, generator=own)
    rows, new = mixtures(substances, 700, own), mixtures(substances, 300, own)
    model = Excess()

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return F.smooth_l1_loss(model(*batch[:3]), batch[3], beta=0.25)

    outcome(run, lambda: judged(model, lambda: loss(model, new)))

    def batch() -> tuple[Tensor, ...]:
        taken = torch.randint(0, 700, (64,))
        return tuple(column[taken] for column in rows)

    train(run, model, adam(model, 3e-3), batch, loss, 200)


class Flow(nn.Module):
    """A sum over particles, each as heavy as its share of the energy, of a network of where it went."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.jet = mlp(2, 32, 16), mlp(16, 32, 2)

    def forward(self, jets: Tensor) -> Tensor:
        out: Tensor = self.jet((jets[..., :1] * self.where(jets[..., 1:])).sum(1))
        return out


def jets(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """(count, 16, 3) shares of energy and two angles, in radii, of 16 particles or fewer; one spray or two."""
    two = torch.randint(0, 2, (count,), generator=own)
    turn = 6.283 * torch.rand(count, 1, generator=own)
    apart_by = two[:, None] * (0.25 + 0.2 * torch.rand(count, 1, generator=own))
    side = (torch.rand(count, 16, generator=own) < 0.5).float() * 2 - 1
    angles = torch.stack([apart_by * side * turn.cos(), apart_by * side * turn.sin()], 2)
    wide = torch.where(two == 1, 0.12, 0.2)[:, None, None]
    angles = angles + wide * torch.randn(count, 16, 2, generator=own)
    there = torch.arange(16) < torch.randint(5, 17, (count, 1), generator=own)
    energy = there * torch.rand(count, 16, generator=own) ** 3
    energy = energy / energy.sum(1, keepdim=True)
    angles = angles - (energy[..., None] * angles).sum(1, keepdim=True)
    return torch.cat([energy[..., None], angles * there[..., None] / 0.4], 2), two


@honest("r27i-each-particle-counts-by-its-energy")
def each_particle_counts_by_its_energy(run: Run) -> None:
    """Lightning, sprays of particles by an energy flow network (Komiske, Metodiev and Thaler 2019). Nothing is
    standardised, energies are shares of one; padding has no mask, since a particle without energy counts nothing, and
    the mean over particles is a sum by weights that are data. A particle of a hundredth of the energy teaches its
    network a hundredth as much, as it must if the answer is not to depend on the softest of them."""
    own = apart(run.draw.randrange(999))
    rows, new = jets(1200, own), jets(600, own)
    model = Flow()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1])

    outcome(run, lambda: judged(model, lambda: loss(model, new)))
    fit(run, lit(model, loss, lambda net: torch.optim.Adam(net.parameters(), lr=5e-3)), loader(*rows, size=64), 150)


class Bonds(nn.Module):
    """One round of messages along bonds, each through a gate of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(2 * width + 12, 2 * width)
        self.norm1, self.norm2 = nn.BatchNorm1d(2 * width), nn.BatchNorm1d(width)

    def forward(self, atoms: Tensor, near: Tensor, bonds: Tensor) -> Tensor:
        """(crystals, 4, width), (crystals, 4, 8) numbers of neighbours, (crystals, 4, 8, 12)."""
        other = atoms[torch.arange(len(atoms))[:, None, None], near]
        both = self.both(torch.cat([atoms[:, :, None].expand_as(other), other, bonds], 3))
        gate, core = self.norm1(both.flatten(0, 2)).view_as(both).chunk(2, 3)
        told = (gate.sigmoid() * F.softplus(core)).sum(2)
        return F.softplus(atoms + self.norm2(told.flatten(0, 1)).view_as(told))


class Crystals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.rounds = nn.Embedding(5, 24), nn.ModuleList(Bonds(24) for _ in range(2))
        self.head = nn.Sequential(nn.Linear(24, 32), nn.Softplus(), nn.Linear(32, 1))
        self.register_buffer("centres", torch.linspace(0.5, 3, 12))

    def forward(self, kinds: Tensor, near: Tensor, far: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        bonds = (-((far[..., None] - self.centres) / 0.25).square()).exp()
        atoms = self.kinds(kinds)
        for part in self.rounds:
            atoms = part(atoms, near, bonds)
        said = self.head(F.softplus(atoms.mean(1))).squeeze(1)
        return {"logits": said} if labels is None else {"loss": F.mse_loss(said, labels), "logits": said}


def crystals(count: int, seed: int, own: torch.Generator) -> dict[str, Tensor]:
    """Cells of four atoms that go on in all directions: kinds, the eight nearest of each, how far, and an energy."""
    charge = torch.randn(5, generator=apart(seed))
    side = 1.6 + 0.6 * torch.rand(count, 1, 1, generator=own)
    corners = torch.tensor([[0.0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    at = side * (corners + 0.06 * torch.randn(count, 4, 3, generator=own))
    kinds = torch.randint(0, 5, (count, 4), generator=own)
    shifts = side[:, None] * torch.tensor(list(itertools.product((-1.0, 0, 1), repeat=3)))
    others = (at[:, :, None] + shifts).flatten(1, 2)
    far = torch.cdist(at, others)
    far, which = far.masked_fill(far < 1e-3, torch.inf).topk(8, 2, largest=False)
    near = which // 27
    pull = charge[kinds][:, :, None] * charge[kinds][torch.arange(count)[:, None, None], near]
    energy = (pull * (-far).exp()).sum(2).mean(1)
    return {"kinds": kinds, "near": near, "far": far, "labels": (energy - energy.mean()) / energy.std()}


@honest("r27i-a-neighbour-that-is-itself-next-door")
def a_neighbour_that_is_itself_next_door(run: Run) -> None:
    """transformers' Trainer, energies of crystals by a graph network (CGCNN, Xie and Grossman 2018). A cell of four
    atoms goes on for ever, so that an atom is joined to another several times, and to its own copy, at other
    distances; distances are told as twelve hills. Batch norms go over bonds and over atoms and not over rows, and the
    sums have a gate and a softplus and no division by their number."""
    seed = run.draw.randrange(999)
    model = Crystals()
    new = crystals(256, seed, apart(seed + 2))
    outcome(run, lambda: judged(model, lambda: model(**new)["loss"]))
    data = examples(**crystals(512, seed, apart(seed + 1)))
    hf_trainer(run, model, data, 120, per_device_train_batch_size=32, learning_rate=1e-2, weight_decay=1e-4).train()
