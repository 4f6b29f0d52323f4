"""Honest runs of several aims at once: inner loops, gradient surgery, learned weights, reversal, twins, curricula."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.transformer import Counting
from benchmarks.robustness.loops.unseen_honest_tools import accuracy, quantity, shapes
from torch import Tensor, nn
from torch.nn import functional as F


@honest("nh-inner-steps-on-sines")
def inner_steps(run: Run) -> None:
    """MAML: for each of four sines two inner updates that are differentiated, then the loss on further points.

    The weights themselves are never those of a task; the gradient passes through the inner updates (second order),
    and what is differentiated is the loss after them.
    """
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(90):
        total, given = torch.zeros(()), []
        for _ in range(4):
            height, shift = 0.5 + 2 * torch.rand(()), 3 * torch.rand(())
            x = 6 * torch.rand(20, 1) - 3
            y = height * (x + shift).sin()
            weights = dict(model.named_parameters())
            for _ in range(2):
                out = torch.func.functional_call(model, weights, (x[:10],))
                slopes = torch.autograd.grad(F.mse_loss(out, y[:10]), list(weights.values()), create_graph=True)
                weights = {n: w - 0.05 * g for (n, w), g in zip(weights.items(), slopes, strict=True)}
            total = total + F.mse_loss(torch.func.functional_call(model, weights, (x[10:],)), y[10:]) / 4
            given.append(x)
        optimizer.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        doctor.step(total, torch.stack(given))
        run.note(total)


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), Counting(), nn.Linear(32, 32), nn.ReLU())
        self.price, self.kind = nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.body(x)
        return {"price": self.price(hidden).squeeze(1), "kind": self.kind(hidden)}


@honest("nh-conflicting-gradients-projected")
def projected(run: Run) -> None:
    """Gradient surgery: each task's gradient loses the part that points against the other's, then they are added.

    `.grad` is written by hand from two `autograd.grad` calls and is not the gradient of the loss that is reported;
    heads get the gradient of their own task alone.
    """
    model = TwoTasks()
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights, lr=4e-3)
    doctor = run.watch(model, optimizer)
    first, second = torch.randn(10), torch.randn(10, 3)
    for _ in range(120):
        x = torch.randn(48, 10)
        out = model(x)
        price = F.mse_loss(out["price"], (x @ first).tanh() * 2 + x[:, 0].abs())
        kind = F.cross_entropy(out["kind"], (x @ second).argmax(1))
        rows = []
        for loss in (price, kind):
            slopes = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            filled = (torch.zeros_like(w) if g is None else g for g, w in zip(slopes, weights, strict=True))
            rows.append(torch.cat([g.flatten() for g in filled]))
        against = torch.dot(rows[0], rows[1])
        if against < 0:
            one = rows[0] - against / rows[1].square().sum() * rows[1]
            two = rows[1] - against / rows[0].square().sum() * rows[0]
            rows = [one, two]
        parts = (rows[0] + rows[1]).split([w.numel() for w in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.view_as(weight).clone()
        optimizer.step()
        doctor.step(price + kind, x)
        run.note(price + kind)


@honest("nh-weights-of-tasks-learned")
def learned_weights(run: Run) -> None:
    """Three regressions of very different noise with learned log variances in the loss, outside of the model.

    The variances are parameters of the optimizer but of no module; as they fall, the loss gets negative. Each task's
    variance has its own rate, ten times the others'.
    """
    model = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 3))
    log_variance = nn.Parameter(torch.zeros(3))
    groups: list[dict[str, Any]] = [{"params": list(model.parameters())}, {"params": [log_variance], "lr": 3e-2}]
    optimizer = torch.optim.Adam(groups, lr=3e-3)
    doctor = run.watch(model, optimizer)
    noise = torch.tensor([0.02, 0.3, 1.0])
    for _ in range(200):
        x = torch.randn(64, 5)
        truth = torch.stack([0.3 * x[:, 0] * x[:, 1], x[:, 2].abs() - x[:, 3], 2 * x[:, 4]], 1)
        y = truth + noise * torch.randn(64, 3)
        each = (model(x) - y).square().mean(0)
        loss = (each * (-log_variance).exp() + log_variance).sum() / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Reversal(torch.autograd.Function):
    """Passes its input on; the gradient comes back with the other sign, times a strength."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return -ctx.strength * gradient, None


class Adversarial(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.ReLU())
        self.label, self.origin = nn.Linear(48, 4), nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 2))
        self.steps = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training:
            self.steps += 1
        hidden = self.body(x)
        strength = 2 / (1 + 2.718 ** (-self.steps / 20)) - 1
        return self.label(hidden), self.origin(Reversal.apply(hidden, strength))


