"""What a policy's loss is made of, as pure functions of each token's log-probability, in PyTorch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

Tokens = Float[Tensor, "answer position"]


def log_ratios(log_probabilities: Tokens, old_log_probabilities: Tokens, mask: Tokens, level: str) -> Tokens:
    """How much likelier the policy makes each token, or its answer per token or as a whole, than when drawn; nats.

    Source: token, Schulman et al. 2017, eq. 6, arXiv:1707.06347; sequence, Zheng et al. 2025, eq. 7, arXiv:2507.18071.
    """
    each = (log_probabilities - old_log_probabilities) * mask
    if level == "token":
        return each
    whole = each.sum(-1, keepdim=True)
    if level == "sequence":
        whole = whole / mask.sum(-1, keepdim=True).clamp(min=1)
    return whole * mask


def clipped_ratios(ratios: Tokens, advantages: Tokens, low: float, high: float) -> Tokens:
    """The ratio as far as it pays: min(ρ A, clip(ρ) A) = ρ̂ A. Source: Schulman et al. 2017, eq. 7, arXiv:1707.06347."""
    falling = torch.where(advantages < 0, ratios.clamp(min=low), ratios)
    return torch.where(advantages > 0, ratios.clamp(max=high), falling)


def policy_losses(ratios: Tokens, advantages: Tokens) -> Tokens:
    """-ρ̂ A, and 0 without an advantage."""
    return torch.where(advantages == 0, 0.0, -ratios * advantages)


def weighted_policy_losses(log_probabilities: Tokens, weights: Tokens, advantages: Tokens) -> Tokens:
    """-ρ̂ A ln π, with no gradient through ρ̂. Source: MiniMax 2025 (CISPO), eq. 4, arXiv:2506.13585."""
    return -weights.detach() * advantages * log_probabilities


def kl_estimate(log_probabilities: Tokens, reference_log_probabilities: Tokens, ratios: Tokens, kind: str) -> Tokens:
    """What each token says of KL(π‖π₀), nats.

    Source: Schulman 2020, joschu.net/blog/kl-approx.html; with the ratio, DeepSeek-AI 2025 (V3.2), arXiv:2512.02556.
    """
    gap = log_probabilities - reference_log_probabilities
    match kind:
        case "k1":
            return gap
        case "k2":
            return gap.square() / 2
    k3 = torch.expm1(-gap) + gap
    return k3 if kind == "k3" else ratios * k3


def aggregated(losses: Tokens, mask: Tokens, over: str, labels: int) -> Float[Tensor, ""]:
    """A micro-batch's share of the loss of its step, which has so many labels; see `Policy.labels`."""
    if over == "sequence":
        mask = mask / mask.sum(-1, keepdim=True).clamp(min=1)
    return (losses * mask).sum() / labels


def clipped_values(values: Tokens, old_values: Tokens, returns: Tokens, cliprange: float) -> Tokens:
    """The value as far as it pays: of V and V clipped to where it was, the one farther from what it is to be.

    Source: OpenAI baselines (ppo2); Engstrom et al. 2020, section 3, arXiv:2005.12729.
    """
    clipped = values.detach().clamp(old_values - cliprange, old_values + cliprange)
    return torch.where((clipped - returns).abs() > (values - returns).abs(), clipped, values)


def value_losses(values: Tokens, returns: Tokens) -> Tokens:
    """½ (V̂ - R)². Source: Schulman et al. 2017, eq. 9, arXiv:1707.06347."""
    return (values - returns).square() / 2
