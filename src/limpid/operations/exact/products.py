"""Products of matrices, and attention in one operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.rounding import magnitudes
from limpid.operations.exact.elementwise import FUNCTION
from limpid.operations.exact.exact import Exact, arithmetic, growth

SHORT_EXP = 2048.0
"""Units of u of float32 by which PyTorch's exp is off in attention of 16 bits, for all keys alike: shares are not."""


def product(a: Array, b: Array) -> Exact:
    """A B."""
    if a.ndim == 1 or b.ndim == 1:
        return Exact(np.asarray(a @ b), growth(a.shape[-1]) * np.asarray(np.abs(a) @ np.abs(b)))
    if np.iscomplexobj(a) or np.iscomplexobj(b):  # a product of complex numbers is two of real ones, added up
        return Exact(a @ b, growth(2 * a.shape[-1]) * 2 * magnitudes(np.abs(a), np.abs(b)))
    return Exact(a @ b, growth(a.shape[-1]) * magnitudes(a, b))


@arithmetic("mm", "bmm")
def matrix_product(self: Array, mat2: Array, out_dtype: Any = None) -> Exact:
    """A B."""
    return product(self, mat2)


@arithmetic("mv")
def mv(self: Array, vec: Array) -> Exact:
    """A x."""
    return product(self, vec)


@arithmetic("dot")
def dot(self: Array, tensor: Array) -> Exact:
    """Σ a b."""
    return product(self, tensor)


@arithmetic("vdot")
def vdot(self: Array, other: Array) -> Exact:
    """Σ ā b."""
    return product(self.conj(), other)


