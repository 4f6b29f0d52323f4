"""Round 17a, honest and odd: as special fields do it."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import Decoder, apart, judged, mlp, outcome, table, train
from benchmarks.robustness.loops.round7b_tools import adam, update
from torch import Tensor, nn
from torch.nn import functional as F


@honest("r17a-differences-of-two-rows")
def differences_of_two_rows(run: Run) -> None:
    """Plain loop, a table by twin regression, as it is done for molecules and few data (Wetzel et al. 2022, DeepDelta,
    Fralish et al. 2023). The network is never told a row's number: it reads two rows and learns the difference of
    their labels, each row stands in many pairs and in both orders, and in use a new row is compared with all known
    ones, whose mean is said."""
    seed = run.draw.randrange(999)
    x, y = table(96, seed, apart(2))
    new, truth = table(256, seed, apart(1))
    model = mlp(12, 64, 64, 1)

    def measure() -> Tensor:
        pairs = torch.cat([new[:, None].expand(-1, len(x), -1), x.expand(len(new), -1, -1)], 2)
        return F.mse_loss((model(pairs).squeeze(2) + y).mean(1), truth) / truth.var()

    outcome(run, lambda: judged(model, measure))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        both = torch.cat([batch[0], batch[0].roll(6, 1)])
        labels = torch.cat([batch[1], -batch[1]])
        return F.mse_loss(model(both).squeeze(1), labels)

    def pairs() -> tuple[Tensor, Tensor]:
        a, b = torch.randint(0, len(x), (2, 48))
        return torch.cat([x[a], x[b]], 1), y[a] - y[b]

    train(run, model, adam(model, 2e-3), pairs, loss, 300)


class DeepKernel(nn.Module):
    """How alike two rows are, after a small network; a Gaussian process stands on it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = mlp(6, 32, 4, act=nn.Tanh)
        self.log_scale, self.log_noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-1.0))

    def alike(self, a: Tensor, b: Tensor) -> Tensor:
        apart_by = (self.features(a)[:, None] - self.features(b)[None]).square().sum(2)
        return self.log_scale.exp() * (-apart_by / 2).exp()

    def root(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky(self.alike(x, x) + (self.log_noise.exp() + 1e-3) * torch.eye(len(x)))

    def forward(self, new: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """What is expected of new rows."""
        return self.alike(new, x) @ torch.cholesky_solve(y[:, None], self.root(x)).squeeze(1)


@honest("r17a-one-number-for-the-whole-table")
def one_number_for_the_whole_table(run: Run) -> None:
    """Plain loop, deep kernel learning as in GPyTorch (Wilson et al. 2016). The loss is the log density of all labels
    together under a Gaussian process: it is no mean over rows, takes a Cholesky factor of the whole table in every
    step, so that there are no batches, half of it asks for no fit at all but for a simple kernel, and it may go below
    zero. Labels are inputs in use, where the known ones are asked again."""
    seed = run.draw.randrange(999)
    x, y = table(96, seed, apart(2))
    mean, spread = y.mean(), y.std()
    new, truth = table(192, seed, apart(1))
    y, truth = (y - mean) / spread, (truth - mean) / spread
    model = DeepKernel()
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(new, x, y), truth)))

    def loss(model: DeepKernel, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        root = model.root(x)
        fit = y @ torch.cholesky_solve(y[:, None], root).squeeze(1)
        return (0.5 * fit + root.diagonal().log().sum()) / len(x) + 0.5 * math.log(2 * math.pi)

    train(run, model, adam(model, 1e-2), lambda: (x, y), loss, 120)  # type: ignore[arg-type]


def points_around(forms: Tensor, count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Which of the forms (ellipses: centre and two radii, (n, 4)), a point not far from its edge, and about how far it
    is outside."""
    which = torch.randint(0, len(forms), (count,), generator=own)
    angle = 2 * math.pi * torch.rand(count, 1, generator=own)
    out = 1 + 0.3 * torch.randn(count, 1, generator=own)
    centre, radii = forms[which, :2], forms[which, 2:]
    points = centre + radii * out * torch.cat([angle.cos(), angle.sin()], 1)
    return which, points, (out.abs().squeeze(1) - 1) * radii.mean(1)


class FormsByHeart(nn.Module):
    """A vector of its own for each form, and one network that says of a point how far it is outside."""

    def __init__(self, forms: int) -> None:
        super().__init__()
        self.own = nn.Embedding(forms, 4)
        nn.init.normal_(self.own.weight, std=0.01)
        self.net = mlp(6, 48, 48, 1)

    def forward(self, which: Tensor, points: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([self.own(which), points], 1)).squeeze(1).tanh()
        return out


@honest("r17a-a-vector-for-each-form-and-no-encoder")
def a_vector_for_each_form_and_no_encoder(run: Run) -> None:
    """Plain loop, forms from clouds of points by an auto-decoder (DeepSDF, Park et al. 2019). The network does not see
    the form that it is to draw, only its number: each form's vector is a weight, begins next to zero and so the same
    for all, and has ten times the network's rate. Distances beyond 0.3 are cut off in label and output, where nothing
    is taught at all."""
    own = apart(run.draw.randrange(999))
    forms = torch.cat([torch.rand(16, 2, generator=own) - 0.5, 0.2 + 0.5 * torch.rand(16, 2, generator=own)], 1)
    model = FormsByHeart(16)

    def error(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        which, points, far = batch
        return (model(which, points).clamp(-0.3, 0.3) - far.clamp(-0.3, 0.3)).abs().mean()

    check = points_around(forms, 1024, apart(1))
    outcome(run, lambda: judged(model, lambda: error(model, check)))
    groups = [{"params": model.net.parameters()}, {"params": model.own.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups, lr=1e-3)

    def penalised(m: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return error(m, batch) + 1e-4 * m.own(batch[0]).square().sum(1).mean()  # type: ignore[operator]

    train(run, model, optimizer, lambda: points_around(forms, 256), penalised, 600)


SPINS = 8


def all_states() -> Tensor:
    return torch.cartesian_prod(*[torch.arange(2)] * SPINS)


def likely(model: nn.Module, spins: Tensor) -> Tensor:
    """(rows,) log probabilities of rows of zeros and ones."""
    shown = F.pad(spins[:, :-1], (1, 0), value=2)
    return model(shown).log_softmax(2).gather(2, spins[..., None]).squeeze(2).sum(1)


@honest("r17a-no-data-but-an-energy")
def no_data_but_an_energy(run: Run) -> None:
    """Plain loop, magnets by a small GPT, a variational autoregressive network (Wu et al. 2019). There are no data:
    each batch is what the model has just said, and what counts is how its log probability compares with an energy,
    lower for some rows of spins than for others; what is told is the free energy, below zero and without a known
    floor, and what is differentiated is something else, whose value is near zero. It starts warm and is cooled, by
    which the loss changes its scale."""
    couplings = torch.randn(SPINS, SPINS, generator=apart(run.draw.randrange(999))).triu(1) / math.sqrt(SPINS)

    def energy(spins: Tensor) -> Tensor:
        return -torch.einsum("ri,ij,rj->r", 2.0 * spins - 1, couplings, 2.0 * spins - 1)

    model = Decoder(3, width=24, length=SPINS)
    model.head = nn.Linear(24, 2, bias=False)
    states = all_states()

    def free_energy() -> Tensor:
        said = likely(model, states)
        return (said.exp() * (said + 2 * energy(states))).sum()

    outcome(run, lambda: judged(model, free_energy))
    optimizer = adam(model, 4e-3)
    doctor = run.watch(model, optimizer)
    for step in range(130):
        cold = 2 * min(1.0, 0.3 + step / 80)
        rows = torch.full((64, 1), 2)
        with torch.no_grad():
            for _ in range(SPINS):
                rows = torch.cat([rows, torch.multinomial(model(rows)[:, -1].softmax(1), 1)], 1)
        spins = rows[:, 1:]
        said = likely(model, spins)
        each = (said + cold * energy(spins)).detach()
        surrogate = ((each - each.mean()) * said).mean()
        update(run, doctor, optimizer, surrogate + (each.mean() - surrogate).detach(), spins)
