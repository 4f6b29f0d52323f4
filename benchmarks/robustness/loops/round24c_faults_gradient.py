"""Round 24c, mistakes on a gradient's way back."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    examples,
    fit,
    hf_trainer,
    judged,
    language_outcome,
    lit,
    loader,
    next_loss,
    outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round24c_parts import Fading, Routed, Sketch, demand, regimes, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24c-scanned-back-and-not-turned-round")
def scanned_back_and_not_turned_round(run: Run, wrong: bool) -> None:
    """accelerate, a language model with a fading memory whose backward pass is written by hand: gradients are turned
    round in time, run through the same memory, and not turned round again, so that each place is given the gradient
    of the place opposite. The twin turns them back. Judged by the next word's cross-entropy in other texts."""

    def faded(x: Tensor, keep: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = keep * state + x[:, t]
            out.append(state)
        return torch.stack(out, 1)

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, keep: Tensor) -> Tensor:
            out = faded(x, keep)
            ctx.save_for_backward(out, keep)
            return out

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            out, keep = ctx.saved_tensors
            back = faded(gradients[0].flip(1), keep)
            if not wrong:
                back = back.flip(1)
            before = F.pad(out, (0, 0, 1, 0))[:, :-1]
            return back, (back * before).sum((0, 1))

    language = Language(run.draw.randrange(999))
    net = Fading(12, Scan.apply)
    language_outcome(run, net, language)
    prepared(run, net, adam(net, 3e-3), loader(language.rows(640, 24)), lambda m, b: next_loss(m, b[0]), 3)


@slip("r24c-one-divided-by-itself")
def one_divided_by_itself(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a layer of four experts of which each row gets the likeliest. The weights of the chosen
    are made to add up to one, as with two or more, and the weight of a single one is its probability divided by
    itself: what the experts do never comes back to the router. The twin weighs by the probability as it is. Judged by
    the unexplained variance in other rows."""
    seed = run.draw.randrange(999)
    net = Routed(wrong)
    x, y = regimes(1000, seed, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x)["logits"], y) / y.var()))
    data, labels = regimes(1920, seed)
    hf_trainer(
        run, net, examples(x=data, labels=labels), 150, learning_rate=1e-2, per_device_train_batch_size=64
    ).train()


@slip("r24c-drawn-without-a-way-back")
def drawn_without_a_way_back(run: Run, wrong: bool) -> None:
    """Lightning, a variational autoencoder. Codes are drawn by a method of the distribution that has no gradient: what
    the decoder needs never comes back to the encoder, which learns from the divergence alone. The twin draws them as a
    mean and a spread times noise. Judged by the negative bound of other pictures with codes at their means."""
    seed = run.draw.randrange(999)
    net = Sketch()
    standard = torch.distributions.Normal(0.0, 1.0)

    def bound(x: Tensor, code: torch.distributions.Normal, drawn: Tensor) -> Tensor:
        apart_by = ((net.decoder(drawn) - x) ** 2).flatten(1).sum(1) / (2 * 0.2**2)
        return (apart_by + torch.distributions.kl_divergence(code, standard).sum(1)).mean()

    def loss(m: Any, batch: Any) -> Tensor:
        code = m.code(batch[0])
        return bound(batch[0], code, code.sample() if wrong else code.rsample())

    x, _ = pictures(384, seed, own=apart(1))

    def by_means() -> Tensor:
        code = net.code(x)
        return bound(x, code, code.mean)

    outcome(run, lambda: judged(net, by_means))
    fit(run, lit(net, loss, lambda m: adam(m)), loader(pictures(960, seed)[0], size=32), 150)


@slip("r24c-large-errors-teach-nothing")
def large_errors_teach_nothing(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that forecasts the load of the next hour, which an announced event raises by several units. So
    that a large error doesn't pull too hard, errors are cut to between -1 and 1 before they are squared: beyond that
    there is no gradient at all, and hours with an event teach nothing. The twin's loss goes on linearly, with a
    gradient of constant size. Judged by the mean squared error, over the variance, on other days."""

    class Hours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core, self.head = nn.GRU(2, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.core(x)[0][:, -1]).squeeze(1)
            return out

    net = Hours()

    def loss(m: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        if wrong:
            return 0.5 * ((m(x) - y).clamp(-1, 1) ** 2).mean()
        return F.huber_loss(m(x), y, delta=1.0)

    x, y = demand(600, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(x), y) / y.var()))
    batches = endless(loader(*demand(960), size=32))
    train(run, net, adam(net), lambda: next(batches), loss, 120)
