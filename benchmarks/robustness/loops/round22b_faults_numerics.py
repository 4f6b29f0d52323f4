"""Round 22b, mistakes of precision: differences of what is nearly alike, numbers that a format cannot hold."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify, prepared, regress
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round22b_parts import (
    Barometer,
    Demand,
    Fading,
    Microphone,
    Ride,
    recorded,
    rides,
    sales,
    slip,
    stairs,
    tanks,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r22b-mean-square-less-squared-mean")
def mean_square_less_squared_mean(run: Run, wrong: bool) -> None:
    """Lightning, convolutions over windows of air pressure, each by its own mean and spread. The variance is the mean
    of the squares less the square of the mean, in single precision, of readings about a hundred thousand: a difference
    of two numbers of ten thousand million is off by a thousand. The twin squares the differences. Judged on other
    windows."""
    net = Barometer(in_one_pass=wrong)
    class_outcome(run, net, stairs(512, apart(1)))
    fit(run, lit(net, classify, lambda m: adam(m, 3e-3)), loader(*stairs(640)), 120)


@slip("r22b-arc-cosine-of-nearly-one")
def arc_cosine_of_nearly_one(run: Run, wrong: bool) -> None:
    """transformers' Trainer, an MLP that guesses how long a ride takes. Its way is the arc cosine of the cosine rule on
    the globe, in single precision: within a town the cosine is one to seven places, and the way comes in steps of two
    kilometres. The twin has the haversine. Judged on other rides."""
    net = Ride(by_cosine=wrong)
    number_outcome(run, net, rides(768, apart(1)))
    x, y = rides(2000)
    data = examples(x=x, labels=y)
    hf_trainer(run, WithLoss(net, F.mse_loss), data, 120, per_device_train_batch_size=32).train()


@slip("r22b-numbers-of-things-in-half")
def numbers_of_things_in_half(run: Run, wrong: bool) -> None:
    """Plain loop, an embedding and an MLP in bfloat16. The model casts whole rows to bfloat16 and then takes a thing's
    number from them: above 256 only even numbers are left, above 512 every fourth, and neighbours share a vector. The
    twin takes the number first. Judged on other days."""
    seed = run.draw.randrange(999)
    net = Demand(whole_row_first=wrong)
    number_outcome(run, net, sales(2048, seed, apart(1)))
    batches = endless(loader(*sales(9600, seed), size=64))
    train(run, net, adam(net, 1e-2), lambda: next(batches), regress, 150)


@slip("r22b-squares-too-large-for-half")
def squares_too_large_for_half(run: Run, wrong: bool) -> None:
    """Plain loop in float16 with a scaler, a network that hears pitches in sounds from soft to loud. The norm squares
    in the precision of what comes in: from 256 on a square is infinite in float16, its inverse root nought, and loud
    frames are silenced. The twin squares in single precision. Judged on other sounds."""
    net = Microphone(as_it_comes=wrong)
    x, y = recorded(512, apart(1))

    def heard(m: nn.Module, rows: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            out: Tensor = m(rows)
        return out.float()

    outcome(run, lambda: judged(net, lambda: F.cross_entropy(heard(net, x), y)))
    optimizer, scaler = adam(net, 3e-3), torch.amp.GradScaler("cpu", init_scale=1024.0)
    batches = endless(loader(*recorded(960)))
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        batch = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(heard(net, batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        doctor.step(loss, batch)
        run.note(loss)


@slip("r22b-product-of-shares-at-its-floor")
def product_of_shares_at_its_floor(run: Run, wrong: bool) -> None:
    """accelerate, a linear recurrence with gates, all places at once. What is new is divided by the product of all
    shares so far, kept above a millionth: after some thirty places the product is below, and states fade to nought. The
    twin goes eight places at a time and carries the state. Judged on other rows."""
    net = Fading(96 if wrong else 8)
    x, y = tanks(256, apart(1))
    number_outcome(run, net, (x, y))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(m(batch[0]), batch[1])

    prepared(run, net, adam(net, 1e-2), loader(*tanks(640)), loss, 3)
