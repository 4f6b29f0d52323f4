"""Honest runs from the sciences: a picture in sines, an equation without data, fixed points, graphs, spikes."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F


class Sine(nn.Module):
    def __init__(self, inputs: int, outputs: int, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        bound = 1 / inputs if first else (6 / inputs) ** 0.5 / 15
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(15 * self.linear(x))


@honest("nh-one-picture-by-heart")
def one_picture(run: Run) -> None:
    """A net of sines learns one picture by heart: coordinates in, brightness out, all pixels in every step.

    There is one batch and nothing to generalise to; memorising is the aim. Sines are multiplied by 15 inside, which
    the initial weights allow for.
    """
    steps = torch.linspace(-1, 1, 20)
    places = torch.cartesian_prod(steps, steps)
    picture = (4 * places[:, 0] * places[:, 1]).sin() + 0.5 * (places.norm(dim=1) * 9).cos() + 0.1 * torch.randn(400)
    model = nn.Sequential(Sine(2, 48, first=True), Sine(48, 48), Counting(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(200):
        loss = F.mse_loss(model(places).squeeze(1), picture)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (places, picture))
        run.note(loss)


@honest("nh-equation-without-data")
def equation(run: Run) -> None:
    """A damped swing solved by a net: the loss is how much its derivatives violate the equation, there are no targets.

    Inputs need gradients, the graph is differentiated twice before backward. Start and speed are built into the
    output's form. The true solution is known and judges the result.
    """
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    doctor = run.watch(model, optimizer, scheduler=scheduler)

    def place(t: Tensor) -> Tensor:
        out: Tensor = 1 + t**2 * model(t)
        return out

    def error() -> float:
        t = torch.linspace(0, 3, 50)[:, None]
        pace = (4 - 0.25**2) ** 0.5
        truth = (-0.25 * t).exp() * ((pace * t).cos() + 0.25 / pace * (pace * t).sin())
        with torch.no_grad():
            return float(F.mse_loss(place(t), truth))

    quantity(run, -error())
    for _ in range(200):
        t = (3 * torch.rand(48, 1)).requires_grad_()
        x = place(t)
        (speed,) = torch.autograd.grad(x.sum(), t, create_graph=True)
        (push,) = torch.autograd.grad(speed.sum(), t, create_graph=True)
        loss = (push + 0.5 * speed + 4 * x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        doctor.step(loss, t.detach())
        run.note(loss)
    quantity(run, -error())


class FixedPoint(nn.Module):
    """A hidden state that is its own update, found without gradients; a hook on it solves for the gradient as well."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inject, self.again = nn.Linear(6, width), nn.Linear(width, width)
        with torch.no_grad():
            self.again.weight.mul_(0.5)
        self.head = nn.Linear(width, 1)
        self.rounds: list[int] = []  # how many rounds each solve took

    def settle(self, step: Any, start: Tensor) -> Tensor:
        x = start
        rounds = 0
        for _ in range(40):
            after, rounds = step(x), rounds + 1
            if (after - x).abs().max() < 1e-5:
                break
            x = after
        self.rounds.append(rounds)
        return x

    def forward(self, x: Tensor) -> Tensor:
        given = self.inject(x)
        with torch.no_grad():
            state = self.settle(lambda s: torch.tanh(self.again(s) + given), torch.zeros_like(given))
        state = torch.tanh(self.again(state) + given)
        if state.requires_grad:
            around = state.detach().requires_grad_()
            image = torch.tanh(self.again(around) + given.detach())

            def implicit(gradient: Tensor) -> Tensor:
                def step(g: Tensor) -> Tensor:
                    return torch.autograd.grad(image, around, g, retain_graph=True)[0] + gradient

                return self.settle(step, gradient)

            state.register_hook(implicit)
        out: Tensor = self.head(state)
        return out


@honest("nh-state-at-its-fixed-point")
def fixed_point(run: Run) -> None:
    """A deep equilibrium net: forward solves for a fixed point, a hook solves for the implicit gradient in backward.

    Most of the forward pass is without gradients, as the theorem allows; the numbers of rounds are kept in a list.
    """
    model = FixedPoint(24)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x = torch.randn(32, 6)
        y = x[:, :1] * x[:, 1:2] + x[:, 2:].mean(1, keepdim=True).sin()
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Graph(nn.Module):
    """Two graph convolutions; the normalised neighbourhood is a sparse buffer."""

    def __init__(self, near: Tensor, inputs: int, classes: int) -> None:
        super().__init__()
        near = near + torch.eye(len(near))
        scale = near.sum(1).rsqrt()
        self.register_buffer("near", (scale[:, None] * near * scale).to_sparse(), persistent=False)
        self.first, self.second = nn.Linear(inputs, 24), nn.Linear(24, classes)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sparse.mm(self.near, self.first(self.drop(x))).relu()  # type: ignore[arg-type]
        out: Tensor = torch.sparse.mm(self.near, self.second(self.drop(hidden)))  # type: ignore[arg-type]
        return out


