"""Honest and odd: generators, contrasts, agents, equations, graphs and other kinds of learning."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    fit,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from torch import Tensor, nn
from torch.nn import functional as F


def classify(m: nn.Module, b: Any) -> Tensor:
    return F.cross_entropy(m(b[0]), b[1])


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


def ring(count: int, own: torch.Generator | None = None) -> Tensor:
    angle = 6.283 * torch.rand(count, generator=own)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=own)


@honest("r5-forger-and-judge")
def forger_and_judge(run: Run) -> None:
    """A GAN: two models, two optimizers, losses that go up and down against each other; two doctors watch."""
    forger, judge = mlp(4, 32, 32, 2), mlp(2, 48, 48, 1, act=nn.GELU)
    probe = torch.randn(256, 4, generator=apart(1))
    outcome(run, lambda: judged(forger, lambda: (forger(probe).norm(dim=1) - 1).abs().mean()))
    first, second = (torch.optim.Adam(m.parameters(), lr=4e-3, betas=(0.5, 0.99)) for m in (forger, judge))
    doctors = run.watch(forger, first), run.watch(judge, second)
    for _ in range(140):
        real = ring(64)
        made = forger(torch.randn(64, 4))
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        second.zero_grad()
        loss.backward()
        second.step()
        doctors[1].step(loss, real)
        fool = F.softplus(-judge(made)).mean()
        first.zero_grad()
        fool.backward()
        first.step()
        doctors[0].step(fool, real)
        run.note(fool)


class Vae(nn.Module):
    """A variational autoencoder of pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = mlp(64, 48, 8), mlp(4, 48, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.read(x.flatten(1)).chunk(2, 1)
        z = mean + (0.5 * spread).exp() * torch.randn(mean.shape) if self.training else mean
        return self.write(z), mean, spread


@honest("r5-divergence-warms-up")
def divergence_warms_up(run: Run) -> None:
    """A VAE whose divergence has a weight that rises from zero, so that the loss goes up in the middle; free bits keep
    each latent from collapsing."""
    seed = run.draw.randrange(999)
    model = Vae()
    count = iter(range(10**6))

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        out, mean, spread = m(x)
        each = (-0.5 * (1 + spread - mean**2 - spread.exp())).mean(0).clamp(min=0.1)
        beta = min(1.0, next(count) / 60)
        return 15 * ((out - x.flatten(1)) ** 2).sum(1).mean() + beta * each.sum()

    x = pictures(256, seed, own=apart(1))[0]
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x)[0], x.flatten(1))))
    train(run, model, adam(model), lambda: pictures(32, seed)[0], loss, 110)


class Codes(nn.Module):
    """An autoencoder through a codebook of eight, straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.write = mlp(64, 32, 4), mlp(4, 32, 64)
        self.book = nn.Parameter(torch.randn(8, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.read(x.flatten(1))
        code = self.book[torch.cdist(z, self.book).argmin(1)]
        commit = F.mse_loss(z, code.detach()) * 0.25 + F.mse_loss(code, z.detach())
        return self.write(z + (code - z).detach()), commit


@honest("r5-codebook")
def codebook(run: Run) -> None:
    """VQ-VAE: argmin in the middle, copied gradients, codes that are never chosen stay where they are."""
    seed = run.draw.randrange(999)
    model = Codes()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        out, commit = m(x)
        return F.mse_loss(out, x.flatten(1)) * 10 + commit

    x = pictures(256, seed, own=apart(1))[0]
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(x)[0], x.flatten(1))))
    train(run, model, adam(model), lambda: pictures(32, seed)[0], loss, 110)


class Net(nn.Module):
    """From a point and a time to a direction."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(4, 48, 48, 2, act=nn.SiLU)
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = self.body(torch.cat([x, t[:, None], t[:, None] ** 2], 1))
        return out


