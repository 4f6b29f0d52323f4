"""Round 27j, honest and odd: rules of update, settings that are set while it learns, averages, and populations."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    apart,
    fit,
    judged,
    loader,
    mlp,
    number_outcome,
    outcome,
    table,
)
from benchmarks.robustness.loops.round6_tools import regress
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F


class Parabolas(torch.optim.Optimizer):
    """Quickprop: each weight leaps to the bottom of the parabola through its last two slopes."""

    def __init__(self, parameters: Any, lr: float, growth: float = 1.75, decay: float = 1e-4) -> None:
        super().__init__(parameters, {"lr": lr, "growth": growth, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                slope = p.grad + group["decay"] * p
                last, before = state.get("step", torch.zeros_like(p)), state.get("slope", torch.zeros_like(p))
                limit = group["growth"] / (1 + group["growth"])
                downhill = -slope * last.sign()
                steep = downhill > limit * (-before * last.sign())
                leap = last * slope / torch.where(before == slope, torch.ones_like(slope), before - slope)
                move = torch.where(steep, group["growth"] * last, leap)
                move = move - group["lr"] * slope * ((downhill >= 0) | (last == 0))
                state["step"], state["slope"] = move.clone(), slope.clone()
                p += move
        return loss


@honest("r27j-each-weight-to-the-bottom-of-its-parabola")
def each_weight_to_the_bottom_of_its_parabola(run: Run) -> None:
    """Plain loop, all rows of a table at once, Quickprop (Fahlman 1988; FANN and SNNS have it). No weight moves by its
    gradient times a rate for long: it goes where the line through its last two slopes meets zero, at most 1.75 times as
    far as it went last, so that steps grow from one to the next and some jump over the bottom."""
    seed = run.draw.randrange(999)
    x, y = table(300, seed)
    y = (y - y.mean()) / y.std()
    check_x, check_y = table(300, seed, apart(1))
    mean, spread = table(3000, seed, apart(2))[1].mean(), table(3000, seed, apart(2))[1].std()
    model = mlp(6, 12, 1, act=nn.Tanh)
    number_outcome(run, model, (check_x, (check_y - mean) / spread))
    optimizer = Parabolas(model.parameters(), lr=0.05)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        optimizer.zero_grad()
        loss = regress(model, (x, y))
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)


class HessianFree(torch.optim.Optimizer):
    """Truncated Newton steps: a few conjugate directions, products with the Gauss-Newton matrix, adapted damping."""

    def __init__(self, parameters: Any, damping: float = 0.1, directions: int = 8) -> None:
        super().__init__(parameters, {"damping": damping, "directions": directions})

    def step(self, scores: Callable[[], Tensor], loss_of: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        group = self.param_groups[0]
        own = group["params"]

        def flat(parts: Any) -> Tensor:
            return torch.cat([part.reshape(-1) for part in parts])

        out = scores()
        loss = loss_of(out)
        for p, g in zip(own, torch.autograd.grad(loss, own, retain_graph=True), strict=True):
            p.grad = g
        gradient = flat([p.grad for p in own])
        dummy = torch.zeros_like(out, requires_grad=True)
        there = flat(torch.autograd.grad(out, own, dummy, create_graph=True))
        shares = out.detach().softmax(1)

        def product(v: Tensor) -> Tensor:
            pushed = torch.autograd.grad(there, dummy, v, retain_graph=True)[0]
            bent = shares * (pushed - (shares * pushed).sum(1, keepdim=True)) / len(out)
            return flat(torch.autograd.grad(out, own, bent, retain_graph=True)) + group["damping"] * v

        move = self.state.setdefault("move", torch.zeros_like(gradient)) * 0.9
        rest = -gradient - product(move)
        way, size = rest.clone(), rest @ rest
        for _ in range(group["directions"]):
            if size < 1e-14:
                break
            turned = product(way)
            along = size / (way @ turned)
            move = move + along * way
            rest = rest - along * turned
            size, old = rest @ rest, size
            way = rest + size / old * way
        promised = gradient @ move + 0.5 * move @ (product(move) - group["damping"] * move) - 1e-12
        with torch.no_grad():
            parts = move.split([p.numel() for p in own])
            for p, part in zip(own, parts, strict=True):
                p += part.view_as(p)
            ratio = (loss_of(scores()) - loss.detach()) / promised
            if ratio < 0.25 or promised > 0:
                group["damping"] *= 1.5
            elif ratio > 0.75:
                group["damping"] /= 1.5
            if ratio <= 0:
                for p, part in zip(own, parts, strict=True):
                    p -= part.view_as(p)
        self.state["move"] = move if ratio > 0 else torch.zeros_like(move)
        return loss.detach()


class Remembers(nn.Module):
    """A plain recurrent net in its usual lines; what it says at the end is what it heard at first."""

    def __init__(self, words: int = 8, hidden: int = 24) -> None:
        super().__init__()
        self.enter, self.again = nn.Embedding(words, hidden), nn.Linear(hidden, hidden)
        nn.init.orthogonal_(self.again.weight)
        self.leave = nn.Linear(hidden, 4)

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(len(ids), self.again.out_features)
        for word in self.enter(ids).unbind(1):
            state = (word + self.again(state)).tanh()
        out: Tensor = self.leave(state)
        return out


@honest("r27j-eight-directions-and-then-a-step")
def eight_directions_and_then_a_step(run: Run) -> None:
    """Plain loop, a plain recurrent net without a rate, trained Hessian-free (Martens and Sutskever 2011) to say at the
    end of a row the word that it began with. Each step is a run of conjugate gradients on products of the Gauss-Newton
    matrix with vectors, begun at nine tenths of the last step; the damping rises and falls by how much of the promised
    descent came about, and a step that made its batch worse is taken back."""

    def rows(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        y = torch.randint(0, 4, (count,), generator=own)
        return torch.cat([y[:, None], torch.randint(4, 8, (count, 9), generator=own)], 1), y

    model = Remembers()
    check = rows(300, apart(1))
    outcome(run, lambda: judged(model, lambda: F.cross_entropy(model(check[0]), check[1])))
    optimizer = HessianFree(model.parameters())
    doctor = run.watch(model, optimizer)
    for _ in range(60):
        x, y = rows(160)
        loss = optimizer.step(lambda x=x: model(x), lambda scores, y=y: F.cross_entropy(scores, y))
        doctor.step(loss, (x, y))
        run.note(loss)


def valve(model: nn.Module, start: Tensor, wanted: Tensor, steps: int, whole: bool) -> Tensor:
    """How far a tank stays from the wanted level; a real valve has eight positions."""
    level, cost = start, torch.zeros(())
    for _ in range(steps):
        opened = model(torch.stack([level, wanted, wanted - level], 1)).flatten().sigmoid()
        opened = (opened * 8).round() / 8 if whole else opened
        level = (level + 0.4 * opened - 0.15 * level.clamp_min(1e-3).sqrt()).clamp_min(0)
        cost = cost + (level - wanted).square().mean() / steps
    return cost


@honest("r27j-draws-half-along-slopes-of-a-rough-model")
def draws_half_along_slopes_of_a_rough_model(run: Run) -> None:
    """Plain loop, a controller of a valve with eight positions by guided evolution strategies (Maheswaranathan et al.
    2019). The gradient that is stepped comes from pairs of mirrored draws and the whole simulation, which has no slope;
    half of the draws' variance lies along the last three gradients of a rough model, of four steps and a valve without
    positions. That rough gradient is never followed itself."""
    model = mlp(3, 16, 1, act=nn.Tanh)

    def starts(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return 2 * torch.rand(count, generator=own), 0.5 + 1.5 * torch.rand(count, generator=own)

    check = starts(200, apart(1))
    outcome(run, lambda: judged(model, lambda: valve(model, *check, 12, True)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    doctor = run.watch(model, optimizer)
    size = sum(p.numel() for p in model.parameters())
    rough: list[Tensor] = []
    for _ in range(130):
        batch = starts(64)
        slopes = torch.autograd.grad(valve(model, *batch, 4, False), list(model.parameters()))
        rough = [*rough[-2:], torch.cat([s.flatten() for s in slopes])]
        base = torch.linalg.qr(torch.stack(rough, 1))[0]
        here = nn.utils.parameters_to_vector(model.parameters()).detach()
        found = torch.zeros(size)
        with torch.no_grad():
            loss = valve(model, *batch, 12, True)
            for _ in range(4):
                wide = torch.randn(size) / math.sqrt(2 * size)
                draw = 0.3 * (wide + base @ torch.randn(base.shape[1]) / math.sqrt(2 * base.shape[1]))
                costs = []
                for sign in (1, -1):
                    nn.utils.vector_to_parameters(here + sign * draw, model.parameters())
                    costs.append(valve(model, *batch, 12, True))
                found += draw * (costs[0] - costs[1]) / (2 * 0.3**2 * 4)
            nn.utils.vector_to_parameters(here, model.parameters())
            for p, part in zip(model.parameters(), found.split([p.numel() for p in model.parameters()]), strict=True):
                p.grad = 2 * part.view_as(p)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


def spiral(count: int, own: torch.Generator | None = None) -> Tensor:
    turn = 1 + 6 * torch.rand(count, generator=own)
    return turn[:, None] / 5 * torch.stack([turn.cos(), turn.sin()], 1) + 0.03 * torch.randn(count, 2, generator=own)


class Denoiser(nn.Module):
    """EDM's wrapping of a small net: what goes in and out has unit size at each level of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3, 48, 48, 2, act=nn.SiLU)

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        s = sigma[:, None]
        scale = (s.square() + 0.5).sqrt()
        out: Tensor = 0.5 / scale.square() * x + s * 0.5**0.5 / scale * self.net(torch.cat([x / scale, s.log() / 4], 1))
        return out