@honest("nh-one-graph-eight-labels")
def one_graph(run: Run) -> None:
    """Node classes in one graph of 150 nodes with labels on 24: the same whole graph in each step, most rows unscored.

    The unlabelled nodes' features are used in training (transductive), their labels only to judge. Dropout on the
    inputs makes two passes differ.
    """
    classes = torch.arange(150) % 3
    close = (classes[:, None] == classes[None]).float() * 0.08 + 0.01
    near = torch.bernoulli(close).triu(1)
    features = 0.4 * F.one_hot(classes, 12).float() + 0.6 * torch.randn(150, 12)
    model = Graph(near + near.T, 12, 3)
    labels = classes.masked_fill(torch.arange(150) >= 24, -100)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    doctor = run.watch(model, optimizer)
    for step in range(120):
        loss = F.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, features)
        run.note(loss)
        if step in (0, 119):
            model.eval()
            with torch.no_grad():
                quantity(run, accuracy(model(features)[24:], classes[24:]))
            model.train()


class Spike(torch.autograd.Function):
    """One above the threshold, nothing below; backward a smooth bump instead of the derivative, which is zero."""

    @staticmethod
    def forward(ctx: Any, charge: Tensor) -> Tensor:
        ctx.save_for_backward(charge)
        return (charge > 0).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (charge,) = ctx.saved_tensors
        out: Tensor = gradient / (1 + 5 * charge.abs()).square()
        return out


class Spiking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(144, 64), nn.Linear(64, 4)
        self.leak = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("rate", torch.zeros(64))  # of spikes, a running mean for the log
        self.noise = torch.Generator().manual_seed(11)

    def forward(self, x: Tensor) -> Tensor:
        charge, total, fired = torch.zeros(len(x), 64), torch.zeros(len(x), 4), torch.zeros(64)
        pull = torch.sigmoid(self.leak)
        for _ in range(8):
            drawn = torch.rand(x[:, 0].shape, generator=self.noise)
            charge = pull * charge + self.into((drawn < x[:, 0]).float().flatten(1))
            spikes: Tensor = Spike.apply(charge - 1)
            charge = charge * (1 - spikes.detach())
            total, fired = total + self.out(spikes) / 8, fired + spikes.detach().mean(0) / 8
        self.rate.lerp_(fired, 0.05)  # type: ignore[operator]
        return total


@honest("nh-spikes-with-a-bump")
def spikes(run: Run) -> None:
    """A spiking net over eight ticks: activations are zeros and ones, the gradient of the jump is a bump by choice.

    Inputs are spikes drawn from a generator in the model, a buffer of rates is moved in forward. Units that are
    silent over a batch are common.
    """
    model = Spiking()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        x, y = shapes(32, noise=0.0)
        x = (0.9 * x).clamp(0, 1)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-each-layer-for-itself")
def each_layer(run: Run) -> None:
    """Forward-forward: each layer tells right pairs of picture and label from wrong ones by its own activity.

    Layers get the one before them without its graph and only its direction, and have a group each in the optimizer;
    no gradient passes between layers, by design.
    """
    layers = nn.ModuleList([nn.Linear(144 + 4, 64), nn.Linear(64, 64)])
    optimizer = torch.optim.Adam([{"params": layer.parameters(), "lr": 8e-3} for layer in layers])
    doctor = run.watch(layers, optimizer)

    def together(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x.flatten(1), 2 * F.one_hot(y, 4).float()], 1)

    def activity(x: Tensor) -> list[Tensor]:
        out = []
        for layer in layers:
            x = layer(F.normalize(x.detach(), dim=1) * x.shape[1] ** 0.5 / 4).relu()
            out.append(x.square().mean(1))
        return out

    pictures, names = shapes(600, noise=0.15)
    for step in range(200):
        rows = torch.randint(0, 600, (48,))
        x, y = pictures[rows], names[rows]
        wrong = (y + torch.randint(1, 4, (48,))) % 4
        pairs = zip(activity(together(x, y)), activity(together(x, wrong)), strict=True)
        loss = torch.stack([F.softplus(torch.cat([1 - good, bad - 1])).mean() for good, bad in pairs]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step in (0, 199):
            with torch.no_grad():
                scores = [torch.stack(activity(together(pictures, torch.full((600,), k)))).sum(0) for k in range(4)]
                quantity(run, accuracy(torch.stack(scores, 1), names))