@honest("r5-noise-as-the-target")
def noise_as_the_target(run: Run) -> None:
    """Diffusion with a weight for each time, a zero last layer and an average of the weights that is judged; the loss
    keeps a high floor."""
    model = Net()
    average = copy.deepcopy(model).requires_grad_(False)

    def batch(count: int = 96, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        return ring(count, own), torch.rand(count, generator=own), torch.randn(count, 2, generator=own)

    def loss(m: nn.Module, b: tuple[Tensor, ...]) -> Tensor:
        keep = torch.cos(1.5 * b[1])[:, None]
        return ((m(keep * b[0] + (1 - keep**2).sqrt() * b[2], b[1]) - b[2]) ** 2 * (1 + keep)).mean()

    check = batch(512, apart(1))
    outcome(run, lambda: judged(average, lambda: loss(average, check)))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        data = batch()
        value = loss(model, data)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        doctor.step(value, data)
        run.note(value)
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.08)


@honest("r5-straight-from-noise-to-data")
def straight_from_noise(run: Run) -> None:
    """Flow matching in Lightning: the target is the difference of data and noise, most of which cannot be known."""
    model = Net()

    def loss(m: nn.Module, b: Any) -> Tensor:
        x = b[0]
        own = None if m.training else apart(3)
        t, noise = torch.rand(len(x), generator=own), torch.randn(x.shape, generator=own)
        return F.mse_loss(m(t[:, None] * x + (1 - t[:, None]) * noise, t), x - noise)

    check = (ring(512, apart(1)),)
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, adam), loader(ring(2048), size=64), 110)


class Coupling(nn.Module):
    """A flow of four couplings of the two coordinates."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(mlp(1, 24, 2, act=nn.Tanh) for _ in range(6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x))
        for net in self.nets:
            scale, shift = net(x[:, :1]).chunk(2, 1)
            scale = scale.tanh()
            x = torch.cat([x[:, 1:] * scale.exp() + shift, x[:, :1]], 1)
            total = total + scale.squeeze(1)
        return x, total


@honest("r5-density-below-zero")
def density_below_zero(run: Run) -> None:
    """A normalising flow: the loss is a negative log density and goes below zero."""
    model = Coupling()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        z, total = m(x)
        return (0.5 * (z**2).sum(1) + 1.84 - total).mean()

    check = 0.3 * ring(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: 0.3 * ring(64), loss, 110)


@honest("r5-three-patches-in-four-hidden")
def patches_hidden(run: Run) -> None:
    """A masked autoencoder: three patches in four are zeroed, the loss is about those alone; there are no labels."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 96, 64))

    def batch(count: int = 32, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = pictures(count, seed, own=own)[0]
        hidden = torch.rand(count, 1, 4, 4, generator=own) < 0.75
        return x, hidden.repeat_interleave(2, 2).repeat_interleave(2, 3)

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        out = m(b[0].masked_fill(b[1], 0)).view_as(b[0])
        return ((out - b[0]) ** 2)[b[1]].mean()

    check = batch(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), batch, loss, 80)


@honest("r5-two-views-of-one-picture")
def two_views(run: Run) -> None:
    """SimCLR: labels are places in the batch, rows compare with all other rows, the loss begins above log of the number
    of rows."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 48, 16))

    def views(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.rand(count, 1, 8, 8, generator=own) + pictures(count, seed, own=own)[0]
        return (
            x + 0.2 * torch.randn(x.shape, generator=own),
            x * (0.8 + 0.4 * torch.rand(count, 1, 1, 1, generator=own)),
        )

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        z = F.normalize(m(torch.cat(b)), dim=1)
        near = (z @ z.T / 0.2).fill_diagonal_(-1e9)
        n = len(b[0])
        return F.cross_entropy(near, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))

    check = views(64, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), views, loss, 70)


@honest("r5-no-negatives")
def no_negatives(run: Run) -> None:
    """BYOL: a slow copy is the target, a predictor stands on one side only, the loss is a cosine and falls to nearly
    -1; judged by a linear reading of the classes."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(nn.Flatten(), mlp(64, 48, 16, norm=True))
    model = nn.ModuleDict({"net": net, "say": mlp(16, 32, 16, norm=True)})
    target = copy.deepcopy(net).requires_grad_(False)
    check = pictures(128, seed, own=apart(1))[0]
    noisy = check + 0.15 * torch.randn(check.shape, generator=apart(2))
    measure = lambda: -F.cosine_similarity(model["say"](net(check)), target(noisy)).mean()
    outcome(run, lambda: judged(model, measure))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        x = pictures(32, seed)[0]
        one, two = x + 0.15 * torch.randn_like(x), x + 0.15 * torch.randn_like(x)
        loss = -F.cosine_similarity(model["say"](net(one)), target(two)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.05)


