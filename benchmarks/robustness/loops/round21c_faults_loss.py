"""Round 21c, mistakes in losses: formulas, reductions, weights of terms."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Examples,
    apart,
    fit,
    hf_trainer,
    judged,
    lit,
    loader,
    outcome,
    pictures,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import update
from benchmarks.robustness.loops.round8b_parts import steps, text_class_outcome
from benchmarks.robustness.loops.round21c_parts import (
    KEPT,
    LEVELS,
    Counts,
    Denoiser,
    Dilated,
    Forecast,
    Pictured,
    Potential,
    Skimmer,
    clusters,
    cosine,
    demand,
    distilling,
    drawn,
    energy_distance,
    gusts,
    memos,
    pinball,
    rings,
    slip,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r21c-deviation-weighs-as-variance")
def deviation_weighs_as_variance(run: Run, wrong: bool) -> None:
    """accelerate, a GRU that forecasts a mean and the logarithm of a standard deviation. In the loss the squared error
    is divided by the deviation, as if the second output were the logarithm of the variance. The twin divides by its
    square."""
    net = Forecast()
    x, y = gusts(512, apart(1))

    def unlikely() -> Tensor:
        mean, spread = net(x).unbind(-1)
        return -torch.distributions.Normal(mean, spread.exp()).log_prob(y).mean()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        mean, spread = model(batch[0]).unbind(-1)
        error = (batch[1] - mean).square()
        return (0.5 * error * (-spread if wrong else -2 * spread).exp() + spread).mean()

    outcome(run, lambda: judged(net, unlikely))
    prepared(run, net, torch.optim.AdamW(net.parameters(), lr=3e-3), loader(*gusts(960), size=32), loss, 4)


@slip("r21c-teachers-divergence-over-classes")
def teachers_divergence_over_classes(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions over words taught by a classifier of counts and, a little, by labels a third
    of which is that of the next kind. The divergence from the teacher is the mean over rows and classes: of its nine
    tenths a twentieth is left. The twin takes the mean over rows."""
    teacher = Counts()
    optimizer = torch.optim.Adam(teacher.parameters(), lr=5e-2)
    for _ in range(100):
        rows = memos(256)
        optimizer.zero_grad()
        F.cross_entropy(teacher(rows["input_ids"]), rows["labels"]).backward()
        optimizer.step()
    model = Skimmer()
    text_class_outcome(run, model, memos(400, apart(1)))
    data = memos(640)
    data["labels"] = torch.where(torch.rand(640) < 0.33, (data["labels"] + 1) % 20, data["labels"])
    rows = Examples([{k: v[i] for k, v in data.items()} for i in range(640)])
    base = distilling(teacher, "mean" if wrong else "batchmean")
    hf_trainer(run, model, rows, 130, base=base, learning_rate=5e-3, warmup_steps=10).train()


@slip("r21c-forces-of-the-mean-energy")
def forces_of_the_mean_energy(run: Run, wrong: bool) -> None:
    """Plain loop, an energy of five particles by a network of their distances, taught by energies and forces. The
    forces are the slope of the batch's mean energy, and so each is a sixteenth of what it is. The twin takes the slope
    of the sum."""
    model = Potential()
    places, _, forces = clusters(256, apart(1))

    def forces_apart() -> Tensor:
        with torch.enable_grad():
            at = places.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(at).sum(), at)
        return F.mse_loss(-slope, forces) / forces.var()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        at = batch[0].clone().requires_grad_()
        said = model(at)
        (slope,) = torch.autograd.grad(said.mean() if wrong else said.sum(), at, create_graph=True)
        return 0.1 * F.mse_loss(said, batch[1]) + F.mse_loss(-slope, batch[2])

    outcome(run, lambda: judged(model, forces_apart))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    doctor = run.watch(model, optimizer)
    for _ in range(5):
        for batch in loader(*clusters(480)):
            update(run, doctor, optimizer, loss(model, batch), batch)


@slip("r21c-pixels-averaged-divergence-summed")
def pixels_averaged_divergence_summed(run: Run, wrong: bool) -> None:
    """Lightning, a variational autoencoder of pictures. The squared error is the mean over the pixels, the divergence
    the sum over the code: it weighs sixty-four times what it should, and the codes collapse. The twin sums the
    pixels."""
    net = Pictured()
    check, _ = pictures(256, own=apart(1))

    def bound(model: nn.Module, x: Tensor) -> Tensor:
        said, divergence = model(x)
        return ((said - x).square().sum((1, 2, 3)) / (2 * 0.04) + divergence).mean()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if not wrong:
            return bound(model, batch[0])
        said, divergence = model(batch[0])
        return F.mse_loss(said, batch[0]) / (2 * 0.04) + divergence.mean()

    outcome(run, lambda: judged(net, lambda: bound(net, check)))
    fit(run, lit(net, loss, lambda net: torch.optim.Adam(net.parameters(), lr=3e-3)), loader(*pictures(480)), 150)


@slip("r21c-quantiles-from-the-other-side")
def quantiles_from_the_other_side(run: Run, wrong: bool) -> None:
    """Plain loop, dilated convolutions that say three quantiles of tomorrow's demand. The error is the quantile less
    the target, where the formula takes it the other way round: the upper output learns the lower quantile and the
    lower the upper one. The twin's error is the target less the quantile."""
    model = Dilated()
    x, y = demand(512, apart(1))
    outcome(run, lambda: judged(model, lambda: pinball(model(x), y)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        said = model(batch[0])
        error = said - batch[1][:, None] if wrong else batch[1][:, None] - said
        return torch.maximum(LEVELS * error, (LEVELS - 1) * error).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    schedule = cosine(optimizer, 120, 10)
    steps(run, model, optimizer, lambda: demand(32), loss, 120, after=lambda step: schedule.step())


@slip("r21c-weights-of-the-other-target")
def weights_of_the_other_target(run: Run, wrong: bool) -> None:
    """Plain loop, a diffusion model of points that says the noise. The weights of the times are those for a model that
    says the clean point, the signal-to-noise ratio cut at five: the noisy times hardly count. The twin divides by the
    ratio, as is right for noise."""
    model = Denoiser()
    points = rings(512, apart(1))
    ratio = KEPT / (1 - KEPT)
    weights = ratio.clamp_max(5) if wrong else ratio.clamp_max(5) / ratio
    outcome(run, lambda: judged(model, lambda: energy_distance(drawn(model, 512), points)))

    def loss(model: nn.Module, batch: Any) -> Tensor:
        clean, noise, t = batch
        x = KEPT[t].sqrt()[:, None] * clean + (1 - KEPT[t]).sqrt()[:, None] * noise
        return (weights[t] * (model(x, t.float()) - noise).square().mean(1)).mean()

    def batch() -> Any:
        return rings(128), torch.randn(128, 2), torch.randint(0, 100, (128,))

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    schedule = cosine(optimizer, 150, 10)
    steps(run, model, optimizer, batch, loss, 150, after=lambda step: schedule.step())