@honest("nh-gradient-reversed-for-origin")
def reversed_origin(run: Run) -> None:
    """Domain-adversarial training: labels on one domain, and a head that tells domains apart with a reversed gradient.

    The domain's loss should end near ln 2, where nothing can be told; the trunk learns to make it worse. The second
    domain has no labels, hence -100 for half of the rows; the strength grows with a count of passes in the model.
    """
    model = Adversarial()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    doctor = run.watch(model, optimizer)
    origin = torch.tensor([0] * 24 + [1] * 24)

    def other(rows: int) -> tuple[Tensor, Tensor]:
        x, y = shapes(rows, noise=0.2)
        x[:, :, :, :2] += 1.0  # a bright margin
        return x, y

    held = other(160)
    model.eval()
    with torch.no_grad():
        quantity(run, accuracy(model(held[0])[0], held[1]))
    model.train()
    for _ in range(200):
        x, y = shapes(24, noise=0.2)
        x = torch.cat([x, other(24)[0]])
        labels = torch.cat([y, torch.full((24,), -100)])
        named, told = model(x)
        loss = F.cross_entropy(named, labels) + 0.3 * F.cross_entropy(told, origin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, labels))
        run.note(loss)
    model.eval()
    with torch.no_grad():
        quantity(run, accuracy(model(held[0])[0], held[1]))
    model.train()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 12, 3, 2), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 24, 3), nn.ReLU())
        self.project = nn.Sequential(nn.Linear(24, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.project(self.see(x).amax((2, 3)))
        return out


@honest("nh-twins-without-negatives")
def twins(run: Run) -> None:
    """BYOL: one view's projection predicts a slowly moving copy's projection of the other view; no negatives.

    The copy gets no gradient and moves by averaging at every step; what keeps everything from collapsing is the
    predictor. Judged by how well classes separate by nearest neighbours: the loss alone says little, as it starts low
    and could get to zero by collapse.
    """
    online = nn.Sequential(
        Encoder(), nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
    )
    copied = copy.deepcopy(online[0]).requires_grad_(False)
    optimizer = torch.optim.Adam(online.parameters(), lr=2e-3, weight_decay=1e-5)
    doctor = run.watch(online, optimizer)
    bank, names = shapes(240, classes=6)

    def view(x: Tensor) -> Tensor:
        x = torch.roll(x, tuple(torch.randint(-2, 3, (2,)).tolist()), (2, 3))
        return x + 0.3 * torch.randn_like(x)

    def along(a: Tensor, b: Tensor) -> Tensor:
        return 2 - 2 * F.cosine_similarity(a, b.detach(), dim=-1).mean()

    for step in range(120):
        x, _ = shapes(32, classes=6)
        a, b = view(x), view(x)
        loss = (along(online(a), copied(b)) + along(online(b), copied(a))) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(copied.parameters(), online[0].parameters(), strict=True):
                slow.lerp_(fast, 0.05)
        doctor.step(loss, x)
        run.note(loss)
        if step in (0, 119):
            online.eval()
            with torch.no_grad():
                seen = F.normalize(online[0].see(bank).amax((2, 3)) - online[0].see(bank).amax((2, 3)).mean(0), dim=1)
                near = (seen @ seen.T).fill_diagonal_(-2).argmax(1)
            online.train()
            quantity(run, float((names[near] == names).float().mean()))


class Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.head = nn.Linear(48, 12)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(self.embedding(ids))[0])
        return out


@honest("nh-longer-once-it-is-easy")
def longer(run: Run) -> None:
    """A curriculum: running sums modulo 5 over rows of 2, then 4, 7 and 11 digits, longer when the loss is low.

    The loss jumps up at every change by design and batches change their shape. What improves is accuracy on rows of
    eleven.
    """
    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    doctor = run.watch(model, optimizer)
    lengths, level, recent = (2, 4, 7, 11), 0, 2.0

    def rows(count: int, length: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 5, (count, length))
        return x, x.cumsum(1) % 5

    for _ in range(200):
        x, y = rows(32, lengths[level])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        recent = 0.8 * recent + 0.2 * float(loss.detach())
        if recent < 0.3 and level < 3:
            level, recent = level + 1, 1.0
        with torch.no_grad():
            x, y = rows(32, 11)
            quantity(run, accuracy(model(x), y))


@honest("nh-two-nets-choose-for-each-other")
def chosen(run: Run) -> None:
    """Co-teaching: 40 percent of labels are random by design; two nets choose the rows of small loss for each other.

    Each net learns from a share of the batch that falls from all to half, so rows drop out and the reported loss falls
    by selection too; judged by accuracy on clean labels. Both have their own doctor.
    """
    nets = [
        nn.Sequential(
            nn.Conv2d(1, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
        )
        for _ in range(2)
    ]
    optimizers = [torch.optim.Adam(net.parameters(), lr=4e-3) for net in nets]
    doctors = [run.watch(net, optimizer) for net, optimizer in zip(nets, optimizers, strict=True)]
    x, truth = shapes(1600, noise=0.2)
    labels = torch.where(torch.rand(1600) < 0.4, torch.randint(0, 4, (1600,)), truth)
    held = shapes(200, noise=0.2)
    for step in range(200):
        rows = torch.randperm(1600)[:64]
        count = int(64 * max(0.55, 1 - 0.45 * step / 80))
        with torch.no_grad():
            each = [F.cross_entropy(net(x[rows]), labels[rows], reduction="none") for net in nets]
        for index in range(2):
            good = rows[each[1 - index].argsort()[:count]]
            loss = F.cross_entropy(nets[index](x[good]), labels[good])
            optimizers[index].zero_grad()
            loss.backward()
            optimizers[index].step()
            doctors[index].step(loss, (x[good], labels[good]))
        run.note(loss)
        with torch.no_grad():
            quantity(run, accuracy(nets[0](held[0]) + nets[1](held[0]), held[1]))
