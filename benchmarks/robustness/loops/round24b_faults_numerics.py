"""Round 24b, mistakes in how numbers are kept: half precision, cancellation, floors, scales."""

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
from benchmarks.robustness.loops.round24b_parts import Decaying, Turning, carried, marked, slip, stations, visits
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


@slip("r24b-moved-by-less-than-a-digit")
def moved_by_less_than_a_digit(run: Run, wrong: bool) -> None:
    """Plain loop, a neural differential equation solved in eighty steps of Euler's, under autocast to bfloat16. The
    state is bfloat16 as well: what one step adds is about as large as its last digit, so that it is lost or doubled.
    The twin keeps the state in single precision. Judged by the error of other places, relative to their spread, as a
    logarithm."""
    net = Carrying(state=torch.bfloat16 if wrong else torch.float32)
    number_outcome(run, net, carried(384, apart(1)), log=True)
    batches = endless(loader(*carried(960), size=32))
    train(run, net, adam(net, 1e-2), lambda: next(batches), lambda m, b: F.mse_loss(m(b[0]), b[1]), 70)


class Carrying(nn.Module):
    """Places moved in eighty small steps by a field that is learned."""

    def __init__(self, state: torch.dtype, steps: int = 80) -> None:
        super().__init__()
        self.field, self.state, self.steps = mlp(3, 32, 2, act=nn.Tanh), state, steps

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(self.state)
        with torch.autocast("cpu", torch.bfloat16):
            for step in range(self.steps):
                time = torch.full_like(h[:, :1], step / self.steps)
                h = h + self.field(torch.cat([h, time], 1)) / self.steps
        return h.float()
