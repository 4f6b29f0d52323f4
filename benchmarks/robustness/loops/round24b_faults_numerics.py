"""Round 24b, mistakes in how numbers are kept: half precision, cancellation, floors, scales."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round8b_parts import lagged
from benchmarks.robustness.loops.round24b_parts import Decaying, Turning, islands, marked, slip, stations, visits
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24b-places-in-steps-of-two")
def places_in_steps_of_two(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a transformer with rotary places on rows of 384 words, under autocast to bfloat16. Places
    are counted in the type of the queries, which has eight bits: from 256 on they are even numbers, and neighbours have
    the same place. The twin counts and turns in single precision. Judged by later words of other rows."""
    language = lagged(run.draw.randrange(999))
    net = Turning(12, None if wrong else torch.float32)

    def loss(logits: Tensor, following: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())

    class Half(nn.Module):
        """Under autocast, as one trains on a card."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                out: Tensor = self.net(x)
            return out.float()

    half = Half()
    check = language.rows(8, 385, apart(901))
    outcome(run, lambda: judged(half, lambda: loss(half(check[:, :-1])[:, 256:], check[:, 257:])))
    rows = language.rows(240, 385)
    data = examples(x=rows[:, :-1], labels=rows[:, 1:])
    hf_trainer(run, WithLoss(half, loss), data, 110, per_device_train_batch_size=2, learning_rate=1e-2).train()


@slip("r24b-seconds-since-1970")
def seconds_since_1970(run: Run, wrong: bool) -> None:
    """Lightning, a GRU over purchases and the time since the one before. Times are whole seconds since 1970 and are
    made single precision before they are subtracted: there, they are multiples of 128. The twin subtracts first. Judged
    by what is left at the last purchase, on other rows."""
    net = Paced()

    def gaps(times: Tensor) -> Tensor:
        since = times.float().diff(dim=1) if wrong else times.diff(dim=1).float()
        return F.pad(since, (1, 0)) / 60

    def rows_of(times: Tensor, sizes: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([gaps(times), sizes], 2), left

    number_outcome(run, net, rows_of(*visits(384, apart(1))))
    data = loader(*rows_of(*visits(640)), size=32)
    fit(run, lit(net, regress, lambda m: adam(m, 5e-3)), data, 140)


class Paced(nn.Module):
    """A GRU over two columns, and a number from its last state."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.core(x)[0][:, -1])
        return out


@slip("r24b-through-a-vanished-product")
def through_a_vanished_product(run: Run, wrong: bool) -> None:
    """Plain loop, a gated linear recurrence, all places at once: each input is divided by the product of all gates so
    far, summed up, and multiplied by the product again. Products that vanish are kept from nought by a small number in
    the denominator, and from then on no input arrives. The twin takes the difference of logarithms for each pair of
    places. Judged by other rows' numbers."""

    def by_products(keeps: Tensor, inputs: Tensor) -> Tensor:
        product = keeps.cumprod(1)
        return product * (inputs / (product + 1e-8)).cumsum(1)

    def by_logarithms(keeps: Tensor, inputs: Tensor) -> Tensor:
        so_far = keeps.log().cumsum(1)
        between = so_far[:, :, None] - so_far[:, None]
        later = torch.ones(keeps.shape[1], keeps.shape[1], dtype=torch.bool).triu(1)[None, :, :, None]
        return torch.einsum("btsc,bsc->btc", between.masked_fill(later, -torch.inf).exp(), inputs)

    net = Decaying(2, by_products if wrong else by_logarithms)
    number_outcome(run, net, marked(384, apart(1)), log=True)
    batches = endless(loader(*marked(640)))
    train(run, net, adam(net, 1e-2), lambda: next(batches), regress, 120)


@slip("r24b-kelvin-under-autocast")
def kelvin_under_autocast(run: Run, wrong: bool) -> None:
    """accelerate, convolutions that forecast a temperature in kelvin, under autocast to bfloat16. The head says how far
    it is from 288, and 288 is added while it is still bfloat16: there is nothing between 286, 288 and 290. The twin
    makes it single precision before. Judged by the mean square error on other days."""
    seed = run.draw.randrange(999)
    net = Forecast(single=not wrong)
    number_outcome(run, net, stations(384, seed, apart(1)))
    prepared(run, net, adam(net, 5e-3), loader(*stations(1280, seed), size=32), regress, 3)


class Forecast(nn.Module):
    """Convolutions over a day, two layers, and how far it will be from 288 kelvin; all of it under autocast."""

    def __init__(self, single: bool) -> None:
        super().__init__()
        self.single = single
        layers = [nn.Conv1d(1, 8, 5, padding=2), nn.SiLU(), nn.Flatten(), nn.Linear(192, 32), nn.SiLU()]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = self.head(self.body(x))
        if self.single:
            out = out.float()
        return (out + 288.0).float()


@slip("r24b-too-far-for-a-plan")
def too_far_for_a_plan(run: Run, wrong: bool) -> None:
    """Plain loop, a generator of points taught by optimal transport with an entropy term, by Sinkhorn's iterations.
    These go on with exponentials of minus costs over a tenth: beyond a cost of four or so they count for nothing in single
    precision, and a small number in the denominators hides it. What is far away is in no plan. The twin iterates on
    logarithms. Judged by the energy distance to other points."""
    net = mlp(2, 48, 48, 2, act=nn.SiLU)
    eps = 0.1

    def plan_of(cost: Tensor) -> Tensor:
        if wrong:
            kernel, u = (-cost / eps).exp(), torch.ones(len(cost))
            for _ in range(30):
                v = 1 / cost.shape[1] / (kernel.T @ u + 1e-8)
                u = 1 / len(cost) / (kernel @ v + 1e-8)
            return u[:, None] * kernel * v
        size = torch.tensor(float(len(cost))).log()
        f = torch.zeros(len(cost))
        for _ in range(30):
            g = -(f[:, None] - cost / eps).logsumexp(0) - size
            f = -(g - cost / eps).logsumexp(1) - size
        return (f[:, None] + g - cost / eps).exp()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        noise, points = batch
        cost = (m(noise)[:, None] - points).square().sum(2)
        return (plan_of(cost.detach()) * cost).sum()

    noise, points = torch.randn(512, 2, generator=apart(1)), islands(512, apart(2))

    def energy_distance() -> Tensor:
        made = net(noise)
        return (
            2 * torch.cdist(made, points).mean() - torch.cdist(made, made).mean() - torch.cdist(points, points).mean()
        )

    outcome(run, lambda: judged(net, energy_distance))
    train(run, net, adam(net, 5e-3), lambda: (torch.randn(64, 2), islands(64)), loss, 120)
