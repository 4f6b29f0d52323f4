"""Information: surprise, entropy, and how far one distribution lies from another."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.probability import certain
from limpid.maths.operation import Array, Branch

SHANNON = "Shannon 1948, Bell System Technical Journal 27"


@formula(
    r"s(p) = -\log_b p",
    Branch.INFORMATION,
    "Tribus 1961, Thermostatics and Thermodynamics, p. 64; Shannon 1948",
    (r"\bar p = -\bar s / (p \ln b)",),
)
def surprise(p: Float[Array, "..."], base: float = math.e) -> Float[Array, "..."]:
    """How unexpected it is that something of probability p happened.

    Takes   p     (...)  probability
            base  e for nats, 2 for bits
    Gives   s     (...)  0 for what was certain, ∞ for what was impossible
    Raises  DomainError for a p outside [0, 1]
    """
    p = floats(p)
    if ((p < 0) | (p > 1) | np.isnan(p)).any():
        raise DomainError(f"p is {p[(p < 0) | (p > 1) | np.isnan(p)].flat[0]}: a probability lies in [0, 1]")
    s: Array = np.abs(np.log(p)) / _nats_per_unit(base)
    return s


@surprise.derivative
def surprise_backward(s_bar: Array, p: Array, base: float = math.e) -> tuple[Array]:
    return (-s_bar / (floats(p) * math.log(base)),)


@formula(
    r"H(P) = -\sum_v p_v \log_b p_v",
    Branch.INFORMATION,
    f"{SHANNON}, section 6",
    (r"\bar p_v = -\bar h\, (\ln p_v + 1) / \ln b",),
)
def entropy(p: Float[Array, "... outcome"], base: float = math.e) -> Float[Array, "..."]:
    """The mean surprise of a distribution: how unsure one is before looking.

    Takes   p     (..., outcome)  a distribution per row; of a joint one, all cells in one row
            base  e for nats, 2 for bits
    Gives   h     (...)           between 0 (certain) and log n (all n alike)
    Limits  an outcome of probability 0 adds 0
    Raises  DomainError when a row is no distribution
    """
    p = certain(p)
    return np.abs(_x_log_y(p, p).sum(-1)) / _nats_per_unit(base)


@entropy.derivative
def entropy_backward(h_bar: Array, p: Array, base: float = math.e) -> tuple[Array]:
    return (_times(-np.expand_dims(h_bar, -1), (np.log(floats(p)) + 1) / math.log(base)),)


@formula(
    r"H(P, Q) = -\sum_v p_v \log_b q_v = H(P) + D(P \Vert Q)",
    Branch.INFORMATION,
    "Cover & Thomas 2006, Elements of Information Theory, theorem 5.4.3",
    (r"\bar p_v = -\bar h \log_b q_v", r"\bar q_v = -\bar h\, p_v / (q_v \ln b)"),
)
def cross_entropy(
    p: Float[Array, "... outcome"], q: Float[Array, "... outcome"], base: float = math.e
) -> Float[Array, "..."]:
    """The mean surprise of who believes Q when P is true.

    Takes   p     (..., outcome)  the truth
            q     (..., outcome)  the belief
            base  e for nats, 2 for bits
    Gives   h     (...)           at least H(P)
    Limits  what Q rules out but P allows gives ∞
    Raises  DomainError when a row is no distribution, ShapeError when the two differ in shape
    """
    p, q = _two_distributions(p, q)
    return np.abs(_x_log_y(p, q).sum(-1)) / _nats_per_unit(base)


@cross_entropy.derivative
def cross_entropy_backward(h_bar: Array, p: Array, q: Array, base: float = math.e) -> tuple[Array, Array]:
    p, q, h_bar = floats(p), floats(q), np.expand_dims(h_bar, -1)
    outside = (p == 0) & (q == 0)  # of both supports: such an outcome adds 0 wherever it moves
    p_slope = np.where(outside, 0.0, np.log(q)) / math.log(base)
    return _times(-h_bar, p_slope), _times(-h_bar, _ratio(p, q) / math.log(base))


@formula(
    r"D(P \Vert Q) = \sum_v p_v \log_b \frac{p_v}{q_v}",
    Branch.INFORMATION,
    "Kullback & Leibler 1951, eq. 2.4, doi:10.1214/aoms/1177729694",
    (r"\bar p_v = \bar k\, (\ln \tfrac{p_v}{q_v} + 1) / \ln b", r"\bar q_v = -\bar k\, p_v / (q_v \ln b)"),
)
def kl_divergence(
    p: Float[Array, "... outcome"], q: Float[Array, "... outcome"], base: float = math.e, *, logarithmic: bool = False
) -> Float[Array, "..."]:
    """What believing Q costs over knowing P, in mean surprise.

    Takes   p            (..., outcome)  the truth
            q            (..., outcome)  the belief
            base         e for nats, 2 for bits
            logarithmic  q holds natural logarithms of probabilities; p and q are then taken as they are, and the
                         gradient of q is that of the logarithms
    Gives   k            (...)           at least 0, and 0 only for P = Q (Gibbs); D(P‖Q) and D(Q‖P) differ
    Limits  what Q rules out but P allows gives ∞; what P rules out adds 0
    Raises  DomainError when a row is no distribution, ShapeError when the two differ in shape
    """
    if logarithmic:
        p = floats(p)
        return np.where(p > 0, p * (np.log(p) - floats(q)), 0.0).sum(-1) / _nats_per_unit(base)
    p, q = _two_distributions(p, q)
    with np.errstate(all="ignore"):
        terms = np.where(p > 0, p * (np.log(p) - np.log(q)) - p + q, q)  # each term is at least 0: nothing cancels
    k: Array = np.maximum(terms.sum(-1) + (p.sum(-1) - q.sum(-1)), 0.0) / _nats_per_unit(base)
    return k


@kl_divergence.derivative
def kl_divergence_backward(
    k_bar: Array, p: Array, q: Array, base: float = math.e, *, logarithmic: bool = False
) -> tuple[Array, Array]:
    p, q, k_bar = floats(p), floats(q), np.expand_dims(k_bar, -1)
    log_q = q if logarithmic else np.log(q)
    outside = (p == 0) & np.isneginf(log_q)  # of both supports: such an outcome adds 0 wherever it moves
    p_slope = np.where(outside, 0.0, np.log(p) - log_q + 1) / math.log(base)
    q_slope = (p if logarithmic else _ratio(p, q)) / math.log(base)
    return _times(k_bar, p_slope), _times(-k_bar, q_slope)


@formula(
    r"I(X; Y) = \sum_{x,y} p_{xy} \log_b \frac{p_{xy}}{p_x p_y}",
    Branch.INFORMATION,
    f"{SHANNON}, section 12",
)
def mutual_information(joint: Float[Array, "x y"], base: float = math.e) -> float:
    """What knowing one of two quantities tells about the other.

    Takes   joint  (x, y)  probability of each pair, all summing to 1
            base   e for nats, 2 for bits
    Gives   between 0 (independent) and the smaller of the two entropies
    Raises  ShapeError when joint is no matrix, DomainError when it is no distribution
    """
    joint = floats(joint)
    if joint.ndim != 2:
        raise ShapeError(f"joint has shape {joint.shape}: a matrix of pairs is needed")
    flat = certain(joint.ravel())
    apart = np.add.outer(np.log(joint.sum(1)), np.log(joint.sum(0))).ravel()
    return max(0.0, float(kl_divergence(flat, apart, base, logarithmic=True)))


@formula(
    r"\text{bits per byte} = \frac{L}{\ln 2} \cdot \frac{\text{tokens}}{\text{bytes}}",
    Branch.INFORMATION,
    "Gao et al. 2020, section 3.1, arXiv:2101.00027",
)
def bits_per_byte(loss: float, tokens: int, size: int) -> float:
    """The loss in a unit that no tokenizer can change: also what a compressor driven by the model would need.

    Takes   loss    nats per token
            tokens  how many
            size    bytes that they spell
    Gives   bits per byte
    Raises  DomainError for a size that is not above 0
    """
    if size <= 0:
        raise DomainError(f"size is {size} bytes: it must be above 0")
    return loss / math.log(2) * tokens / size


def _x_log_y(x: Array, y: Array) -> Array:
    """x ln y, 0 where x is 0."""
    with np.errstate(all="ignore"):
        return np.where(x > 0, x * np.log(y), 0.0)


def _ratio(x: Array, y: Array) -> Array:
    """x / y, 0 where x is 0."""
    return np.where(x == 0, 0.0, x / y)


def _times(bar: Array, slope: Array) -> Array:
    """A gradient times a slope that may be infinite: nothing comes of no gradient."""
    return np.where(bar == 0, 0.0, bar * slope)


def _nats_per_unit(base: float) -> float:
    if not base > 0 or base == 1:
        raise DomainError(f"base is {base}: take e for nats, 2 for bits")
    return math.log(base)


def _two_distributions(p: Array, q: Array) -> tuple[Array, Array]:
    p, q = certain(p), certain(q)
    if p.shape[-1] != q.shape[-1]:
        raise ShapeError(f"p has shape {p.shape}, q {q.shape}: they must be over the same outcomes")
    return p, q