@honest("r5-pictures-blended-with-labels")
def blended(run: Run) -> None:
    """Mixup as it should be: labels are blended too, as soft targets; accuracy on the blends means nothing."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))

    def batch() -> tuple[Tensor, Tensor]:
        x, y = pictures(24, seed)
        share, other, y = torch.rand(24, 1), torch.randperm(24), F.one_hot(y, 4).float()
        blend = share[:, :, None, None]
        return blend * x + (1 - blend) * x[other], share * y + (1 - share) * y[other]

    train(run, model, adam(model), batch, classify, 70)


@honest("r5-rare-and-focal")
def rare_and_focal(run: Run) -> None:
    """Focal loss on a class that is one row in twelve, with a bias of -2.4 in the last layer: the loss begins small."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 1)
    nn.init.constant_(model[-1].bias, -2.4)  # type: ignore[arg-type]
    border = table(2000, seed, apart(2))[1].quantile(0.92)

    def rows(count: int = 48, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, (y > border).float()

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        each = F.binary_cross_entropy_with_logits(m(b[0]).flatten(), b[1], reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    check = rows(400, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), rows, loss, 80)


@honest("r5-equation-as-the-loss")
def equation_as_the_loss(run: Run) -> None:
    """A network that solves u'' = -u on [0, 3]: no data but points, second derivatives by autograd, a float64 model."""
    model = mlp(1, 24, 24, 1, act=nn.Tanh).double()

    def loss(m: nn.Module, t: Tensor) -> Tensor:
        t = t.requires_grad_(True)
        u = m(t)
        first = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), t, create_graph=True)[0]
        zero = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
        start = m(zero)
        slope = torch.autograd.grad(start.sum(), zero, create_graph=True)[0]
        return ((second + u) ** 2).mean() + 3 * ((start - 0) ** 2 + (slope - 1) ** 2).mean()

    check = torch.linspace(0, 3, 50, dtype=torch.float64)[:, None]
    outcome(run, lambda: judged(model, lambda: F.mse_loss(model(check), check.sin())))
    batch = lambda: 3 * torch.rand(48, 1, dtype=torch.float64)
    train(run, model, adam(model, 8e-3), batch, loss, 140)


@honest("r5-waves-of-places")
def waves_of_places(run: Run) -> None:
    """A neural field: one picture, a random fixed layer of sines in front, all pixels in every batch: it memorises on
    purpose."""
    picture = torch.rand(1, 1, 6, 6, generator=apart(run.draw.randrange(999)))
    picture = F.interpolate(picture, (16, 16), mode="bilinear").flatten()
    grid = torch.cartesian_prod(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16))
    waves = 4 * torch.randn(2, 24)

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("waves", waves)
            self.body = mlp(48, 32, 1)

        def forward(self, x: Tensor) -> Tensor:
            phase = x @ self.waves
            out: Tensor = self.body(torch.cat([phase.sin(), phase.cos()], 1))
            return out

    model = Field()
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    outcome(run, lambda: judged(model, lambda: loss(model, (grid, picture))))
    train(run, model, adam(model), lambda: (grid, picture), loss, 100)


@honest("r5-layers-left-out")
def layers_left_out(run: Run) -> None:
    """Stochastic depth: each residual block is skipped at random for the whole batch, and gets no gradient then."""
    seed = run.draw.randrange(999)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 24), nn.Linear(24, 1)
            self.blocks = nn.ModuleList(mlp(24, 24, 24) for _ in range(5))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for block in self.blocks:
                if not self.training:
                    x = x + 0.7 * block(x)
                elif torch.rand(()) < 0.7:
                    x = x + block(x)
            out: Tensor = self.last(x)
            return out

    model = Deep()
    number_outcome(run, model, table(256, seed, apart(1)))
    loss = lambda m, b: F.mse_loss(m(b[0]).flatten(), b[1])
    train(run, model, adam(model), lambda: table(32, seed), loss, 110)


