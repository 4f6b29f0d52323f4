"""Preferences by Bradley & Terry, in expectation over who wins: DPO comes to π*, IPO to its own closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.alignment.world import World, answer_log_probabilities, config, start, table
from jaxtyping import Float

from limpid.maths import Formula, alignment

STEPS, RATE, PAIRS = 1500, 5e-3, 1 << 14
BETA = 0.5

Array = np.ndarray


def wins(rewards: Float[Array, " first"], others: Float[Array, " second"]) -> Array:
    """How often an answer is preferred to another one: σ(r - r')."""
    return 1 / (1 + np.exp(others - rewards))


def drawn_from(world: World) -> Float[Array, " answer"]:
    """Half of the answers anywhere, half where π* is: which pairs are shown moves IPO's optimum, and not DPO's."""
    return 0.5 / len(world.rewards) + 0.5 * world.optimum


def of_ipo(world: World) -> World:
    """The world whose optimum IPO comes to: its reward is how often an answer wins.

    Source: Azar et al. 2023, eq. 8 and 10, arXiv:2310.12036.
    """
    share = wins(world.rewards[:, None], world.rewards[None, :]) @ drawn_from(world)
    return World(world.reference, share, world.beta)


def slopes(loss: Formula[Any], world: World, whole: Array, rng: np.random.Generator) -> Float[Array, " answer"]:
    """Gradient along ln π of each answer over freshly drawn pairs, both outcomes weighted by how often they come."""
    mass = drawn_from(world)
    pairs = rng.choice(len(mass), (2, PAIRS), p=mass / mass.sum())
    win, left, found = wins(*world.rewards[pairs]), world.reference.sum(1), np.zeros(len(mass))
    for (chosen, rejected), share in ((pairs, win), (pairs[::-1], 1 - win)):
        bars = loss.backward(
            share / PAIRS, whole[chosen], whole[rejected], left[chosen], left[rejected], beta=world.beta
        )
        for index, bar in zip((chosen, rejected), bars, strict=False):
            assert bar is not None
            found += np.bincount(index, weights=bar, minlength=len(found))
    return found


def train(loss: Formula[Any], target: Callable[[World], World], seed: int) -> tuple[int, float, float]:
    """How many parameters; total variation to the optimum at the start and at the end, %."""
    state, begun = start(config(STEPS, RATE, seed))
    world = World(begun.reference, begun.rewards, BETA)
    optimizer = torch.optim.Adam(state.model.parameters(), RATE, (0.9, 0.99))
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    rng = np.random.default_rng(seed)
    for _ in range(STEPS):
        whole = answer_log_probabilities(state.model).sum(1)
        bars = slopes(loss, world, whole.detach().double().numpy(), rng)
        optimizer.zero_grad()
        whole.backward(torch.as_tensor(bars, dtype=whole.dtype))
        optimizer.step()
        falling.step()
    best = target(world)
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    return parameters, 100 * best.distance(world.reference), 100 * best.distance(table(state.model))


def main(words: list[str]) -> None:
    """DPO beside π*, IPO beside its own optimum."""
    print(f"{STEPS} steps of {PAIRS} pairs, β = {BETA}")
    print("| loss | parameters | total variation at the start, % | after training, % |\n|---|---|---|---|")
    rows: tuple[tuple[str, Formula[Any], Callable[[World], World]], ...] = (
        ("DPO, to π*", alignment.dpo, lambda world: world),
        ("IPO, to its closed form", alignment.ipo, of_ipo),
    )
    for name, loss, target in rows:
        if not words or any(word.lower() in name.lower() for word in words):
            parameters, before, after = train(loss, target, 1)
            print(f"| {name} | {parameters:,} | {before:.1f} | {after:.2f} |", flush=True)
