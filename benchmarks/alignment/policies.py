"""Policies trained from drawn answers: what share of the attainable J each method comes to, fully and by LoRA."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from benchmarks.alignment.world import (
    BETA,
    LENGTH,
    VOCAB,
    World,
    answer_log_probabilities,
    batch,
    config,
    start,
    table,
)
from jaxtyping import Float, Int

from limpid.maths import alignment
from limpid.objectives import PPO, Policy
from limpid.objectives.named import NAMED
from limpid.training.state import State
from limpid.training.step import step
from limpid.training.tuning.advantages import Drawn, advantages
from limpid.training.tuning.reference import predicted

GROUPS, GROUP = 32, 8
STEPS, ITERATIONS = 400, 2
SEEDS = 3

Array = np.ndarray
Options = tuple[tuple[str, object], ...]
"""Of the model."""
Advantages = Callable[[World, Float[Array, "every position"], Int[Array, " answer"]], Float[Array, "answer position"]]
"""Of drawn answers, given ln π of each token of every answer there is."""


@dataclass(frozen=True)
class Method:
    """A loss and the advantages that go with it."""

    objective: Policy
    advantages: Advantages | None = None  # none: of a value function that is learned
    model: Options = ()
    rate: float = 5e-3
    groups: int = GROUPS


def in_loss(scale: str) -> Advantages:
    """Of the reward alone, within groups; the loss has the price of leaving."""

    def advantages(world: World, log_p: Array, drawn: Array) -> Array:
        rewards = world.rewards[drawn].reshape(-1, GROUP)
        return _spread(alignment.group_advantages(rewards, scale=scale, eps=0.0 if scale == "none" else 1e-4))

    return advantages


def leave_one_out(world: World, log_p: Array, drawn: Array) -> Array:
    """Of the reward less the price of the whole answer."""
    price = world.beta * (log_p[drawn] - world.reference[drawn]).sum(1)
    return _spread(alignment.leave_one_out_advantages((world.rewards[drawn] - price).reshape(-1, GROUP)))


def whitened(world: World, log_p: Array, drawn: Array) -> Array:
    """Of what is still to come after each token, its price included."""
    rewards = alignment.rewards_with_kl(world.rewards[drawn], log_p[drawn], world.reference[drawn], world.beta)
    return alignment.global_advantages(rewards, np.ones(rewards.shape))


def generalised(world: World, log_p: Array, drawn: Array) -> Array:
    """With the true value of every beginning, in place of a learned one."""
    rewards = alignment.rewards_with_kl(world.rewards, log_p, world.reference, world.beta)
    return alignment.generalised_advantages(rewards[drawn], values(rewards, log_p)[drawn], 1.0, 0.95)


def values(rewards: Float[Array, "every position"], log_p: Float[Array, "every position"]) -> Array:
    """What is to be expected before each token of every answer, from all that may follow."""
    to_go, p = np.cumsum(rewards[:, ::-1], 1)[:, ::-1], np.exp(log_p.sum(1))
    found = np.empty(rewards.shape)
    for t in range(LENGTH):
        mass, total = (x.reshape(VOCAB**t, -1).sum(1) for x in (p, p * to_go[:, t]))
        found[:, t] = np.repeat(total / mass, VOCAB ** (LENGTH - t))
    return found


def _spread(advantages: Float[Array, "prompt answer"]) -> Float[Array, "answer position"]:
    return np.repeat(advantages.reshape(-1, 1), LENGTH, 1)


def _penalised(name: str, kl: str = "k3_ratio", **options: object) -> Policy:
    return replace(NAMED[name].objective, beta=BETA, kl=kl, max_completion_length=LENGTH, **options)  # type: ignore[arg-type]


LORA = (("lora_rank", 1), ("lora_alpha", 16.0))
VALUED = (("head", "vocabulary_and_value"),)
LEARNED = (("positions", "learned"), ("tied", False))
"""A model on which ∇J itself comes to 99%: a vector for each of the four positions, and an output matrix of its own."""
METHODS = {
    "GRPO (k3 with the ratio in the loss)": Method(_penalised("grpo"), in_loss("group")),
    "Dr. GRPO, k1 in the loss": Method(_penalised("dr_grpo", "k1"), in_loss("none")),
    "Dr. GRPO, k2 in the loss": Method(_penalised("dr_grpo", "k2"), in_loss("none")),
    "Dr. GRPO, k3 in the loss": Method(_penalised("dr_grpo", "k3"), in_loss("none")),
    "Dr. GRPO, k3 with the ratio": Method(_penalised("dr_grpo"), in_loss("none")),
    "RLOO (k1 in the reward)": Method(NAMED["rloo"].objective, leave_one_out),
    "REINFORCE++ (k1 in the reward)": Method(NAMED["reinforce_plus_plus"].objective, whitened),
    "PPO (k1 in the reward, true values)": Method(Policy(), generalised),
    "PPO (k1 in the reward, learned values)": Method(PPO(vf_coef=0.5), model=VALUED),
    "RLOO, LoRA of rank 1": Method(NAMED["rloo"].objective, leave_one_out, LORA, 2e-2),
    "PPO, LoRA of rank 1": Method(Policy(), generalised, LORA, 2e-2),
    "RLOO, learned positions": Method(NAMED["rloo"].objective, leave_one_out, LEARNED),
    "PPO (learned values), learned positions": Method(PPO(vf_coef=0.5), model=(*VALUED, *LEARNED)),
    "RLOO of 64 groups, LoRA of rank 1, learned positions": Method(
        NAMED["rloo"].objective, leave_one_out, (*LORA, *LEARNED), groups=2 * GROUPS
    ),
    "PPO (learned values), LoRA of rank 1, learned positions": Method(
        PPO(vf_coef=0.5), model=(*VALUED, *LORA, *LEARNED), rate=1e-2
    ),
}


def train(method: Method, seed: int, steps: int = STEPS) -> tuple[float, float, float, float]:
    """What `told` says of the policy after so many steps."""
    configuration = config(steps, method.rate, seed, **dict(method.model))
    state, world = start(configuration)
    rng = np.random.default_rng(seed)
    for _ in range(steps // ITERATIONS):
        log_p = table(state.model)
        p = np.exp(log_p.sum(1))
        drawn = rng.choice(len(p), method.groups * GROUP, p=p / p.sum())
        micro = batch(drawn, **known(method, state, world, log_p, drawn))
        for _ in range(ITERATIONS):
            step(state, [micro], configuration, method.objective)
    return told(world, table(state.model))


def known(
    method: Method, state: State, world: World, log_p: Float[Array, "every position"], drawn: Int[Array, " answer"]
) -> dict[str, Array]:
    """What a loss is given of the answers that were drawn."""
    given = {"old_log_probabilities": log_p[drawn], "reference_log_probabilities": world.reference[drawn]}
    if method.advantages is not None:
        return given | {"advantages": method.advantages(world, log_p, drawn)}
    values = predicted(state.model, batch(drawn))["values"]
    rewards, every = world.rewards[drawn].reshape(-1, GROUP), np.ones(values.shape)
    worth = Drawn(rewards, every, log_p[drawn], world.reference[drawn], values)
    return given | advantages(worth, NAMED["ppo"], world.beta, method.objective) | {"old_values": values}


def exact(seed: int, steps: int = STEPS, rate: float = 5e-3, model: Options = ()) -> tuple[float, float, float, float]:
    """The same by ∇J itself: what no way of drawing answers is to blame for."""
    state, world = start(config(steps, rate, seed, **dict(model)))
    optimizer = torch.optim.AdamW(
        (one for one in state.model.parameters() if one.requires_grad), rate, (0.9, 0.99), weight_decay=0
    )
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    left, rewards = torch.as_tensor(world.reference.sum(1)), torch.as_tensor(world.rewards)
    for _ in range(steps):
        whole = answer_log_probabilities(state.model).double().sum(1)
        loss = -(whole.exp() @ (rewards - world.beta * (whole - left)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
    return told(world, table(state.model))


def told(world: World, log_p: Float[Array, "every position"]) -> tuple[float, float, float, float]:
    """Share of the attainable J, %; total variation to π*, %; mean reward; KL(π‖π₀), nats."""
    return 100 * world.attained(log_p), 100 * world.distance(log_p), world.reward(log_p), world.divergence(log_p)


def main(words: list[str]) -> None:
    """Every method whose name holds one of the words, from `SEEDS` references."""
    from scipy.special import stdtrit

    width = float(stdtrit(SEEDS - 1, 0.975)) / math.sqrt(SEEDS)
    print(f"{STEPS} steps of {GROUPS} groups of {GROUP}, each draw used {ITERATIONS} times; {SEEDS} references")
    print(
        "| method | (J − J₀) / (J* − J₀), % | total variation to π*, % | E r | KL(π‖π₀), nats |\n|---|---|---|---|---|"
    )
    exactly = {
        "∇J itself": exact,
        "∇J itself, learned positions": partial(exact, model=LEARNED),
        "∇J itself, LoRA of rank 1, learned positions": partial(exact, rate=2e-2, model=(*LORA, *LEARNED)),
    }
    runs = exactly | {name: partial(train, method) for name, method in METHODS.items()}
    for name, run in runs.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        found = np.array([run(seed) for seed in range(1, SEEDS + 1)])
        cells = zip(found.mean(0), width * found.std(0, ddof=1), strict=True)
        print(f"| {name} | {' | '.join(f'{mean:.3g} ± {within:.2g}' for mean, within in cells)} |", flush=True)
