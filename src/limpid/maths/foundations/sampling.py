"""What may be drawn next: filters of a distribution over tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

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
def top_k(
    p: Float[Array, "... vocab"], k: int, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep the k likeliest tokens.

    Takes   p  (..., vocab)  a distribution per row
            k  at least 1; ties with the last one stay
            at_least  tokens stay whatever k is, the likeliest first
    Gives   p  (..., vocab)  0 where a token may not be drawn; sums to 1 when renormalised
    Raises  DomainError for k < 1
    """
    if k < 1:
        raise DomainError(f"k is {k}: at least one token must stay")
    p = certain(p)
    least = np.sort(p, -1)[..., -min(k, p.shape[-1])][..., None]
    return _kept(p, p >= least, renormalise, at_least)


@formula(
    r"V^{(p)} = \text{the smallest set of likeliest tokens with } \sum_{v \in V^{(p)}} p_v \ge p",
    Branch.PROBABILITY,
    "Holtzman et al. 2020, eq. 2, arXiv:1904.09751",
)
def top_p(
    p: Float[Array, "... vocab"], mass: float, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep the nucleus: the fewest likeliest tokens whose probability together reaches `mass`.

    Takes   p     (..., vocab)  a distribution per row
            mass  in (0, 1]; 1 keeps everything
            at_least  tokens stay, the likeliest first
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
    return p if mass == 1 else _kept(p, inside, renormalise, at_least)


@formula(
    r"p'_v \propto p_v\,[p_v \ge \alpha \max_{v'} p_{v'}]",
    Branch.PROBABILITY,
    "Nguyen et al. 2024, section 3.1, arXiv:2407.01082",
)
def min_p(
    p: Float[Array, "... vocab"], share: float, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep tokens at least `share` times as likely as the likeliest.

    Takes   p      (..., vocab)  a distribution per row
            share  α in [0, 1]
            at_least  tokens stay, the likeliest first
    Gives   p      (..., vocab)  0 where a token may not be drawn
    Raises  DomainError for a share outside [0, 1]
    """
    if not 0 <= share <= 1:
        raise DomainError(f"share is {share}: it must lie in [0, 1]")
    p = certain(p)
    return _kept(p, p >= share * p.max(-1, keepdims=True), renormalise, at_least)


@formula(
    r"p'_v \propto p_v\,[p_v \ge \varepsilon]",
    Branch.PROBABILITY,
    "Hewitt, Manning & Liang 2022, eq. 6, arXiv:2210.15191",
)
def epsilon_cutoff(
    p: Float[Array, "... vocab"], epsilon: float, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep tokens of at least a given probability, and always the likeliest.

    Takes   p        (..., vocab)  a distribution per row
            epsilon  in [0, 1]
            at_least  tokens stay, the likeliest first
    Gives   p        (..., vocab)  0 where a token may not be drawn
    Raises  DomainError for an epsilon outside [0, 1]
    """
    if not 0 <= epsilon <= 1:
        raise DomainError(f"epsilon is {epsilon}: it must lie in [0, 1]")
    p = certain(p)
    return _kept(p, p >= epsilon, renormalise, at_least)


@formula(
    r"p'_v \propto p_v\,[p_v \ge \min(\varepsilon, \sqrt{\varepsilon}\, e^{-H(p)})]",
    Branch.INFORMATION,
    "Hewitt, Manning & Liang 2022, eq. 7, arXiv:2210.15191",
)
def eta_cutoff(
    p: Float[Array, "... vocab"], epsilon: float, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep tokens of at least a given probability, or less where the distribution is wide.

    Takes   p         (..., vocab)  a distribution per row
            epsilon   in (0, 1)
            at_least  tokens stay, the likeliest first
    Gives   p         (..., vocab)  0 where a token may not be drawn
    Raises  DomainError for an epsilon outside (0, 1)
    """
    if not 0 < epsilon < 1:
        raise DomainError(f"epsilon is {epsilon}: it must lie in (0, 1)")
    p = certain(p)
    least = np.minimum(epsilon, np.sqrt(epsilon) * np.exp(-_surprise(p)[1]))
    return _kept(p, p >= least, renormalise, at_least)


@formula(
    r"V = \text{the smallest set of the least } |{-\ln p_v} - H(p)| \text{ with } \sum_{v \in V} p_v \ge \tau",
    Branch.INFORMATION,
    "Meister et al. 2023, eq. 13, arXiv:2202.00666",
)
def typical(
    p: Float[Array, "... vocab"], mass: float, *, at_least: int = 1, renormalise: bool = True
) -> Float[Array, "... vocab"]:
    """Keep tokens about as surprising as the distribution is on average, until their probability reaches `mass`.

    Takes   p         (..., vocab)  a distribution per row
            mass      τ in (0, 1)
            at_least  tokens stay, the most typical first
    Gives   p         (..., vocab)  0 where a token may not be drawn; the likeliest one need not stay
    Raises  DomainError for a mass outside (0, 1)
    """
    if not 0 < mass < 1:
        raise DomainError(f"mass is {mass}: it must lie in (0, 1)")
    p = certain(p)
    surprise, mean = _surprise(p)
    order = np.argsort(np.abs(surprise - mean), -1, kind="stable")
    ordered = np.take_along_axis(p, order, -1)
    before = np.cumsum(ordered, -1) - ordered
    inside = np.zeros(p.shape, dtype=bool)
    np.put_along_axis(inside, order, (before < mass - 1e-12) | (np.arange(p.shape[-1]) < at_least), -1)
    return _kept(p, inside, renormalise, 0)


@formula(
    r"\text{forbidden} = \{v : (w_{t-n+2}, \dots, w_t, v) \text{ occurred}\}",
    Branch.PROBABILITY,
    "Paulus, Xiong & Socher 2017, section 2.5, arXiv:1705.04304",
)
def repeated_ngram(tokens: Int[Array, " n"], size: int, vocab: int) -> Bool[Array, " vocab"]:
    """Tokens that would complete a run of `size` tokens that occurred before.

    Takes   tokens  (n,)  ids so far
            size    n of the n-gram, at least 1; 1 forbids every token that occurred
            vocab   ids there are
    Gives   (vocab,)  true where a token may not follow
    Raises  DomainError for a size below 1, ShapeError for an id outside the vocabulary
    """
    if size < 1:
        raise DomainError(f"size is {size}: an n-gram has at least one token")
    ids = [int(token) for token in np.asarray(tokens)]
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        raise ShapeError(f"a token lies outside the vocabulary of {vocab}: {min(ids)}…{max(ids)}")
    forbidden = np.zeros(vocab, dtype=bool)
    last = ids[len(ids) - size + 1 :] if len(ids) >= size - 1 else None
    for start in range(len(ids) - size + 1):
        if ids[start : start + size - 1] == last:
            forbidden[ids[start + size - 1]] = True
    return forbidden


def _surprise(p: Array) -> tuple[Array, Array]:
    """Surprise of each token, nats, and its mean: the entropy."""
    with np.errstate(divide="ignore"):
        surprise = -np.log(p)
    return surprise, np.where(p > 0, p * surprise, 0.0).sum(-1, keepdims=True)


def _kept(p: Array, inside: Array, renormalise: bool, at_least: int) -> Array:
    """The tokens inside, and the `at_least` likeliest ones; of those equally likely the earlier ones."""
    if at_least > 0:
        rank = np.argsort(np.argsort(-p, -1, kind="stable"), -1, kind="stable")
        inside = inside | (rank < at_least)
    kept: Array = np.where(inside, p, 0.0)
    return kept / kept.sum(-1, keepdims=True) if renormalise else kept
