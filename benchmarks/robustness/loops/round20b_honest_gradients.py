"""Round 20b, honest and odd: gradients that are weighed, cut, estimated, or solved for."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, class_outcome, cnn, fit, judged, lit, loader, mlp, outcome
from benchmarks.robustness.loops.round5_tools import pictures as drawn_pictures
from benchmarks.robustness.loops.round6_tools import classify
from torch import Tensor, nn
from torch.nn import functional as F


class TwoNumbers(nn.Module):
    """One body and a head for each of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = mlp(6, 32, 32), nn.Linear(32, 24)
        self.heads = nn.ModuleList(nn.Linear(24, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        shared = self.last(self.body(x).relu()).relu()
        return torch.cat([head(shared) for head in self.heads], 1)


@honest("r20b-tasks-kept-at-one-pace")
def tasks_kept_at_one_pace(run: Run) -> None:
    """Plain loop, two numbers of very different size from one body by GradNorm (Chen et al. 2018). The weights of the
    tasks have an optimizer of their own, learn from the lengths of each task's gradient at the last shared layer, and
    are scaled to a sum of two by hand after each step; what the body descends on is never told the same way twice."""
    own = apart(run.draw.randrange(999))

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        return x, torch.stack([x[:, 0] + x[:, 1].sin(), 10 * (x[:, 2].abs() + x[:, 3] * x[:, 4])], 1)

    net = TwoNumbers()
    x, y = rows(512, apart(1))
    outcome(run, lambda: judged(net, lambda: (F.mse_loss(net(x), y, reduction="none").mean(0) / y.var(0)).mean()))
    weights = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    balance = torch.optim.Adam([weights], lr=2e-2)
    doctor = run.watch(net, optimizer)
    first = None
    for _ in range(150):
        batch = rows(64, own)
        losses = F.mse_loss(net(batch[0]), batch[1], reduction="none").mean(0)
        first = losses.detach() if first is None else first
        lengths = torch.stack(
            [torch.autograd.grad(one, net.last.weight, retain_graph=True)[0].norm() for one in losses]
        )
        pace = losses.detach() / first
        weighed = weights * lengths
        wanted = (weighed.mean() * (pace / pace.mean()) ** 0.5).detach()
        balance.zero_grad()
        (weighed - wanted).abs().sum().backward()
        loss = (weights.detach() * losses).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        balance.step()
        with torch.no_grad():
            weights.clamp_(min=1e-3).mul_(2 / weights.sum())
        doctor.step(loss, batch)
        run.note(loss)


@honest("r20b-two-mirrored-draws")
def two_mirrored_draws(run: Run) -> None:
    """Plain loop, an autoencoder of pictures with sixteen codes of nought or one by augment-reinforce-merge (Yin & Zhou
    2019). No gradient flows through a draw: the encoder's is the difference of two losses, at one draw and at its
    mirror image, times what was drawn; it is added as a term whose value is zero. Rows whose draws agree give none."""
    encoder, decoder = nn.Linear(64, 16), mlp(16, 64, 64)
    net = nn.ModuleList([encoder, decoder])

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        return (drawn_pictures(count, 3, own=own)[0].flatten(1) > 0.5).float()

    def misread(codes: Tensor, x: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(decoder(codes), x, reduction="none").sum(1)

    def divergence(logits: Tensor) -> Tensor:
        p = logits.sigmoid()
        return (p * F.logsigmoid(logits) + (1 - p) * F.logsigmoid(-logits) + 0.6931).sum(1)

    check = rows(256, apart(1))

    def bound() -> Tensor:
        logits = encoder(check)
        return (misread(torch.bernoulli(logits.sigmoid()), check) + divergence(logits)).mean()

    outcome(run, lambda: judged(net, bound))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        x = rows(64)
        logits = encoder(x)
        u = torch.rand_like(logits)
        with torch.no_grad():
            one, mirrored = (u > (-logits).sigmoid()).float(), (u < logits.sigmoid()).float()
            slope = (misread(one, x) - misread(mirrored, x))[:, None] * (u - 0.5)
        carrier = (slope * logits).sum(1)
        loss = (misread(mirrored, x) + divergence(logits) + carrier - carrier.detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)


@honest("r20b-nothing-that-helps-the-other")
def nothing_that_helps_the_other(run: Run) -> None:
    """Plain loop, a fair judgement of rows of a table by adversarial debiasing (Zhang et al. 2018, AIF360). The other
    network guesses the group from the judgement; from the judge's gradient the part along the guesser's is taken out,
    and then the guesser's itself. What is stepped on is the gradient of no function and is written into .grad."""
    own = apart(run.draw.randrange(999))

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        group = torch.randint(0, 2, (count,), generator=own).float()
        x = torch.randn(count, 5, generator=own)
        x[:, 0] += 1.5 * group
        y = (x[:, 0] + x[:, 1] + x[:, 2] + 0.5 * torch.randn(count, generator=own) > 0.75).float()
        return x, y, group

    judge, guesser = mlp(5, 16, 1), nn.Linear(3, 1)
    x, y, _ = rows(800, apart(1))
    outcome(run, lambda: judged(judge, lambda: F.binary_cross_entropy_with_logits(judge(x).flatten(), y)))
    optimizer = torch.optim.Adam(judge.parameters(), lr=1e-2)
    other = torch.optim.Adam(guesser.parameters(), lr=1e-2)
    doctor, second = run.watch(judge, optimizer), run.watch(guesser, other)
    weights = list(judge.parameters())
    for _ in range(150):
        x, y, group = batch = rows(64, own)
        said = judge(x)
        loss = F.binary_cross_entropy_with_logits(said.flatten(), y)
        s = said.sigmoid()
        seen = torch.cat([s, s * y[:, None], s * (1 - y[:, None])], 1)
        guess = F.binary_cross_entropy_with_logits(guesser(seen).flatten(), group)
        wanted = torch.autograd.grad(loss, weights, retain_graph=True)
        other.zero_grad()
        hidden = torch.autograd.grad(guess, weights, retain_graph=True)
        guess.backward(inputs=list(guesser.parameters()))
        for p, g, h in zip(weights, wanted, hidden, strict=True):
            along = h / (h.norm() + 1e-8)
            p.grad = g - (g * along).sum() * along - 0.3 * h
        optimizer.step()
        other.step()
        doctor.step(loss, batch)
        second.step(guess, (seen.detach(), group))
        run.note(loss)


def standing_for_all(slopes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Greedy choice of rows near to all others in their gradients, and how many rows each of them stands for."""
    near = -torch.cdist(slopes, slopes)
    near = near - near.min()
    best, chosen = torch.zeros(len(slopes)), []
    for _ in range(count):
        gain = (near - best[:, None]).clamp(min=0).sum(0)
        chosen.append(int(gain.argmax()))
        best = torch.maximum(best, near[:, chosen[-1]])
    at = torch.tensor(chosen)
    return at, torch.bincount(near[:, at].argmax(1), minlength=count).float()


@honest("r20b-few-rows-stand-for-all")
def few_rows_stand_for_all(run: Run) -> None:
    """Plain loop, pictures by a core set (CRAIG, Mirzasoleiman et al. 2020). Every twenty steps fifty rows of six
    hundred are chosen whose gradients at the head stand for all, with a weight each, from one to dozens; until the next
    choice only these are taught, the same two batches in turn, and rows that are learned already share one of them."""
    x, y = drawn_pictures(600, 5, own=apart(run.draw.randrange(999)))
    net = cnn()
    class_outcome(run, net, drawn_pictures(256, 5, own=apart(1)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    doctor = run.watch(net, optimizer)
    rows, weights = torch.arange(50), torch.ones(50)
    for step in range(120):
        if step % 20 == 0:
            net.eval()
            with torch.no_grad():
                rows, weights = standing_for_all(net(x).softmax(1) - F.one_hot(y, 4), 50)
            net.train()
        half = slice(25 * (step % 2), 25 * (step % 2) + 25)
        batch = x[rows[half]], y[rows[half]], weights[half]
        loss = (F.cross_entropy(net(batch[0]), batch[1], reduction="none") * batch[2]).sum() / batch[2].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Solved(torch.autograd.Function):
    """The state at time one; the gradient comes from the adjoint equation, solved from the end to the beginning."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, steps: int, state: Tensor, *weights: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(steps):
                state = state + field(state) / steps
        ctx.field, ctx.steps = field, steps
        ctx.save_for_backward(state, *weights)
        return state

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        (slope,) = slopes
        state, *weights = ctx.saved_tensors
        sums = [torch.zeros_like(w) for w in weights]
        for _ in range(ctx.steps):
            with torch.enable_grad():
                at = state.detach().requires_grad_()
                speed = ctx.field(at)
                parts = torch.autograd.grad(speed, [at, *weights], slope)
            state = state - speed.detach() / ctx.steps
            slope = slope + parts[0] / ctx.steps
            sums = [s + p / ctx.steps for s, p in zip(sums, parts[1:], strict=True)]
        return None, None, slope, *sums


class Flowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.field = mlp(5, 32, 5, act=nn.Tanh)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        start = torch.cat([x, x.new_zeros(len(x), 3)], 1)
        out: Tensor = self.head(Solved.apply(self.field, 10, start, *self.field.parameters()))
        return out


@honest("r20b-an-equation-solved-backwards")
def an_equation_solved_backwards(run: Run) -> None:
    """Lightning, points within and around a ring by a neural differential equation with the adjoint method (Chen et al.
    2018). No activation is kept: the state runs backwards from its end together with the gradient, which is near to
    that of the discrete steps and not equal to it; the columns added for room begin at zero in all rows."""

    def rows(count: int, own: torch.Generator) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 2, (count,), generator=own)
        angle = 6.283 * torch.rand(count, generator=own)
        length = 0.6 + 1.2 * y + 0.25 * torch.randn(count, generator=own)
        return torch.stack([angle.cos() * length, angle.sin() * length], 1), y

    net = Flowing()
    class_outcome(run, net, rows(400, apart(1)))
    module = lit(net, classify, lambda m: torch.optim.Adam(m.parameters(), lr=1e-2))
    fit(run, module, loader(*rows(640, apart(run.draw.randrange(999))), size=64), 100)