@honest("r5-heavy-tails-by-quantiles")
def heavy_tails(run: Run) -> None:
    """Three quantiles of a target with Cauchy noise: outliers of a thousand come in, and the pinball loss bears them."""
    seed = run.draw.randrange(999)
    model = mlp(6, 32, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def rows(count: int = 48, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        spread = (3.1416 * (torch.rand(count, generator=own) - 0.5)).tan()
        return x, y + 0.3 * spread

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        gap = b[1][:, None] - m(b[0])
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    check = rows(400, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), rows, loss, 100)


@honest("r5-counts-by-poisson")
def counts(run: Run) -> None:
    """Poisson regression: labels are counts, the loss has no lower bound at zero and goes negative."""
    seed = run.draw.randrange(999)
    model = mlp(6, 24, 1)

    def rows(count: int = 48, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, torch.poisson((1 + 0.4 * y).clamp(-2, 3).exp(), generator=own)

    loss = lambda m, b: F.poisson_nll_loss(m(b[0]).flatten(), b[1])
    check = rows(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), rows, loss, 80)


@honest("r5-alignment-unknown")
def alignment_unknown(run: Run) -> None:
    """CTC: outputs are longer than labels, blanks are most of what is said, and the loss begins in the tens."""
    model = nn.Sequential(nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 6, 3, padding=1))
    sounds = torch.randn(6, 6, generator=apart(run.draw.randrange(999)))

    def rows(count: int = 16, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        labels = torch.randint(1, 6, (count, 4), generator=own)
        x = sounds[labels.repeat_interleave(4, 1)].transpose(1, 2)
        return x + 0.3 * torch.randn(x.shape, generator=own), labels

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        said = m(b[0]).permute(2, 0, 1).log_softmax(-1)
        return F.ctc_loss(said, b[1], torch.full((len(b[0]),), 16), torch.full((len(b[0]),), 4), zero_infinity=True)

    check = rows(96, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), rows, loss, 80)


