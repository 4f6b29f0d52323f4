"""How far one model is from another on the answers that it gave itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from limpid.evaluation.token_scores import LOGITS
from limpid.model import Transformer
from limpid.objectives.losses import log_probabilities, tempered

Array = np.ndarray


@torch.inference_mode()
def divergences(
    policy: Transformer,
    reference: Transformer,
    prompts: Sequence[tuple[int, ...]],
    answers: Sequence[tuple[int, ...]],
    temperature: float,
    advance: Callable[[int], None],
) -> Float64[Array, " answer"]:
    """Σ over an answer's tokens of KL(π‖π₀) of the next one, nats; its mean over answers of π is KL(π‖π₀) of answers.

    Every token that could have come counts, not only the one that did: the same mean with less variance than Σ ln π/π₀.
    Source: Amini et al. 2025 (Rao–Blackwell), arXiv:2504.10637
    """
    rows = [(*prompt, *answer) for prompt, answer in zip(prompts, answers, strict=True)]
    found = np.zeros(len(rows))
    device, done = policy.embed.tokens.weight.device, 0
    for batch in _batches([len(row) - 1 for row in rows], policy.config.vocab_size):
        length = max(len(rows[place]) - 1 for place in batch)
        tokens = torch.zeros(len(batch), max(1, length), dtype=torch.int64)
        mask = torch.zeros(len(batch), max(1, length))
        for row, place in enumerate(batch):
            tokens[row, : len(rows[place]) - 1] = torch.tensor(rows[place][:-1])
            mask[row, len(prompts[place]) - 1 : len(rows[place]) - 1] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        ours, theirs = (log_probabilities(tempered(model(tokens), temperature)) for model in (policy, reference))
        found[batch] = (_divergence(ours, theirs) * mask).sum(-1).double().cpu().numpy()
        done += len(batch)
        advance(done)
    return found


def _divergence(ours: Tensor, theirs: Tensor) -> Tensor:
    """Σ p (ln p - ln q) over the vocabulary; what has no probability adds nothing."""
    p = ours.exp()
    return torch.where(p > 0, p * (ours - theirs), 0.0).sum(-1)


def _batches(lengths: Sequence[int], vocab_size: int) -> list[list[int]]:
    """Rows of like length whose logits, of two models, fit into memory together."""
    most = max(1, LOGITS // (2 * vocab_size))
    batches: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[place] > most:
            batches.append([])
        batches[-1].append(place)
    return batches
