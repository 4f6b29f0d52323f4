"""Honest runs with unusual update rules: two passes, a closure, Gauss-Newton, votes, sampling, half precision."""

import math

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.text import VOCABULARY, corpus, crops
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F


class SmallNet(nn.Module):
    def __init__(self, classes: int = 6, drop: float = 0.0) -> None:
        super().__init__()
        self.counting = Counting()
        self.first, self.second = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, stride=2)
        self.norm, self.drop = nn.GroupNorm(4, 24), nn.Dropout(drop)
        self.head = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(F.gelu(self.first(self.counting(x)))))
        out: Tensor = self.head(self.drop(F.gelu(x).amax((2, 3))))
        return out


@honest("nh-sharpness-in-two-passes")
def sharpness(run: Run) -> None:
    """Sharpness-aware updates: a pass to climb a little, a second pass whose gradient updates the unclimbed weights.

    The weights are moved and put back between the passes by hand; both passes see the same batch, on purpose. The
    loss handed over is the first pass's, at the weights themselves.
    """
    model = SmallNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    doctor = run.watch(model, optimizer)
    for _ in range(100):
        x, y = shapes(32, classes=6)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
            climbs = [(p, p.grad * (0.05 / (length + 1e-12))) for p in model.parameters() if p.grad is not None]
            for weight, climb in climbs:
                weight.add_(climb)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for weight, climb in climbs:
                weight.sub_(climb)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-whole-data-and-line-search")
def line_search(run: Run) -> None:
    """L-BFGS with a strong Wolfe search on all the data at once: a closure, many evaluations for one step.

    Every step has the same batch; step sizes are chosen by the search, so the rate of 1 is right. Double precision.
    """
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    x = torch.randn(120, 2, dtype=torch.float64)
    y = (x[:, :1].sin() * x[:, 1:].exp().clamp(max=3)) + 0.05 * torch.randn(120, 1, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1, max_iter=4, line_search_fn="strong_wolfe")
    doctor = run.watch(model, optimizer)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y) + 1e-5 * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(40):
        loss = optimizer.step(closure)
        doctor.step(loss, (x, y))
        run.note(loss)


@honest("nh-damped-gauss-newton")
def gauss_newton(run: Run) -> None:
    """Levenberg-Marquardt on a small curve fit: the whole Jacobian, a solved system, damping that goes up and down.

    There is no optimizer: weights are written by hand, a step that makes things worse is taken back, so that the
    weights stand still in some steps; gradients are never stored.
    """
    model = nn.Sequential(nn.Linear(1, 10), nn.Tanh(), nn.Linear(10, 1)).double()
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)[:, None]
    y = torch.sin(3 * x) * torch.exp(-0.3 * x) + 0.02 * torch.randn(60, 1, dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    doctor = run.watch(model)

    def residual(row: Tensor) -> Tensor:
        parts = row.split(sizes)
        weights = {n: w.view_as(p) for n, w, p in zip(names, parts, model.parameters(), strict=True)}
        out: Tensor = torch.func.functional_call(model, weights, (x,))
        return (out - y).squeeze(1)

    row, damping = nn.utils.parameters_to_vector(model.parameters()).detach(), 1.0
    for _ in range(40):
        now = residual(row).detach()
        jacobian: Tensor = torch.func.jacrev(residual)(row)  # type: ignore[no-untyped-call]
        square = jacobian.T @ jacobian + damping * torch.eye(len(row), dtype=torch.float64)
        tried = row - torch.linalg.solve(square, jacobian.T @ now)
        if residual(tried).square().mean() < now.square().mean():
            row, damping = tried.detach(), max(damping / 3, 1e-8)
        else:
            damping *= 4
        with torch.no_grad():
            for weight, part in zip(model.parameters(), row.split(sizes), strict=True):
                weight.copy_(part.view_as(weight))
        doctor.step(float(now.square().mean()), (x, y))
        run.note(now.square().mean())


class MajorityVote(torch.optim.Optimizer):
    """The sign that most workers' gradients have, coordinate by coordinate; `votes` holds them until the step."""

    def __init__(self, params: list[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def vote(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["votes"] = self.state[p].get("votes", 0) + p.grad.sign()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * self.state[p].pop("votes").sign())


@honest("nh-majority-of-signs")
def signs(run: Run) -> None:
    """Sign updates by vote of three simulated workers with a batch each: only signs are sent, every weight moves by
    plus or minus the rate.

    The gradient left in `.grad` is the last worker's; all that the update takes from it is a vote. The rate falls
    to a twentieth, or the weights would jitter.
    """
    tokens = corpus(run.draw.randrange(1000))
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 24), nn.Flatten(1), nn.Linear(6 * 24, 64), nn.LayerNorm(64), nn.SiLU(),
        nn.Linear(64, VOCABULARY),
    )  # fmt: skip
    optimizer = MajorityVote(list(model.parameters()), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=120)
    doctor = run.watch(model, optimizer, scheduler=scheduler)
    for _ in range(120):
        total, pieces = 0.0, []
        for _ in range(3):
            x, y = crops(tokens, 24, 6)
            loss = F.cross_entropy(model(x), y[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.vote()
            total += float(loss.detach()) / 3
            pieces.append((x, y[:, -1]))
        optimizer.step()
        scheduler.step()
        doctor.step(total, pieces)
        run.note(total)


@honest("nh-sampling-the-posterior")
def posterior(run: Run) -> None:
    """Stochastic gradient Langevin: noise is added to the gradient so that the weights walk about the posterior.

    The loss is a negative log posterior summed over all rows, hundreds in size, the rate accordingly small; it
    settles at a level and keeps shaking, because the walk is the aim: predictions are averaged over it.
    """
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
    rows, rate = 256, 4e-5
    data = torch.randn(rows, 3)
    answers = (data[:, :1] * data[:, 1:2]).tanh() + 0.4 * data[:, 2:] + 0.2 * torch.randn(rows, 1)
    held = torch.randn(200, 3)
    truth = (held[:, :1] * held[:, 1:2]).tanh() + 0.4 * held[:, 2:]
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    doctor = run.watch(model, optimizer)
    own = torch.Generator().manual_seed(run.draw.randrange(10**6))
    kept: list[Tensor] = []
    with torch.no_grad():
        quantity(run, -F.mse_loss(model(held), truth))
    for step in range(300):
        pick = torch.randint(0, rows, (64,), generator=own)
        x, y = data[pick], answers[pick]
        misfit = (model(x) - y).square().mean() * rows / (2 * 0.2**2)
        loss = misfit + 0.5 * sum(p.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.add_(torch.randn(p.shape, generator=own), alpha=math.sqrt(2 / rate))
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step >= 200 and step % 5 == 0:
            with torch.no_grad():
                kept.append(model(held))
    quantity(run, -F.mse_loss(torch.stack(kept).mean(0), truth))


@honest("nh-half-with-skipped-updates")
def half(run: Run) -> None:
    """float16 autocast with a scaler that starts at 2**24, far too high, and finds its level by skipping updates.

    The first gradients overflow and those updates are left out on purpose; the scale halves until it fits. Norms are
    clipped after unscaling.
    """
    model = SmallNet(drop=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=40)
    doctor = run.watch(model, optimizer, scaler=scaler)
    held = shapes(96, classes=6)
    for step in range(120):
        x, y = shapes(32, classes=6)
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step in (0, 60, 119):
            model.eval()
            with torch.no_grad():
                quantity(run, accuracy(model(held[0]), held[1]))
            model.train()
