"""Round 24c, mistakes in what is learned from rewards and preferences."""

from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import (
    Decoder,
    Language,
    apart,
    judged,
    loader,
    mlp,
    next_loss,
    outcome,
)
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_tools import adam, taught, update
from benchmarks.robustness.loops.round8b_parts import log_probabilities, preferred
from benchmarks.robustness.loops.round24c_parts import ActorCritic, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r24c-gains-run-on-past-the-end")
def gains_run_on_past_the_end(run: Run, wrong: bool) -> None:
    """Plain loop, an actor and a critic in a corridor with a small reward at its left end and a large one at its right
    end. Sixteen corridors go on at once and begin anew where one ends, and returns are added up from
    the back of what was seen without stopping at an end: who ends soon is given what he gets in the next episodes, too.
    The twin stops at ends. Judged by what is lacking to the best discounted return, computed exactly."""
    net, discount = ActorCritic(), 0.95
    reward = torch.zeros(9)
    reward[0], reward[8] = 0.5, 1.0

    def lacking() -> Tensor:
        right = net(torch.arange(9))[0].softmax(1)[:, 1]
        moves = torch.zeros(9, 9)
        inner = torch.arange(1, 8)
        moves[inner, inner + 1], moves[inner, inner - 1] = right[1:8], 1 - right[1:8]
        on = discount * moves
        on[:, [0, 8]] = 0
        value = torch.linalg.solve(torch.eye(9) - on, moves @ reward)
        return (discount ** torch.arange(6.0, -1, -1) - value[1:8]).mean()

    outcome(run, lambda: judged(net, lacking))
    optimizer = adam(net)
    doctor = run.watch(net, optimizer)
    place = torch.randint(1, 8, (16,))
    for _ in range(120):
        seen: list[tuple[Tensor, ...]] = []
        for _ in range(64):
            with torch.no_grad():
                move = torch.multinomial(net(place)[0].softmax(1), 1).squeeze(1)
            after = place + 2 * move - 1
            done = (after == 0) | (after == 8)
            seen.append((place, move, reward[after], done.float()))
            place = torch.where(done, torch.randint(1, 8, (16,)), after)
        places, moves, rewards, dones = (torch.stack(column) for column in zip(*seen, strict=True))
        with torch.no_grad():
            gain = net(place)[1]
        gains = torch.zeros(64, 16)
        for t in reversed(range(64)):
            gain = rewards[t] + discount * gain * (1 if wrong else 1 - dones[t])
            gains[t] = gain
        scores, values = net(places)
        chances = scores.log_softmax(2)
        taken = chances.gather(2, moves[..., None]).squeeze(2)
        spread = -(chances.exp() * chances).sum(2).mean()
        better = gains - values.detach()
        better = (better - better.mean()) / (better.std() + 1e-6)
        loss = -(taken * better).mean() + 0.5 * F.mse_loss(values, gains) - 0.02 * spread
        update(run, doctor, optimizer, loss, (places, moves, gains))


@slip("r24c-best-among-moves-not-allowed")
def best_among_moves_not_allowed(run: Run, wrong: bool) -> None:
    """Plain loop, Q-learning of the shortest way through a labyrinth of six by six, where each move costs one. Moves
    into walls are never made, but the largest value of the next place is taken among all four moves, and those that
    nobody makes and nothing teaches are the cheapest. The twin takes the largest among moves that are allowed. Judged
    by the mean error of the values of allowed moves."""
    own = apart(run.draw.randrange(999))
    steps = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    while True:
        open_here = torch.rand(6, 6, generator=own) > 0.25
        open_here[0, 0] = open_here[5, 5] = True
        to, allowed = torch.zeros(36, 4, dtype=torch.long), torch.zeros(36, 4, dtype=torch.bool)
        for place in range(36):
            for move, (down, across) in enumerate(steps):
                row, column = place // 6 + down, place % 6 + across
                if open_here[place // 6, place % 6] and 0 <= row < 6 and 0 <= column < 6 and open_here[row, column]:
                    to[place, move], allowed[place, move] = 6 * row + column, True
        truth = torch.zeros(36, 4)
        for _ in range(60):
            best = truth.masked_fill(~allowed, -1e9).amax(1)
            truth = -1 + 0.9 * torch.where(to == 35, 0.0, best[to])
        good = allowed.any(1) & (truth.masked_fill(~allowed, -1e9).amax(1) > -9.9)
        good[35] = False
        if good.sum() >= 20:
            break
    known = allowed & good[:, None]
    net, copy = mlp(36, 128, 4), mlp(36, 128, 4)
    one_hot = torch.eye(36)
    outcome(run, lambda: judged(net, lambda: (net(one_hot) - truth)[known].abs().mean()))
    pairs = known.nonzero()
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step % 5 == 0:
            copy.load_state_dict(net.state_dict())
        place, move = pairs[torch.randint(0, len(pairs), (128,))].T
        after = to[place, move]
        with torch.no_grad():
            values = copy(one_hot[after])
            if not wrong:
                values = values.masked_fill(~allowed[after], -1e9)
            target = -1 + 0.9 * torch.where(after == 35, 0.0, values.amax(1))
        found = net(one_hot[place]).gather(1, move[:, None]).squeeze(1)
        update(run, doctor, optimizer, F.mse_loss(found, target), (place, move, target))


@slip("r24c-the-price-before-and-behind")
def the_price_before_and_behind(run: Run, wrong: bool) -> None:
    """accelerate, a small GPT learns from preferences by IPO: how much more the preferred answer gained on the
    reference should be half of one over beta. The difference is multiplied by beta, as in DPO, and then compared with
    the same target: it should be fifty nats and not five. The twin compares the difference itself. Judged by the mean
    distance from five nats for other pairs."""
    language = Language(run.draw.randrange(999))
    net, reference = Decoder(12, layers=2), Decoder(12, layers=2)
    taught(net, lambda: language.rows(24, 12), next_loss, 120, 3e-3)
    reference.load_state_dict(net.state_dict())
    beta = 0.1

    def gained(m: nn.Module, good: Tensor, bad: Tensor) -> Tensor:
        ours = log_probabilities(m, good, 4) - log_probabilities(m, bad, 4)
        with torch.no_grad():
            theirs = log_probabilities(reference, good, 4) - log_probabilities(reference, bad, 4)
        return ours - theirs

    def loss(m: nn.Module, batch: Any) -> Tensor:
        more = gained(m, *batch)
        return (((beta * more if wrong else more) - 1 / (2 * beta)) ** 2).mean()

    good, bad = preferred(language, 192, apart(1))
    outcome(run, lambda: judged(net, lambda: (gained(net, good, bad) - 1 / (2 * beta)).abs().mean()))
    prepared(run, net, adam(net, 1e-3), loader(*preferred(language, 640)), loss, 3)