class Reverse(torch.autograd.Function):
    """Nothing forward, the negative backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return -0.3 * grad


@honest("r5-gradient-turned-around")
def gradient_turned_around(run: Run) -> None:
    """Domain-adversarial: a head that tells two cameras apart trains the body against itself through a reversed
    gradient; its loss stays near log 2, as it should."""
    seed = run.draw.randrange(999)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU())
            self.kind, self.camera = nn.Linear(32, 4), mlp(32, 16, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = self.body(x)
            return self.kind(hidden), self.camera(Reverse.apply(hidden))

    model = Both()

    def batch(count: int = 24, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x, y = pictures(count, seed, own=own)
        camera = torch.randint(0, 2, (count,), generator=own)
        return x + 0.3 * camera[:, None, None, None], y, camera

    def loss(m: nn.Module, b: tuple[Tensor, ...]) -> Tensor:
        kind, camera = m(b[0])
        return F.cross_entropy(kind, b[1]) + F.cross_entropy(camera, b[2])

    check = batch(256, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[0])[0], check[1])))
    train(run, model, adam(model, 3e-3), batch, loss, 80)


@honest("r5-tasks-weigh-themselves")
def tasks_weigh_themselves(run: Run) -> None:
    """Three tasks of scales 1, 100 and 0.01 with learned log variances; the total goes negative."""
    seed = run.draw.randrange(999)

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spread = mlp(6, 32, 3), nn.Parameter(torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out

    model = Three()
    scales = torch.tensor([1.0, 5.0, 0.05])

    def batch(count: int = 32, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = table(count, seed, own)
        return x, torch.stack([y, y.sin() + x[:, 0], x[:, 1] ** 2], 1) * scales

    def loss(m: Any, b: tuple[Tensor, Tensor]) -> Tensor:
        return (((m(b[0]) - b[1]) ** 2).mean(0) * (-m.spread).exp() + m.spread).sum()

    check = batch(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), batch, loss, 110)


@honest("r5-five-steps-inside-one")
def five_steps_inside_one(run: Run) -> None:
    """MAML: inside of each step the weights are adapted to a task by gradients of gradients, functionally; what is
    trained is the start."""
    model = mlp(1, 24, 1, act=nn.Tanh)

    def tasks(count: int = 4, own: torch.Generator | None = None) -> Tensor:
        return torch.rand(count, 2, generator=own) * torch.tensor([2.0, 3.0]) + torch.tensor([0.5, 0.0])

    def loss(m: nn.Module, b: Tensor) -> Tensor:
        total = torch.zeros(())
        own = None if m.training else apart(4)
        for size, phase in b:
            x = 4 * torch.rand(20, 1, generator=own) - 2
            y = size * (x + phase).sin()
            with torch.enable_grad():
                weights = {k: v for k, v in m.named_parameters()}
                for _ in range(2):
                    inner = F.mse_loss(torch.func.functional_call(m, weights, (x[:10],)), y[:10])
                    grads = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
                    weights = {k: w - 0.05 * g for (k, w), g in zip(weights.items(), grads, strict=True)}
                total = total + F.mse_loss(torch.func.functional_call(m, weights, (x[10:],)), y[10:])
        return total / len(b)

    check = tasks(16, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), tasks, loss, 70)


class Graph(nn.Module):
    """Two rounds of messages over one fixed graph."""

    def __init__(self, edges: Tensor) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.one, self.two = nn.Linear(8, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.edges @ self.two(F.relu(self.edges @ self.one(x)))
        return out


@honest("r5-one-graph-for-ever")
def one_graph_for_ever(run: Run) -> None:
    """A graph network sees the same graph of 60 nodes in every step, and the labels of twelve of them."""
    own = apart(run.draw.randrange(999))
    y = torch.randint(0, 3, (60,), generator=own)
    same = (y[:, None] == y[None]).float()
    link = (torch.rand(60, 60, generator=own) < 0.05 + 0.25 * same).float()
    link = ((link + link.T) > 0).float() + torch.eye(60)
    x = F.one_hot(y, 8).float() + 1.2 * torch.randn(60, 8, generator=own)
    model = Graph(link / link.sum(1, keepdim=True))
    known = torch.randperm(60, generator=own)[:12]
    rest = torch.ones(60, dtype=torch.bool)
    rest[known] = False
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(x)[rest], y[rest])))
    loss = lambda m, b: F.cross_entropy(m(b[0])[b[1]], b[2])
    train(run, model, adam(model, 1e-2), lambda: (x, known, y[known]), loss, 80)


class Actor(nn.Module):
    """Chances of four actions and a value in one of six states."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.act, self.value = nn.Sequential(nn.Linear(6, 32), nn.Tanh()), nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(F.one_hot(states, 6).float())
        return self.act(hidden), self.value(hidden).squeeze(-1)


def regret(model: nn.Module, worth: Tensor) -> Tensor:
    chance = model(torch.arange(6))[0].softmax(1)
    return (worth.max(1).values - (chance * worth).sum(1)).mean()


@honest("r5-actor-and-critic")
def actor_and_critic(run: Run) -> None:
    """A2C: the loss is a sum of three with signs of their own, and neither falls nor rises for long."""
    worth = torch.rand(6, 4, generator=apart(run.draw.randrange(999)))
    model = Actor()
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        states = torch.randint(0, 6, (48,))
        logits, value = model(states)
        choice = torch.distributions.Categorical(logits=logits)
        actions = choice.sample()
        reward = worth[states, actions] + 0.2 * torch.randn(48)
        gap = reward - value
        loss = (
            -(choice.log_prob(actions) * gap.detach()).mean() + 0.5 * (gap**2).mean() - 0.01 * choice.entropy().mean()
        )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        doctor.step(loss, {"states": states, "actions": actions, "rewards": reward})
        run.note(loss)


