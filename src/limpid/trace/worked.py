"""A model small enough to follow by hand: 3,456 parameters, one step, no number invented.

One block of two heads and an MLP; learned positions; one layer norm, after the residual around the MLP; none around
attention. The weights come from Python's own generator, so that anybody can draw them again.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np

from limpid.maths.activation import GELUTanh
from limpid.maths.attention import CausalSoftmax, Mix, Scores
from limpid.maths.chain import Chain
from limpid.maths.embedding import Embedding, LearnedPositions
from limpid.maths.linear import Add, Linear
from limpid.maths.loss import next_token_loss
from limpid.maths.norm import LayerNorm
from limpid.maths.operation import Array
from limpid.maths.update import AdamW, Arrays, UpdateInput

WORDS = ("<PAD>", "<BOS>", "<EOS>", "I", "like", "transformers")
TEXT = ("<BOS>", "I", "like", "transformers", "<EOS>")
D_MODEL, HEADS, D_HEAD, D_FF, CONTEXT = 16, 2, 8, 64, 5
LEARNING_RATE = 0.001
RULE = AdamW(weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-8)


@dataclass(frozen=True)
class Worked:
    """The whole step of the worked model."""

    chain: Chain
    loss: float  # nats per label
    gradients: Arrays  # of every quantity and parameter
    before: Arrays  # parameters
    after: Arrays
    moments: dict[str, Arrays]


def worked_parameters() -> Arrays:
    """Every weight, drawn as random.seed(42) and gauss(0, 0.1) give them: 3,456 numbers."""
    generator = random.Random(42)

    def drawn(*shape: int) -> Array:
        return np.array([generator.gauss(0, 0.1) for _ in range(math.prod(shape))]).reshape(shape)

    found: Arrays = {
        "embed.tokens.weight": drawn(len(WORDS), D_MODEL),
        "embed.positions.weight": drawn(CONTEXT, D_MODEL),
    }
    for name in ("query", "key", "value"):  # each head's 16 × 8 matrix multiplies from the right
        heads = [drawn(D_MODEL, D_HEAD) for _ in range(HEADS)]
        found[f"attention.{name}.weight"] = np.concatenate([head.T for head in heads])
    found["attention.output.weight"] = drawn(D_MODEL, D_MODEL)
    found["mlp.up.weight"] = drawn(D_FF, D_MODEL)
    found["mlp.up.bias"] = drawn(D_FF)
    found["mlp.output.weight"] = drawn(D_MODEL, D_FF)
    found["mlp.output.bias"] = drawn(D_MODEL)
    found["logits.weight"] = drawn(len(WORDS), D_MODEL)
    found["norm.weight"], found["norm.bias"] = np.ones(D_MODEL), np.zeros(D_MODEL)
    return found


def worked_chain(parameters: Arrays) -> tuple[Chain, str]:
    """The forward pass over `<BOS> I like transformers`, each to predict the next; the chain and its loss."""
    ids = np.array([[WORDS.index(word) for word in TEXT]])
    chain = Chain({**parameters, "tokens": ids[:, :-1], "targets": ids[:, 1:]})
    x = chain.apply("embed.tokens", Embedding(), "tokens", "embed.tokens.weight")
    chain.apply("embed.positions", LearnedPositions(ids.shape[1] - 1), "embed.positions.weight")
    x = chain.apply("embed.sum", Add(), x, "embed.positions")
    for name in ("query", "key", "value"):
        chain.apply(f"attention.{name}", Linear(heads_out=HEADS), x, f"attention.{name}.weight")
    chain.apply("attention.scores", Scores(1 / math.sqrt(D_HEAD)), "attention.query", "attention.key")
    chain.apply("attention.weights", CausalSoftmax(), "attention.scores")
    chain.apply("attention.mixed", Mix(), "attention.weights", "attention.value")
    x = chain.apply("attention.output", Linear(heads_in=HEADS), "attention.mixed", "attention.output.weight")
    chain.apply("mlp.up", Linear(), x, "mlp.up.weight", "mlp.up.bias")
    chain.apply("mlp.hidden", GELUTanh(), "mlp.up")
    chain.apply("mlp.output", Linear(), "mlp.hidden", "mlp.output.weight", "mlp.output.bias")
    chain.apply("residual", Add(), x, "mlp.output")
    x = chain.apply("norm", LayerNorm(1e-5), "residual", "norm.weight", "norm.bias")
    chain.apply("logits", Linear(), x, "logits.weight")
    return chain, next_token_loss(chain, "logits")


def worked_step() -> Worked:
    """Forward, loss, backward, and the first AdamW update (no clipping; decay on matrices)."""
    before = worked_parameters()
    chain, loss = worked_chain(before)
    gradients = chain.backward(loss)
    after, moments = {}, {}
    for name, parameter in before.items():
        start = {kind: np.zeros_like(parameter) for kind in RULE.moments}
        after[name], moments[name] = RULE.apply(
            UpdateInput(parameter, gradients[name], start, LEARNING_RATE, 1, decayed=parameter.ndim >= 2)
        )
    return Worked(chain, float(chain.values[loss]), gradients, before, after, moments)


def derivation(step: Worked, name: str, index: tuple[int, ...]) -> tuple[str, ...]:
    """One parameter's update, written out."""
    before, gradient = step.before[name], step.gradients[name]
    zero = np.zeros(before.shape)
    return RULE.derivation(
        UpdateInput(before, gradient, {"m": zero, "v": zero}, LEARNING_RATE, 1, before.ndim >= 2), index
    )
