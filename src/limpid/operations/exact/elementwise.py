"""Operations entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from limpid.maths.operation import Array
from limpid.operations.exact.exact import Exact, arithmetic, growth

FUNCTION = 4.0
"""Errors of a library's function of one number, in units of u: vectorised ones are good to a unit of the last place."""


def _of(value: Array, magnitude: Array | None = None, times: float = FUNCTION) -> Exact:
    return Exact(value, times * np.abs(value if magnitude is None else magnitude))


@arithmetic("add")
def add(self: Any, other: Any, alpha: float = 1) -> Exact:
    """self + alpha other: numbers of Python's, and their product where there is one, are rounded to the format."""
    value, shift = np.asarray(self + alpha * other), np.abs(alpha * other)
    found = _of(value, np.abs(self) + shift)
    times = (0 if isinstance(other, np.ndarray) and other.ndim else 1) + (0 if abs(alpha) == 1 else 2)
    return Exact(value, found.rounding, np.abs(value) + times * shift)


@arithmetic("sub")
def sub(self: Any, other: Any, alpha: float = 1) -> Exact:
    """self - alpha other."""
    return add(self, other, -alpha)


@arithmetic("rsub")
def rsub(self: Any, other: Any, alpha: float = 1) -> Exact:
    """other - alpha self."""
    return add(other, self, -alpha)


@arithmetic("mul")
def mul(self: Any, other: Any) -> Exact:
    """A product: a number of Python's is rounded to the format of the array."""
    value = np.asarray(self * other)
    times = 1 if isinstance(self, np.ndarray) and isinstance(other, np.ndarray) and other.ndim else 2
    return Exact(value, FUNCTION * np.abs(value), times * np.abs(value))


@arithmetic("div")
def div(self: Any, other: Any, rounding_mode: str | None = None) -> Exact:
    """A quotient."""
    quotient = np.asarray(self / other)
    if rounding_mode is not None:
        return Exact(np.floor(quotient) if rounding_mode == "floor" else np.trunc(quotient))
    times = 1 if isinstance(other, np.ndarray) and other.ndim else 2
    return Exact(quotient, FUNCTION * np.abs(quotient), times * np.abs(quotient))


@arithmetic("remainder", "fmod")
def remainder(self: Any, other: Any, name: str) -> Exact:
    """What a division leaves, with the sign of the divisor or of what is divided."""
    value = (np.mod if name == "remainder" else np.fmod)(self, other)
    return Exact(np.asarray(value), np.abs(self) + np.abs(other))


@arithmetic("addcmul")
def addcmul(self: Array, tensor1: Array, tensor2: Array, value: float = 1) -> Exact:
    """self + value tensor1 tensor2."""
    product = value * tensor1 * tensor2
    return _of(self + product, np.abs(self) + np.abs(product))


@arithmetic("addcdiv")
def addcdiv(self: Array, tensor1: Array, tensor2: Array, value: float = 1) -> Exact:
    """self + value tensor1 / tensor2."""
    quotient = value * tensor1 / tensor2
    return _of(self + quotient, np.abs(self) + np.abs(quotient))


@arithmetic("lerp")
def lerp(self: Array, end: Array, weight: Any) -> Exact:
    """self + weight (end - self)."""
    return _of(self + weight * (end - self), np.abs(self) + np.abs(weight) * (np.abs(end) + np.abs(self)))


@arithmetic("pow")
def power(self: Any, exponent: Any) -> Exact:
    """A power: its error grows with the exponent times the logarithm, where it is none of the small whole ones."""
    value = np.power(np.asarray(self) * 1.0, exponent)
    with np.errstate(all="ignore"):
        steep = np.abs(exponent * np.log(np.abs(self)))
    found = _of(value, np.abs(value) * (1 + np.where(np.isfinite(steep), steep, 0.0)))
    products = int(exponent) - 1 if np.ndim(exponent) == 0 and exponent in (2, 3, 4) else 1
    return Exact(value, found.rounding, products * np.abs(value))


def _plain(name: str, function: Any) -> None:
    arithmetic(name)(lambda self: _of(np.asarray(function(self))))


for _name, _function in {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "tanh": np.tanh, "erf": special.erf,
    "erfc": special.erfc, "sigmoid": special.expit, "square": np.square, "log_sigmoid": special.log_expit,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "ceil": np.ceil, "floor": np.floor, "trunc": np.trunc,
    "sign": np.sign, "lgamma": special.gammaln,
}.items():  # fmt: skip
    _plain(_name, _function)


