"""Losses of predictions: of a class, of a yes or no, of a number."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from limpid.errors import DomainError, ShapeError
from limpid.maths.formula import floats, formula
from limpid.maths.foundations.probability import certain, log_softmax
from limpid.maths.loss import NO_LABEL
from limpid.maths.operation import Array, Branch, require


@formula(
    r"L = -\tfrac{1}{\sum_t c_{w_t}} \sum_{t\ \text{labelled}} \sum_v c_v \bigl((1 - \varepsilon) [v = w_t] "
    r"+ \tfrac{\varepsilon}{V}\bigr) \ln \frac{e^{z_{t,v}}}{\sum_{v'} e^{z_{t,v'}}}",
    Branch.INFORMATION,
    "Bridle 1990, section 3; Bengio et al. 2003, eq. 1, JMLR 3; smoothing, Szegedy et al. 2016, section 7, "
    "arXiv:1512.00567; weights and smoothing together, as PyTorch has them",
    (r"\bar z_{t,v} = \tfrac{\bar L}{\sum_t c_{w_t}} \bigl(p_{t,v} \sum_{v'} q_{t,v'} - q_{t,v}\bigr)", r""),
)
def softmax_cross_entropy(
    logits: Float[Array, "... vocab"],
    targets: Int[Array, "..."] | Float[Array, "... vocab"],
    ignore_index: int = NO_LABEL,
    label_smoothing: float = 0.0,
    class_weights: Float[Array, " vocab"] | None = None,
) -> float:
    """The mean surprise of a model's logits at the right answers.

    Takes   logits           (..., vocab)  nats, up to a constant
            targets          (...)         ids, `ignore_index` where there is none; or (..., vocab), a distribution each
            label_smoothing  ε, the share of every label that is spread over all classes alike
            class_weights    (vocab,)      c, how much each class counts; the mean is over the weights of the labels
    Gives   L                ()            nats per label
    Limits  no label at all gives 0
    Raises  ShapeError when targets or weights do not fit, DomainError for ε outside [0, 1] or a negative weight
    """
    logits = floats(logits)
    weights, labels = _target_weights(logits, targets, ignore_index, label_smoothing, class_weights)
    logs = log_softmax(logits)
    return float(-np.where(weights > 0, weights * logs, 0.0).sum() / (labels or 1.0))


@softmax_cross_entropy.derivative
def softmax_cross_entropy_backward(
    loss_bar: Array,
    logits: Array,
    targets: Array,
    ignore_index: int = NO_LABEL,
    label_smoothing: float = 0.0,
    class_weights: Array | None = None,
) -> tuple[Array, None]:
    logits = floats(logits)
    weights, labels = _target_weights(logits, targets, ignore_index, label_smoothing, class_weights)
    p = np.exp(log_softmax(logits))
    return loss_bar / (labels or 1.0) * (weights.sum(-1, keepdims=True) * p - weights), None


@formula(
    r"L = -y \ln \sigma(z) - (1 - y) \ln (1 - \sigma(z))",
    Branch.INFORMATION,
    "Bishop 2006, Pattern Recognition and Machine Learning, eq. 4.90",
    (r"\bar z = \bar L\, (\sigma(z) - y)", r""),
)
def binary_cross_entropy(logits: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, "..."]:
    """The surprise at a yes or no, given its log-odds.

    Takes   logits   (...)  log-odds of yes
            targets  (...)  1 for yes, 0 for no, or the probability of yes
    Gives   L        (...)  nats
    Raises  ShapeError when the shapes differ, DomainError for targets outside [0, 1]
    """
    z, y = floats(logits), floats(targets)
    if z.shape != y.shape:
        raise ShapeError(f"logits have shape {z.shape}, targets {y.shape}: one target per logit")
    if ((y < 0) | (y > 1)).any():
        raise DomainError("a target lies outside [0, 1]")
    loss: Array = np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))
    return loss


@binary_cross_entropy.derivative
def binary_cross_entropy_backward(loss_bar: Array, logits: Array, targets: Array) -> tuple[Array, None]:
    z = floats(logits)
    small = np.exp(-np.abs(z))
    return loss_bar * (np.where(z >= 0, 1.0, small) / (1 + small) - floats(targets)), None


@formula(
    r"L = \tfrac12 r^2 \text{ if } |r| \le \delta \text{ else } \delta (|r| - \tfrac12 \delta), \quad r = x - y",
    Branch.PROBABILITY,
    "Huber 1964, eq. 2.8 and section 7, doi:10.1214/aoms/1177703732",
    (r"\bar x = \bar L\, \max(-\delta, \min(r, \delta))", r"\bar y = -\bar x"),
)
def huber(x: Float[Array, "..."], y: Float[Array, "..."], delta: float = 1.0) -> Float[Array, "..."]:
    """A square near the target, a straight line beyond: one wild residual pulls no more than δ.

    Takes   x, y   (...)  prediction and target
            delta  δ, above 0, in their unit
    Gives   L      (...)
    Limits  δ → ∞ gives half the square
    Raises  ShapeError when the shapes differ, DomainError for δ ≤ 0
    """
    residual = _residual(x, y, delta)
    size = np.abs(residual)
    return np.where(size <= delta, residual * residual / 2, delta * (size - delta / 2))


@huber.derivative
def huber_backward(loss_bar: Array, x: Array, y: Array, delta: float = 1.0) -> tuple[Array, Array]:
    slope = loss_bar * np.clip(_residual(x, y, delta), -delta, delta)
    return slope, -slope


def _residual(x: Array, y: Array, delta: float) -> Array:
    x, y = floats(x), floats(y)
    if x.shape != y.shape:
        raise ShapeError(f"x has shape {x.shape}, y {y.shape}: one target per prediction")
    require(delta > 0, f"delta is {delta}: it must be above 0")
    return x - y


def _target_weights(
    logits: Array, targets: Array, ignore_index: int, smoothing: float, class_weights: Array | None
) -> tuple[Array, float]:
    """How much of each position's label falls on each token, and what they count together."""
    require(0 <= smoothing <= 1, f"label_smoothing is {smoothing}: it is a share, so it lies in [0, 1]")
    vocab = logits.shape[-1]
    counts = np.ones(vocab) if class_weights is None else floats(class_weights)
    if counts.shape != (vocab,):
        raise ShapeError(f"class_weights have shape {counts.shape}, expected ({vocab},): one per class")
    require(bool((counts >= 0).all()), f"a class weight is {counts.min()}: it must not be negative")
    targets = np.asarray(targets)
    if targets.shape == logits.shape and targets.dtype.kind == "f":
        shares = (1 - smoothing) * certain(targets) + smoothing / vocab
        return shares * counts, float(np.prod(logits.shape[:-1]))
    if targets.shape != logits.shape[:-1] or targets.dtype.kind not in "iu":
        raise ShapeError(f"targets have shape {targets.shape}, logits {logits.shape}: one id per position")
    labelled = targets != ignore_index
    chosen = targets[labelled]
    if chosen.size and not 0 <= chosen.min() <= chosen.max() < vocab:
        raise ShapeError(f"a target lies outside the vocabulary of {vocab}: {chosen.min()}…{chosen.max()}")
    shares = np.zeros(logits.shape)
    shares[labelled] = smoothing / vocab
    shares[labelled, chosen] += 1 - smoothing
    return shares * counts, float(counts[chosen].sum())
