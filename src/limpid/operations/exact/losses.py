"""Losses in one operation, by entries, their sum or their mean."""

from __future__ import annotations

from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth

LEAST_LOG = -100.0
"""PyTorch's binary cross entropy cuts logarithms off here."""


def _reduced(terms: Array, off: Array, reduction: int) -> Exact:
    """Entries as they are, their mean or their sum: 0, 1, 2."""
    if reduction == 0:
        return Exact(terms, off)
    over = terms.size if reduction == 1 else 1
    whole = off.sum() + (growth(terms.size) + FUNCTION) * np.abs(terms).sum()
    with np.errstate(all="ignore"):
        return Exact(np.asarray(terms.sum() / over), whole / over)


def _spread(grad_output: Array, slopes: Array, off: Array, reduction: int) -> Exact:
    """ȳ by slopes, over their number where it was a mean."""
    taught = grad_output / (slopes.size if reduction == 1 else 1)
    value = taught * slopes
    return Exact(np.broadcast_to(value, slopes.shape), np.abs(taught) * off + FUNCTION * np.abs(value))


@arithmetic("smooth_l1_loss")
def smooth_l1(self: Array, target: Array, reduction: int = 1, beta: float = 1.0) -> Exact:
    """d²/2β where |d| < β, else |d| - β/2."""
    far = np.abs(self - target)
    terms = np.where(far < beta, far**2 / (2 * beta) if beta else far, far - beta / 2)
    return _reduced(terms, FUNCTION * (far + beta), reduction)


@arithmetic("smooth_l1_loss_backward")
def smooth_l1_backward(grad_output: Array, self: Array, target: Array, reduction: int, beta: float) -> Exact:
    """ȳ d/β, or ȳ times the sign."""
    far = self - target
    slopes = np.where(np.abs(far) < beta, far / beta, np.sign(far)) if beta else np.sign(far)
    return _spread(grad_output, slopes, FUNCTION * np.abs(slopes), reduction)


@arithmetic("huber_loss")
def huber(self: Array, target: Array, reduction: int = 1, delta: float = 1.0) -> Exact:
    """d²/2 where |d| < δ, else δ (|d| - δ/2)."""
    far = np.abs(self - target)
    terms = np.where(far <= delta, far**2 / 2, delta * (far - delta / 2))
    return _reduced(terms, FUNCTION * np.where(far <= delta, terms, delta * (far + delta)), reduction)


@arithmetic("huber_loss_backward")
def huber_backward(grad_output: Array, self: Array, target: Array, reduction: int, delta: float) -> Exact:
    """ȳ d, or ȳ δ times the sign."""
    slopes = np.clip(self - target, -delta, delta)
    return _spread(grad_output, slopes, FUNCTION * np.abs(slopes), reduction)


@arithmetic("soft_margin_loss")
def soft_margin(self: Array, target: Array, reduction: int = 1) -> Exact:
    """ln(1 + exp(-y x)), where exp may overflow."""
    inner = -target * self
    terms = np.where(inner > np.log(np.finfo(np.float32).max), np.inf, np.logaddexp(0, inner))
    return _reduced(terms, FUNCTION * (np.abs(terms) + np.exp(np.minimum(inner, 0))), reduction)


@arithmetic("soft_margin_loss_backward")
def soft_margin_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Exact:
    """- y ȳ σ(-y x)."""
    slopes = -target / (1 + np.exp(np.clip(target * self, -700, 700)))
    return _spread(grad_output, slopes, FUNCTION * np.abs(slopes) * (1 + np.abs(target * self)), reduction)


@arithmetic("multi_margin_loss")
def multi_margin(
    self: Array, target: Array, p: int = 1, margin: float = 1, weight: Any = None, reduction: int = 1
) -> Exact:
    """Σ max(0, margin - x of the label + x)^p over the other classes, over their number."""
    x, labels, gap = _gaps(self, target, margin)
    scale = np.ones(len(labels)) if weight is None else np.asarray(weight)[labels]
    terms = scale * (gap**p).sum(1) / x.shape[1]
    sizes = np.abs(x).max(1) * 2 + abs(margin)
    off = FUNCTION * p * np.abs(scale) * (gap ** (p - 1) * sizes[:, None]).sum(1) / x.shape[1] + growth(
        x.shape[1]
    ) * np.abs(terms)
    if reduction == 0:
        return Exact(terms.reshape(target.shape), off.reshape(target.shape))
    return _reduced(terms, off, reduction)


def _gaps(self: Array, target: Array, margin: float) -> tuple[Array, Array, Array]:
    x, labels = np.atleast_2d(self), np.atleast_1d(np.asarray(target)).astype(np.int64)
    gap = np.maximum(margin - np.take_along_axis(x, labels[:, None], 1) + x, 0.0)
    np.put_along_axis(gap, labels[:, None], 0.0, 1)
    return x, labels, gap


@arithmetic("multi_margin_loss_backward")
def multi_margin_backward(
    grad_output: Array, self: Array, target: Array, p: int, margin: float, weight: Any = None, reduction: int = 1
) -> Exact:
    """Of the other classes that are too near; less their sum of the label."""
    x, labels, gap = _gaps(self, target, margin)
    scale = np.ones(len(labels)) if weight is None else np.asarray(weight)[labels]
    slopes = (p * gap ** (p - 1) * (gap > 0)) * scale[:, None] / x.shape[1]
    of_label, size = slopes.sum(1, keepdims=True), np.abs(slopes)
    reach = (2 * np.abs(x).max(1, keepdims=True) + abs(margin)) / x.shape[1]
    off = FUNCTION * (size + (p - 1) * (gap > 0) * np.abs(scale)[:, None] * reach)
    own = off.sum(1, keepdims=True) + growth(x.shape[1]) * size.sum(1, keepdims=True)
    np.put_along_axis(off, labels[:, None], own, 1)
    np.put_along_axis(slopes, labels[:, None], -of_label, 1)
    taught = np.reshape(grad_output, (-1, 1)) / (len(labels) if reduction == 1 else 1)
    value = taught * slopes
    return Exact(value.reshape(self.shape), (np.abs(taught) * off + FUNCTION * np.abs(value)).reshape(self.shape))


@arithmetic("binary_cross_entropy")
def cross_entropy_of_two(self: Array, target: Array, weight: Any = None, reduction: int = 1) -> Exact:
    """- t ln x - (1 - t) ln(1 - x), logarithms cut off."""
    scale = 1.0 if weight is None else weight
    with np.errstate(all="ignore"):
        one, other = np.maximum(np.log(self), LEAST_LOG), np.maximum(np.log1p(-self), LEAST_LOG)
    terms = -(target * one + (1 - target) * other) * scale
    size = (np.abs(target * one) + (np.abs(target) + 1) * np.abs(other)) * np.abs(scale)
    return _reduced(terms, 2 * FUNCTION * size, reduction)


@arithmetic("binary_cross_entropy_backward")
def cross_entropy_of_two_backward(
    grad_output: Array, self: Array, target: Array, weight: Any = None, reduction: int = 1
) -> Exact:
    """ȳ (x - t) / (x (1 - x)), whose divisor is at least 10⁻¹²."""
    below = np.maximum((1 - self) * self, 1e-12)
    slopes = (self - target) / below * (1.0 if weight is None else weight)
    return _spread(grad_output, slopes, 2 * FUNCTION * np.abs(slopes), reduction)
