"""Losses as pure functions of log-probabilities, in PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from limpid.quantities import NO_LABEL


def log_probabilities(logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
    """log softmax, formed in at least float32 whatever the format of the logits, in nats."""
    return F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def tempered(logits: Float[Tensor, "... vocab"], temperature: float) -> Float[Tensor, "... vocab"]:
    """logits / temperature, in at least float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature


def next_token_loss(
    log_probabilities: Float[Tensor, "batch position vocab"], targets: Int[Tensor, "batch position"], labels: int
) -> Float[Tensor, ""]:
    """-1/labels Σ log p(target), nats per label.

    `labels` counts the labels of the whole step, so that micro-batches add up to the mean over all of them however
    unevenly labels fall. Source: Bengio et al. 2003, eq. 1, JMLR 3.
    """
    vocab = log_probabilities.shape[-1]
    total = F.nll_loss(log_probabilities.view(-1, vocab), targets.flatten(), ignore_index=NO_LABEL, reduction="sum")
    return total / labels


def token_log_probabilities(
    log_probabilities: Float[Tensor, "batch position vocab"], targets: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch position"]:
    """Of each next token, in nats; 0 where there is no label."""
    labelled = targets != NO_LABEL
    chosen = log_probabilities.gather(-1, targets.where(labelled, 0)[..., None]).squeeze(-1)
    return chosen.where(labelled, 0)


def entropy(
    log_probabilities: Float[Tensor, "batch position vocab"], targets: Int[Tensor, "batch position"]
) -> Float[Tensor, "batch position"]:
    """-Σ p ln p of each position, in nats; 0 where there is no label."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1).where(targets != NO_LABEL, 0)


def scored(hidden: Float[Tensor, "*batch d_model"], matrix: Float[Tensor, "1 d_model"]) -> Float[Tensor, "*batch"]:
    """One number of each hidden state, in at least float32: a reward, a value."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (hidden.to(wide) @ matrix.to(wide).T).squeeze(-1)


def divergence_score(log_ratio: Float[Tensor, " answer"], kind: str, alpha: float) -> Float[Tensor, " answer"]:
    """How far answers were raised above the reference, as a divergence counts: f'(t) - f'(1) at t = π/π₀.

    Exponents are held at 80, beyond which float32 ends. Source: Wang et al. 2023, table 1, arXiv:2309.16240.
    """
    if kind == "forward_kl":
        return -torch.expm1((-log_ratio).clamp(max=80.0))
    if kind == "js_divergence":
        below = log_ratio - torch.log1p(torch.expm1(log_ratio.clamp(max=0)) / 2)
        return below.where(log_ratio < 0, -torch.log1p(torch.expm1(-log_ratio.clamp(min=0)) / 2))
    if kind == "alpha_divergence" and abs(alpha - 1) >= 1e-6:
        return torch.expm1(((alpha - 1) * log_ratio).clamp(max=80.0)) / (alpha - 1)
    return log_ratio