def denoising(model: nn.Module, batch: Any, own: torch.Generator | None = None) -> Tensor:
    x = batch[0]
    sigma = (1.2 * torch.randn(len(x), generator=own) - 1).exp()
    noisy = x + sigma[:, None] * torch.randn(x.shape, generator=own)
    weight = (sigma.square() + 0.5) / (0.5 * sigma.square())
    return (weight * (model(noisy, sigma) - x).square().sum(1)).mean()


def overlap(t: Tensor, gamma: Tensor, t_other: Tensor, gamma_other: Tensor) -> Tensor:
    """The inner products of two sets of profiles that are powers of time and end at `t`."""
    t, gamma, t_other, gamma_other = t[:, None], gamma[:, None], t_other[None], gamma_other[None]
    power = torch.where(t < t_other, gamma_other, -gamma)
    top = (gamma + 1) * (gamma_other + 1) * (t / t_other) ** power
    return top / ((gamma + gamma_other + 1) * torch.maximum(t, t_other))


@honest("r27j-a-third-average-from-two")
def a_third_average_from_two(run: Run) -> None:
    """Lightning, a denoiser of points on a spiral with averages chosen afterwards (Karras et al. 2024, EDM2). Two
    averages of the weights with powers of time as their profiles are kept and stored every ten steps; after the
    training a third one, of another width, is put together from all that was stored by least squares, some parts with
    negative shares. The rate is steady and then falls as the root of time, and the weights themselves are not used."""
    import lightning

    net = Denoiser()
    averages = {gamma: copy.deepcopy(net) for gamma in (16.97, 6.94)}
    stored: list[tuple[int, float, dict[str, Tensor]]] = []
    check = (spiral(500, apart(1)),)

    def put_together() -> nn.Module:
        out = copy.deepcopy(net)
        if stored:
            at = torch.tensor([float(t) for t, _, _ in stored], dtype=torch.float64)
            gamma = torch.tensor([g for _, g, _ in stored], dtype=torch.float64)
            end, wanted = at[-1:], torch.tensor([9.6], dtype=torch.float64)
            shares = torch.linalg.lstsq(overlap(at, gamma, at, gamma), overlap(at, gamma, end, wanted), driver="gelsd")
            mixed = {
                k: sum(float(w) * kept[k] for w, (_, _, kept) in zip(shares.solution.flatten(), stored, strict=True))
                for k in net.state_dict()
            }
            out.load_state_dict(mixed)
        return out

    def measure() -> float:
        model = put_together()
        return judged(model, lambda: denoising(model, check, apart(2)))

    outcome(run, measure)

    class Lit(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return denoising(self.net, batch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2, betas=(0.9, 0.99))
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / math.sqrt(max(t / 60, 1)))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            step = self.global_step
            with torch.no_grad():
                for gamma, average in averages.items():
                    for mean, p in zip(average.parameters(), self.net.parameters(), strict=True):
                        mean.lerp_(p, 1 - (1 - 1 / step) ** (gamma + 1))
                    if step % 10 == 0:
                        stored.append((step, gamma, copy.deepcopy(average.state_dict())))

    fit(run, Lit(), loader(spiral(1024, apart(run.draw.randrange(999))), size=64), 200)


