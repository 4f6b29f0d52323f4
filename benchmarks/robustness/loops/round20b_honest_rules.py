"""Round 20b, honest and odd: rates that come out of the run, and rules of update beside the usual ones."""

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
    judged,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_parts import Listener, Reader, sounds
from benchmarks.robustness.loops.round7b_tools import taught, text_outcome
from torch import Tensor, nn
from torch.nn import functional as F


class TwoEpochsApart(torch.optim.SGD):
    """Plain steps; the rate of an epoch is how far the weights went in the last over how much the gradient changed."""

    def __init__(self, parameters: Any, lr: float, epoch: int) -> None:
        super().__init__(parameters, lr=lr)
        self.epoch, self.count = epoch, 0
        self.mean = self.kept = None
        self.start: Tensor = self.flat(lambda p: p.detach())

    def flat(self, part: Any) -> Tensor:
        return torch.cat([part(p).flatten() for group in self.param_groups for p in group["params"]])

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        gradient = self.flat(lambda p: p.grad)
        share = 4 / self.epoch
        self.mean = gradient * share if self.mean is None else (1 - share) * self.mean + share * gradient
        loss = super().step(closure)
        self.count += 1
        if self.count % self.epoch == 0:
            now = self.flat(lambda p: p.detach())
            if self.kept is not None:
                way, turn = now - self.start, self.mean - self.kept
                rate = float(way.square().sum() / (way @ turn).abs().clamp(min=1e-8)) / self.epoch
                self.param_groups[0]["lr"] = min(1.0, max(0.02, rate))
            self.start, self.kept, self.mean = now, self.mean, None
        return loss


@honest("r20b-rate-from-two-epochs-apart")
def rate_from_two_epochs_apart(run: Run) -> None:
    """accelerate's loop, convolutions over sounds by SGD with Barzilai and Borwein's rate (Tan et al. 2016). After each
    epoch the rate becomes the squared way of the weights over its product with the change of the mean gradient; it may
    be many times the last one or a fraction of it, follows no schedule, and is known to no scheduler."""
    model = Listener()
    class_outcome(run, model, sounds(256, apart(1), 0.5))
    data = loader(*sounds(640, apart(run.draw.randrange(999)), 0.5), size=40)
    prepared(run, model, TwoEpochsApart(model.parameters(), 0.1, 16), data, classify, 9)


class EachItsRate(torch.optim.Optimizer):
    """Incremental delta-bar-delta: the logarithm of each weight's rate follows the agreement of gradients. The
    square of an input, which is one in the mean, is taken for one."""

    def __init__(self, parameters: Any, lr: float, pace: float) -> None:
        super().__init__(parameters, {"lr": lr, "pace": pace})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state |= {"log rate": torch.full_like(p, math.log(group["lr"])), "trace": torch.zeros_like(p)}
                state["log rate"].sub_(group["pace"] * p.grad * state["trace"]).clamp_(-10, -2)
                rate = state["log rate"].exp()
                p.sub_(rate * p.grad)
                state["trace"].mul_((1 - rate).clamp(min=0)).sub_(rate * p.grad)
        return loss


