"""Which loss estimates what: bias and noise of each gradient beside the exact one, on policy and after it has moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from benchmarks.alignment import policies
from benchmarks.alignment.world import (
    ANSWERS,
    LENGTH,
    REWARDS,
    TOKENS,
    VOCAB,
    World,
    answer_log_probabilities,
    config,
    start,
    table,
)
from jaxtyping import Float, Int
from scipy.special import stdtrit

from limpid.maths import alignment
from limpid.model import Transformer
from limpid.model.observe import FAST
from limpid.objectives import Policy
from limpid.objectives.losses import log_probabilities
from limpid.objectives.named import NAMED

GROUP = policies.GROUP
BLOCKS, GROUPS, MEASURED = 20, 2000, 400
"""The mean is over 20 blocks of 2,000 groups, the noise over 400 groups."""
SMALL = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 32}
FIRST = np.cumsum([0, *(VOCAB ** (t + 1) for t in range(LENGTH - 1))])
PLACE = np.stack([FIRST[t] + np.arange(len(ANSWERS)) // VOCAB ** (LENGTH - 1 - t) for t in range(LENGTH)], 1)
"""(answer, position): which of the 4,680 beginnings each token completes."""

Array = np.ndarray


@dataclass(frozen=True)
class Scene:
    """A policy on its way from the reference, and itself a little earlier, when answers were drawn."""

    reference: Float[Array, "answer position"]  # ln of each token's probability, nats
    old: Float[Array, "answer position"]
    now: Float[Array, "answer position"]
    scores: Float[Array, "beginning parameter"]  # ∇ ln π of the last token of each beginning

    def along(self, weights: Float[Array, "answer position"]) -> Float[Array, " parameter"]:
        """Σ weight · ∇ ln π over all tokens of all answers."""
        total: Array = np.bincount(PLACE.ravel(), weights=weights.ravel(), minlength=len(self.scores)) @ self.scores
        return total

    @cached_property
    def p(self) -> Float[Array, " answer"]:
        return np.exp(self.now.sum(1))

    @cached_property
    def reward(self) -> Float[Array, " parameter"]:
        """∇ E r."""
        return self.along(np.repeat((self.p * REWARDS)[:, None], LENGTH, 1))

    @cached_property
    def divergence(self) -> Float[Array, " parameter"]:
        """∇KL(π‖π₀) of whole answers."""
        return self.along(np.repeat((self.p * (self.now - self.reference).sum(1))[:, None], LENGTH, 1))

    def next_token(self, reverse: bool) -> Float[Array, " parameter"]:
        """∇ Σ KL of the next token, π‖π₀ or π₀‖π, after what π drew."""
        gap = self.now - self.reference
        return self.along(self.p[:, None] * (1 - np.exp(-gap) if reverse else gap))


def scene(steps: int = 30, later: int = 6) -> Scene:
    """Exact gradient ascent on J from the reference: where it is after so many steps, and a few later."""
    state, world = start(config(steps + later, 0.0, 1, "fp64", **SMALL))
    optimizer = torch.optim.Adam(state.model.parameters(), 5e-3)
    tables = []
    for number in range(steps + later):
        whole = answer_log_probabilities(state.model).sum(1)
        price = world.beta * (whole.detach() - torch.as_tensor(world.reference.sum(1)))
        optimizer.zero_grad()
        (-(whole.exp() * (torch.as_tensor(REWARDS) - price).detach()).sum()).backward()
        optimizer.step()
        if number + 1 >= steps:
            tables.append(table(state.model))
    return Scene(world.reference, tables[0], tables[-1], scores(state.model))


def scores(model: Transformer) -> Float[Array, "beginning parameter"]:
    """∇ ln π of the last token of every beginning, by a backward pass for each."""
    parameters, found = list(model.parameters()), []
    for t in range(LENGTH):
        for row in range(0, len(ANSWERS), VOCAB ** (LENGTH - t)):
            every = log_probabilities(model(torch.as_tensor(TOKENS[row : row + 1])))[0, t]
            for token in range(VOCAB):
                slopes = torch.autograd.grad(every[token], parameters, retain_graph=token < VOCAB - 1)
                found.append(torch.cat([slope.flatten() for slope in slopes]).numpy())
    return np.array(found)


def slopes(
    objective: Policy, at: Scene, drawn: Int[Array, " answer"], advantages: Array, old: Array, group: int
) -> Float[Array, "answer position"]:
    """Minus the loss's gradient along ln π of each token, where every `group` answers are a step; sums over tokens."""
    log_p = torch.tensor(at.now[drawn], requires_grad=True)
    given = {
        "mask": torch.ones_like(log_p), "advantages": torch.as_tensor(advantages),
        "old_log_probabilities": torch.as_tensor(old[drawn]),
        "reference_log_probabilities": torch.as_tensor(at.reference[drawn]),
    }  # fmt: skip
    labels = group * (1 if objective.aggregation == "sequence" else LENGTH)
    (found,) = torch.autograd.grad(objective.of_log_probabilities(log_p, given, labels, FAST).value, log_p)
    whole = objective.importance_sampling_level == "product" and not objective.beta
    return -found.numpy() * (1 if whole else LENGTH)


