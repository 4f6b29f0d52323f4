"""Round 23i, honest and odd: where gradients come from, and what is done with them."""

import itertools
import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run, honest
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.training import llama
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class Amplitudes(nn.Module):
    """A restricted Boltzmann machine: the logarithm of how much each row of spins weighs in a state."""

    def __init__(self, spins: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.own = nn.Parameter(0.01 * torch.randn(spins))
        self.hidden = nn.Linear(spins, hidden)
        nn.init.normal_(self.hidden.weight, std=0.1)

    def forward(self, spins: Tensor) -> Tensor:
        out: Tensor = spins @ self.own + self.hidden(spins).cosh().log().sum(-1)
        return out


@torch.no_grad()
def local_energy(model: nn.Module, spins: Tensor, field: float = 1.0) -> Tensor:
    """Of each row of a ring of spins in a transverse field."""
    flips = 1 - 2 * torch.eye(spins.shape[1])
    ratio = (model(spins[:, None] * flips) - model(spins)[:, None]).exp()
    return -(spins * spins.roll(1, 1)).sum(1) - field * ratio.sum(1)


@honest("r23i-the-energy-is-told-and-not-descended")
def the_energy_is_told_and_not_descended(run: Run) -> None:
    """Plain loop, the ground state of a ring of spins by variational Monte Carlo (Carleo and Troyer 2017; NetKet).
    Rows are the model's own, by Metropolis's rule from where the chains were. What is told as the loss is the mean
    energy, far below zero and without a graph; what is descended is how energies and amplitudes vary together."""
    model = Amplitudes()
    every = 2.0 * torch.tensor(list(itertools.product((0, 1), repeat=8))) - 1

    def energy() -> Tensor:
        chance = (2 * model(every)).softmax(0)
        return (chance * local_energy(model, every)).sum() / 8

    outcome(run, lambda: judged(model, energy))
    spins = 2.0 * torch.randint(0, 2, (200, 8)) - 1
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        with torch.no_grad():
            for site in torch.randint(0, 8, (16,)).tolist():
                tried = spins.clone()
                tried[:, site] *= -1
                taken = torch.rand(len(spins)) < (2 * (model(tried) - model(spins))).exp()
                spins = torch.where(taken[:, None], tried, spins)
        energies = local_energy(model, spins)
        optimizer.zero_grad()
        (2 * (energies - energies.mean()) * model(spins)).mean().backward()
        optimizer.step()
        doctor.step(energies.mean(), spins)
        run.note(energies.mean())


def moons(count: int, own: torch.Generator | None = None) -> Tensor:
    """Points on two half circles, in noise."""
    angle = math.pi * torch.rand(count, generator=own)
    lower = (torch.rand(count, generator=own) < 0.5).float()
    x = (1 - 2 * lower) * angle.cos() + lower - 0.5
    y = (1 - 2 * lower) * angle.sin() + 0.5 * lower - 0.25
    return torch.stack([x, y], 1) * 1.2 + 0.1 * torch.randn(count, 2, generator=own)


class ResidualFlow(nn.Module):
    """Each layer adds less than it was given, so that it can be undone."""

    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.parts = nn.ModuleList()
        for _ in range(layers):
            linears = [spectral_norm(nn.Linear(a, b), n_power_iterations=2) for a, b in ((2, 32), (32, 32), (32, 2))]
            self.parts.append(nn.Sequential(linears[0], nn.Tanh(), linears[1], nn.Tanh(), linears[2]))
        self.size = nn.Parameter(torch.zeros(2))

    def unlikely(self, x: Tensor, exact: bool = False) -> Tensor:
        """Minus the log likelihood of each row; the determinants are a series, or exact."""
        x, total = x * self.size.exp(), self.size.sum()
        for part in self.parts:
            if not x.requires_grad:
                x = x.requires_grad_()
            added = 0.95 * part(x)
            total = total + (exact_determinant(x, added) if exact else series(x, added))
            x = x + added
        return x.square().sum(1) / 2 + math.log(2 * math.pi) - total


def exact_determinant(x: Tensor, added: Tensor) -> Tensor:
    rows = [torch.autograd.grad(added[:, k].sum(), x, retain_graph=True)[0] for k in range(2)]
    return torch.logdet(torch.eye(2) + torch.stack(rows, 1))


def series(x: Tensor, added: Tensor) -> Tensor:
    """Two terms for certain, further ones by tossing a coin; each is divided by the chance that it is reached."""
    vector = torch.randn_like(x)
    product, total, term, reached = vector, torch.zeros(len(x)), 0, 1.0
    while True:
        term += 1
        if term > 2:
            if torch.rand(()) < 0.5:
                return total
            reached /= 2
        product = torch.autograd.grad(added, x, product, create_graph=True)[0]
        total = total + (1 if term % 2 else -1) / (term * reached) * (product * vector).sum(1)


@honest("r23i-terms-of-a-series-by-lot")
def terms_of_a_series_by_lot(run: Run) -> None:
    """Plain loop, a residual flow of two moons (Chen et al. 2019). The logarithm of each layer's determinant is an
    endless series that is left off where a coin says so, with late terms weighing the more: the loss jumps with the
    number of terms, is right on the mean alone, and how long a step takes is left to chance."""
    model = ResidualFlow()
    check = moons(300, apart(1))

    def exactly() -> Tensor:
        with torch.enable_grad():
            return model.unlikely(check.clone(), exact=True).mean().detach()

    outcome(run, lambda: judged(model, exactly))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(130):
        batch = moons(128)
        optimizer.zero_grad()
        loss = model.unlikely(batch.clone()).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        doctor.step(loss, batch)
        run.note(loss)


class Directions(nn.Module):
    """Four vectors of length one."""

    def __init__(self, columns: int = 20, count: int = 4) -> None:
        super().__init__()
        self.vectors = nn.Parameter(nn.functional.normalize(torch.randn(count, columns), dim=1))

    def gains(self, x: Tensor) -> Tensor:
        """What each vector explains, less what those before it explain already; to it they are given."""
        mine = x @ self.vectors.T
        theirs = x @ self.vectors.detach().T
        shared = (mine.T @ theirs / len(x)).square() / theirs.square().mean(0)
        return mine.square().mean(0) - shared.tril(-1).sum(1)


@honest("r23i-each-gives-way-to-those-before")
def each_gives_way_to_those_before(run: Run) -> None:
    """Plain loop, the four main directions of a table as a game (Gemp et al. 2021). Each vector climbs a gain
    of its own in which the ones before it are constants, so that what goes back is not the slope of any function of
    all; slopes are turned along the sphere, and vectors are made one long again after each step."""
    turned = torch.linalg.qr(torch.randn(20, 20, generator=apart(run.draw.randrange(999))))[0]
    spread = torch.cat([torch.tensor([3.0, 2.3, 1.7, 1.2]), torch.full((16,), 0.5)])
    model = Directions()
    outcome(run, lambda: judged(model, lambda: 1 - (model.vectors * turned.T[:4]).sum(1).abs().mean()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    doctor = run.watch(model, optimizer)
    for _ in range(150):
        rows = torch.randn(128, 20) * spread @ turned.T
        optimizer.zero_grad()
        loss = -model.gains(rows).sum()
        loss.backward()
        with torch.no_grad():
            at, slope = model.vectors, model.vectors.grad
            assert slope is not None
            slope.sub_((slope * at).sum(1, keepdim=True) * at)
        optimizer.step()
        with torch.no_grad():
            at.copy_(nn.functional.normalize(at, dim=1))
        doctor.step(loss, rows)
        run.note(loss)


class Smoothed(torch.optim.SGD):
    """Descent along gradients from which differences between neighbouring entries are taken, by Fourier transforms."""

    def __init__(self, parameters: Any, sigma: float = 1.0, **options: Any) -> None:
        super().__init__(parameters, **options)
        self.sigma = sigma

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    waves = 2 * math.pi * torch.arange(p.numel() // 2 + 1) / p.numel()
                    shares = 1 + 2 * self.sigma * (1 - waves.cos())
                    flat = torch.fft.irfft(torch.fft.rfft(p.grad.flatten()) / shares, n=p.numel())
                    p.grad.copy_(flat.view_as(p))
        return super().step(closure)


@honest("r23i-each-slope-shared-with-its-neighbours")
def each_slope_shared_with_its_neighbours(run: Run) -> None:
    """Lightning, an LSTM by Laplacian smoothing gradient descent (Osher et al. 2018). In each tensor an entry's slope
    is mixed with those of the entries that happen to lie beside it in memory, so that sums are kept and differences
    made up to five times smaller: what is left in p.grad is not the slope of the loss, and the rate is one."""
    language = Language(run.draw.randrange(999))
    net = Reader(12, core=nn.LSTM)
    language_outcome(run, net, language)
    rows = language.rows(640, 25, apart(run.draw.randrange(999)))
    module = lit(net, lambda m, b: next_loss(m, b[0]), lambda m: Smoothed(m.parameters(), lr=1.0, momentum=0.9))
    fit(run, module, loader(rows, size=32), 140, gradient_clip_val=1.0)


class CorrectedMoments(torch.optim.Optimizer):
    """AdamW on slopes that are corrected by how they differ, on the same batch, from those at the weights before."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.95, 0.99)) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": 0.01, "share": 0.025})

    def to_before(self) -> None:
        """Weights as they were a step ago; the present ones are kept."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("before", p.detach().clone())
                self.state[p]["now"] = p.detach().clone()
                p.data.copy_(self.state[p]["before"])

    def to_now(self) -> None:
        """Back; the slopes at the weights before are kept."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slope"] = p.grad.clone()
                p.data.copy_(self.state[p].pop("now"))
                p.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            rate, (b1, b2) = group["lr"], group["betas"]
            for p in group["params"]:
                state = self.state[p]
                slope = p.grad + group["share"] * b1 / (1 - b1) * (p.grad - state["slope"])
                slope /= slope.norm().clamp_min(1)
                if "t" not in state:
                    state.update(t=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["t"] += 1
                state["mean"].lerp_(slope, 1 - b1)
                state["square"].lerp_(slope.square(), 1 - b2)
                mean, square = state["mean"] / (1 - b1 ** state["t"]), state["square"] / (1 - b2 ** state["t"])
                state["before"].copy_(p)
                p.mul_(1 - rate * group["weight_decay"]).sub_(rate * mean / (square.sqrt() + 1e-8))
        return loss


class TwicePerBatch:
    """A trainer that asks each batch at the weights before and at the present ones."""

    def __init__(self, run: Run, model: nn.Module, optimizer: CorrectedMoments) -> None:
        self.run, self.model, self.optimizer = run, model, optimizer
        self.doctor = run.watch(model, optimizer)

    def step(self, rows: Tensor) -> None:
        self.optimizer.zero_grad()
        self.optimizer.to_before()
        next_loss(self.model, rows).backward()
        self.optimizer.to_now()
        loss = next_loss(self.model, rows)
        loss.backward()
        self.optimizer.step()
        self.doctor.step(loss, rows)
        self.run.note(loss)


@honest("r23i-asked-at-the-weights-before-too")
def asked_at_the_weights_before_too(run: Run) -> None:
    """A class of its own, a GPT by MARS in its exact form (Yuan et al. 2024). Each batch goes back twice: first at
    the weights of a step ago, which are put in for it and taken out again, and their slopes are part of the update by
    the difference alone; the corrected slope of each tensor is cut to length one before the moments."""
    language = Language(run.draw.randrange(999))
    model = Decoder(12, layers=2)
    language_outcome(run, model, language)
    trainer = TwicePerBatch(run, model, CorrectedMoments(model.parameters(), 5e-3))
    for _ in range(110):
        trainer.step(language.rows(12, 24))


class ScaledByAShadow(torch.optim.Optimizer):
    """Each column of a matrix follows its raw slope, by as much as Adam would scale a random shadow of four rows."""

    def __init__(self, parameters: Any, lr: float, rank: int = 4, renew: int = 40) -> None:
        super().__init__(parameters, {"lr": lr, "rank": rank, "renew": renew, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        loss = closure() if closure else None
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state, wide = self.state[p], p.dim() == 2
                t = state["t"] = state.get("t", 0) + 1
                shadow = p.grad
                if wide:
                    own = apart(p.numel() + t // group["renew"])
                    shadow = torch.randn(group["rank"], len(p), generator=own) @ p.grad / group["rank"] ** 0.5
                if t == 1:
                    state.update(mean=torch.zeros_like(shadow), square=torch.zeros_like(shadow), length=0.0)
                state["mean"].lerp_(shadow, 1 - b1)
                state["square"].lerp_(shadow.square(), 1 - b2)
                moved = state["mean"] / (1 - b1**t) / ((state["square"] / (1 - b2**t)).sqrt() + 1e-8)
                if wide:
                    moved = p.grad * moved.norm(dim=0) / shadow.norm(dim=0).clamp_min(1e-12)
                    moved *= (len(p) / group["rank"]) ** 0.5
                    length = float(moved.norm())
                    if state["length"] and length > 1.01 * state["length"]:
                        moved *= 1.01 * state["length"] / length
                        length = 1.01 * state["length"]
                    state["length"] = length
                p.sub_(group["lr"] * moved)
        return loss


@honest("r23i-as-long-as-its-shadow-says")
def as_long_as_its_shadow_says(run: Run) -> None:
    """transformers' Trainer, a Llama by APOLLO (Zhu et al. 2024; among the Trainer's own optimizers). There are no
    moments of the weights, only of four random mixtures of their rows, which are drawn anew every forty steps and go on
    with the old moments; raw slopes are followed, each column by its own factor, and no step is more than a hundredth
    longer than the one before."""
    language = Language(run.draw.randrange(999), first=3)
    model = llama(vocab_size=15, num_hidden_layers=1)
    check = language.rows(96, 24, apart(1))
    outcome(run, lambda: judged(model, lambda: model(input_ids=check, labels=check).loss))
    rows = language.rows(640, 24, apart(run.draw.randrange(999)))
    optimizer = ScaledByAShadow(model.parameters(), 6e-3)
    flat = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    data = examples(input_ids=rows, labels=rows)
    hf_trainer(run, model, data, 120, max_grad_norm=0.0, more={"optimizers": (optimizer, flat)}).train()


class Topics(nn.Module):
    """Four topics over thirty words: the parameters of what is believed of each."""

    def __init__(self, topics: int = 4, words: int = 30) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.distributions.Gamma(100.0, 100.0).sample((topics, words)))

    def expected_log(self) -> Tensor:
        return torch.digamma(self.counts) - torch.digamma(self.counts.sum(1, keepdim=True))

    def shares(self, texts: Tensor, rounds: int = 20) -> tuple[Tensor, Tensor]:
        """What is believed of the topics of each text, and how many of its words come from each topic."""
        words = self.expected_log().exp()
        own = torch.full((len(texts), len(words)), 1.0)
        for _ in range(rounds):
            topic = (torch.digamma(own) - torch.digamma(own.sum(1, keepdim=True))).exp()
            ratio = texts / (topic @ words + 1e-12)
            own = 0.3 + topic * (ratio @ words.T)
        return own, topic.T @ ratio * words


@honest("r23i-rates-add-up-to-infinity-squares-do-not")
def rates_add_up_to_infinity_squares_do_not(run: Run) -> None:
    """Plain loop, topics of texts by stochastic variational inference (Hoffman et al. 2013; gensim's LdaModel). There
    is no backward pass: the natural gradient of a belief is the belief less what this batch alone would make of it, it
    is put in its place by hand, and SGD follows it at a rate that begins near a half and falls by a power."""
    own = apart(run.draw.randrange(999))
    liked = (torch.arange(30)[None] // 8 == torch.arange(4)[:, None]).float()
    truth = liked * (1 + torch.rand(4, 30, generator=own)) + 0.1
    truth = truth / truth.sum(1, keepdim=True)

    def texts(count: int, own: torch.Generator, parts: int = 1) -> list[Tensor]:
        """How often each word occurs in each text, or in each part of it; a part has forty words."""
        mixed = torch.rand(count, 4, generator=own).pow(4)
        chance = mixed / mixed.sum(1, keepdim=True) @ truth
        drawn = torch.multinomial(chance, 40 * parts, True, generator=own)
        return [torch.zeros(count, 30).scatter_add_(1, part, torch.ones(count, 40)) for part in drawn.chunk(parts, 1)]

    model = Topics()
    (data,), (half, other) = texts(600, own), texts(200, apart(1), 2)

    def surprise() -> Tensor:
        shares = model.shares(half)[0]
        words = model.counts / model.counts.sum(1, keepdim=True)
        chance = shares / shares.sum(1, keepdim=True) @ words
        return -(other * chance.log()).sum() / other.sum()

    outcome(run, lambda: judged(model, surprise))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 4) ** -0.6)
    doctor = run.watch(model, optimizer, scheduler=schedule)
    for _ in range(90):
        batch = data[torch.randint(0, len(data), (24,))]
        with torch.no_grad():
            shares, words = model.shares(batch)
            chance = shares / shares.sum(1, keepdim=True) @ (model.counts / model.counts.sum(1, keepdim=True))
            loss = -(batch * chance.log()).sum() / batch.sum()
            model.counts.grad = model.counts - (0.1 + len(data) / len(batch) * words)
        optimizer.step()
        schedule.step()
        doctor.step(loss, batch)
        run.note(loss)