@honest("r5-four-updates-on-one-rollout")
def four_updates(run: Run) -> None:
    """PPO: the same batch four times, a loss that is near zero at the first of them by construction."""
    worth = torch.rand(6, 4, generator=apart(run.draw.randrange(999)))
    model = Actor()
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(28):
        with torch.no_grad():
            states = torch.randint(0, 6, (64,))
            choice = torch.distributions.Categorical(logits=model(states)[0])
            actions = choice.sample()
            old = choice.log_prob(actions)
            reward = worth[states, actions] + 0.1 * torch.randn(64)
            gain = (reward - reward.mean()) / reward.std()
        for _ in range(4):
            logits, value = model(states)
            ratio = (torch.distributions.Categorical(logits=logits).log_prob(actions) - old).exp()
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean() + 0.1 * F.mse_loss(value, reward)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.step(loss, {"states": states, "actions": actions, "old": old, "advantages": gain})
            run.note(loss)


@honest("r5-values-chase-a-copy")
def values_chase_a_copy(run: Run) -> None:
    """Deep Q-learning with a target network that is copied every ten steps: the loss rises after each copy for a
    while, as rewards are found."""
    model, target = mlp(8, 32, 2), mlp(8, 32, 2)
    target.load_state_dict(model.state_dict())
    eye = torch.eye(8)
    truth = torch.tensor([0.9 ** (7 - s) for s in range(8)])
    outcome(run, lambda: judged(model, lambda: (model(eye)[:, 1] - truth).abs().mean()))
    optimizer = adam(model, 1e-2)
    doctor = run.watch(model, optimizer)
    for at in range(150):
        s, a = torch.randint(0, 8, (64,)), torch.randint(0, 2, (64,))
        done = ((s == 7) & (a == 1)).float()
        after = (s + 2 * a - 1).clamp(0, 7)
        with torch.no_grad():
            wanted = done + 0.9 * target(eye[after]).max(1).values * (1 - done)
        loss = F.smooth_l1_loss(model(eye[s]).gather(1, a[:, None]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"states": s, "actions": a, "rewards": done, "next": after})
        run.note(loss)
        if at % 10 == 9:
            target.load_state_dict(model.state_dict())


@honest("r5-answers-in-groups")
def answers_in_groups(run: Run) -> None:
    """GRPO with a divergence to the start: groups whose answers are all alike have advantage zero and give nothing."""
    worth = (torch.rand(6, 4, generator=apart(run.draw.randrange(999))) > 0.6).float()
    worth[:, 0] = 1.0
    model = Actor()
    start = copy.deepcopy(model).requires_grad_(False)
    outcome(run, lambda: judged(model, lambda: regret(model, worth)))
    optimizer = torch.optim.Adam([*model.body.parameters(), *model.act.parameters()], lr=1e-2)
    model.value.requires_grad_(False)
    doctor = run.watch(model, optimizer)
    for _ in range(80):
        states = torch.arange(6).repeat_interleave(8)
        logits = model(states)[0]
        choice = torch.distributions.Categorical(logits=logits)
        actions = choice.sample()
        reward = worth[states, actions].view(6, 8)
        gain = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
        now, before = logits.log_softmax(1), start(states)[0].log_softmax(1)
        loss = -(choice.log_prob(actions) * gain).mean() + 0.01 * (now.exp() * (now - before)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, {"prompts": states, "answers": actions, "rewards": reward.flatten()})
        run.note(loss)


@honest("r5-triplets-with-a-margin")
def triplets(run: Run) -> None:
    """Triplets of the hardest in the batch: once most hinge terms are zero, many rows give no gradient."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(nn.Flatten(), mlp(64, 48, 8))

    def loss(m: nn.Module, b: tuple[Tensor, Tensor]) -> Tensor:
        far = torch.cdist(m(b[0]), m(b[0])) + 0
        same = b[1][:, None] == b[1][None]
        hardest = (far * same).max(1).values - far.masked_fill(same, 1e9).min(1).values
        return F.relu(hardest + 0.5).mean()

    check = pictures(96, seed, own=apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 3e-3), lambda: pictures(32, seed), loss, 70)
