"""Blind round 6, honest and odd: other objectives, other networks, other ways of a gradient."""

import copy
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    fit,
    judged,
    lit,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    pictures,
    table,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared, regress
from torch import Tensor, nn
from torch.nn import functional as F


def adam(model: nn.Module, rate: float = 5e-3) -> torch.optim.Adam:
    return torch.optim.Adam(model.parameters(), lr=rate)


@honest("r6-correlations-to-the-identity")
def correlations_to_the_identity(run: Run) -> None:
    """Barlow twins: the correlations of two views' features, over the batch, should be the identity; no negatives, no
    copy, no labels."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(nn.Flatten(), mlp(64, 48, 16))

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        a, b = (m(x + 0.15 * torch.randn_like(x)) for _ in range(2))
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-5) for z in (a, b))
        c = a.T @ b / len(x)
        return (c.diagonal() - 1).square().sum() + 0.02 * (c - c.diagonal().diag()).square().sum()

    check = pictures(256, seed, own=apart(1))[0]

    def measure() -> float:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return judged(net, lambda: loss(net, check))

    outcome(run, measure)
    train(run, net, adam(net, 2e-3), lambda: pictures(64, seed)[0], loss, 90)


@honest("r6-labels-from-clusters")
def labels_from_clusters(run: Run) -> None:
    """DeepCluster: every 25 steps features are clustered, the clusters' numbers become the labels and the head is drawn
    anew, so that the loss jumps back to log 6 each time."""
    seed = run.draw.randrange(999)
    body, head = nn.Sequential(nn.Flatten(), mlp(64, 48, 16)), nn.Linear(16, 6)
    model = nn.Sequential(body, nn.ReLU(), head)
    x, _ = pictures(256, seed)
    labels = torch.zeros(256, dtype=torch.long)
    cx, cy = pictures(256, seed, own=apart(1))

    def cluster() -> None:
        with torch.no_grad():
            z = F.normalize(body(x), dim=1)
            centres = z[torch.randperm(256)[:6]]
            for _ in range(8):
                labels.copy_(torch.cdist(z, centres).argmin(1))
                centres = torch.stack([z[labels == k].mean(0) if (labels == k).any() else z[0] for k in range(6)])

    def spread() -> Tensor:
        z = body(cx)
        means = torch.stack([z[cy == k].mean(0) for k in range(4)])
        return (z - means[cy]).square().sum() / (z - z.mean(0)).square().sum()

    outcome(run, lambda: judged(body, spread))
    optimizer = adam(model, 3e-3)
    doctor = run.watch(model, optimizer)
    for step in range(125):
        if step % 25 == 0:
            cluster()
            head.reset_parameters()
        rows = torch.randint(0, 256, (48,))
        optimizer.zero_grad()
        seen = x[rows] + 0.3 * torch.randn(48, 1, 8, 8)
        loss = F.cross_entropy(model(seen), labels[rows])
        loss.backward()
        optimizer.step()
        doctor.step(loss, (seen, labels[rows]))
        run.note(loss)


@honest("r6-noisy-targets-for-noisy-pictures")
def noisy_targets(run: Run) -> None:
    """Noise2Noise in Lightning: input and target are the same picture with two draws of strong noise; the loss stays at
    the noise's variance, what is learned is the clean picture."""
    seed = run.draw.randrange(999)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1)
    )
    clean = pictures(128, seed, own=apart(1))[0]
    seen = clean + 0.6 * torch.randn(clean.shape, generator=apart(2))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(seen), clean)))
    x = pictures(512, seed)[0]
    data = loader(x + 0.6 * torch.randn_like(x), x + 0.6 * torch.randn_like(x))
    fit(run, lit(net, lambda m, b: F.mse_loss(m(b[0]), b[1]), lambda m: adam(m, 3e-3)), data, 100)


@honest("r6-confident-guesses-only")
def confident_guesses_only(run: Run) -> None:
    """FixMatch: thirty-two labelled pictures in every step; of the unlabelled ones, only those guessed with more than 0.9
    teach their disturbed copies, which at first is none."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(32, seed)

    def loss(m: nn.Module, free: Tensor) -> Tensor:
        with torch.no_grad():
            sure, guess = m(free).softmax(1).max(1)
        strong = m(free + 0.3 * torch.randn_like(free))
        term = (F.cross_entropy(strong, guess, reduction="none") * (sure > 0.9)).mean()
        return F.cross_entropy(m(x), y) + term

    train(
        run, model, torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9), lambda: pictures(48, seed)[0], loss, 90
    )


class Hyper(nn.Module):
    """A network that writes the weights of another, which has none of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.write = mlp(2, 32, 1 * 16 + 16 + 16 + 1)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        w = 0.5 * self.write(task)
        a, b, c, d = w[:, :16], w[:, 16:32], w[:, 32:48], w[:, 48:]
        hidden = (x[:, :, None] * a[:, None] + b[:, None]).tanh()
        return (hidden * c[:, None]).sum(2) + d


