"""Dual numbers: a number and its slope, carried through arithmetic together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from limpid.errors import DomainError


@dataclass(frozen=True)
class Dual:
    """a + b ε with ε² = 0: a number and its slope. Arithmetic on it is the chain rule. Parts may be dual themselves.

    Source: Clifford 1873; as automatic differentiation, Griewank & Walther 2008, section 3.1.
    """

    value: Any
    slope: Any = 0.0

    def __add__(self, other: Any) -> Dual:
        other = as_dual(other)
        return Dual(self.value + other.value, self.slope + other.slope)

    def __mul__(self, other: Any) -> Dual:
        other = as_dual(other)
        return Dual(self.value * other.value, self.slope * other.value + self.value * other.slope)

    def __truediv__(self, other: Any) -> Dual:
        other = as_dual(other)
        ratio = self.value / other.value
        return Dual(ratio, (self.slope - ratio * other.slope) / other.value)

    def __pow__(self, power: Any) -> Dual:
        if isinstance(power, Dual):
            return (self.log() * power).exp()
        slope = power * self.value ** (power - 1) if power else 0.0
        return Dual(self.value**power, slope * self.slope)

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.slope)

    def __sub__(self, other: Any) -> Dual:
        return self + -as_dual(other)

    def __rsub__(self, other: Any) -> Dual:
        return as_dual(other) + -self

    def __rtruediv__(self, other: Any) -> Dual:
        return as_dual(other) / self

    def __rpow__(self, base: Any) -> Dual:
        return (self * math.log(base)).exp()

    __radd__, __rmul__ = __add__, __mul__

    def __abs__(self) -> Dual:
        return -self if self < 0 else self

    def __lt__(self, other: Any) -> bool:
        return bool(as_dual(self).value < as_dual(other).value)

    def __gt__(self, other: Any) -> bool:
        return bool(as_dual(self).value > as_dual(other).value)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    # NumPy calls these when np.exp, np.log … meet an array of objects
    def exp(self) -> Dual:
        value = _apply("exp", self.value)
        return Dual(value, value * self.slope)

    def expm1(self) -> Dual:
        return Dual(_apply("expm1", self.value), _apply("exp", self.value) * self.slope)

    def log(self) -> Dual:
        return Dual(_apply("log", self.value), self.slope / self.value)

    def log1p(self) -> Dual:
        return Dual(_apply("log1p", self.value), self.slope / (1 + self.value))

    def log2(self) -> Dual:
        return Dual(_apply("log2", self.value), self.slope / (self.value * math.log(2)))

    def log10(self) -> Dual:
        return Dual(_apply("log10", self.value), self.slope / (self.value * math.log(10)))

    def sqrt(self) -> Dual:
        value = _apply("sqrt", self.value)
        return Dual(value, self.slope / (2 * value))

    def sin(self) -> Dual:
        return Dual(_apply("sin", self.value), _apply("cos", self.value) * self.slope)

    def cos(self) -> Dual:
        return Dual(_apply("cos", self.value), -_apply("sin", self.value) * self.slope)

    def tan(self) -> Dual:
        return self.sin() / self.cos()

    def arctan(self) -> Dual:
        return Dual(_apply("arctan", self.value), self.slope / (1 + self.value * self.value))

    def sinh(self) -> Dual:
        return Dual(_apply("sinh", self.value), _apply("cosh", self.value) * self.slope)

    def cosh(self) -> Dual:
        return Dual(_apply("cosh", self.value), _apply("sinh", self.value) * self.slope)

    def tanh(self) -> Dual:
        value = _apply("tanh", self.value)
        return Dual(value, (1 - value * value) * self.slope)


def as_dual(x: Any) -> Dual:
    return x if isinstance(x, Dual) else Dual(x)


def _apply(name: str, x: Any) -> Any:
    return getattr(x, name)() if isinstance(x, Dual) else float(getattr(np, name)(x))


def parts(duals: Any) -> tuple[Any, Any]:
    """Values and slopes of an array of duals."""
    value, slope = np.empty(duals.shape, dtype=object), np.empty(duals.shape, dtype=object)
    for index in np.ndindex(duals.shape):
        dual = as_dual(duals[index])
        value[index], slope[index] = dual.value, dual.slope
    return value, slope


def has_duals(x: Any) -> bool:
    """Whether an input is a dual number, or holds some."""
    if isinstance(x, list | tuple):
        return any(has_duals(entry) for entry in x)
    if isinstance(x, np.ndarray):
        return x.dtype == object and any(isinstance(entry, Dual) for entry in x.flat)
    return isinstance(x, Dual)


def through(
    name: str, forward: Callable[..., Any], backward: Callable[..., tuple[Any, ...]], inputs: tuple[Any, ...]
) -> Any:
    """What a function with a gradient of its own makes of dual numbers: its value, and its slope by that gradient.

    forward   of arrays or numbers to one array
    backward  (y_bar, *inputs): the gradient of each input, None where there is none
    Raises  DomainError for duals of duals: a second derivative takes a function written out in arithmetic
    """
    values, slopes = [], []
    for each in inputs:
        value, slope = parts(np.asarray(each, dtype=object)) if has_duals(each) else (each, None)
        if slope is not None and any(isinstance(entry, Dual) for entry in (*value.flat, *slope.flat)):
            raise DomainError(
                f"{name} has a gradient of its own, not a second one: write it out in arithmetic for that"
            )
        values.append(value.astype(np.float64) if slope is not None else each)
        slopes.append(None if slope is None else slope.astype(np.float64))
    y = np.asarray(forward(*values), dtype=np.float64)
    found = np.empty(y.shape, dtype=object)
    for index in np.ndindex(y.shape):
        y_bar = np.zeros(y.shape)
        y_bar[index] = 1.0
        bars = backward(y_bar, *values)
        slope = sum(
            float((bar * own).sum())
            for bar, own in zip(bars, slopes, strict=False)
            if bar is not None and own is not None
        )
        found[index] = Dual(float(y[index]), slope)
    return found if y.ndim else found[()]