@honest("r27j-decay-and-noise-set-by-the-evidence")
def decay_and_noise_set_by_the_evidence(run: Run) -> None:
    """Plain loop, eighty rows and no validation, a small net whose decay and level of noise are set by the marginal
    likelihood while it learns (MacKay 1992; Immer et al. 2021). Every twenty steps the eigenvalues of the Gauss-Newton
    matrix say how many weights the data decide, and both factors of the loss are computed anew from that; the loss that
    is told then jumps, for its two terms are in other units than before."""
    seed = run.draw.randrange(999)
    x, y = table(80, seed, noise=0.3)
    model = mlp(6, 10, 1, act=nn.Tanh)
    number_outcome(run, model, table(400, seed, apart(1)))
    alpha, beta = 1.0, 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    doctor = run.watch(model, optimizer)
    for step in range(200):
        optimizer.zero_grad()
        misses = (model(x).flatten() - y).square().sum()
        size = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        loss = (beta * misses + alpha * size) / (2 * len(y))
        loss.backward()
        optimizer.step()
        doctor.step(loss, (x, y))
        run.note(loss)
        if step % 20 == 19:
            weights = {k: v.detach() for k, v in model.named_parameters()}
            slopes = jacrev(lambda w: functional_call(model, w, (x,)).flatten())(weights)
            matrix = torch.cat([s.flatten(1) for s in slopes.values()], 1)
            values = beta * torch.linalg.svdvals(matrix).square()
            decided = float((values / (values + alpha)).sum())
            alpha = decided / float(size.detach())
            beta = max(len(y) - decided, 1.0) / float(misses.detach())


