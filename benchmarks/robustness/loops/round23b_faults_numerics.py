"""Round 23b, mistakes of numbers: scales, cancellation, running sums in half precision, roots of nought."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    examples,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    mlp,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import classify, prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round23b_parts import (
    LooksUp,
    Sums,
    Timbre,
    blocks_sent,
    heated_rod,
    shelves,
    showers,
    slip,
    strokes,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23b-unit-keys-still-divided")
def unit_keys_still_divided(run: Run, wrong: bool) -> None:
    """transformers' Trainer, attention between vectors of length one that finds one thing among eight. Cosines are
    divided by the root of the width, as products of vectors that are not normed have to be: no score is beyond a sixth,
    and all things are read nearly alike. The twin multiplies them by ten. Judged by the cross-entropy of other
    questions."""
    seed = run.draw.randrange(999)
    net = LooksUp(None if wrong else 10.0)
    check = shelves(384, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: net(**check)["loss"]))
    hf_trainer(run, net, examples(**shelves(960, seed)), 150).train()


@slip("r23b-one-less-a-hundred-millionth")
def one_less_a_hundred_millionth(run: Run, wrong: bool) -> None:
    """Lightning, an MLP that learns how often a bit is wrong from which blocks had a wrong one. The chance that a
    block is whole is taken by the logarithm of one less the chance of a bit, which in single precision is one where the
    chance is a hundred-millionth: such blocks can't fail, and teach nothing. The twin uses log1p and expm1. Judged by
    the cross-entropy of other blocks, in double precision."""
    net = mlp(4, 32, 32, 1, act=nn.Tanh)
    x, bits, y = blocks_sent(512, apart(1))

    def power(m: nn.Module, rows: Tensor) -> Tensor:
        return m(rows)[:, 0] - 7

    def loss(m: nn.Module, batch: Any) -> Tensor:
        rows, size, failed = batch
        p = 10 ** power(m, rows)
        chance = 1 - (size * (1 - p).log()).exp() if wrong else -torch.expm1(size * torch.log1p(-p))
        return F.binary_cross_entropy(chance.clamp(1e-6, 1 - 1e-6), failed)

    def doubt() -> Tensor:
        chance = -torch.expm1(-bits.double() * 10 ** power(net, x).double())
        return F.binary_cross_entropy(chance.clamp(1e-6, 1 - 1e-6), y.double())

    outcome(run, lambda: judged(net, doubt))
    fit(run, lit(net, loss, adam), loader(*blocks_sent(960), size=32), 150)


@slip("r23b-sums-by-differences-in-half")
def sums_by_differences_in_half(run: Run, wrong: bool) -> None:
    """accelerate, a network that adds up what came of each hit of a shower. The hits of a batch stand in one list, and
    a shower's sum is a running sum less an earlier one; the running sums are kept in bfloat16 like the hits, and hold
    hardly more than two digits once they are large. The twin takes them in single precision. Judged by the share of
    the variance that isn't explained for other showers, 128 at a time."""
    net = Sums(lambda each: (each if wrong else each.float()).cumsum(0))

    def together(rows: list[Any]) -> list[Any]:
        hits, y = zip(*rows, strict=True)
        return [torch.cat(hits), torch.tensor([len(h) for h in hits]), torch.stack(y)]

    def loss(m: nn.Module, batch: Any) -> Tensor:
        hits, sizes, y = batch
        return F.mse_loss(m(hits, sizes), y)

    def loaded(hits: list[Tensor], y: Tensor, shuffle: bool) -> Any:
        rows: Any = list(zip(hits, y, strict=True))
        return torch.utils.data.DataLoader(rows, 128, shuffle=shuffle, collate_fn=together)

    hits, y = showers(512, apart(1))
    check = list(loaded(hits, y, shuffle=False))
    outcome(run, lambda: judged(net, lambda: torch.stack([loss(net, batch) for batch in check]).mean() / y.var()))
    prepared(run, net, adam(net), loaded(*showers(1920), shuffle=True), loss, 8)


@slip("r23b-a-step-too-short-for-single")
def a_step_too_short_for_single(run: Run, wrong: bool) -> None:
    """Plain loop, a network that finds how warm a heated rod is, by an equation alone. The second derivative is taken
    by three points a ten-thousandth apart: in single precision their difference is less than what rounding adds to it.
    The twin's points are two hundredths apart. Judged by how much of what the heat adds is missed."""
    heat, warmer = heated_rod(run.draw.randrange(999))
    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    step = 1e-4 if wrong else 2e-2

    def warm(m: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = (20 + 6 * x + x * (1 - x) * m(x))[:, 0]
        return out

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        second = (warm(m, x + step) - 2 * warm(m, x) + warm(m, x - step)) / step**2
        return ((second + heat(x)) ** 2).mean()

    line = torch.linspace(0, 1, 201)[:, None]
    truth = 20 + 6 * line[:, 0] + warmer(line)
    outcome(run, lambda: judged(net, lambda: ((warm(net, line) - truth) ** 2).sum() / (warmer(line) ** 2).sum()))
    train(run, net, adam(net), lambda: torch.rand(64, 1), loss, 150)


@slip("r23b-root-of-no-spread")
def root_of_no_spread(run: Run, wrong: bool) -> None:
    """Plain loop, gated convolutions over frames, their mean and standard deviation over time. The deviation is the
    root of the variance, with nothing added: where a channel is silent all the time in one recording, the root's slope
    is infinite and gradients before it are no numbers, which the loop sets to nought: convolutions never learn. The
    twin adds 1e-5 under the root. Judged by the cross-entropy of other recordings."""
    seed = run.draw.randrange(999)
    net = Timbre(0.0 if wrong else 1e-5)
    class_outcome(run, net, strokes(384, seed, apart(1)))
    optimizer = adam(net)
    doctor = run.watch(net, optimizer)
    run.preflight(doctor, strokes(16, seed), classify)
    for _ in range(120):
        batch = strokes(16, seed)
        optimizer.zero_grad()
        value = classify(net, batch)
        value.backward()
        for weight in net.parameters():
            if weight.grad is not None:
                weight.grad.nan_to_num_(0.0, 0.0, 0.0)
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)
