"""Probability: distributions, softmax, Bayes' rule, and the fits that training is an instance of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.operation import Array, Branch

STABLE = "Blanchard, Higham & Higham 2021, arXiv:1909.03469"


@formula(
    r"p_v \ge 0, \quad \sum_v p_v = 1",
    Branch.PROBABILITY,
    "Kolmogorov 1933, section I.1",
)
def is_distribution(p: Float[Array, "..."], tolerance: float = 1e-9) -> bool:
    """Whether numbers are probabilities of outcomes of which exactly one happens.

    Takes   p          (..., outcome)
            tolerance  how far the sum may lie from 1
    Gives   a truth value; of several rows, whether all are distributions
    """
    p = floats(p)
    if p.size == 0 or not np.isfinite(p).all():
        return False
    return bool((p >= 0).all() and (np.abs(p.sum(-1) - 1) <= tolerance).all())


@formula(
    r"\operatorname{LSE}(z) = \ln \sum_v e^{z_v} = m + \ln \sum_v e^{z_v - m}, \quad m = \max_v z_v",
    Branch.PROBABILITY,
    f"{STABLE}, eq. 1.1 and 3.3",
    (r"\bar z_v = \bar y\, e^{z_v - \operatorname{LSE}(z)}",),
)
def log_sum_exp(z: Float[Array, "... outcome"], axis: int | None = -1) -> Float[Array, "..."]:
    """The logarithm of a sum of exponentials, without overflow.

    Takes   z     (..., outcome)  nats
            axis  None adds over everything
    Gives   y     (...)           at least the largest z
    Limits  all -∞ gives -∞
    """
    z = floats(z)
    if z.size == 0:
        raise DomainError(f"z has shape {z.shape}: there is nothing to add")
    top = z.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    total: Array = np.squeeze(top + np.log(np.exp(z - top).sum(axis, keepdims=True)), axis)
    return total


@log_sum_exp.derivative
def log_sum_exp_backward(y_bar: Array, z: Array, axis: int | None = -1) -> tuple[Array]:
    share = softmax(z, axis=axis)
    return ((y_bar if axis is None else np.expand_dims(y_bar, axis)) * share,)


@formula(
    r"p_v = \frac{e^{z_v / T}}{\sum_{v'} e^{z_{v'} / T}}",
    Branch.PROBABILITY,
    f"Bridle 1990, eq. 8; stable form, {STABLE}, eq. 1.3 and 3.2; temperature, Hinton et al. 2015, eq. 1",
    (r"\bar z_v = \tfrac1T\, p_v \bigl(\bar p_v - \sum_{v'} \bar p_{v'} p_{v'}\bigr)",),
)
def softmax(z: Float[Array, "... outcome"], temperature: float = 1.0, axis: int | None = -1) -> Array:
    """Turn scores into probabilities that keep their order.

    Takes   z            (..., outcome)  logits, nats up to a constant; -∞ forbids an outcome
            temperature  T → 0 gives all to the largest (shared by ties), T → ∞ the same to each
            axis         None makes one distribution of everything
    Gives   p            (..., outcome)  each row sums to 1
    Limits  adding a constant to every z changes nothing
    Raises  DomainError for a negative temperature, or a row in which no outcome is allowed
    """
    z = floats(z)
    if z.size == 0:
        raise DomainError(f"z has shape {z.shape}: a distribution needs at least one outcome")
    if not temperature >= 0:
        raise DomainError(f"temperature is {temperature}: it must be at least 0")
    top = z.max(axis, keepdims=True)
    if np.isneginf(top).any():
        raise DomainError("every z of a row is -inf: no outcome is allowed")
    drop = np.where(z == top, 0.0, z - top)  # ∞ - ∞ is 0 here: outcomes beyond all others share
    if temperature == 0:
        weight = (drop == 0).astype(np.float64)
    else:
        weight = np.exp(drop / temperature) if np.isfinite(temperature) else np.exp(np.where(np.isneginf(z), z, 0.0))
    p: Array = weight / weight.sum(axis, keepdims=True)
    return p


@softmax.derivative
def softmax_backward(p_bar: Array, z: Array, temperature: float = 1.0, axis: int | None = -1) -> tuple[Array]:
    p = softmax(z, temperature, axis)
    if temperature == 0:
        return (np.zeros_like(p),)  # a step function is flat
    return (p * (p_bar - (p_bar * p).sum(axis, keepdims=True)) / temperature,)


@formula(
    r"\ell_v = z_v - \operatorname{LSE}(z)",
    Branch.PROBABILITY,
    f"{STABLE}, eq. 1.2 and 3.4",
    (r"\bar z_v = \bar \ell_v - e^{\ell_v} \sum_{v'} \bar \ell_{v'}",),
)
def log_softmax(z: Float[Array, "... outcome"], axis: int = -1) -> Array:
    """Logarithms of softmax's probabilities, exact where the probabilities themselves vanish.

    Takes   z  (..., outcome)  logits, nats up to a constant
    Gives   ℓ  (..., outcome)  nats, at most 0; their exponentials sum to 1
    Limits  a logit far above the others: its ℓ is 0, theirs are the differences; -∞ stays -∞
    Raises  DomainError when every z of a row is -∞
    """
    z = floats(z)
    if z.size == 0 or np.isneginf(z.max(axis)).any():
        raise DomainError("every z of a row is -inf, or there is none: no outcome is allowed")
    top = z.max(axis, keepdims=True)
    shifted = np.where(z == top, 0.0, z - top)  # ∞ - ∞ is 0 here: outcomes beyond all others share
    logs: Array = shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))
    return logs


@log_softmax.derivative
def log_softmax_backward(y_bar: Array, z: Array, axis: int = -1) -> tuple[Array]:
    return (y_bar - np.exp(log_softmax(z, axis)) * y_bar.sum(axis, keepdims=True),)


@formula(
    r"\ln P(w_1, \dots, w_n) = \sum_t \ln P(w_t \mid w_{<t})",
    Branch.PROBABILITY,
    "Bengio et al. 2003, section 1, JMLR 3",
    (r"\bar p_t = \bar y / p_t",),
)
def joint_log_probability(p: Float[Array, " n"]) -> float:
    """The logarithm of a product of conditional probabilities: a sum, which cannot underflow.

    Takes   p  (n,)  probability of each step given those before
    Gives   y  ()    nats; its exponential is the probability of all of them together
    Limits  a step of probability 0 gives -∞; no step at all gives 0
    Raises  DomainError for a p outside [0, 1]
    """
    p = floats(p)
    outside = (p < 0) | (p > 1) | np.isnan(p)
    if outside.any():
        raise DomainError(f"p is {p[outside][0]}: a probability lies in [0, 1]")
    return float(np.log(p).sum())


@joint_log_probability.derivative
def joint_log_probability_backward(y_bar: Array, p: Array) -> tuple[Array]:
    return (y_bar / floats(p),)


@formula(
    r"P(h \mid d) = \frac{P(d \mid h)\, P(h)}{\sum_{h'} P(d \mid h')\, P(h')}",
    Branch.PROBABILITY,
    "Bayes 1763, proposition 5, doi:10.1098/rstl.1763.0053",
)
def bayes(prior: Float[Array, " hypothesis"], likelihood: Float[Array, " hypothesis"]) -> Float[Array, " hypothesis"]:
    """What to believe of each hypothesis after seeing the data.

    Takes   prior       (hypothesis,)  belief before, a distribution
            likelihood  (hypothesis,)  probability, or density, of the data under each
    Gives   posterior   (hypothesis,)  a distribution
    Limits  a hypothesis with prior 0 stays at 0
    Raises  DomainError when the prior is no distribution, or the data are impossible under all
    """
    prior, likelihood = floats(prior), floats(likelihood)
    if prior.shape != likelihood.shape:
        raise ShapeError(f"prior has shape {prior.shape}, likelihood {likelihood.shape}: one entry per hypothesis")
    if not is_distribution(prior):
        raise DomainError(f"the prior sums to {prior.sum():g}: it must be a distribution")
    if (likelihood < 0).any():
        raise DomainError(f"likelihood is {likelihood.min():g}: it is at least 0")
    joint = prior * (likelihood / likelihood.max(initial=0.0) if likelihood.any() else likelihood)
    if not joint.any():
        raise DomainError("the data are impossible under every hypothesis with a prior above 0")
    posterior: Array = joint / joint.sum()
    return posterior


@formula(
    r"\ln L(\theta) = \sum_n \ln p(x_n \mid \theta), \quad p = \mathcal N(\mu, \sigma^2)",
    Branch.PROBABILITY,
    "Fisher 1922, section 6, doi:10.1098/rsta.1922.0009",
    (r"\bar \mu = \bar y \sum_n (x_n - \mu) / \sigma^2",),
)
def gaussian_log_likelihood(mean: float, x: Float[Array, " n"], std: float = 1.0) -> float:
    """How well a normal distribution explains data.

    Takes   mean  μ
            x     (n,)  data, independent of one another
            std   σ, above 0
    Gives   y     nats
    Raises  DomainError for σ ≤ 0
    """
    if not std > 0:
        raise DomainError(f"std is {std}: it must be above 0")
    x = floats(x)
    return float((-0.5 * np.square((x - mean) / std) - np.log(std * np.sqrt(2 * np.pi))).sum())


@gaussian_log_likelihood.derivative
def gaussian_log_likelihood_backward(y_bar: Array, mean: float, x: Array, std: float = 1.0) -> tuple[Array, None]:
    return y_bar * ((floats(x) - mean) / std**2).sum(), None


class Gaussian(NamedTuple):
    mean: float
    std: float


@formula(
    r"\hat p_v = n_v / \textstyle\sum_{v'} n_{v'}",
    Branch.PROBABILITY,
    "Fisher 1922, section 6, doi:10.1098/rsta.1922.0009",
)
def maximum_likelihood(counts: Float[Array, " outcome"]) -> Float[Array, " outcome"]:
    """The distribution under which what was counted is most probable: the frequencies.

    Takes   counts  (outcome,)  how often each was seen
    Gives   p       (outcome,)  also the minimum of the cross-entropy H(counts, p): training by cross-entropy is this
    Limits  an outcome that was never seen gets 0
    Raises  DomainError when nothing was counted
    """
    counts = floats(counts)
    if (counts < 0).any() or not counts.sum() > 0:
        raise DomainError("counts must be at least 0 and not all 0")
    p: Array = counts / counts.sum()
    return p


@formula(
    r"\hat\mu = \tfrac1n \sum_i x_i, \quad \hat\sigma^2 = \tfrac1n \sum_i (x_i - \hat\mu)^2",
    Branch.PROBABILITY,
    "Fisher 1922, section 6, doi:10.1098/rsta.1922.0009",
)
def gaussian_maximum_likelihood(x: Float[Array, " n"]) -> Gaussian:
    """The normal distribution under which the data are most probable.

    Takes   x  (n,)
    Gives   mean and std (divided by n, not n - 1)
    Raises  DomainError when there are no data
    """
    x = floats(x)
    if x.size == 0:
        raise DomainError("x is empty: there is nothing to fit")
    return Gaussian(float(x.mean()), float(x.std()))


@formula(
    r"\hat\theta = \operatorname*{argmin}_\theta \lVert X\theta - y \rVert^2 + \lambda \lVert \theta \rVert^2, "
    r"\quad \lambda = \sigma^2 / \tau^2",
    Branch.PROBABILITY,
    "Hoerl & Kennard 1970, eq. 2.1, doi:10.1080/00401706.1970.10488634; as a posterior, MacKay 1992",
)
def maximum_a_posteriori(
    x: Float[Array, "n d"], y: Float[Array, " n"], std: float = 1.0, prior_std: float = np.inf
) -> Float[Array, " d"]:
    """The most probable weights of a linear model with noise σ, when each was believed to be N(0, τ²).

    Takes   x          (n, d)
            y          (n,)
            std        σ of the noise
            prior_std  τ of the prior; ∞ gives maximum likelihood
    Gives   θ          (d,)   the minimum of squared error + λ‖θ‖²: a Gaussian prior is L2 decay with λ = σ²/τ²
    Raises  ShapeError when x and y differ in length, DomainError for a std or prior_std that is not above 0
    """
    x, y = floats(x), floats(y)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise ShapeError(f"x has shape {x.shape}, y {y.shape}: one row of x per entry of y")
    if not std > 0 or not prior_std > 0:
        raise DomainError(f"std is {std}, prior_std {prior_std}: both must be above 0")
    decay = (std / prior_std) ** 2
    rows = np.vstack((x, np.sqrt(decay) * np.eye(x.shape[1])))
    return np.linalg.lstsq(rows, np.concatenate((y, np.zeros(x.shape[1]))), rcond=None)[0]


@formula(
    r"E[\tau] = \frac{1 - \alpha^{\gamma + 1}}{1 - \alpha}, \quad \text{speed-up} = \frac{E[\tau]}{\gamma c + 1}",
    Branch.PROBABILITY,
    "Leviathan, Kalman & Matias 2023, eq. 1 and theorem 3.8, arXiv:2211.17192",
)
def speculative_speedup(acceptance: float, drafted: int, draft_cost: float) -> tuple[float, float]:
    """What drafting tokens with a smaller model gains, the model's own token of every round counted.

    Takes   acceptance  α, probability that a drafted token is kept, in [0, 1]
            drafted     γ, tokens drafted per round
            draft_cost  c, time of one draft step over one step of the model
    Gives   expected tokens per round, and the speed-up over decoding without a draft
    Limits  α = 1 gives γ + 1 tokens
    Raises  DomainError outside these ranges
    """
    if not 0 <= acceptance <= 1 or drafted < 0 or drafted != int(drafted) or not draft_cost >= 0:
        raise DomainError(
            f"acceptance is {acceptance}, drafted {drafted}, draft_cost {draft_cost}: expected a share, a whole number "
            "and a cost, none of them negative"
        )
    tokens = float(sum(acceptance**kept for kept in range(int(drafted) + 1)))
    return tokens, tokens / (drafted * draft_cost + 1)


@formula(
    r"\frac{(1 - \alpha) (\gamma \hat c + \gamma + 1)}{1 - \alpha^{\gamma + 1}}",
    Branch.PROBABILITY,
    "Leviathan, Kalman & Matias 2023, theorem 3.11, arXiv:2211.17192",
)
def speculative_operations(acceptance: float, drafted: int, draft_operations: float = 0.0) -> float:
    """By how many times more operations speculative decoding does per token, checking what is thrown away.

    Takes   acceptance        α, probability that a drafted token is kept, in [0, 1]
            drafted           γ, tokens drafted per round
            draft_operations  ĉ, operations of a draft token over one of the model
    Gives   operations per token over those of decoding without a draft
    Raises  DomainError outside these ranges
    """
    if not draft_operations >= 0:
        raise DomainError(f"draft_operations is {draft_operations}: it must not be negative")
    tokens, _ = speculative_speedup.function(acceptance, drafted, 0.0)
    return (drafted * draft_operations + drafted + 1) / tokens


def certain(p: Sequence[float] | Array) -> Array:
    """`p` as an array, once it is known to be a distribution along the last axis.

    Raises  DomainError with the sum that is not 1, or the entry that is negative
    """
    p = floats(p)
    if not is_distribution(p, tolerance=1e-6):
        worst = p.min() if p.size and (p < 0).any() else None
        what = f"has the entry {worst:g}" if worst is not None else f"sums to {p.sum(-1)}"
        raise DomainError(f"p {what}: probabilities are at least 0 and sum to 1")
    return p