@arithmetic("round")
def rounded(self: Array, decimals: int = 0) -> Exact:
    """To the nearest, ties to even: with decimals by way of a product, which may fall on the other side."""
    value = np.round(self, decimals)
    if not decimals:
        return Exact(value)
    shifted = np.float32(10.0 ** abs(decimals))
    near = (self.astype(np.float32) * shifted if decimals > 0 else self.astype(np.float32) / shifted).astype(np.float64)
    value = np.round(near) / 10.0**decimals
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("sin", "cos")
def circular(self: Array, name: str) -> Exact:
    """Good to a unit of the largest value, not of a small one."""
    value = (np.sin if name == "sin" else np.cos)(self)
    return Exact(value, FUNCTION * np.maximum(1, np.abs(value)))


@arithmetic("reciprocal")
def reciprocal(self: Array) -> Exact:
    """1 / x."""
    return _of(1 / np.asarray(self))


@arithmetic("rsqrt")
def rsqrt(self: Array) -> Exact:
    """1 / √x."""
    return _of(1 / np.sqrt(self))


@arithmetic("atan2")
def atan2(self: Array, other: Array) -> Exact:
    """The angle of a point."""
    return _of(np.arctan2(self, other))


def _gelu(x: Array, approximate: str) -> tuple[Array, Array]:
    """Φ as GELU approximates it, and Φ' x: value / x and what its derivative adds."""
    if approximate == "tanh":
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        slope = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
        return 0.5 * (1 + np.tanh(inner)), 0.5 * x * slope / np.cosh(np.clip(inner, -300, 300)) ** 2
    return special.ndtr(x), x * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


@arithmetic("gelu")
def gelu(self: Array, approximate: str = "none") -> Exact:
    """x Φ(x): 1 + erf(x / √2) cancels where x is negative."""
    return _of(self * _gelu(self, approximate)[0], self, 2 * FUNCTION)


@arithmetic("gelu_backward")
def gelu_backward(grad_output: Array, self: Array, approximate: str = "none") -> Exact:
    """ȳ (Φ(x) + x Φ'(x))."""
    share, slope = _gelu(self, approximate)
    return _of(grad_output * (share + slope), np.abs(grad_output) * (1 + np.abs(self) + np.abs(slope)), 4 * FUNCTION)


@arithmetic("silu")
def silu(self: Array) -> Exact:
    """x σ(x)."""
    return _of(self * special.expit(self), None, 2 * FUNCTION)


@arithmetic("silu_backward")
def silu_backward(grad_output: Array, self: Array) -> Exact:
    """ȳ σ(x) (1 + x (1 - σ(x)))."""
    share = special.expit(self)
    value = grad_output * share * (1 + self * (1 - share))
    return _of(value, np.abs(grad_output * share) * (1 + np.abs(self)), 2 * FUNCTION)


@arithmetic("sigmoid_backward")
def sigmoid_backward(grad_output: Array, output: Array) -> Exact:
    """ȳ y (1 - y)."""
    return _of(grad_output * output * (1 - output), grad_output * output)


@arithmetic("tanh_backward")
def tanh_backward(grad_output: Array, output: Array) -> Exact:
    """ȳ (1 - y²)."""
    return _of(grad_output * (1 - output**2), grad_output)


@arithmetic("hardsigmoid")
def hardsigmoid(self: Array) -> Exact:
    """min(max(x + 3, 0), 6) / 6."""
    return _of(np.clip(self + 3, 0, 6) / 6, np.minimum(np.abs(self) + 3, 6) / 6)


@arithmetic("hardswish")
def hardswish(self: Array) -> Exact:
    """x min(max(x + 3, 0), 6) / 6."""
    return _of(self * np.clip(self + 3, 0, 6) / 6, self * np.minimum(np.abs(self) + 3, 6) / 6)


@arithmetic("mish")
def mish(self: Array) -> Exact:
    """x tanh(ln(1 + exp x))."""
    return _of(self * np.tanh(np.logaddexp(0, self)), self, 2 * FUNCTION)


@arithmetic("glu")
def glu(self: Array, dim: int = -1) -> Exact:
    """The first half by σ of the second."""
    first, second = np.split(self, 2, dim)
    return _of(first * special.expit(second), None, 2 * FUNCTION)


@arithmetic("glu_backward")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Exact:
    """Of both halves."""
    first, second = np.split(self, 2, dim)
    share = special.expit(second)
    slope = share * (1 - share)
    value = np.concatenate([grad_output * share, grad_output * first * slope], dim)
    return _of(value, np.concatenate([grad_output * share, grad_output * first * share], dim), 2 * FUNCTION)


@arithmetic("log_sigmoid_forward")
def log_sigmoid(self: Array) -> list[Exact | None]:
    """ln σ(x): min(x, 0) - ln(1 + exp(-|x|))."""
    return [_of(special.log_expit(self), np.abs(special.log_expit(self)) + np.abs(np.minimum(self, 0))), None]