class Neighbours(nn.Module):
    """Two rounds of messages over a dense adjacency and a number for the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(5, 16)
        self.rounds = nn.ModuleList(nn.Linear(32, 16) for _ in range(2))
        self.leave = mlp(16, 16, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        h = self.enter(nodes)
        for layer in self.rounds:
            h = layer(torch.cat([h, edges @ h / edges.sum(2, keepdim=True).clamp_min(1)], 2)).relu()
        out: Tensor = self.leave(h.mean(1)).flatten()
        return out


def graphs(count: int, seed: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Graphs of eight nodes and a number: how unlike nodes are to their neighbours."""
    w = torch.randn(5, generator=apart(seed))
    nodes = torch.randn(count, 8, 5, generator=own)
    edges = (torch.rand(count, 8, 8, generator=own) < 0.3).float().triu(1)
    edges = edges + edges.transpose(1, 2)
    near = edges @ nodes / edges.sum(2, keepdim=True).clamp_min(1)
    return nodes, edges, ((nodes - near) @ (w / w.norm())).relu().mean(1) * 3


@honest("r27j-four-learn-and-the-fitter-have-offspring")
def four_learn_and_the_fitter_have_offspring(run: Run) -> None:
    """Plain loop over four graph nets, evolutionary stochastic gradient descent (Cui et al. 2018). Each has an
    optimizer of its own kind and takes fifteen steps by gradient; then pairs of them have offspring, a mean of their
    weights with noise, and those of parents and offspring that do best on held-out graphs take the four places. Weights
    of a place change between two of its steps without any gradient, and its moments are forgotten."""
    seed = run.draw.randrange(999)
    fitness, check = graphs(200, seed, apart(1)), graphs(300, seed, apart(2))

    def error(model: nn.Module, data: Any) -> Tensor:
        return F.mse_loss(model(*data[:2]), data[2])

    places = [Neighbours() for _ in range(4)]
    outcome(run, lambda: judged(places[0], lambda: error(places[0], check)))
    optimizers = [
        torch.optim.Adam(places[0].parameters(), lr=5e-3),
        torch.optim.Adam(places[1].parameters(), lr=2e-3, betas=(0.5, 0.99)),
        torch.optim.SGD(places[2].parameters(), lr=0.05, momentum=0.9),
        torch.optim.RMSprop(places[3].parameters(), lr=2e-3),
    ]
    doctors = [run.watch(model, optimizer) for model, optimizer in zip(places, optimizers, strict=True)]
    for generation in range(8):
        for model, optimizer, doctor in zip(places, optimizers, doctors, strict=True):
            for _ in range(15):
                batch = graphs(32, seed)
                optimizer.zero_grad()
                loss = error(model, batch)
                loss.backward()
                optimizer.step()
                doctor.step(loss, batch)
                run.note(loss)
        with torch.no_grad():
            family = [nn.utils.parameters_to_vector(model.parameters()) for model in places]
            for _ in range(8):
                one, two = torch.randperm(4)[:2].tolist()
                family.append((family[one] + family[two]) / 2 + 0.01 / (generation + 1) * torch.randn_like(family[0]))
            trial = copy.deepcopy(places[0])
            marks = []
            for weights in family:
                nn.utils.vector_to_parameters(weights, trial.parameters())
                marks.append(float(error(trial, fitness)))
            best = sorted(range(len(family)), key=marks.__getitem__)[:4]
            for model, optimizer, chosen in zip(places, optimizers, best, strict=True):
                for p, part in zip(
                    model.parameters(), family[chosen].split([p.numel() for p in model.parameters()]), strict=True
                ):
                    p.copy_(part.view_as(p))
                optimizer.state.clear()
