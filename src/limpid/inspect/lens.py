"""The logit lens: what the model would predict if its residual stream ended after this block.

Source: nostalgebraist 2020, "interpreting GPT: the logit lens"; compared as in Belrose et al. 2023, arXiv:2303.08112.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from limpid.inspect.watch import Quantities, stages
from limpid.model import Transformer


@dataclass(frozen=True)
class Guess:
    """How one token fares in a distribution."""

    token: int
    rank: int  # 1 is the likeliest
    probability: float


@dataclass(frozen=True)
class Layer:
    """What is predicted after one block."""

    name: str
    top: Guess  # at the chosen position
    final: Guess  # the whole model's prediction, as ranked here
    next: Guess | None  # the token that does come next, unless the text ends here
    kl: float  # nats, KL(final distribution ‖ this one) at the chosen position
    mean_kl: float  # nats, over all positions
    agreement: float  # share of positions whose likeliest token is already the final one
    tops: tuple[int, ...]  # the likeliest token of every position
    top_probabilities: tuple[float, ...]


def read_out(model: Transformer, stream: Float[Tensor, "... position d_model"]) -> Float[Tensor, "... position vocab"]:
    """Logits as if the residual stream ended here: final norm, where there is one, and output matrix."""
    ended = stream if model.final_norm is None else model.final_norm(stream)
    return F.linear(ended, model.output_matrix)


def lens(model: Transformer, seen: Quantities, tokens: Int[Tensor, "1 position"], position: int) -> tuple[Layer, ...]:
    """The embedding and every block, read out; the last one is the model's own prediction."""
    final = F.log_softmax(seen["logits"][0], dim=-1)
    after = int(tokens[0, position + 1]) if position + 1 < tokens.shape[1] else None
    return tuple(
        _layer(title, F.log_softmax(read_out(model, seen[name][0]), dim=-1), final, position, after)
        for name, title in stages(model)
    )


def _layer(
    title: str,
    here: Float[Tensor, "position vocab"],
    final: Float[Tensor, "position vocab"],
    position: int,
    after: int | None,
) -> Layer:
    kl = (final.exp() * (final - here)).sum(-1)
    likeliest = here.argmax(-1)
    return Layer(
        title,
        _guess(here[position], int(likeliest[position])),
        _guess(here[position], int(final[position].argmax())),
        None if after is None else _guess(here[position], after),
        float(kl[position]),
        float(kl.mean()),
        float((likeliest == final.argmax(-1)).double().mean()),
        tuple(likeliest.tolist()),
        tuple(here.amax(-1).exp().tolist()),
    )


def _guess(log_probabilities: Float[Tensor, " vocab"], token: int) -> Guess:
    own = log_probabilities[token]
    return Guess(token, 1 + int((log_probabilities > own).sum()), float(own.exp()))