@arithmetic("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Any = None) -> Exact:
    """ȳ σ(-x)."""
    value = grad_output * special.expit(-self)
    return _of(value, np.abs(grad_output), 2 * FUNCTION)


@arithmetic("hardtanh_backward")
def hardtanh_backward(grad_output: Array, self: Array, min_val: float, max_val: float) -> Exact:
    """ȳ between both ends."""
    return Exact(np.where((self > min_val) & (self < max_val), grad_output, 0.0))


@arithmetic("elu_backward")
def elu_backward(
    grad_output: Array, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Array
) -> Exact:
    """ȳ above 0, ȳ α exp(x) below."""
    x = self_or_result
    below = x + alpha if is_result else alpha * np.exp(np.minimum(input_scale * x, 0))
    value = grad_output * np.where(x > 0, scale, input_scale * scale * below)
    return _of(value, np.abs(grad_output * scale) * (1 + np.abs(alpha)))


@arithmetic("binary_cross_entropy_with_logits")
def binary_cross_entropy(
    self: Array, target: Array, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Exact | None:
    """(1 - t) x - ln σ(x), and its mean or sum."""
    if pos_weight is not None:
        return None
    terms = ((1 - target) * self - special.log_expit(self)) * (1.0 if weight is None else weight)
    size = (np.abs((1 - target) * self) + np.abs(self) + 1) * np.abs(1.0 if weight is None else weight)
    if reduction == 0:
        return _of(terms, size)
    over = terms.size if reduction == 1 else 1
    return Exact(np.asarray(terms.sum() / over), (2 * FUNCTION + growth(terms.size)) * size.sum() / over)


@arithmetic("logaddexp")
def logaddexp(self: Array, other: Array) -> Exact:
    """ln(exp a + exp b)."""
    return _of(np.logaddexp(self, other), np.maximum(np.abs(self), np.abs(other)) + 1)


@arithmetic("relu")
def relu(self: Array) -> Exact:
    """max(x, 0)."""
    return Exact(np.where(np.isnan(self), self, np.maximum(self, 0)))


@arithmetic("threshold_backward")
def threshold_backward(grad_output: Array, self: Array, threshold: float) -> Exact:
    """ȳ where x is above the threshold."""
    return Exact(np.where(self > threshold, grad_output, 0.0))


@arithmetic("leaky_relu")
def leaky_relu(self: Array, negative_slope: float = 0.01) -> Exact:
    """x, or a share of it below 0."""
    return _of(np.where(self > 0, self, negative_slope * self))


@arithmetic("leaky_relu_backward")
def leaky_relu_backward(
    grad_output: Array, self: Array, negative_slope: float = 0.01, self_is_result: bool = False
) -> Exact:
    """ȳ, or a share of it below 0."""
    return _of(np.where(self > 0, grad_output, negative_slope * grad_output))


@arithmetic("elu")
def elu(self: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Exact:
    """x above 0, α (exp(x) - 1) below: it may be formed with a 1 that cancels."""
    below = alpha * np.expm1(np.minimum(input_scale * self, 0))
    return _of(scale * np.where(self > 0, self, below), np.abs(self) + np.abs(scale * alpha))


@arithmetic("softplus")
def softplus(self: Array, beta: float = 1, threshold: float = 20) -> Exact:
    """ln(1 + exp(β x)) / β, or x where that is as good."""
    value = np.where(beta * self > threshold, self, np.logaddexp(0, beta * self) / beta)
    return _of(value, np.abs(value) * (1 + np.abs(beta * self)))


@arithmetic("softplus_backward")
def softplus_backward(grad_output: Array, self: Array, beta: float = 1, threshold: float = 20) -> Exact:
    """ȳ σ(β x)."""
    value = np.where(beta * self > threshold, grad_output, grad_output * special.expit(beta * self))
    return _of(value, np.abs(value) * (1 + np.abs(beta * self)))


@arithmetic("hardtanh", "clamp", "clamp_min", "clamp_max")
def clamp(
    self: Array, min: Any = None, max: Any = None, min_val: float | None = None, max_val: float | None = None
) -> Exact:
    """Between two numbers."""
    low, high = (min if min is not None else min_val), (max if max is not None else max_val)
    value = self if low is None else np.maximum(self, low)
    value = value if high is None else np.minimum(value, high)
    return _of(np.where(np.isnan(self), self, value), None, 1.0)


@arithmetic("native_dropout")
def native_dropout(input: Array, p: float, train: bool | None, results: list[Array]) -> list[Exact | None]:
    """x / (1 - p) where the mask that was drawn keeps it."""
    if train is False:
        return [Exact(input), None]
    return [_of(input * results[1] * (0.0 if p == 1 else 1 / (1 - p))), None]


@arithmetic("native_dropout_backward")
def native_dropout_backward(grad_output: Array, mask: Array, scale: float) -> Exact:
    """ȳ where it was kept, by the scale."""
    return _of(grad_output * mask * scale)
