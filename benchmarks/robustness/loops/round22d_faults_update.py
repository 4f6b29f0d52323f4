"""Round 22d, mistakes in updates: own optimizers, ranks, schedules."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Language,
    apart,
    class_outcome,
    cnn,
    endless,
    examples,
    hf_trainer,
    judged,
    language_outcome,
    loader,
    next_loss,
    number_outcome,
    pictures,
    train,
)
from benchmarks.robustness.loops.round6_tools import WithLoss, classify
from benchmarks.robustness.loops.round7b_parts import Listener, SmallLlama, sounds
from benchmarks.robustness.loops.round7b_tools import adam
from benchmarks.robustness.loops.round21a_parts import Mixer, spectra, spectrometer
from benchmarks.robustness.loops.round22d_parts import Lion, Momentum, Sharded, accelerated, slip
from torch.nn import functional as F


@slip("r22d-rate-as-it-was-built")
def rate_as_it_was_built(run: Run, wrong: bool) -> None:
    """transformers' Trainer, convolutions that read an amount off a spectrum, Lion of somebody's own and a schedule
    with a warm-up and a linear end. The optimizer steps by the rate that it was built with and never looks at its
    groups: the schedule falls to nought there, and steps stay as long. The twin reads each group's rate. Judged by the
    logarithm of the unexplained share in other spectra."""
    core = spectrometer()
    net = WithLoss(core, lambda found, amount: F.mse_loss(found.squeeze(1), amount))
    number_outcome(run, core, spectra(384, apart(1)), log=True)
    x, amount = spectra(640)
    optimizer = Lion(net.parameters(), 3e-3, fixed=wrong)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 10, max(0.0, 1 - step / 120)))
    hf_trainer(run, net, examples(x=x, labels=amount), 120, more={"optimizers": (optimizer, schedule)}).train()


@slip("r22d-momentum-is-the-gradient")
def momentum_is_the_gradient(run: Run, wrong: bool) -> None:
    """Plain loop, a small CNN, momentum of somebody's own. The speed begins as the first gradient itself and not as a
    copy, and gradients are cleared in place: speed and gradient are one tensor, cleared at each step, and nothing is
    carried on. The twin copies it. Judged by the cross-entropy of other pictures."""
    seed = run.draw.randrange(999)
    net = cnn(norm=False)
    class_outcome(run, net, pictures(384, seed, own=apart(1)))
    batches = endless(loader(*pictures(640, seed)))
    optimizer = Momentum(net.parameters(), 0.02, 0.9, copied=not wrong)
    doctor = run.watch(net, optimizer)
    for _ in range(120):
        batch = next(batches)
        optimizer.zero_grad(set_to_none=False)
        value = classify(net, batch)
        value.backward()
        optimizer.step()
        doctor.step(value, batch)
        run.note(value)


@slip("r22d-left-over-tensors")
def left_over_tensors(run: Run, wrong: bool) -> None:
    """Plain loop, a small Llama of 21 tensors whose updates are shared out among four ranks. Each gets a slice of 21 //
    4, five tensors: the last one, the head, is nobody's and stays as it was drawn. The twin deals them in turn. Judged
    by the cross-entropy of other texts."""
    language = Language(run.draw.randrange(999))
    net = SmallLlama()
    language_outcome(run, net, language)
    rows = language.rows(640, 24)
    optimizer = Sharded(net.parameters(), 3e-3, 4, in_slices=wrong)
    train(run, net, optimizer, lambda: rows[torch.randint(0, 640, (16,))], next_loss, 120)


@slip("r22d-four-starts-one-gradient")
def four_starts_one_gradient(run: Run, wrong: bool) -> None:
    """Plain loop, MLP-Mixers on four ranks that average their gradients. Each rank seeds itself by its number, so that
    it draws other rows, and then builds its network: the four begin at different weights, and each is stepped by the
    mean of gradients of which three are other networks'. The twin sends rank 0's weights to all first. Judged by rank
    0's cross-entropy on other pictures."""
    seed = run.draw.randrange(999)
    x, y = pictures(640, seed)
    nets, draws = [], []
    for rank in range(4):
        torch.manual_seed(seed + rank)
        nets.append(Mixer())
        draws.append(apart(seed + rank))
    if not wrong:
        nets = [nets[0], *(copy.deepcopy(nets[0]) for _ in range(3))]
    class_outcome(run, nets[0], pictures(384, seed, own=apart(1)))
    optimizers = [adam(net, 2e-3) for net in nets]
    doctor = run.watch(nets[0], optimizers[0])
    for _ in range(80):
        values, batches = [], []
        for net, optimizer, own in zip(nets, optimizers, draws, strict=True):
            rows = torch.randint(0, len(x), (8,), generator=own)
            optimizer.zero_grad()
            values.append(classify(net, (x[rows], y[rows])))
            values[-1].backward()
            batches.append((x[rows], y[rows]))
        for same in zip(*(net.parameters() for net in nets), strict=True):
            mean = torch.stack([p.grad for p in same]).mean(0)
            for p in same:
                p.grad.copy_(mean)
        for optimizer in optimizers:
            optimizer.step()
        doctor.step(values[0], batches[0])
        run.note(values[0])


@slip("r22d-cut-because-it-gets-better")
def cut_because_it_gets_better(run: Run, wrong: bool) -> None:
    """accelerate, convolutions over tones. After each epoch the rate is to be cut where accuracy on rows kept apart has
    not risen for two epochs; the schedule is left to look for a minimum, as is right for a loss, and takes each rise
    for a failure. The twin looks for a maximum. Judged by the cross-entropy of other tones."""
    net = Listener()
    class_outcome(run, net, sounds(384, apart(1)))
    x, y = sounds(192, apart(2))
    optimizer = adam(net)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min" if wrong else "max", 0.3, patience=1)

    def checked(prepared: Any) -> None:
        schedule.step(judged(net, lambda: (net(x).argmax(1) == y).float().mean()))

    accelerated(run, net, optimizer, loader(*sounds(192)), classify, 12, after_epoch=checked)
