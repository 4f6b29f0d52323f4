"""Fourier transforms, and complex numbers by their size and angle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from limpid.maths.operation import Array
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import INDEPENDENT, Exact, arithmetic

SCALES = (0.0, -0.5, -1.0)
"""Powers of the number of entries that ATen's three normalisations multiply by."""


def _scaled(x: Array, made: Array, axes: Sequence[int], count: int, normalization: int) -> Exact:
    """log₂ n levels of sums, each off by u of the root of all squares (Higham 2002, theorem 24.2)."""
    scale = float(count) ** SCALES[normalization]
    size = np.sqrt((np.abs(x) ** 2).sum(tuple(axes), keepdims=True))
    return Exact(made * scale, INDEPENDENT * FUNCTION * (math.log2(max(count, 1)) + 1) * scale * size)


@arithmetic("_fft_c2c")
def complex_to_complex(self: Array, dim: list[int], normalization: int, forward: bool) -> Exact:
    """Σ x exp(∓2πi jk/n)."""
    if not dim:
        return Exact(self)
    made = np.fft.fftn(self, axes=dim) if forward else np.fft.ifftn(self, axes=dim, norm="forward")
    return _scaled(self, made, dim, math.prod(self.shape[axis] for axis in dim), normalization)


@arithmetic("_fft_r2c")
def real_to_complex(self: Array, dim: list[int], normalization: int, onesided: bool) -> Exact:
    """The same of real numbers; the second half may be left out, as it is the conjugate of the first."""
    made = np.fft.rfftn(self, axes=dim) if onesided else np.fft.fftn(self, axes=dim)
    return _scaled(self, made, dim, math.prod(self.shape[axis] for axis in dim), normalization)


@arithmetic("_fft_c2r")
def complex_to_real(self: Array, dim: list[int], normalization: int, last_dim_size: int) -> Exact:
    """Back to real numbers, of a half."""
    sizes = [*(self.shape[axis] for axis in dim[:-1]), last_dim_size]
    made = np.fft.irfftn(self, sizes, dim, norm="forward")
    found = _scaled(self, made, dim, math.prod(sizes), normalization)
    return Exact(found.value, 2 * np.asarray(found.rounding))


@arithmetic("polar")
def polar(abs: Array, angle: Array) -> Exact:
    """r exp(iφ)."""
    return Exact(abs * np.exp(1j * angle), FUNCTION * np.abs(abs))


@arithmetic("angle")
def angle(self: Array) -> Exact:
    """The angle of a complex number; of a real one 0 or π."""
    value = np.where(np.isnan(self), self, np.angle(self)) if not np.iscomplexobj(self) else np.angle(self)
    return Exact(value, FUNCTION * np.abs(value))


@arithmetic("sgn")
def sgn(self: Array) -> Exact:
    """z / |z|, 0 of 0."""
    if not np.iscomplexobj(self):
        return Exact(np.sign(self))
    size = np.abs(self)
    value = np.divide(self, size, out=np.zeros_like(self), where=size > 0)
    return Exact(value, FUNCTION * np.abs(value))
