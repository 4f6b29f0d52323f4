"""Round 16b, honest and odd: what learns is a data set, a rule or a player, or learns without a rate."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, cnn, mlp, number_outcome, outcome, pictures, table
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import update
from torch import Tensor, nn
from torch.nn import functional as F


class Album(nn.Module):
    """Three pictures for each of four classes, which are the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.shots = nn.Parameter(0.5 + 0.2 * torch.randn(12, 1, 8, 8))
        self.classes = torch.arange(4).repeat_interleave(3)

    def forward(self) -> tuple[Tensor, Tensor]:
        return self.shots, self.classes


@honest("r16b-pictures-are-the-weights")
def pictures_are_the_weights(run: Run) -> None:
    """Plain loop, a data set of twelve pictures that stands for all (Zhao et al. 2021, gradient matching). The
    parameters are pictures; in each step there is a net drawn anew and thrown away untrained, and the loss is the
    angle between its gradient on true pictures and that on the learned ones, through which backward() goes once
    more."""
    seed = run.draw.randrange(999)
    model, check = Album(), pictures(256, seed, own=apart(1))

    def after_training() -> float:
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(3)
            net = cnn(norm=False)
            optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
            shots, classes = (t.detach() for t in model())
            for _ in range(80):
                optimizer.zero_grad()
                classify(net, (shots, classes)).backward()
                optimizer.step()
            return float(classify(net, check))

    outcome(run, after_training)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(120):
        net, batch = cnn(norm=False), pictures(96, seed)
        weights = list(net.parameters())
        true = torch.autograd.grad(classify(net, batch), weights)
        mine = torch.autograd.grad(classify(net, model()), weights, create_graph=True)
        turned = [1 - F.cosine_similarity(a.flatten(), b.flatten(), dim=0) for a, b in zip(mine, true, strict=True)]
        update(run, doctor, optimizer, torch.stack(turned).sum(), batch)


class Rule(nn.Module):
    """An update for each number from its gradient, by an LSTM that all numbers share."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.core, self.out = nn.LSTMCell(2, width), nn.Linear(width, 1)

    def forward(self, gradient: Tensor, state: Any) -> tuple[Tensor, Any]:
        size = gradient.abs() + 1e-8
        h, c = self.core(torch.stack([gradient.sign(), size.log() / 5], 1), state)
        return 0.1 * self.out(h)[:, 0], (h, c)


@honest("r16b-the-model-is-an-optimizer")
def the_model_is_an_optimizer(run: Run) -> None:
    """Plain loop, an optimizer that is learned (Andrychowicz et al. 2016). The watched model is an LSTM that says
    updates; a batch is 16 quadratic problems never seen before, whose own gradients are taken by hand and cut from
    the graph, and the loss is the sum of their errors along ten steps, with no labels and of any size."""
    model, width = Rule(), 6

    def along(steps: int, problems: tuple[Tensor, Tensor]) -> Tensor:
        a, b = problems
        x, state = torch.zeros(len(a), width), None
        total = torch.zeros(())
        for _ in range(steps):
            rest = (a @ x[:, :, None])[:, :, 0] - b
            slope = 2 * (a.transpose(1, 2) @ rest[:, :, None])[:, :, 0]
            moved, state = model(slope.detach().flatten(), state)
            x = x + moved.view_as(x)
            total = total + ((a @ x[:, :, None])[:, :, 0] - b).square().sum(1).mean()
        return total

    def drawn(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return torch.randn(count, width, width, generator=own) / width**0.5, torch.randn(count, width, generator=own)

    check = drawn(64, apart(1))
    outcome(run, lambda: float(along(20, check).detach()) / 20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(160):
        problems = drawn(16)
        update(run, doctor, optimizer, along(10, problems), problems)


@honest("r16b-judged-by-a-critic-yet-to-come")
def judged_by_a_critic_yet_to_come(run: Run) -> None:
    """Plain loop, an unrolled GAN of points on a ring (Metz et al. 2017), against collapse. The maker is not judged by
    the critic as it is but by one four steps ahead, which is worked out by gradients of gradients through these
    steps and then thrown away; the critic itself takes one step, and the maker's loss may rise while its points get
    better."""
    maker, critic = mlp(4, 32, 32, 2), mlp(2, 32, 32, 1, act=nn.Tanh)

    def ring(count: int, own: torch.Generator | None = None) -> Tensor:
        angle = 0.785 * torch.randint(0, 8, (count,), generator=own)
        return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=own)

    def distance() -> float:
        own = apart(1)
        with torch.no_grad():
            a, b = ring(400, own), maker(torch.randn(400, 4, generator=own))
            return float(2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean())

    def told_apart(weights: dict[str, Tensor], true: Tensor, made: Tensor) -> Tensor:
        real, false = (torch.func.functional_call(critic, weights, (x,)) for x in (true, made))
        return F.softplus(-real).mean() + F.softplus(false).mean()

    outcome(run, distance)
    making = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
    telling = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    doctors = [run.watch(maker, making), run.watch(critic, telling)]
    for _ in range(220):
        true, noise = ring(64), torch.randn(64, 4)
        ahead: dict[str, Tensor] = dict(critic.named_parameters())
        made = maker(noise)
        for _ in range(4):
            slopes = torch.autograd.grad(told_apart(ahead, true, made), list(ahead.values()), create_graph=True)
            ahead = {n: w - 0.3 * g for (n, w), g in zip(ahead.items(), slopes, strict=True)}
        update(run, doctors[0], making, -told_apart(ahead, true, made), noise)
        update(run, doctors[1], telling, told_apart(dict(critic.named_parameters()), true, made.detach()), true)


class Kalman(torch.optim.Optimizer):
    """The extended Kalman filter: weights are a state with a covariance, `.grad` is the slope of the output."""

    def __init__(self, parameters: Any, noise: float, forget: float) -> None:
        super().__init__(parameters, {"lr": 1.0, "noise": noise, "forget": forget})
        self.held = self.param_groups[0]["params"]
        self.spread = torch.eye(sum(p.numel() for p in self.held))

    @torch.no_grad()
    def step(self, error: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        slope = torch.cat([p.grad.flatten() for p in self.held])
        gain = self.spread @ slope
        gain = gain / (slope @ gain + group["noise"])
        self.spread = (self.spread - torch.outer(gain, slope @ self.spread)) / group["forget"]
        for p, move in zip(self.held, (gain * error).split([p.numel() for p in self.held]), strict=True):
            p.add_(move.view_as(p))


@honest("r16b-filtered-and-not-descended")
def filtered_and_not_descended(run: Run) -> None:
    """Plain loop, a small tanh net for a controller, one row at a time, by the extended Kalman filter (Singhal and Wu
    1989). backward() starts from the output and not from a loss, so that `.grad` does not know the label; a
    covariance of all weights with each other makes a step of it and the error, and there is no rate that means
    anything."""
    seed = run.draw.randrange(999)
    model = mlp(6, 16, 1, act=nn.Tanh)
    number_outcome(run, model, table(512, seed, apart(1)))
    optimizer = Kalman(model.parameters(), noise=0.3, forget=0.999)
    doctor = run.watch(model, optimizer)
    for _ in range(700):
        x, y = table(1, seed)
        optimizer.zero_grad()
        said = model(x)[0, 0]
        said.backward()
        error = y[0] - said.detach()
        optimizer.step(error)
        doctor.step(error.square(), (x, y))
        run.note(error.square())