@honest("r6-weights-from-a-network")
def weights_from_a_network(run: Run) -> None:
    """A hypernetwork: the network that answers has no parameters, another one writes its weights for each task."""
    model = Hyper()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        task, x = torch.rand(count, 2, generator=own) * 2, 4 * torch.rand(count, 12, generator=own) - 2
        return x, task, task[:, :1] * torch.sin(x + task[:, 1:])

    check = rows(128, apart(1))

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.mse_loss(m(b[0], b[1]), b[2])

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model, 1e-2), lambda: rows(32), loss, 150)


@honest("r6-integrated-in-twenty-steps")
def integrated_in_twenty_steps(run: Run) -> None:
    """A neural differential equation: the same small field is integrated by twenty steps of Runge's rule, and the loss is
    about the places on the way; each weight is used forty times in a pass."""
    field = mlp(2, 32, 2, act=nn.Tanh)
    turn = torch.tensor([[-0.1, 1.5], [-1.5, -0.1]])

    def path(f: Any, start: Tensor) -> Tensor:
        out, x = [], start
        for _ in range(20):
            x = x + 0.1 * f(x + 0.05 * f(x))
            out.append(x)
        return torch.stack(out, 1)

    check = torch.randn(64, 2, generator=apart(1))

    def loss(m: nn.Module, start: Tensor) -> Tensor:
        with torch.no_grad():
            true = path(lambda x: x @ turn.T, start)
        return F.mse_loss(path(m, start), true)

    outcome(run, lambda: judged(field, lambda: loss(field, check)))
    train(run, field, adam(field, 1e-2), lambda: torch.randn(32, 2), loss, 80)


class Fixed(torch.autograd.Function):
    """A linear layer whose backward pass uses a fixed random matrix in place of its weight's transpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(x, back)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        x, back = ctx.saved_tensors
        return given[0] @ back, given[0].T @ x, None


class Aligned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(b, a) / math.sqrt(a)) for a, b in ((64, 48), (48, 32), (32, 4))
        )
        for i, w in enumerate(self.weights):
            self.register_buffer(f"back{i}", torch.randn(w.shape) / math.sqrt(w.shape[1]))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i, w in enumerate(self.weights):
            x = Fixed.apply(x, w, getattr(self, f"back{i}"))
            x = x.relu() if i < 2 else x
        return x


@honest("r6-random-weights-backward")
def random_weights_backward(run: Run) -> None:
    """Feedback alignment: errors go back through fixed random matrices, so that gradients are not those of the loss; the
    weights align themselves with the matrices."""
    seed = run.draw.randrange(999)
    model = Aligned()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    train(run, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: pictures(32, seed), classify, 140)


class Spread(nn.Module):
    """A linear layer whose weights are drawn anew in each pass, with learned means and deviations."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.mean, self.rho = nn.Parameter(torch.randn(b, a) / math.sqrt(a)), nn.Parameter(torch.full((b, a), -4.0))
        self.bias = nn.Parameter(torch.zeros(b))

    def forward(self, x: Tensor) -> Tensor:
        w = self.mean + F.softplus(self.rho) * torch.randn_like(self.mean) if self.training else self.mean
        return F.linear(x, w, self.bias)

    def divergence(self) -> Tensor:
        s = F.softplus(self.rho)
        return (0.5 * (s.square() + self.mean.square() - 1) - s.log()).sum()


@honest("r6-weights-with-a-spread")
def weights_with_a_spread(run: Run) -> None:
    """Bayes by backprop: weights are drawn at every pass, also two passes over one batch differ; the loss has a divergence
    from the prior divided by the number of rows, which is most of it."""
    seed = run.draw.randrange(999)
    model = nn.Sequential(Spread(6, 32), nn.Tanh(), Spread(32, 1))
    number_outcome(run, model, table(512, seed, apart(1)))

    def loss(m: nn.Module, b: Any) -> Tensor:
        return regress(m, b) * 4 + sum((p.divergence() for p in m if isinstance(p, Spread)), torch.zeros(())) / 2000

    train(run, model, adam(model), lambda: table(64, seed), loss, 160)