@arithmetic("addr")
def addr(self: Array, vec1: Array, vec2: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β C + α x yᵀ."""
    return _added(self, product(vec1[:, None], vec2[None, :]), beta, alpha)


@arithmetic("addbmm")
def addbmm(self: Array, batch1: Array, batch2: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β C + α Σ A B over a batch."""
    wide = product(np.concatenate(list(batch1), -1), np.concatenate(list(batch2), -2))
    return _added(self, wide, beta, alpha)


def _added(self: Array, made: Exact, beta: float, alpha: float) -> Exact:
    shift = beta * self if beta else 0.0
    rounding = abs(alpha) * (np.asarray(made.rounding) + FUNCTION * np.abs(made.value)) + FUNCTION * np.abs(shift)
    return Exact(shift + alpha * made.value, rounding)


@arithmetic("addmm")
def addmm(self: Array, mat1: Array, mat2: Array, beta: float = 1, alpha: float = 1, out_dtype: Any = None) -> Exact:
    """β C + α A B."""
    return _added(self, product(mat1, mat2), beta, alpha)


@arithmetic("baddbmm")
def baddbmm(
    self: Array, batch1: Array, batch2: Array, beta: float = 1, alpha: float = 1, out_dtype: Any = None
) -> Exact:
    """The same of every pair of a batch."""
    return _added(self, product(batch1, batch2), beta, alpha)


@arithmetic("addmv")
def addmv(self: Array, mat: Array, vec: Array, beta: float = 1, alpha: float = 1) -> Exact:
    """β y + α A x."""
    return _added(self, product(mat, vec), beta, alpha)


@arithmetic("_grouped_mm")
def grouped_product(
    self: Array, mat2: Array, offs: Array | None = None, bias: Array | None = None, out_dtype: Any = None
) -> Exact | None:
    """Rows in groups, each by a matrix of its own; or columns of one by rows of the other, group by group."""
    if bias is not None or offs is None:
        return None
    places = np.split(np.arange(self.shape[-1] if mat2.ndim == 2 else self.shape[0]), np.asarray(offs)[:-1])
    if self.ndim == 2 and mat2.ndim == 3:
        parts = [product(self[rows], mat2[group]) for group, rows in enumerate(places)]
        join: Callable[[list[Array]], Array] = np.concatenate
    elif self.ndim == 2 and mat2.ndim == 2:
        parts = [product(self[:, rows], mat2[rows]) for rows in places]
        join = np.stack
    else:
        return None
    shapes = [np.broadcast_to(part.rounding, part.value.shape) for part in parts]
    return Exact(join([part.value for part in parts]), join(shapes))


@arithmetic("linear")
def linear(input: Array, weight: Array, bias: Array | None = None) -> Exact:
    """x Wᵀ + b."""
    made = product(input, weight.T)
    return made if bias is None else _added(bias, made, 1, 1)


@arithmetic("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Array | None = None,
    scale: float | None = None,
    formats: dict[str, Any] | None = None,
) -> list[Exact | None]:
    """softmax(q kᵀ s + mask) v, and ln Σ exp of the scores of each query."""
    share, log_sum, reach = _shares(query, key, is_causal, attn_mask, scale)
    made = product(share, value)
    rounding = np.asarray(made.rounding) + (share * reach) @ np.abs(value)
    storage = share @ np.abs(value) + np.abs(made.value)  # shares are rounded to the format of the values
    short = formats is not None and formats["query"].itemsize == 2
    off = reach.max(-1) + FUNCTION * np.abs(log_sum) + (SHORT_EXP if short else 0.0)
    return [Exact(made.value, rounding, storage), Exact(log_sum, off)]


def _shares(
    query: Array, key: Array, is_causal: bool, mask: Array | None, scale: float | None
) -> tuple[Array, Array, Array]:
    """Shares of the keys, ln Σ exp of the scores, and how far a share may be off, relatively, in units of u."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    key = _repeated(key, query)
    made = product(query, key.swapaxes(-1, -2))
    scores = scale * made.value
    reach = abs(scale) * np.asarray(made.rounding) + FUNCTION * np.abs(scores)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        reach = reach + (0 if mask.dtype == bool else np.where(np.isfinite(mask), np.abs(mask), 0.0))
    top = scores.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weight = np.exp(scores - top)
    whole = weight.sum(-1, keepdims=True)
    with np.errstate(all="ignore"):
        share = np.where(whole > 0, weight / whole, 0.0)
        log_sum = (top + np.log(whole)).squeeze(-1)
    seen = np.isfinite(scores)
    reach = np.where(seen, reach, 0.0)
    far = np.where(seen, np.abs(scores - top), 0.0)
    most = (share * reach).sum(-1, keepdims=True)
    return share, log_sum, np.where(seen, reach + most + far + growth(key.shape[-2]) + 2 * FUNCTION, 0.0)


def _repeated(key: Array, query: Array) -> Array:
    """Keys for each of the queries' heads."""
    groups = query.shape[-3] // key.shape[-3]
    return key if groups == 1 else np.repeat(key, groups, -3)


@arithmetic("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad_out: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    logsumexp: Array,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> list[Exact | None]:
    """Of queries, keys and values: the kernel forms shares again, and Σ ō o from its own rounded result."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    share, _, reach = _shares(query, key, is_causal, attn_mask, scale)
    wide = _repeated(value, query)
    of_share = product(grad_out, wide.swapaxes(-1, -2))
    inner = (grad_out * out).sum(-1, keepdims=True)
    size = np.abs(of_share.value) + np.abs(grad_out * out).sum(-1, keepdims=True)
    of_score = share * (of_share.value - inner)
    off = share * (np.asarray(of_share.rounding) + (reach + growth(query.shape[-1]) + FUNCTION) * size)
    formed = share * size  # what is rounded to the engine's format before the products
    back, across = np.abs(_repeated(key, query)), np.abs(query)
    of_query = product(of_score, _repeated(key, query))
    of_key = product(of_score.swapaxes(-1, -2), query)
    of_value = product(share.swapaxes(-1, -2), grad_out)
    taught = abs(scale)
    found = [
        Exact(taught * of_query.value, taught * (of_query.rounding + off @ back),
              np.abs(taught * of_query.value) + 2 * taught * (formed @ back)),
        Exact(taught * of_key.value, taught * (of_key.rounding + off.swapaxes(-1, -2) @ across),
              taught * (formed.swapaxes(-1, -2) @ across)),
        Exact(of_value.value, of_value.rounding + (share * reach).swapaxes(-1, -2) @ np.abs(grad_out),
              share.swapaxes(-1, -2) @ np.abs(grad_out)),
    ]  # fmt: skip
    return [found[0], _gathered(found[1], key.shape), _gathered(found[2], value.shape)]


def _gathered(of_all: Exact, shape: tuple[int, ...]) -> Exact:
    """Heads that share a key are added up."""
    if of_all.value.shape == shape:
        return Exact(of_all.value, of_all.rounding, np.abs(of_all.value) + 2 * np.asarray(of_all.storage))
    groups = of_all.value.shape[-3] // shape[-3]

    def split(array: Any) -> Array:
        array = np.broadcast_to(array, of_all.value.shape)
        return array.reshape(*shape[:-2], groups, *shape[-2:]).sum(-3)

    return Exact(
        split(of_all.value),
        groups * split(of_all.rounding),
        split(np.abs(of_all.value) + 2 * np.asarray(of_all.storage)),
    )
