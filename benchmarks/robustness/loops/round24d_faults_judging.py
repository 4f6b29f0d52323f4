"""Round 24d, mistakes of modes, of words told or drawn, and of what is kept as best."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    apart,
    class_outcome,
    cnn,
    judged,
    loader,
    number_outcome,
    outcome,
    pictures,
    table,
)
from benchmarks.robustness.loops.round6_tools import classify
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from benchmarks.robustness.loops.round24d_parts import (
    Boltzmann,
    Continuer,
    Neighbours,
    bars,
    circles,
    readings,
    slip,
    swings,
)
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24d-frozen-norms-in-training-mode")
def frozen_norms_in_training_mode(run: Run, wrong: bool) -> None:
    """accelerate, a frozen CNN with batch norm and a new head for four exposures, batches of four. Each epoch puts the
    whole model into training mode: the frozen norms use the statistics of four pictures, and their running ones move.
    The twin puts the body back into evaluation mode. Judged by the cross-entropy of other pictures."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    seed = run.draw.randrange(999)
    net = cnn()

    def exposed(count: int, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, _ = pictures(count, seed, own=own)
        stops = torch.randint(0, 4, (count,), generator=own)
        return x * (0.4 + 0.3 * stops[:, None, None, None]), stops

    taught(net, lambda: pictures(32, seed), classify, 60)
    body, net[-1] = net[:-1], nn.Linear(64, 4)
    body.requires_grad_(False)
    class_outcome(run, net, exposed(384, apart(1)))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    engine = Accelerator(cpu=True)
    head = torch.optim.Adam(net[-1].parameters(), lr=3e-3)
    model, optimizer, data = engine.prepare(net, head, loader(*exposed(200), size=4))
    doctor = run.watch(model, optimizer)
    for _ in range(3):
        model.train()
        if not wrong:
            body.eval()
        for batch in data:
            optimizer.zero_grad()
            loss = classify(model, batch)
            engine.backward(loss)
            optimizer.step()
            doctor.step(loss, batch)
            run.note(loss)


@slip("r24d-truth-comes-last")
def truth_comes_last(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that goes on with a series. The chance that it is told the true number, and not its own
    forecast, should fall from one to nought; it rises from nought to one, and the last steps are all told. The twin's
    falls. Judged by the squared error of forecasts that go on from themselves."""
    net = Continuer()
    past, future = swings(384, apart(1))
    outcome(run, lambda: judged(net, lambda: F.mse_loss(net(past, future, 0.0), future)))
    steps, optimizer = 150, adam(net, 3e-3)
    doctor = run.watch(net, optimizer)
    for step in range(steps):
        past_now, future_now = swings(32)
        chance = step / steps if wrong else 1 - step / steps
        loss = F.mse_loss(net(past_now, future_now, chance), future_now)
        update(run, doctor, optimizer, loss, (past_now, future_now))


@slip("r24d-chains-never-move-on")
def chains_never_move_on(run: Run, wrong: bool) -> None:
    """Plain loop, a restricted Boltzmann machine on small pictures of lines. Its own pictures should come from chains
    that go on from step to step; what one sweep has made of them isn't kept, and each step begins at the same random
    bits. The twin keeps it. Judged by the exact negative log likelihood of other pictures."""
    net = Boltzmann()
    check = bars(512, apart(1))
    outcome(run, lambda: judged(net, lambda: net.surprise(check)))
    chains = torch.rand(64, 16).round()
    optimizer = adam(net, 5e-2)
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        rows = bars(64)
        dreamt = net.swept(chains)
        if not wrong:
            chains = dreamt
        loss = net(rows).mean() - net(dreamt).mean()
        update(run, doctor, optimizer, loss, rows)


@slip("r24d-dropped-when-judged")
def dropped_when_judged(run: Run, wrong: bool) -> None:
    """Plain loop, graph convolutions. Dropout is called as a function without being told the mode: it drops a half when
    the model is validated, every fifteen steps, and judged. The twin tells it. The best weights by validation are kept.
    Judged by the cross-entropy of the nodes of other graphs."""
    net = Neighbours(wrong)

    def loss(batch: Any) -> Tensor:
        nodes, edges, y = batch
        return F.cross_entropy(net(nodes, edges).flatten(0, 1), y.flatten())

    held, check = circles(48, apart(2)), circles(256, apart(1))
    outcome(run, lambda: judged(net, lambda: loss(check)))
    data = circles(200)
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    best, kept = float("inf"), copy.deepcopy(net.state_dict())
    for step in range(1, 121):
        rows = torch.randint(0, 200, (16,))
        batch = tuple(column[rows] for column in data)
        update(run, doctor, optimizer, loss(batch), batch)
        if step % 15 == 0:
            value = judged(net, lambda: loss(held))
            if value < best:
                best, kept = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(kept)


@slip("r24d-best-is-never-written-down")
def best_is_never_written_down(run: Run, wrong: bool) -> None:
    """Plain loop, an MLP on few noisy rows. Validated every five steps; better weights are kept, and after three times
    without better ones it goes back to them at half the rate. The best value isn't renewed: each is below infinity, the
    last weights are always the kept ones, and it never goes back. The twin renews it. Judged by the logarithm of the
    share of variance that isn't explained on other rows."""
    seed = run.draw.randrange(999)
    net = readings()
    number_outcome(run, net, table(384, seed, apart(1)), log=True)
    x, y = table(40, seed, noise=2.0)
    held, truth = table(96, seed, apart(2), noise=2.0)
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    best, kept, waited = float("inf"), copy.deepcopy(net.state_dict()), 0
    for step in range(1, 151):
        rows = torch.randint(0, len(x), (16,))
        update(run, doctor, optimizer, F.mse_loss(net(x[rows]).flatten(), y[rows]), (x[rows], y[rows]))
        if step % 5 == 0:
            value = judged(net, lambda: F.mse_loss(net(held).flatten(), truth))
            if value < best:
                kept, waited = copy.deepcopy(net.state_dict()), 0
                if not wrong:
                    best = value
            else:
                waited += 1
            if waited == 3:
                net.load_state_dict(kept)
                optimizer.param_groups[0]["lr"] *= 0.5
                waited = 0
    net.load_state_dict(kept)