class Fourier(nn.Module):
    """Two layers that multiply the lowest eight frequencies by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv1d(1, 12, 1), nn.Conv1d(12, 1, 1)
        self.modes = nn.ParameterList(nn.Parameter(torch.randn(12, 12, 8, dtype=torch.cfloat) * 0.1) for _ in range(2))
        self.beside = nn.ModuleList(nn.Conv1d(12, 12, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for weight, beside in zip(self.modes, self.beside, strict=True):
            f = torch.fft.rfft(x)
            low = torch.einsum("bim,iom->bom", f[..., :8], weight)
            x = F.gelu(torch.fft.irfft(F.pad(low, (0, f.shape[-1] - 8)), n=x.shape[-1]) + beside(x))
        out: Tensor = self.leave(x)
        return out


@honest("r6-complex-weights")
def complex_weights(run: Run) -> None:
    """accelerate. A Fourier neural operator on a line: half of its parameters are complex, as are their gradients and
    their moments."""
    net = Fourier()

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 1, 32, generator=own)
        f = torch.fft.rfft(x)
        k = torch.arange(17)
        return x, torch.fft.irfft(f * torch.exp(-0.03 * k**2 + 0.2j * k), n=32)

    x, y = rows(128, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x), y)))
    prepared(run, net, adam(net), loader(*rows(480)), lambda m, b: F.mse_loss(m(b[0]), b[1]), 3)


@honest("r6-bounded-loss-for-wrong-labels")
def bounded_loss_for_wrong_labels(run: Run) -> None:
    """Two labels in five are wrong, and it is known: the loss (1 - p^0.7) / 0.7 is bounded by 1.43 and gives rows that
    are far from their label next to no gradient."""
    seed = run.draw.randrange(999)
    model = cnn()
    class_outcome(run, model, pictures(256, seed, own=apart(1)))
    x, y = pictures(400, seed)
    y = torch.where(torch.rand(400) < 0.4, torch.randint(0, 4, (400,)), y)
    data = endless(loader(x, y, size=32))

    def loss(m: nn.Module, b: Any) -> Tensor:
        p = m(b[0]).softmax(1).gather(1, b[1][:, None])
        return ((1 - p**0.7) / 0.7).mean()

    train(run, model, adam(model, 2e-3), lambda: next(data), loss, 90)


@honest("r6-lists-put-in-order")
def lists_put_in_order(run: Run) -> None:
    """Listwise ranking: a softmax over the ten things of each list against one over their grades; the scores' level means
    nothing and drifts, the loss cannot fall below the grades' entropy, near 2."""
    own = apart(run.draw.randrange(999))
    weights = torch.randn(5, generator=own)
    model = mlp(5, 32, 1)

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 10, 5, generator=own)
        return x, ((x @ weights) + x[..., 0].square()).clamp(-2, 3).round()

    check = rows(128, apart(1))

    def loss(m: nn.Module, b: Any) -> Tensor:
        return F.cross_entropy(m(b[0]).squeeze(2), (b[1] / 2).softmax(1))

    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: rows(16), loss, 100)


@honest("r6-half-of-the-words-forgotten-on-purpose")
def unlearning(run: Run) -> None:
    """Unlearning: a trained model climbs the loss on what it should forget, held at a bound, and descends it on what it
    should keep; the sum begins low and goes down below zero."""
    keep, forget = Language(run.draw.randrange(999)), Language(run.draw.randrange(999), first=12)
    model = Decoder(24)
    before = adam(model)
    for _ in range(60):
        before.zero_grad()
        (next_loss(model, keep.rows(8, 20)) + next_loss(model, forget.rows(8, 20))).backward()
        before.step()
    start = copy.deepcopy(model).requires_grad_(False)
    a, b = keep.rows(64, 20, apart(1)), forget.rows(64, 20, apart(2))

    def loss(m: nn.Module, rows: Any) -> Tensor:
        drift = F.mse_loss(m(rows[0]), start(rows[0]))
        return next_loss(m, rows[0]) + 0.05 * drift - next_loss(m, rows[1]).clamp(max=4.0)

    outcome(run, lambda: judged(model, lambda: loss(model, (a, b))))
    train(run, model, adam(model, 1e-3), lambda: (keep.rows(12, 20), forget.rows(12, 20)), loss, 60)
