"""From logits to the next token: what may be drawn, and the draw."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from limpid.config import Sampling
from limpid.errors import ConfigError
from limpid.generation.watermark import greened


def penalised(
    logits: Float[Tensor, "batch vocab"], seen: list[Int[Tensor, "_"]], penalty: float
) -> Float[Tensor, "batch vocab"]:
    """Make tokens that occurred less likely. Source: Keskar et al. 2019, section 4.1, arXiv:1909.05858."""
    if penalty == 1:
        return logits
    logits = logits.clone()
    for row, tokens in enumerate(seen):
        seen_logits = logits[row, tokens]
        logits[row, tokens] = torch.where(seen_logits < 0, seen_logits * penalty, seen_logits / penalty)
    if not torch.isfinite(logits.amax(-1)).all():
        raise ConfigError(
            f"repetition_penalty is {penalty:g}: it takes the logits out of float32; take one nearer to 1"
        )
    return logits


def allowed(logits: Float[Tensor, "batch vocab"], sampling: Sampling) -> Float[Tensor, "batch vocab"]:
    """Logits at the temperature, minus infinity where a token may not be drawn.

    Sources: top-k, Fan et al. 2018, arXiv:1805.04833; nucleus, Holtzman et al. 2020, eq. 2, arXiv:1904.09751;
    min-p, Nguyen et al. 2024, arXiv:2407.01082.
    """
    logits = logits / sampling.heat
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = (
            probabilities.cumsum(-1) - probabilities
        )  # of all likelier tokens: the set is complete once it reaches p
        outside = torch.zeros_like(before, dtype=torch.bool).scatter_(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    return logits


def row_generator(seed: int, row: int) -> torch.Generator:
    """What a row draws from: seed and row are mixed, since their sum gives rows of neighbouring seeds the same draws.

    Source: NumPy's SeedSequence, after O'Neill 2015, "Developing a seed_seq alternative".
    """
    (mixed,) = np.random.SeedSequence(seed, spawn_key=(row,)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed))


def next_tokens(
    logits: Float[Tensor, "batch vocab"],
    seen: list[Int[Tensor, "_"]],
    sampling: Sampling,
    generators: list[torch.Generator],
) -> Int[Tensor, " batch"]:
    """One token per row; each row draws from a generator of its own, so that no row depends on its neighbours.

    Logits are numbers, or minus infinity where a token must not be drawn; `seen` is read where an option asks for it.
    """
    logits = penalised(logits.float(), seen, sampling.repetition_penalty)
    if sampling.greedy:
        return greened(logits, seen, sampling).argmax(-1)
    logits = logits - logits.amax(-1, keepdim=True)  # so that no temperature takes the likeliest beyond float32
    logits = logits / sampling.heat if sampling.plain else allowed(logits, sampling)
    return drawn(greened(logits, seen, sampling).softmax(-1), generators)


def drawn(probabilities: Float[Tensor, "batch vocab"], generators: list[torch.Generator]) -> Int[Tensor, " batch"]:
    """One token per row by its distribution function: one uniform number a row, where multinomial takes one per token.

    A token of probability 0 is never drawn: the function does not rise there.
    """
    below = probabilities.double().cumsum(-1)
    total = below[:, -1:]
    uniform = torch.stack([torch.rand(1, generator=own, dtype=torch.float64) for own in generators])
    threshold = torch.minimum(uniform.to(total.device) * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(below, threshold, right=True).squeeze(-1)
