"""Round 23c, mistakes in what is learned from rewards: targets of values, where a score is put, whose it is."""

import copy
from typing import Any

import torch
from benchmarks.robustness.loops.case import Run
from benchmarks.robustness.loops.round5_tools import apart, judged, loader, mlp, outcome
from benchmarks.robustness.loops.round6_tools import prepared
from benchmarks.robustness.loops.round7b_parts import Reader
from benchmarks.robustness.loops.round7b_tools import adam, update
from benchmarks.robustness.loops.round23c_parts import Grid, Shopper, looked_at, slip
from torch import Tensor, nn
from torch.nn import functional as F


@slip("r23c-whole-atoms-are-lost")
def whole_atoms_are_lost(run: Run, wrong: bool) -> None:
    """Plain loop, distributional Q-learning on a grid, 21 atoms from -5 to 5. A shifted atom's mass is shared between
    the atoms below and above it by their distances; where it falls on an atom both distances are nought and its mass is
    lost, which is so for each end. The twin gives it to that atom. Judged by the distance of the values from the true
    ones."""
    grid, net = Grid(), mlp(16, 64, 64, 4 * 21)
    atoms = torch.linspace(-5, 5, 21)
    truth = grid.worth()[grid.places]

    def chances(m: nn.Module, places: Tensor) -> Tensor:
        out: Tensor = m(F.one_hot(places, 16).float()).view(-1, 4, 21).log_softmax(2)
        return out

    def away() -> Tensor:
        return ((chances(net, grid.places).exp() * atoms).sum(2) - truth).abs().mean()

    outcome(run, lambda: judged(net, away))
    places = grid.places[torch.randint(0, len(grid.places), (2000,))]
    moves = torch.randint(0, 4, (2000,))
    optimizer = adam(net, 5e-3)
    doctor = run.watch(net, optimizer)
    for step in range(150):
        if step % 5 == 0:
            target = copy.deepcopy(net).requires_grad_(False)
        rows = torch.randint(0, 2000, (64,))
        place, move = places[rows], moves[rows]
        after, pays, ends = grid.goes[place, move], grid.pays[place, move], grid.ends[place, move]
        chance = chances(target, after).exp()
        best = (chance * atoms).sum(2).argmax(1)
        chance = chance[torch.arange(64), best]
        where = (pays[:, None] + grid.discount * ~ends[:, None] * atoms).clamp(-5, 5)
        at = ((where + 5) / 0.5).clamp(0, 20)
        below, above = at.floor().long(), at.ceil().long()
        mass = torch.zeros(64, 21)
        to_below = above - at if wrong else above - at + (below == above)
        mass.scatter_add_(1, below, chance * to_below)
        mass.scatter_add_(1, above, chance * (at - below))
        loss = -(mass * chances(net, place)[torch.arange(64), move]).sum(1).mean()
        update(run, doctor, optimizer, loss, (place, move))


@slip("r23c-score-behind-the-end")
def score_behind_the_end(run: Run, wrong: bool) -> None:
    """Plain loop, a GRU that answers a prompt of one word with at most six words, by policy gradient. The score of an
    answer is put at the last place of the padded row, which the mask takes away again unless the answer fills it. The
    twin puts it at the answer's last word. Judged by the scores of other answers."""
    seed = run.draw.randrange(999)
    net = Reader(12)
    key = 2 + torch.randperm(10, generator=apart(seed))[:5]

    def answered(m: nn.Module, asked: Tensor, own: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Rows of the prompt and six words, and which of the six are there: up to the first 1 and with it."""
        rows = asked[:, None]
        with torch.no_grad():
            for _ in range(6):
                rows = torch.cat([rows, torch.multinomial(m(rows)[:, -1].softmax(1), 1, generator=own)], 1)
        ended = (rows[:, 1:] == 1).long()
        return rows, (ended.cumsum(1) - ended == 0).float()

    def scored(rows: Tensor, there: Tensor) -> Tensor:
        """One where the prompt's own word is in the answer, less a tenth for each word."""
        hit = ((rows[:, 1:] == key[rows[:, 0] - 2, None]) & (there > 0)).any(1)
        return hit.float() - 0.1 * there.sum(1)

    check = 2 + torch.arange(5).repeat(60)
    outcome(run, lambda: judged(net, lambda: 1 - scored(*answered(net, check, apart(1))).mean()))
    optimizer = adam(net, 1e-2)
    doctor = run.watch(net, optimizer)
    for _ in range(150):
        rows, there = answered(net, 2 + torch.randint(0, 5, (128,)))
        rewards = torch.zeros(128, 6)
        last = torch.full((128,), 5) if wrong else there.sum(1).long() - 1
        rewards[torch.arange(128), last] = scored(rows, there)
        returns = (rewards * there).flip(1).cumsum(1).flip(1)
        mean = (returns * there).sum() / there.sum()
        spread = (((returns - mean) ** 2 * there).sum() / there.sum()).sqrt()
        advantage = (returns - mean) / (spread + 1e-6)
        said = net(rows[:, :-1]).log_softmax(2).gather(2, rows[:, 1:, None])[:, :, 0]
        loss = -(advantage * said * there).sum() / there.sum()
        update(run, doctor, optimizer, loss, rows)


@slip("r23c-another-draw-gets-the-credit")
def another_draw_gets_the_credit(run: Run, wrong: bool) -> None:
    """accelerate, a GRU that chooses one of five offers by what somebody looked at, and learns from whether it is
    bought. The policy is asked twice: one draw is offered, and the log probability is that of a second draw. The twin
    takes that of what was offered. Judged by how much less likely the offers are to be bought than the best."""
    seed = run.draw.randrange(999)
    net = Shopper(20, 5)
    ids, chance = looked_at(384, seed, apart(1))

    def regret() -> Tensor:
        return (chance.amax(1) - (net(ids).softmax(1) * chance).sum(1)).mean()

    outcome(run, lambda: judged(net, regret))

    def loss(m: nn.Module, batch: Any) -> Tensor:
        ids, chance = batch
        policy = torch.distributions.Categorical(logits=m(ids))
        offered = policy.sample()
        bought = torch.bernoulli(chance.gather(1, offered[:, None]))[:, 0]
        credited = policy.sample() if wrong else offered
        return -((bought - bought.mean()) * policy.log_prob(credited)).mean()

    prepared(run, net, adam(net, 1e-2), loader(*looked_at(4800, seed), size=64), loss, 2)
