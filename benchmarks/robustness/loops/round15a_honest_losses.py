"""Round 15a, honest and odd: losses."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import apart, fit, judged, lit, loader, mlp, outcome, train
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round10a_tools import adamw
from torch import Tensor, nn
from torch.nn import functional as F


def gain_lost(scores: Tensor, grades: Tensor) -> Tensor:
    """One minus NDCG of each list: (lists, things) to (lists,)."""
    discount = 1 / (torch.arange(grades.shape[1]) + 2.0).log2()
    gain = 2.0**grades - 1
    order = scores.argsort(1, descending=True)
    return 1 - (gain.gather(1, order) * discount).sum(1) / (gain.sort(1, descending=True).values * discount).sum(1)


@honest("r15a-gradient-without-a-loss")
def gradient_without_a_loss(run: Run) -> None:
    """Plain loop, LambdaRank (Burges 2010) for lists of ten things. There is no loss: what each pair would change
    in NDCG says by how much their scores are pushed apart, and backward starts from the scores with these numbers.
    What is told is one minus NDCG, a step function, which has no graph and no gradient."""
    w = torch.randn(6, generator=apart(run.draw.randrange(999)))
    model = mlp(6, 32, 1)

    def lists(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 10, 6, generator=own)
        worth = x @ w + x[..., 0] * x[..., 1] + 0.5 * torch.randn(count, 10, generator=own)
        return x, (worth / 2 + 1).clamp(0, 3).round()

    x_check, grades_check = lists(256, apart(1))
    outcome(run, lambda: judged(model, lambda: gain_lost(model(x_check).squeeze(2), grades_check).mean()))
    optimizer = adam(model)
    doctor = run.watch(model, optimizer)
    for _ in range(160):
        x, grades = lists(16)
        optimizer.zero_grad()
        scores = model(x).squeeze(2)
        with torch.no_grad():
            place = scores.argsort(1, descending=True).argsort(1)
            discount, gain = 1 / (place + 2.0).log2(), 2.0**grades - 1
            swap = ((gain[:, :, None] - gain[:, None]) * (discount[:, :, None] - discount[:, None])).abs()
            push = torch.sigmoid(scores[:, None] - scores[:, :, None]) * swap * (grades[:, :, None] > grades[:, None])
            lambdas = push.sum(1) - push.sum(2)
            loss = gain_lost(scores, grades).mean()
        scores.backward(lambdas / len(x))
        optimizer.step()
        doctor.step(loss, (x, grades))
        run.note(loss)


@honest("r15a-only-those-still-at-risk")
def only_those_still_at_risk(run: Run) -> None:
    """Plain loop, DeepSurv: survival by Cox's partial likelihood. Two rows in three and more are censored and are
    no case of their own, they stand only in the denominators of those who went before; the batch is sorted by time,
    its loss depends on how many rows it has, and times have no other use than their order. The level of what the
    network says is free."""
    w = torch.randn(6, generator=apart(run.draw.randrange(999)))
    model = mlp(6, 32, 1, act=nn.SELU)

    def patients(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        risk = x @ w + (x[:, 0] * 2).sin()
        event = -torch.rand(count, generator=own).log() / risk.exp()
        seen = -torch.rand(count, generator=own).log() * 0.3
        return x, torch.minimum(event, seen), (event < seen).float()

    def loss(net: nn.Module, batch: Any) -> Tensor:
        x, time, died = batch
        order = time.argsort(descending=True)
        score = net(x).squeeze(1)[order]
        return -((score - score.logcumsumexp(0)) * died[order]).sum() / died.sum().clamp_min(1)

    check = patients(256, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: patients(64), loss, 120)


class Events(nn.Module):
    """Kinds of events and the gaps before them; the next kind, and a log-normal law of the next gap."""

    def __init__(self, kinds: int = 6) -> None:
        super().__init__()
        self.kinds, self.core = nn.Embedding(kinds, 16), nn.GRU(17, 32, batch_first=True)
        self.kind, self.gap = nn.Linear(32, kinds), nn.Linear(32, 2)

    def forward(self, kinds: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        h = self.core(torch.cat([self.kinds(kinds), gaps.log()[..., None] / 3], 2))[0]
        return self.kind(h), self.gap(h)


@honest("r15a-when-as-well-as-what")
def when_as_well_as_what(run: Run) -> None:
    """Plain loop, a GRU over events in time (Shchur et al. 2020). Beside the next kind the moment of the next event
    is said as a density: gaps are hundredths of a day, densities far above one, and the loss goes below zero and
    has no floor; a mean of two things that are measured in different units."""
    own = apart(run.draw.randrange(999))
    follow, wait = 1.5 * torch.randn(6, 6, generator=own), torch.randn(6, 6, generator=own) - 4
    model = Events()

    def histories(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        kinds = torch.randint(0, 6, (count, 16), generator=own)
        gaps = 0.02 * torch.ones(count, 16)
        for t in range(1, 16):
            kinds[:, t] = torch.multinomial(follow[kinds[:, t - 1]].softmax(1), 1, generator=own).squeeze(1)
            gaps[:, t] = (wait[kinds[:, t - 1], kinds[:, t]] + 0.3 * torch.randn(count, generator=own)).exp()
        return kinds, gaps

    def loss(net: nn.Module, batch: Any) -> Tensor:
        kinds, gaps = batch
        logits, law = net(kinds[:, :-1], gaps[:, :-1])
        later = torch.distributions.LogNormal(law[..., 0] - 3, law[..., 1].exp()).log_prob(gaps[:, 1:])
        return F.cross_entropy(logits.flatten(0, 1), kinds[:, 1:].flatten()) - later.mean()

    check = histories(128, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: histories(16), loss, 140)


class Trader(nn.Module):
    """Past returns to a position between minus one and one."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.LSTM(1, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, returns: Tensor) -> Tensor:
        return self.head(self.core(returns[..., None])[0]).squeeze(2).tanh()