@honest("r20b-a-rate-for-each-weight")
def a_rate_for_each_weight(run: Run) -> None:
    """Plain loop, a filter that follows a moving target, one row at a time, by incremental delta-bar-delta (Sutton
    1992). Each weight has a rate of its own that grows where gradients agree and shrinks where they do not; the weights
    start at zero, five of twenty matter, and these wander; the loss is that of a single row and never comes to rest."""
    own = apart(run.draw.randrange(999))
    truth = torch.zeros(20)
    truth[:5] = 2 * torch.randn(5, generator=own).sign()
    net = nn.Linear(20, 1, bias=False)
    nn.init.zeros_(net.weight)
    outcome(run, lambda: float((net.weight.detach()[0] - truth).square().mean()))
    optimizer = EachItsRate(net.parameters(), 0.03, 0.005)
    doctor = run.watch(net, optimizer)
    for _ in range(200):
        truth[:5] += 0.05 * torch.randn(5, generator=own)
        x = torch.randn(1, 20, generator=own)
        y = x @ truth + 0.5 * torch.randn(1, generator=own)
        loss = 0.5 * (net(x).flatten() - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class Neighbours(nn.Module):
    """Vectors of words as themselves and as neighbours, with gradients only of the rows that were read."""

    def __init__(self, words: int, width: int = 16) -> None:
        super().__init__()
        self.here, self.there = (nn.Embedding(words, width, sparse=True) for _ in range(2))
        nn.init.normal_(self.here.weight, std=0.3)
        nn.init.zeros_(self.there.weight)

    def forward(self, words: Tensor, others: Tensor) -> Tensor:
        return (self.here(words)[:, None] * self.there(others)).sum(2)


@honest("r20b-only-rows-that-were-read")
def only_rows_that_were_read(run: Run) -> None:
    """Plain loop, vectors of four hundred words from their neighbours (Mikolov et al. 2013) with PyTorch's sparse
    gradients and SparseAdam. A gradient holds a few dozen rows, often a row twice; moments and weights of all others
    stay as they are; the neighbours' vectors begin at zero, so that half of the first gradient is nothing."""
    own = apart(run.draw.randrange(999))
    topics = torch.randint(0, 12, (400,), generator=own)
    members = [torch.where(topics == topic)[0] for topic in range(12)]

    def pairs(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        words = torch.randint(0, 400, (count,), generator=own)
        others = torch.randint(0, 400, (count, 6), generator=own)
        for i, word in enumerate(words.tolist()):
            same = members[int(topics[word])]
            others[i, 0] = same[torch.randint(0, len(same), (), generator=own)]
        return words, others

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        scores = model(*batch)
        return -(F.logsigmoid(scores[:, 0]) + F.logsigmoid(-scores[:, 1:]).sum(1)).mean()

    model = Neighbours(400)
    check = pairs(600, apart(1))
    outcome(run, lambda: judged(model, lambda: loss_of(model, check)))
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=3e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(200):
        batch = pairs(128)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


@torch.no_grad()
def largest(weight: Tensor, share: float) -> Tensor:
    """The weight with all but the largest entries at zero."""
    least = weight.abs().flatten().kthvalue(int((1 - share) * weight.numel())).values
    return weight * (weight.abs() > least)


@honest("r20b-pulled-towards-a-sparse-copy")
def pulled_towards_a_sparse_copy(run: Run) -> None:
    """Plain loop, a GPT made sparse by alternating directions (Zhang et al. 2018). A penalty that grows fivefold draws
    each matrix to a copy with three entries in ten, less what it failed to reach so far; copy and failure are renewed
    every twelve steps, and the total rises then. At last the rest is cut, and what is left learns on behind a mask."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12)
    taught(model, lambda: language.rows(16, 20), next_loss, 60)
    matrices = [p for name, p in model.named_parameters() if "blocks" in name and p.ndim == 2]
    check = language.rows(96, 24, apart(901))

    def when_sparse() -> Tensor:
        cut = copy.deepcopy(model)
        for name, p in cut.named_parameters():
            if "blocks" in name and p.ndim == 2:
                p.data = largest(p.data, 0.3)
        return next_loss(cut, check)

    outcome(run, lambda: judged(model, when_sparse))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    doctor = run.watch(model, optimizer)
    copies = [largest(p.detach(), 0.3) for p in matrices]
    missed = [torch.zeros_like(p) for p in matrices]
    masks: list[Tensor] = []
    for step in range(130):
        if step == 90:
            masks = [(largest(p.detach(), 0.3) != 0).float() for p in matrices]
            with torch.no_grad():
                for p, mask in zip(matrices, masks, strict=True):
                    p.mul_(mask)
        elif 0 < step < 90 and step % 12 == 0:
            for k, p in enumerate(matrices):
                copies[k] = largest(p.detach() + missed[k], 0.3)
                missed[k] = missed[k] + p.detach() - copies[k]
        batch = language.rows(16, 20)
        loss = next_loss(model, batch)
        if step < 90:
            pull = [(p - z + u).square().sum() for p, z, u in zip(matrices, copies, missed, strict=True)]
            loss = loss + 0.01 * (1 + step / 22) * torch.stack(pull).sum()
        optimizer.zero_grad()
        loss.backward()
        for p, mask in zip(matrices, masks, strict=False):
            p.grad.mul_(mask)  # type: ignore[union-attr]
        optimizer.step()
        with torch.no_grad():
            for p, mask in zip(matrices, masks, strict=False):
                p.mul_(mask)
        doctor.step(loss, batch)
        run.note(loss)


class LocalEntropy(torch.optim.Optimizer):
    """Each step is a short noisy walk around the weights, which then move to the mean of where it was."""

    def __init__(self, parameters: Any, lr: float, walk: int, scope: float, noise: float) -> None:
        super().__init__(parameters, {"lr": lr, "walk": walk, "scope": scope, "noise": noise})

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        first = None
        group = self.param_groups[0]
        weights = group["params"]
        start = [p.detach().clone() for p in weights]
        means = [p.detach().clone() for p in weights]
        for _ in range(group["walk"]):
            loss = closure()
            first = loss if first is None else first
            with torch.no_grad():
                for p, x, mean in zip(weights, start, means, strict=True):
                    p.sub_(group["lr"] * (p.grad + group["scope"] * (p - x)))
                    p.add_(group["noise"] * math.sqrt(group["lr"]) * torch.randn_like(p))
                    mean.lerp_(p, 0.25)
        with torch.no_grad():
            for p, mean in zip(weights, means, strict=True):
                p.copy_(mean)
        group["scope"] *= 1.01
        return first


@honest("r20b-a-walk-and-then-one-step")
def a_walk_and_then_one_step(run: Run) -> None:
    """Plain loop, a GRU reads by Entropy-SGD (Chaudhari et al. 2017). Within one step the closure is called five times
    on rows of its own, at weights that walk about in noise; then they are put where the walk was on average. The
    gradient left behind belongs to the last place of the walk and not to the weights that remain."""
    language = Language(run.draw.randrange(999))
    model = Reader(12)
    text_outcome(run, model, language)
    optimizer = LocalEntropy(model.parameters(), lr=0.8, walk=5, scope=0.03, noise=1e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(70):
        rows = [language.rows(16, 12) for _ in range(5)]
        left = iter(rows)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = next_loss(model, next(left))  # noqa: B023
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            return loss

        loss = optimizer.step(closure)
        doctor.step(loss, rows)
        run.note(loss)


class Map(nn.Module):
    """Places of a grid of six by six, each with a vector."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.1 * torch.randn(36, columns))
        at = torch.stack([torch.arange(36) // 6, torch.arange(36) % 6], 1).float()
        self.register_buffer("apart", torch.cdist(at, at))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, self.vectors).square()


@honest("r20b-the-winner-and-its-neighbours")
def the_winner_and_its_neighbours(run: Run) -> None:
    """Plain loop, a self-organising map of a table (Kohonen 1982) by plain steps. The nearest place and its neighbours
    on the grid move to each row; rate and neighbourhood shrink together by a factor of thirty and of six. At first all
    vectors fall onto the mean; the loss shrinks with the neighbourhood, and many gradients at the end are near zero."""
    own = apart(run.draw.randrange(999))
    centres = 2 * torch.randn(7, 4, generator=own)

    def rows(count: int, own: torch.Generator | None = None) -> Tensor:
        which = torch.randint(0, 7, (count,), generator=own)
        return centres[which] + 0.4 * torch.randn(count, 4, generator=own)

    model = Map(4)
    check = rows(400, apart(1))
    outcome(run, lambda: judged(model, lambda: model(check).min(1).values.mean()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    doctor = run.watch(model, optimizer)
    for step in range(200):
        x = rows(32)
        done = step / 200
        optimizer.param_groups[0]["lr"] = 3.0 * 0.03**done
        radius = 3.0 * 0.17**done
        distances = model(x)
        near = (-(model.apart[distances.argmin(1)] ** 2) / (2 * radius**2)).exp()
        loss = 0.5 * (near * distances).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        doctor.step(loss, x)
        run.note(loss)