def compared(mean: Array, target: Array) -> tuple[float, float]:
    """How far along the exact gradient, and the cosine with it."""
    along, sizes = float(mean @ target), float(np.linalg.norm(mean) * np.linalg.norm(target))
    return along / float(target @ target), along / sizes if sizes > 1e-12 else math.nan


def noise(each: Float[Array, "draw parameter"], target: Array, p: Array | None = None) -> float:
    """Root of the total variance of one draw, in lengths of the exact gradient."""
    weights = np.full(len(each), 1 / len(each)) if p is None else p
    mean = weights @ each
    return float(np.sqrt(weights @ np.square(each).sum(1) - mean @ mean) / np.linalg.norm(target))


Line = tuple[str, Policy, policies.Advantages]


def rewarded() -> list[Line]:
    """Losses without a price, and their advantages."""
    named = {name: one.objective for name, one in NAMED.items()}
    fixed = Policy(aggregation="fixed_length", max_completion_length=LENGTH)
    gspo = Policy("sequence", aggregation="sequence")
    return [
        ("GRPO", named["grpo"], policies.in_loss("group")),
        ("GRPO, deviation of the batch", named["grpo"], policies.in_loss("batch")),
        ("Dr. GRPO", fixed, policies.in_loss("none")),
        ("DAPO", named["dapo"], policies.in_loss("group")),
        ("GSPO, ε = 0.2, not scaled", gspo, policies.in_loss("none")),
        ("CISPO, not scaled", named["cispo"], policies.in_loss("none")),
        ("leave one out, token's ratio, no clip", Policy(clip="none"), policies.leave_one_out),
        ("RLOO (answer's ratio, clipped)", named["rloo"], policies.leave_one_out),
        ("RLOO, no clip", Policy("product", "none", aggregation="sequence"), policies.leave_one_out),
        ("REINFORCE++", named["reinforce_plus_plus"], policies.whitened),
        ("PPO, λ = 0.95, true values", named["ppo"], policies.generalised),
    ]


