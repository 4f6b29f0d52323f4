"""Functions of one or two numbers beyond the everyday ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth
from limpid.operations.exact.reductions import vector_norm

SERIES = 8 * FUNCTION
"""Errors of what is summed up from a series or a fraction of polynomials, in units of u of its terms."""


def _steep(value: Array, slope: Array, x: Array, times: float = FUNCTION) -> Exact:
    """Good to a few units of the last place of the result or of the argument."""
    reach = np.abs(slope * x)
    return Exact(value, times * (np.abs(value) + np.where(np.isfinite(reach), reach, 0.0)))


_STEEP: dict[str, tuple[Any, Any]] = {
    "tan": (np.tan, lambda x: 1 + np.tan(x) ** 2),
    "asin": (np.arcsin, lambda x: 1 / np.sqrt(1 - x**2)),
    "acos": (np.arccos, lambda x: 1 / np.sqrt(1 - x**2)),
    "asinh": (np.arcsinh, lambda x: 1 / np.sqrt(1 + x**2)),
    "acosh": (np.arccosh, lambda x: 1 / np.sqrt(x**2 - 1)),
    "atanh": (np.arctanh, lambda x: 1 / (1 - x**2)),
    "erfinv": (special.erfinv, lambda x: np.sqrt(np.pi) / 2 * np.exp(special.erfinv(x) ** 2)),
    "special_ndtri": (special.ndtri, lambda x: np.sqrt(2 * np.pi) * np.exp(special.ndtri(x) ** 2 / 2)),
    "digamma": (special.digamma, lambda x: special.polygamma(1, x)),
    "i0": (special.i0, special.i1), "special_i0e": (special.i0e, lambda x: np.ones_like(x)),
    "special_i1": (special.i1, special.i0), "special_i1e": (special.i1e, lambda x: np.ones_like(x)),
    "special_erfcx": (special.erfcx, lambda x: 2 * np.abs(x * special.erfcx(x)) + 2),
    "special_log_ndtr": (special.log_ndtr, lambda x: np.abs(x) + 1),
    "special_entr": (special.entr, lambda x: np.abs(np.log(x)) + 1),
    "deg2rad": (np.deg2rad, np.zeros_like), "rad2deg": (np.rad2deg, np.zeros_like),
    "frac": (lambda x: x - np.trunc(x), np.zeros_like),
    "sinc": (np.sinc, lambda x: 2 / np.maximum(np.abs(x), 1e-3)),
}  # fmt: skip


def _entered(name: str, function: Any, slope: Any) -> None:
    times = SERIES if name in ("digamma", "i0") or name.startswith("special") else FUNCTION
    arithmetic(name)(lambda self: _steep(np.asarray(function(self)), np.asarray(slope(self)), self, times))


for _name, (_function, _slope) in _STEEP.items():
    _entered(_name, _function, _slope)


@arithmetic("polygamma")
def polygamma(n: int, self: Array) -> Exact:
    """The derivative of order n of the digamma function; slope by its argument."""
    return _steep(np.asarray(special.polygamma(n, self)), np.asarray(special.polygamma(n + 1, self)), self, SERIES)


@arithmetic("xlogy", "special_xlog1py")
def xlogy(self: Any, other: Any, name: str) -> Exact:
    """x ln y, 0 where x is."""
    value = np.asarray((special.xlogy if name == "xlogy" else special.xlog1py)(self, other))
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("hypot")
def hypot(self: Array, other: Array) -> Exact:
    """√(a² + b²)."""
    return Exact(np.hypot(self, other), FUNCTION * np.hypot(self, other))


@arithmetic("logaddexp2")
def logaddexp2(self: Array, other: Array) -> Exact:
    """log₂(2ᵃ + 2ᵇ)."""
    size = np.maximum(np.abs(self), np.abs(other))
    return Exact(np.logaddexp2(self, other), FUNCTION * (np.where(np.isfinite(size), size, 0.0) + 1))


@arithmetic("ldexp")
def ldexp(self: Array, other: Array) -> Exact:
    """x 2ⁿ."""
    value = self * np.exp2(other)
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("heaviside")
def heaviside(self: Array, values: Array) -> Exact:
    """0 below 0, 1 above, a value there."""
    return Exact(np.heaviside(self, values))


@arithmetic("logit")
def logit(self: Array, eps: float | None = None) -> Exact:
    """ln(x / (1 - x)), x kept from both ends: the quotient is off by more than its share near 1/2."""
    x = self if eps is None else np.clip(self, np.float32(eps), np.float32(1 - eps))
    with np.errstate(all="ignore"):
        return Exact(
            special.logit(x), FUNCTION * (np.abs(special.logit(x)) + 1 + x / np.abs(1 - x) * (eps is not None))
        )


@arithmetic("logit_backward")
def logit_backward(grad_output: Array, self: Array, eps: float | None = None) -> Exact:
    """ȳ / (x (1 - x)) between both ends."""
    low = 0.0 if eps is None else eps
    with np.errstate(all="ignore"):
        value = np.where((self < low) | (self > 1 - low), np.nan if eps is None else 0.0,
                         grad_output / (self * (1 - self)))  # fmt: skip
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("mish_backward")
def mish_backward(grad_output: Array, self: Array) -> Exact:
    """ȳ (tanh s + x σ(x) (1 - tanh² s)), s = ln(1 + exp x)."""
    t, share = np.tanh(np.logaddexp(0, self)), special.expit(self)
    value = grad_output * (t + self * share * (1 - t**2))
    return Exact(value, 2 * FUNCTION * np.abs(grad_output) * (1 + np.abs(self) * share))


@arithmetic("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Exact:
    """ȳ/6 between -3 and 3."""
    value = np.where(np.abs(self) < 3, grad_output / 6, 0.0)
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("hardswish_backward")
def hardswish_backward(grad_output: Array, self: Array) -> Exact:
    """0 below -3, ȳ above 3, ȳ (x/3 + 1/2) between."""
    value = np.where(self <= -3, 0.0, np.where(self < 3, grad_output * (self / 3 + 0.5), grad_output))
    return Exact(value, FUNCTION * np.abs(grad_output))


@arithmetic("hardshrink", "softshrink")
def shrink(self: Array, name: str, lambd: float = 0.5) -> Exact:
    """0 near 0; beyond, the number itself or what it is further out."""
    away = np.abs(self) > np.float32(lambd)
    value = np.where(away, self if name == "hardshrink" else self - np.sign(self) * lambd, self * 0)
    return Exact(value, FUNCTION * np.abs(self) * away, np.abs(value) + np.abs(lambd) * away)


@arithmetic("hardshrink_backward", "softshrink_backward")
def shrink_backward(self: Array, lambd: float, grad_output: Any = None, grad_out: Any = None) -> Exact:
    """ȳ beyond, 0 near 0."""
    taught = grad_out if grad_output is None else grad_output
    return Exact(np.where(np.abs(self) > np.float32(lambd), taught, 0.0))


@arithmetic("threshold")
def threshold(self: Array, threshold: float, value: float) -> Exact:
    """x above a threshold, else a value."""
    return Exact(np.where(self <= np.float32(threshold), value, self))


@arithmetic("celu")
def celu(self: Array, alpha: float = 1.0) -> Exact:
    """x above 0, α (exp(x/α) - 1) below: it may be formed with a 1 that cancels."""
    value = np.where(self > 0, self, alpha * np.expm1(np.minimum(self / alpha, 0)))
    return Exact(value, FUNCTION * (np.abs(self) + np.abs(alpha)))


@arithmetic("_prelu_kernel")
def prelu(self: Array, weight: Array) -> Exact:
    """x, or a learned share of it below 0."""
    value = np.where(self > 0, self, weight * self)
    return Exact(value, np.abs(value))


@arithmetic("_prelu_kernel_backward")
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> list[Exact | None]:
    """Of x, and of the share entry by entry."""
    of_x = np.where(self > 0, grad_output, weight * grad_output)
    of_share = np.where(self > 0, 0.0, self * grad_output)
    return [Exact(of_x, np.abs(of_x)), Exact(of_share, np.abs(of_share))]


@arithmetic("igamma", "igammac")
def igamma(self: Array, other: Array, name: str) -> Exact:
    """Shares of the gamma function below and above; off by what exp(-x) xᵃ is."""
    value = (special.gammainc if name == "igamma" else special.gammaincc)(self, other)
    return Exact(value, SERIES * (1 + np.abs(other) + np.abs(self)) * (np.abs(value) + 1e-3))


@arithmetic("mvlgamma")
def mvlgamma(self: Array, p: int) -> Exact:
    """ln Γ of p arguments half apart, added up."""
    terms = np.stack([special.gammaln(self - at / 2) for at in range(p)])
    constant = p * (p - 1) / 4 * np.log(np.pi)
    return Exact(terms.sum(0) + constant, SERIES * (np.abs(terms).sum(0) + constant + p * np.abs(self)))


@arithmetic("linspace")
def linspace(start: Any, end: Any, steps: int) -> Exact:
    """So many numbers, as far from each other."""
    value = np.linspace(float(start), float(end), steps)
    return Exact(value, FUNCTION * (np.abs(float(start)) + np.abs(float(end))))


@arithmetic("logspace")
def logspace(start: Any, end: Any, steps: int, base: float = 10.0) -> Exact:
    """Powers, their exponents as far from each other."""
    place = np.asarray(linspace(start, end, steps).value)
    value, steep = np.power(base, place), abs(np.log(np.abs(base))) * (abs(float(start)) + abs(float(end)))
    return Exact(value, FUNCTION * np.abs(value) * (1 + steep))


@arithmetic("arange")
def arange(end: float, results: list[Array], start: float = 0, step: float = 1) -> Exact:
    """Numbers one after the other."""
    value = start + np.arange(results[0].size) * step
    return Exact(value, FUNCTION * (abs(start) + np.abs(value - start)))


@arithmetic("dist")
def distance(self: Array, other: Array, p: float = 2) -> Exact:
    """The norm of a difference, each of whose entries is rounded."""
    found = vector_norm(self - other, p)
    return Exact(found.value, np.asarray(found.rounding) + FUNCTION * np.abs(found.value))


@arithmetic("_cdist_forward")
def distances(x1: Array, x2: Array, p: float, compute_mode: int | None = None) -> Exact:
    """The norms of the differences of all pairs; by way of products of matrices |a|² + |b|² cancels."""
    found = vector_norm(x1[..., :, None, :] - x2[..., None, :, :], p, -1)
    value, rounding = found.value, np.asarray(found.rounding) + FUNCTION * np.abs(found.value)
    if p == 2 and compute_mode != 2:
        size = (x1**2).sum(-1)[..., :, None] + (x2**2).sum(-1)[..., None, :]
        off = growth(x1.shape[-1] + 2) * 2 * size
        rounding = rounding + np.minimum(off / np.maximum(2 * value, 1e-300), np.sqrt(off / 2.0**-24))
    return Exact(value, rounding)