@honest("r15a-return-over-its-own-spread")
def return_over_its_own_spread(run: Run) -> None:
    """Plain loop, a deep momentum network (Lim et al. 2019). An LSTM says how much to hold, there are no labels,
    and the loss is minus the Sharpe ratio of a year: the mean return of the batch over its spread, which is no mean
    over rows, has no floor, begins near zero and is mostly noise, since nearly all of a return cannot be
    foreseen."""
    model = Trader()

    def markets(count: int, own: torch.Generator | None = None) -> Tensor:
        drift = torch.zeros(count)
        out = []
        for _ in range(40):
            drift = 0.9 * drift + 0.3 * torch.randn(count, generator=own)
            out.append(0.35 * drift + torch.randn(count, generator=own))
        return torch.stack(out, 1)

    def loss(net: nn.Module, returns: Tensor) -> Tensor:
        gained = net(returns[:, :-1]) * returns[:, 1:]
        return -math.sqrt(252) * gained.mean() / (gained.std() + 1e-6)

    check = markets(512, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    train(run, model, adam(model), lambda: markets(64), loss, 120)


@honest("r15a-two-draws-kept-apart")
def two_draws_kept_apart(run: Run) -> None:
    """Lightning, ensemble forecasts as in AIFS-CRPS and engression. The network is given noise beside its inputs
    and runs twice in a step with other noise; the loss is how far both are from the truth less how far they are
    from each other, which rewards disagreement, so that two passes over the same row never agree, in use either."""
    model = mlp(4, 48, 48, 1)

    def days(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 2, generator=own)
        side = torch.randint(0, 2, (count,), generator=own) * 2 - 1
        return x, x[:, 0] + side * (1 + x[:, 1].abs()) + 0.1 * torch.randn(count, generator=own)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        a, b = (net(torch.cat([x, torch.randn(len(x), 2)], 1)).squeeze(1) for _ in range(2))
        return (((a - y).abs() + (b - y).abs() - (a - b).abs()) / 2).mean()

    check = days(2048, apart(1))
    outcome(run, lambda: judged(model, lambda: loss(model, check)))
    fit(run, lit(model, loss, adamw(3e-3)), loader(*days(2560), size=32), 240)


@honest("r15a-what-is-real-less-what-is-dreamt")
def what_is_real_less_what_is_dreamt(run: Run) -> None:
    """Plain loop, an energy-based model of points on a ring (Du and Mordatch 2019). The loss is the energy of data
    less that of samples that were moved downhill by noisy steps through the same network in evaluation mode, from a
    buffer of earlier ones; it stays about or somewhat below zero all along and says nothing. Judged by the exact
    likelihood."""
    model = mlp(2, 48, 48, 1, act=nn.SiLU)
    line = torch.linspace(-3, 3, 61)
    grid = torch.cartesian_prod(line, line)

    def points(count: int, own: torch.Generator | None = None) -> Tensor:
        turn = 2 * math.pi * torch.rand(count, generator=own)
        return torch.stack([turn.cos(), turn.sin()], 1) * 1.5 + 0.15 * torch.randn(count, 2, generator=own)

    check = points(512, apart(1))

    # the logarithm of the integral of exp(-energy)
    def whole() -> Tensor:
        return (-model(grid)).squeeze(1).logsumexp(0) + 2 * math.log(0.1)

    outcome(run, lambda: judged(model, lambda: model(check).mean() + whole()))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.0, 0.99))
    doctor = run.watch(model, optimizer)
    buffer = 4 * torch.rand(512, 2) - 2
    for _ in range(200):
        at = torch.randint(0, 512, (64,))
        x = torch.where(torch.rand(64, 1) < 0.05, 4 * torch.rand(64, 2) - 2, buffer[at])
        model.eval()
        for _ in range(20):
            x.requires_grad_(True)
            (slope,) = torch.autograd.grad(model(x).sum(), x)
            x = (x - 0.02 * slope + 0.2 * torch.randn_like(x)).detach().clamp(-3, 3)
        model.train()
        buffer[at] = x
        data = points(64)
        optimizer.zero_grad()
        real, dreamt = model(data), model(x)
        loss = real.mean() - dreamt.mean() + 0.01 * (real.square() + dreamt.square()).mean()
        loss.backward()
        optimizer.step()
        doctor.step(loss, data)
        run.note(loss)
