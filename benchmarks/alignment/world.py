"""All 4,096 answers of four tokens, a reward for each, a model that gives each a probability: nothing is estimated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.config import ModelConfig, RunConfig, TrainConfig, UpdateConfig
from limpid.data.batches import MicroBatch
from limpid.model import Transformer
from limpid.objectives.losses import log_probabilities
from limpid.training.state import State, fresh_state

VOCAB, LENGTH = 8, 4
BETA = 0.1
ANSWERS = np.stack(np.meshgrid(*[np.arange(VOCAB)] * LENGTH, indexing="ij"), -1).reshape(-1, LENGTH)
"""(answer, position)"""
TOKENS = np.concatenate([np.zeros((len(ANSWERS), 1), np.int64), ANSWERS[:, :-1]], 1)
"""What the model reads: the prompt, token 0, and the answer before each target."""
REWARDS = (np.diff(ANSWERS, axis=1) > 0).mean(1)
"""(answer,): the share of an answer's three steps that go up; 0, 1/3, 2/3 or 1."""

MODEL = ModelConfig(
    vocab_size=VOCAB, d_model=32, num_layers=2, num_heads=4, context_length=LENGTH, d_ff=64, init_std=0.3,
    scaled_residual_init=False,
)  # fmt: skip


def config(steps: int, rate: float, seed: int = 1, precision: str = "fp32", **model: object) -> TrainConfig:
    """AdamW without decay, its rate falling to 0."""
    return TrainConfig(
        replace(MODEL, **model),  # type: ignore[arg-type]
        update=UpdateConfig(
            learning_rate=rate, min_learning_rate_ratio=0.0, warmup_steps=10, weight_decay=0.0, beta2=0.99
        ),
        run=RunConfig(precision=precision, max_steps=steps, seed=seed, threads=1),  # type: ignore[arg-type]
    )


def answer_log_probabilities(model: Transformer, prompt: int = 0) -> Float[Tensor, "answer position"]:
    """ln π of each token of every answer, in nats: the last token is no context, so that 512 rows serve all of them."""
    rows = torch.as_tensor(TOKENS[::VOCAB]).clone()
    rows[:, 0] = prompt
    every = log_probabilities(model(rows)).repeat_interleave(VOCAB, 0)
    return every.gather(-1, torch.as_tensor(ANSWERS)[..., None]).squeeze(-1)


def table(model: Transformer) -> Float[np.ndarray, "answer position"]:
    """The same in float64, without a gradient."""
    with torch.no_grad():
        return answer_log_probabilities(model).double().numpy()


@dataclass(frozen=True)
class World:
    """A reference, and what is best about leaving it: J(π) = E r - β KL(π‖π₀)."""

    reference: Float[np.ndarray, "answer position"]  # ln π₀ of each token, nats
    rewards: Float[np.ndarray, " answer"]
    beta: float = BETA

    @cached_property
    def optimum(self) -> Float[np.ndarray, " answer"]:
        """π* = π₀ e^{r/β} / Z. Source: Rafailov et al. 2023, eq. 4, arXiv:2305.18290."""
        return np.exp(self.reference.sum(1) + self.rewards / self.beta - self.log_mass)

    @cached_property
    def log_mass(self) -> float:
        """ln Z."""
        exponents = self.reference.sum(1) + self.rewards / self.beta
        return float(np.logaddexp.reduce(exponents))

    @property
    def best(self) -> float:
        """J* = β ln Z."""
        return self.beta * self.log_mass

    @property
    def start(self) -> float:
        """J of the reference."""
        return self.reward(self.reference)

    def reward(self, log_p: Float[np.ndarray, "answer position"]) -> float:
        """E r of a policy."""
        return float(np.exp(log_p.sum(1)) @ self.rewards)

    def divergence(self, log_p: Float[np.ndarray, "answer position"]) -> float:
        """KL(π‖π₀), nats."""
        return float(np.exp(log_p.sum(1)) @ (log_p - self.reference).sum(1))

    def value(self, log_p: Float[np.ndarray, "answer position"]) -> float:
        """J of a policy."""
        return self.reward(log_p) - self.beta * self.divergence(log_p)

    def attained(self, log_p: Float[np.ndarray, "answer position"]) -> float:
        """What share of J* - J₀ a policy has."""
        return (self.value(log_p) - self.start) / (self.best - self.start)

    def distance(self, log_p: Float[np.ndarray, "answer position"]) -> float:
        """Total variation between a policy and π*."""
        return float(np.abs(np.exp(log_p.sum(1)) - self.optimum).sum() / 2)


def start(configuration: TrainConfig) -> tuple[State, World]:
    """A model as it begins, which is the reference of its own world."""
    torch.set_num_threads(1)
    state = fresh_state(configuration)
    return state, World(table(state.model), REWARDS)


def batch(chosen: Int[np.ndarray, " answer"], **arrays: np.ndarray) -> MicroBatch:
    """The answers as an objective wants them, every token of which counts."""
    base = {"tokens": TOKENS[chosen], "targets": ANSWERS[chosen], "mask": np.ones((len(chosen), LENGTH), np.float32)}
    formed = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in arrays.items()}
    return MicroBatch(base | formed, tuple(range(len(chosen))))
