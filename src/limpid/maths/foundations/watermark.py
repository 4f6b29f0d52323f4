"""A watermark in sampled text: some tokens are made likelier by a secret rule, and counted by who knows it."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Bool, Float

from limpid.errors import DomainError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

PAPER = "Kirchenbauer et al. 2023, {}, arXiv:2301.10226"


@formula(r"z'_v = z_v + \delta\,[v \in G(w_{t-1})]", Branch.PROBABILITY, PAPER.format("algorithm 2"))
def raise_green(
    logits: Float[Array, "... vocab"], green: Bool[Array, "... vocab"], delta: float
) -> Float[Array, "... vocab"]:
    """Write a watermark: raise the logits of green tokens, a part of the vocabulary that the token before chooses.

    Takes   logits  (..., vocab)
            green   (..., vocab)  whether a token is green here
            delta   δ, nats; a green token becomes e^δ times as likely beside a red one
    Gives   logits  (..., vocab)
    Limits  a token that is certain stays certain: where there is nothing to choose nothing is marked
    Raises  ShapeError where the two differ in shape
    """
    return floats(logits) + delta * np.asarray(green)


@formula(r"p'_G = \frac{e^\delta p_G}{1 - p_G + e^\delta p_G}", Branch.PROBABILITY, PAPER.format("section 4"))
def green_probability(share: float, delta: float) -> float:
    """How probable a green token is once a watermark has raised the green logits.

    Takes   share  p_G, what the green tokens had together, in [0, 1]
            delta  δ, nats
    Gives   p'_G   in [0, 1]
    Limits  0 and 1 stay; δ = 0 changes nothing
    Raises  DomainError for a share outside [0, 1]
    """
    if not 0 <= share <= 1:
        raise DomainError(f"share is {share}: it must lie in [0, 1]")
    odds = share * math.exp(delta)
    return odds / (1 - share + odds)


@formula(r"z = \frac{g - \gamma T}{\sqrt{T \gamma (1 - \gamma)}}", Branch.PROBABILITY, PAPER.format("eq. 3"))
def green_z(green: int, counted: int, gamma: float) -> float:
    """Find a watermark: how many standard deviations more green tokens a text has than chance makes.

    Takes   green    g, green tokens found
            counted  T, tokens looked at, each with another pair of itself and the token before
            gamma    γ, share of the vocabulary that is green, in (0, 1)
    Gives   z        about 0 ± 1 without a watermark
    Limits  grows like √T with a watermark; the count is binomial, so that few tokens have a heavier tail than a bell
    Raises  DomainError for a γ outside (0, 1), no token, or more green ones than there are
    """
    if not 0 < gamma < 1:
        raise DomainError(f"gamma is {gamma}: it must lie in (0, 1)")
    if not 0 <= green <= counted or counted < 1:
        raise DomainError(f"{green} of {counted} tokens are green: at least one must be counted, and no more be green")
    return (green - gamma * counted) / math.sqrt(counted * gamma * (1 - gamma))
