"""What may be drawn next: filters of a distribution over tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.probability import certain
from limpid.maths.operation import Array, Branch


@formula(
    r"z'_v = z_v / \theta \text{ if } z_v > 0 \text{ else } \theta z_v, \quad v \text{ seen}",
    Branch.PROBABILITY,
    "Keskar et al. 2019, section 4.1, arXiv:1909.05858; negative logits multiplied, as decoders have it",
)
def repetition_penalty(
    logits: Float[Array, " vocab"], seen: Int[Array, " n"], penalty: float
) -> Float[Array, " vocab"]:
    """Make tokens that occurred less likely.

    Takes   logits   (vocab,)
            seen     (n,)      ids that occurred, once or often
            penalty  θ, above 0; 1 changes nothing
    Gives   logits   (vocab,)
    Departs a negative logit is multiplied by θ, where dividing, as in the paper, would make it likelier
    Raises  DomainError for a penalty that is not above 0, ShapeError for an id outside the vocabulary
    """
    if not penalty > 0:
        raise DomainError(f"penalty is {penalty}: it must be above 0; 1 changes nothing")
    changed = floats(logits).copy()
    rows = np.unique(np.asarray(seen, dtype=np.int64))
    if rows.size and not 0 <= rows[0] <= rows[-1] < len(changed):
        worst = rows[0] if rows[0] < 0 else rows[-1]
        raise ShapeError(f"token {worst} lies outside the vocabulary of {len(changed)}")
    changed[rows] = np.where(changed[rows] > 0, changed[rows] / penalty, changed[rows] * penalty)
    return changed


@formula(
    r"p'_v \propto p_v\,[v \in \text{the } k \text{ likeliest}]",
    Branch.PROBABILITY,
    "Fan, Lewis & Dauphin 2018, section 5.4, arXiv:1805.04833",
)
def top_k(p: Float[Array, "... vocab"], k: int, *, renormalise: bool = True) -> Float[Array, "... vocab"]:
    """Keep the k likeliest tokens.

    Takes   p  (..., vocab)  a distribution per row
            k  at least 1; ties with the last one stay
    Gives   p  (..., vocab)  0 where a token may not be drawn; sums to 1 when renormalised
    Raises  DomainError for k < 1
    """
    if k < 1:
        raise DomainError(f"k is {k}: at least one token must stay")
    p = certain(p)
    least = np.sort(p, -1)[..., -min(k, p.shape[-1])][..., None]
    return _kept(p, p >= least, renormalise)


@formula(
    r"V^{(p)} = \text{the smallest set of likeliest tokens with } \sum_{v \in V^{(p)}} p_v \ge p",
    Branch.PROBABILITY,
    "Holtzman et al. 2020, eq. 2, arXiv:1904.09751",
)
def top_p(p: Float[Array, "... vocab"], mass: float, *, renormalise: bool = True) -> Float[Array, "... vocab"]:
    """Keep the nucleus: the fewest likeliest tokens whose probability together reaches `mass`.

    Takes   p     (..., vocab)  a distribution per row
            mass  in (0, 1]; 1 keeps everything
    Gives   p     (..., vocab)  0 where a token may not be drawn; at least one token stays
    Limits  a mass reached exactly is reached, up to rounding; of tokens equally likely the earlier ones come first
    Raises  DomainError for a mass outside (0, 1]
    """
    if not 0 < mass <= 1:
        raise DomainError(f"mass is {mass}: it must lie in (0, 1]")
    p = certain(p)
    order = np.argsort(-p, -1, kind="stable")
    ordered = np.take_along_axis(p, order, -1)
    before = np.cumsum(ordered, -1) - ordered  # of all likelier tokens: the set is complete once it reaches the mass
    inside = np.zeros(p.shape, dtype=bool)
    np.put_along_axis(inside, order, before < mass - 1e-12, -1)
    return p if mass == 1 else _kept(p, inside, renormalise)


@formula(
    r"p'_v \propto p_v\,[p_v \ge \alpha \max_{v'} p_{v'}]",
    Branch.PROBABILITY,
    "Nguyen et al. 2024, section 3.1, arXiv:2407.01082",
)
def min_p(p: Float[Array, "... vocab"], share: float, *, renormalise: bool = True) -> Float[Array, "... vocab"]:
    """Keep tokens at least `share` times as likely as the likeliest.

    Takes   p      (..., vocab)  a distribution per row
            share  α in [0, 1]
    Gives   p      (..., vocab)  0 where a token may not be drawn
    Raises  DomainError for a share outside [0, 1]
    """
    if not 0 <= share <= 1:
        raise DomainError(f"share is {share}: it must lie in [0, 1]")
    p = certain(p)
    return _kept(p, p >= share * p.max(-1, keepdims=True), renormalise)


@formula(
    r"p'_v \propto p_v\,[p_v \ge \varepsilon]",
    Branch.PROBABILITY,
    "Hewitt, Manning & Liang 2022, eq. 6, arXiv:2210.15191",
)
def epsilon_cutoff(
    p: Float[Array, "... vocab"], epsilon: float, *, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep tokens of at least a given probability, and always the likeliest.

    Takes   p        (..., vocab)  a distribution per row
            epsilon  in [0, 1]
    Gives   p        (..., vocab)  0 where a token may not be drawn
    Raises  DomainError for an epsilon outside [0, 1]
    """
    if not 0 <= epsilon <= 1:
        raise DomainError(f"epsilon is {epsilon}: it must lie in [0, 1]")
    p = certain(p)
    return _kept(p, (p >= epsilon) | (p == p.max(-1, keepdims=True)), renormalise)


def _kept(p: Array, inside: Array, renormalise: bool) -> Array:
    kept: Array = np.where(inside, p, 0.0)
    return kept / kept.sum(-1, keepdims=True) if renormalise else kept
