"""Sums over axes, softmax and the losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, all_axes, arithmetic, growth, summed


@arithmetic("sum", "nansum")
def total(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Exact:
    """Σ x."""
    return summed(self, all_axes(dim, self.ndim), keepdim)


@arithmetic("mean")
def mean(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Exact:
    """Σ x / n."""
    axes = all_axes(dim, self.ndim)
    found, count = summed(self, axes, keepdim), math.prod(self.shape[axis] for axis in axes)
    return Exact(found.value / count, (np.asarray(found.rounding) + FUNCTION * np.abs(found.value)) / count)


@arithmetic("var", "std", "var_mean", "std_mean")
def spread(
    self: Array,
    name: str,
    dim: Any = None,
    unbiased: bool = True,
    correction: float | None = None,
    keepdim: bool = False,
) -> Exact | list[Exact | None]:
    """Σ (x - μ)² / (n - c), or its root; with μ where it is asked for."""
    axes = all_axes(dim, self.ndim)
    count = math.prod(self.shape[axis] for axis in axes)
    less = (1.0 if unbiased else 0.0) if correction is None else correction
    middle = mean(self, axes, True)
    squares = summed((self - middle.value) ** 2, axes, keepdim)
    value = squares.value / (count - less)
    off = np.broadcast_to(middle.rounding, middle.value.shape)
    shifted = summed(2 * np.abs(self - middle.value) * off, axes, keepdim).value
    rounding = (np.asarray(squares.rounding) + shifted + 4 * squares.value) / (count - less)
    if name.startswith("std"):
        root = np.sqrt(value)
        with np.errstate(all="ignore"):
            rounding = np.where(root > 0, rounding / (2 * root), np.sqrt(rounding)) + FUNCTION * root
        value = root
    found = Exact(value, rounding)
    own_mean = mean(self, axes, keepdim)
    return [found, own_mean] if name.endswith("mean") else found


@arithmetic("linalg_vector_norm", "norm")
def vector_norm(
    self: Array, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None, p: float | None = None
) -> Exact:
    """(Σ |x|^p)^(1/p)."""
    order = float(ord if p is None else p)
    axes, size = all_axes(dim, self.ndim), np.abs(self)
    if math.isinf(order):
        return Exact(size.max(axes, keepdims=keepdim) if order > 0 else size.min(axes, keepdims=keepdim))
    if order == 0:
        return Exact((size > 0).astype(np.float64).sum(axes, keepdims=keepdim))
    count = math.prod(self.shape[axis] for axis in axes)
    value = np.power(np.power(size, order).sum(axes, keepdims=keepdim), 1 / order)
    return Exact(value, (growth(count) / abs(order) + 2 * FUNCTION) * value)


@arithmetic("cumsum")
def cumsum(self: Array, dim: int, dtype: Any = None) -> Exact:
    """Sums of the first so many."""
    if not self.ndim:
        return Exact(self)
    return Exact(np.cumsum(self, dim), growth(self.shape[dim]) * np.cumsum(np.abs(self), dim))


@arithmetic("cumprod")
def cumprod(self: Array, dim: int, dtype: Any = None) -> Exact:
    """Products of the first so many."""
    value = np.cumprod(self, dim) if self.ndim else self
    return Exact(value, (self.shape[dim] if self.ndim else 1) * np.abs(value))


@arithmetic("logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Exact:
    """ln Σ exp x of the first so many."""
    value = np.logaddexp.accumulate(self, dim) if self.ndim else self
    size = np.maximum.accumulate(np.where(np.isfinite(self), np.abs(self), 0.0), dim) if self.ndim else np.abs(self)
    return Exact(value, growth(self.shape[dim] if self.ndim else 1) * FUNCTION * (1 + size))


@arithmetic("trace")
def trace(self: Array) -> Exact:
    """Σ of the diagonal."""
    return summed(np.diagonal(self), None)


@arithmetic("count_nonzero")
def count_nonzero(self: Array, dim: Any = None) -> Exact:
    """How many are not zero."""
    return Exact(np.asarray(np.count_nonzero(self, all_axes(dim, self.ndim))))


@arithmetic("prod")
def product(self: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Exact:
    """The product of all entries of an axis."""
    axes = all_axes(dim, self.ndim)
    value = self.prod(axes, keepdims=keepdim)
    return Exact(value, math.prod(self.shape[axis] for axis in axes) * np.abs(value))


@arithmetic("logsumexp")
def logsumexp(self: Array, dim: Any, keepdim: bool = False) -> Exact:
    """ln Σ exp x."""
    axes = all_axes(dim, self.ndim)
    top = self.max(axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    value = np.log(np.exp(self - top).sum(axes, keepdims=True)) + top
    size = np.abs(np.where(np.isfinite(self), self, 0.0)).max(axes, keepdims=True)
    found = FUNCTION * np.abs(value) + growth(math.prod(self.shape[axis] for axis in axes)) + 2 * size + FUNCTION
    return Exact(*(one if keepdim else one.squeeze(axes) for one in (value, found)))


def _spread(x: Array, dim: int) -> tuple[Array, Array]:
    """x less its largest, where there is one that is finite; and how large that difference is."""
    top = x.max(dim, keepdims=True, initial=-np.inf)
    less = x - np.where(np.isfinite(top), top, 0.0)
    return less, np.where(np.isfinite(less), np.abs(less), 0.0)


@arithmetic("_softmax", "_safe_softmax", "softmax")
def softmax(self: Array, dim: int, half_to_float: bool = False, dtype: Any = None, name: str = "") -> Exact:
    """exp x / Σ exp x: an error of the exponent is one of the share. A row of -inf gives 0, or is no number."""
    x, far = _spread(self, dim)
    weight = np.exp(x)
    whole = weight.sum(dim, keepdims=True)
    with np.errstate(all="ignore"):
        value = weight / whole
    if name == "_safe_softmax":
        value = np.where(np.isneginf(self).all(dim, keepdims=True), 0.0, value)
    return Exact(value, np.abs(value) * (far + 2 * FUNCTION + growth(self.shape[dim] if self.ndim else 1)))


@arithmetic("_log_softmax", "log_softmax")
def log_softmax(self: Array, dim: int, half_to_float: bool = False, dtype: Any = None) -> Exact:
    """x - ln Σ exp x."""
    x, far = _spread(self, dim)
    whole = np.log(np.exp(x).sum(dim, keepdims=True))
    count = growth(self.shape[dim] if self.ndim else 1)
    off = 2 * far + FUNCTION * np.abs(whole) + count + 2 * FUNCTION
    return Exact(x - whole, off, np.abs(x - whole) + 2 * np.abs(whole) + 2 * far)


@arithmetic("_softmax_backward_data")
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any = None) -> Exact:
    """y (ȳ - Σ ȳ y)."""
    inner = summed(grad_output * output, dim, True)
    value = output * (grad_output - inner.value)
    off = np.abs(output) * (FUNCTION * (np.abs(grad_output) + np.abs(inner.value)) + np.asarray(inner.rounding))
    return Exact(value, off)


@arithmetic("_log_softmax_backward_data")
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any = None) -> Exact:
    """ȳ - softmax Σ ȳ."""
    share, whole = np.exp(output), summed(grad_output, dim, True)
    value = grad_output - share * whole.value
    far = FUNCTION + np.where(np.isfinite(output), np.abs(output), 0.0)
    return Exact(value, np.abs(grad_output) + share * (far * np.abs(whole.value) + np.asarray(whole.rounding)))


def _picked(target: Array, ignore_index: int, classes: int) -> tuple[Array, Array]:
    """Labels, 0 where they do not count; and whether they do."""
    labels = np.asarray(target).astype(np.int64)
    counts = labels != ignore_index
    return np.where(counts, labels, 0) % classes, counts


@arithmetic("nll_loss_forward", "nll_loss2d_forward")
def nll_loss(self: Array, target: Array, weight: Any, reduction: int, ignore_index: int) -> list[Exact | None]:
    """- Σ w log p of the labels, over Σ w where it is a mean; and Σ w."""
    axis = 0 if self.ndim == 1 else 1
    labels, counts = _picked(target, ignore_index, self.shape[axis])
    own = np.take_along_axis(self, np.expand_dims(labels, axis), axis).squeeze(axis)
    scale = counts * (1.0 if weight is None else np.asarray(weight)[labels])
    terms = np.where(counts, -own * scale, 0.0)
    whole = np.asarray(scale.sum())
    if reduction == 0:
        return [Exact(terms, FUNCTION * np.abs(terms)), None]
    found = summed(terms, None)
    with np.errstate(all="ignore"):
        share = found.value / whole if reduction == 1 else found.value
        off = np.asarray(found.rounding) / whole if reduction == 1 else found.rounding
    off, off_whole = np.asarray(off + FUNCTION * np.abs(share)), growth(scale.size) * whole
    return [Exact(np.asarray(share), off, off), None if reduction == 2 else Exact(whole, off_whole, off_whole)]


@arithmetic("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad_output: Array, self: Array, target: Array, weight: Any, reduction: int, ignore_index: int, total_weight: Array
) -> Exact:
    """- w ȳ at the labels, over Σ w where it is a mean."""
    axis = 0 if self.ndim == 1 else 1
    labels, counts = _picked(target, ignore_index, self.shape[axis])
    scale = counts * (1.0 if weight is None else np.asarray(weight)[labels])
    with np.errstate(all="ignore"):
        given = np.where(counts, -scale * grad_output / (total_weight if reduction == 1 else 1.0), 0.0)
    value = np.zeros_like(self)
    np.put_along_axis(value, np.expand_dims(labels, axis), np.expand_dims(given, axis), axis)
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("mse_loss")
def mse_loss(self: Array, target: Array, reduction: int = 1) -> Exact:
    """(x - t)², their mean or sum."""
    off = (self - target) ** 2
    return Exact(off, FUNCTION * off) if reduction == 0 else (mean if reduction == 1 else total)(off)


@arithmetic("mse_loss_backward")
def mse_loss_backward(grad_output: Array, self: Array, target: Array, reduction: int) -> Exact:
    """2 (x - t) ȳ, over their number where it is a mean."""
    value = 2 * (self - target) * grad_output / (self.size if reduction == 1 else 1)
    return Exact(value, 2 * FUNCTION * np.abs(value))
