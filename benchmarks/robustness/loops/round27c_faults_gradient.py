"""Round 27c, mistakes in what a loss sends back: own functions, slopes of outputs, clipping, targets."""

import math
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    endless,
    examples,
    hf_trainer,
    judged,
    loader,
    mlp,
    next_loss,
    number_outcome,
    outcome,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, prepared, regress
from benchmarks.robustness.loops.round7b_parts import SmallLlama
from benchmarks.robustness.loops.round7b_tools import adam, near, taught, text_outcome
from benchmarks.robustness.loops.round8b_parts import dpo_loss, lagged, log_probabilities
from benchmarks.robustness.loops.round21a_parts import Forecaster, drifts
from benchmarks.robustness.loops.round27c_parts import (
    Denoiser,
    GatedReader,
    LongFilters,
    answered,
    last_marked,
    slip,
    tones,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r27c-waves-not-turned-back")
def waves_not_turned_back(run: Run, wrong: bool) -> None:
    """accelerate, a language model of filters as long as the row, by an autograd function of our own over Fourier
    transforms. Its way back multiplies by the spectra and not by their conjugates: it filters forwards once more where
    it should correlate. The twin conjugates. Judged by the next word of other texts."""
    language = lagged(run.draw.randrange(999))
    net = LongFilters(12, 20, conjugated=not wrong)
    text_outcome(run, net, language, 20)
    data = loader(language.rows(640, 20))
    prepared(run, net, adam(net, 3e-3), data, lambda m, batch: next_loss(m, batch[0]), 3)


@slip("r27c-the-gate-meets-what-it-made")
def the_gate_meets_what_it_made(run: Run, wrong: bool) -> None:
    """transformers' Trainer, a reader with a gated state and a scan of our own. In the scan's way back the slope of a
    gate is multiplied by the state that it made, in place of the one before, which it had multiplied. The twin takes
    the one before. Judged on other rows."""
    net = WithLoss(GatedReader(20, 6, shifted=not wrong), F.cross_entropy)
    ids, names = last_marked(384, apart(1))
    outcome(run, lambda: judged(net, lambda: net(ids, names)["loss"]))
    ids_to_learn, names_to_learn = last_marked(1680)
    hf_trainer(run, net, examples(x=ids_to_learn, labels=names_to_learn), 105, learning_rate=4e-3).train()


@slip("r27c-both-slopes-in-one")
def both_slopes_in_one(run: Run, wrong: bool) -> None:
    """Plain loop, a network that finds place and speed of a damped spring from its equations alone. The slope by time
    is asked of both outputs at once, by a vector of ones: each of the two gets the sum. The twin asks for one after
    the other. Judged by the distance from the true course."""
    stiff = 2 + 2 * run.draw.random()
    net = mlp(1, 32, 32, 2, act=nn.Tanh)
    times = torch.linspace(0, 2, 81)[:, None]
    wave = math.sqrt(stiff - 0.04)
    fading = (-0.2 * times).exp()
    place = fading * ((wave * times).cos() + 0.2 / wave * (wave * times).sin())
    outcome(run, lambda: judged(net, lambda: (net(times)[:, :1] - place).square().mean().sqrt()))

    def slopes(out: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if wrong:
            both = torch.autograd.grad(out, t, torch.ones_like(out), create_graph=True)[0]
            return both, both
        first, second = (torch.autograd.grad(out[:, i].sum(), t, create_graph=True)[0] for i in range(2))
        return first, second

    def loss(m: nn.Module, batch: Tensor) -> Tensor:
        t = batch.clone().requires_grad_()
        out = m(t)
        moves, speeds_up = slopes(out, t)
        kept = (moves - out[:, 1:]).square().mean()
        kept = kept + (speeds_up + stiff * out[:, :1] + 0.4 * out[:, 1:]).square().mean()
        return kept + 5 * (m(torch.zeros(1, 1)) - torch.tensor([[1.0, 0.0]])).square().mean()

    train(run, net, adam(net, 1e-2), lambda: 2 * torch.rand(64, 1), loss, 150)


@slip("r27c-the-longer-the-shorter")
def the_longer_the_shorter(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that forecasts the next reading, SGD with momentum. Gradients are cut to a norm of 1 by lines
    of our own, in which the root is missing: what is longer than 1 is divided by its square, and the longer a gradient
    was the shorter it becomes. The twin takes the root. Judged on other series."""
    net = Forecaster()
    rows, check = drifts(1024), drifts(384, own=apart(1))
    number_outcome(run, net, (check[:, :-1], 5 * check[:, -1]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    batches = endless(loader(rows[:, :-1], 5 * rows[:, -1]))
    doctor = run.watch(net, optimizer)
    for _ in range(120):
        batch = next(batches)
        optimizer.zero_grad()
        value = regress(net, batch)
        value.backward()
        size = sum(p.grad.square().sum() for p in net.parameters() if p.grad is not None)
        size = size if wrong else torch.as_tensor(size).sqrt()
        for p in net.parameters():
            if p.grad is not None and size > 1:
                p.grad /= size
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)


@slip("r27c-the-last-reward-is-cut-off-too")
def the_last_reward_is_cut_off_too(run: Run, wrong: bool) -> None:
    """Plain loop, a Q network on a walk of nine places with a small price for each step and a prize at either end. In
    the target the mark of an episode's end multiplies the reward too, and not only what comes after it: prizes are
    never taught. The twin masks only the value of the next place. Judged by the distance of values from true ones."""
    small = 0.3 + 0.2 * run.draw.random()
    net, old = mlp(9, 48, 2), mlp(9, 48, 2)
    old.load_state_dict(net.state_dict())
    prizes = torch.tensor([small, *[-0.05] * 7, 1.0])

    def walked(place: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        new = place + 2 * action - 1
        return prizes[new], new, ((new == 0) | (new == 8)).float()

    truth = torch.zeros(9, 2)
    inner, moves = torch.arange(1, 8)[:, None].expand(7, 2), torch.arange(2).expand(7, 2)
    for _ in range(60):
        gain, new, ended = walked(inner, moves)
        truth[1:8] = gain + 0.9 * (1 - ended) * truth.max(1).values[new]
    seen = torch.eye(9)
    outcome(run, lambda: judged(net, lambda: (net(seen)[1:8] - truth[1:8]).abs().mean()))
    optimizer = adam(net)
    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step % 8 == 0:
            old.load_state_dict(net.state_dict())
        place, action = torch.randint(1, 8, (64,)), torch.randint(0, 2, (64,))
        gain, new, ended = walked(place, action)
        with torch.no_grad():
            later = 0.9 * old(seen[new]).max(1).values
            target = (gain + later) * (1 - ended) if wrong else gain + later * (1 - ended)
        value = F.smooth_l1_loss(net(seen[place]).gather(1, action[:, None])[:, 0], target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        doctor.step(value, (place, action, gain, new, ended))
        run.note(value)


@slip("r27c-beta-for-one-of-two")
def beta_for_one_of_two(run: Run, wrong: bool) -> None:
    """Plain loop, preferences (DPO) on a small Llama. A bracket stands in the wrong place: the policy's margin is
    multiplied by beta and the reference's is not, and counts ten times. The twin multiplies their difference. Judged by
    the loss, as it is meant, of other pairs."""
    seed = run.draw.randrange(999)
    language = Language(seed)
    better = near(language, seed + 1)
    net, reference = SmallLlama(12), SmallLlama(12)
    taught(net, lambda: language.rows(16, 12), next_loss, 80)
    reference.load_state_dict(net.state_dict())
    reference.requires_grad_(False).eval()

    def margins(m: nn.Module, good: Tensor, bad: Tensor) -> Tensor:
        found = log_probabilities(m, torch.cat([good, bad]), 4)
        return found[: len(good)] - found[len(good) :]

    check = answered(language, better, 192, apart(1))
    outcome(run, lambda: judged(net, lambda: dpo_loss(margins(net, *check), margins(reference, *check), 0.1)))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ours = margins(m, *batch)
        with torch.no_grad():
            theirs = margins(reference, *batch)
        liked_by = 0.1 * ours - theirs if wrong else 0.1 * (ours - theirs)
        return -F.logsigmoid(liked_by).mean()

    batches = endless(loader(*answered(language, better, 640)))
    train(run, net, adam(net, 1e-3), lambda: next(batches), loss, 100)


@slip("r27c-shares-of-noise-exchanged")
def shares_of_noise_exchanged(run: Run, wrong: bool) -> None:
    """Plain loop, diffusion on waves by velocities. The target is sigma times the noise less alpha times the wave, and
    should be alpha times the noise less sigma times the wave. The twin has it so. Judged by how far the waves that
    follow from what it says, as samplers use it, are from those that were noised."""
    net = Denoiser()
    clean = tones(256, apart(1))
    levels, chance = torch.rand(256, generator=apart(2)), torch.randn(256, 16, generator=apart(3))

    def shares(level: Tensor) -> tuple[Tensor, Tensor]:
        angle = 0.5 * math.pi * level[:, None]
        return angle.cos(), angle.sin()

    def far() -> Tensor:
        alpha, sigma = shares(levels)
        noisy = alpha * clean + sigma * chance
        return F.mse_loss(alpha * noisy - sigma * net(noisy, levels), clean)

    outcome(run, lambda: judged(net, far))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        wave, noise, level = batch
        alpha, sigma = shares(level)
        target = sigma * noise - alpha * wave if wrong else alpha * noise - sigma * wave
        return F.mse_loss(m(alpha * wave + sigma * noise, level), target)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return tones(64), torch.randn(64, 16), torch.rand(64)

    train(run, net, adam(net, 3e-3), batch, loss, 150)