def measure_reward(at: Scene, line: Line, old: Array, rng: np.random.Generator) -> str:
    """Slope, cosine and noise with their 95% intervals, of steps of one group."""
    _, objective, advantages = line
    free = World(at.reference, REWARDS, 0.0)
    p = np.exp(old.sum(1))
    means, measured = [], []
    for _ in range(BLOCKS):
        drawn = rng.choice(len(p), GROUPS * GROUP, p=p / p.sum())
        found = slopes(objective, at, drawn, advantages(free, old, drawn), old, GROUP)
        total = np.bincount(PLACE[drawn].ravel(), weights=found.ravel(), minlength=len(at.scores))
        means.append(total / GROUPS @ at.scores)
        few = np.arange(MEASURED // BLOCKS * GROUP)
        weights = np.zeros((MEASURED // BLOCKS, len(at.scores)))
        np.add.at(weights, (few[:, None] // GROUP, PLACE[drawn[few]]), found[few])
        measured.append(noise(weights @ at.scores, at.reward))
    along = np.array([compared(mean, at.reward) for mean in means])
    whole, others = compared(np.mean(means, 0), at.reward), _left_out(means, at.reward)
    width = float(stdtrit(BLOCKS - 1, 0.975))
    return (
        f"{whole[0]:.3f} ± {width * along[:, 0].std(ddof=1) / math.sqrt(BLOCKS):.3f} | "
        f"{whole[1]:.4f} ± {width * others:.4f} | "
        f"{np.mean(measured):.1f} ± {width * np.std(measured, ddof=1) / math.sqrt(BLOCKS):.1f}"
    )


def _left_out(means: list[Array], target: Array) -> float:
    """Standard error of the cosine, by the jackknife over blocks. Source: Efron & Stein 1981, eq. 1.3."""
    total = np.sum(means, 0)
    each = np.array([compared(total - mean, target)[1] for mean in means])
    return float(np.sqrt((len(means) - 1) * np.var(each)))


def priced() -> list[tuple[str, Policy, Callable[[Scene, Array], Array]]]:
    """Ways to price KL, and nothing else."""

    def nothing(at: Scene, old: Array) -> Array:
        return np.zeros(old.shape)

    def to_go(at: Scene, old: Array) -> Array:
        rewards = alignment.rewards_with_kl(np.zeros(len(old)), old, at.reference, 1.0)
        return alignment.generalised_advantages(rewards, np.zeros(old.shape), 1.0, 1.0)

    def whole(at: Scene, old: Array) -> Array:
        return np.repeat(-(old - at.reference).sum(1)[:, None], LENGTH, 1)

    def penalty(kl: str, level: str = "token") -> Policy:
        return Policy(level, "none", aggregation="sequence", beta=1, kl=kl)  # type: ignore[arg-type]

    return [
        ("k1 in the loss", penalty("k1"), nothing),
        ("k2 in the loss", penalty("k2"), nothing),
        ("k3 in the loss (GRPO's paper)", penalty("k3"), nothing),
        ("k3 × the token's ratio in the loss (TRL)", penalty("k3_ratio"), nothing),
        ("k3 × the answer's ratio in the loss", penalty("k3_ratio", "product"), nothing),
        ("k1 in the reward, to go, token's ratio (PPO)", Policy(clip="none"), to_go),
        ("k1 in the reward, whole, answer's ratio (RLOO)", Policy("product", "none", aggregation="sequence"), whole),
    ]


def measure_price(at: Scene, objective: Policy, advantages: Array, old: Array) -> str:
    """Slope, cosine, what it equals, and the noise of one answer: exact, over all answers."""
    every = np.arange(len(ANSWERS))
    found = -slopes(objective, at, every, advantages, old, 1)
    p = np.exp(old.sum(1))
    mean = at.along(p[:, None] * found)
    targets = {"∇KL(π‖π₀) of answers": at.divergence, "∇KL(π‖π₀) of the next token": at.next_token(False),
               "∇KL(π₀‖π) of the next token": at.next_token(True), "0": np.zeros(len(mean))}  # fmt: skip
    size = np.linalg.norm(at.divergence)
    same = [name for name, target in targets.items() if np.linalg.norm(mean - target) < 1e-10 * size]
    each = sum(found[:, t, None] * at.scores[PLACE[:, t]] for t in range(LENGTH))
    slope, cosine = compared(mean, at.divergence)
    shown = "–" if math.isnan(cosine) else f"{cosine:.4f}"
    spread = noise(np.asarray(each), at.divergence, p)
    return f"{slope + 0.0:.3f} | {shown} | {same[0] if same else 'none of them'} | {spread:.1f}"


def main(words: list[str]) -> None:
    """Two tables, each on policy and after the policy has moved."""
    at = scene()
    moved, left = np.exp(at.old.sum(1)) @ (at.old - at.now).sum(1), at.p @ (at.now - at.reference).sum(1)
    print(f"{at.scores.shape[1]:,} parameters; KL(π‖π₀) = {left:.3f} nats")
    for name, old in (("on policy", at.now), (f"off policy, KL(old‖π) = {moved:.4f} nats", at.old)):
        print(f"\n{name}\n\n| loss | slope | cosine | noise of 8 answers |\n|---|---|---|---|")
        for line in rewarded():
            if not words or any(word.lower() in line[0].lower() for word in words):
                print(f"| {line[0]} | {measure_reward(at, line, old, np.random.default_rng(1))} |", flush=True)
        print("\n| price | slope | cosine | equals | noise of one answer |\n|---|---|---|---|---|")
        for title, objective, advantages in priced():
            print(f"| {title} | {measure_price(at, objective, advantages(at, old), old)} |", flush=True)
