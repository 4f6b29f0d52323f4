"""Attention seen as it is computed: queries, keys, the factor of their products, and what is visible.

A function mode looks at every torch function that Python calls; an attention is scaled_dot_product_attention, or a
product of (…, query, d) with (…, d, key) that reaches a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.skipped import Skipped

PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.__rmatmul__}
ADDED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_}
SOFTMAXES = {
    torch.softmax,
    F.softmax,
    Tensor.softmax,
    torch._C._nn.softmax if hasattr(torch._C._nn, "softmax") else F.softmax,
}


@dataclass(frozen=True)
class Heads:
    """One attention of one forward pass."""

    query: Tensor  # (batch, head, query, d_head)
    key: Tensor  # (batch, head, key, d_head)
    factor: float  # s in scores = s q·k, as measured or given
    largest: float  # max |s q·k| over visible pairs; a bound when the scores were never formed
    exact: bool  # whether `largest` was measured
    blind: int  # rows of queries with no visible key
    blind_rows: tuple[int, ...]  # of which batch entries
    dtype: torch.dtype

    @property
    def ratio(self) -> float:
        """d_h s²: 1 for s = 1/√d_h."""
        return self.query.shape[-1] * self.factor**2

    @property
    def normed(self) -> bool:
        """Whether all queries have one length: they were normed, and a factor of their own is a choice."""
        lengths = self.query.float().norm(dim=-1).flatten()
        return bool(lengths.std(correction=0) < 0.02 * lengths.mean())


class Watching(TorchFunctionMode):
    """Collects the attentions of the calls made inside; passes everything on unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: list[Heads] = []
        self.skipped = Skipped()
        self.origin: dict[int, tuple[Tensor, Tensor, Tensor, Tensor, float]] = {}  # output, query, key, product, alpha

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        with self.skipped.noting("attention"):  # an unusual call is not an attention
            self.look(func, args, kwargs, out)
        return out

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim < 3:
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if func is F.scaled_dot_product_attention:
                self.heads.append(_fused(*args, **kwargs))
            elif func in PRODUCTS and len(args) == 2:
                self.product(args[0], args[1], out, 1.0)
            elif func in ADDED_PRODUCTS:
                self.product(args[1], args[2], out, float(kwargs.get("alpha", 1)))
            elif func in SOFTMAXES:
                found = self.origin.get(id(args[0]))
                if found is not None:
                    self.heads.append(_explicit(args[0], *found[1:]))
            else:
                for value in args[:2]:
                    found = self.origin.get(id(value)) if isinstance(value, Tensor) else None
                    if found is not None and out.numel() == value.numel():
                        self.origin[id(out)] = (out, *found[1:])
                        break

    def product(self, left: Tensor, right: Tensor, out: Tensor, alpha: float) -> None:
        if left.ndim >= 3 and left.ndim == right.ndim and left.shape[-1] == right.shape[-2] and left.shape[-1] <= 512:
            self.origin[id(out)] = (out, left.detach(), right.detach().transpose(-1, -2), out.detach(), alpha)


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Heads:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    blind = 0
    rows: tuple[int, ...] = ()
    if attn_mask is not None:
        visible = attn_mask if attn_mask.dtype == torch.bool else attn_mask > torch.finfo(attn_mask.dtype).min / 2
        blind, rows = _blind(~visible.any(-1))
    longest = query.float().norm(dim=-1).amax() * key.float().norm(dim=-1).amax()
    return Heads(query.detach(), key.detach(), factor, abs(factor) * float(longest), False, blind, rows, query.dtype)


def _explicit(scores: Tensor, query: Tensor, key: Tensor, product: Tensor, alpha: float) -> Heads:
    inside = scores.detach().float()
    # low but finite mask constants hide as -inf does
    visible = (
        torch.isfinite(inside) & (inside > -1e4)
        if float(inside[torch.isfinite(inside)].abs().max()) > 1e4
        else torch.isfinite(inside)
    )
    raw = (query.float() @ key.float().transpose(-1, -2)).reshape(inside.shape)
    seen, pure = inside[visible], raw[visible]
    factor = float((seen * pure).sum() / (pure * pure).sum().clamp(min=1e-30)) if seen.numel() else alpha
    largest = max(float(seen.abs().max()), abs(factor) * float(pure.abs().max())) if seen.numel() else 0.0
    blind, rows = _blind((inside == -math.inf).all(-1))
    return Heads(query, key, factor, largest, True, blind, rows, product.dtype)


def _blind(hidden: Tensor) -> tuple[int, tuple[int, ...]]:
    """Queries with nothing visible: how many, of which batch entries (heads counted once)."""
    while hidden.ndim > 2:
        hidden = hidden.any(1)
    if hidden.ndim < 2:
        hidden = hidden[None]
    rows = hidden.any(-1).nonzero()[:, 0].tolist()
    return int(hidden.sum()), tuple(rows[:16])


def attentions(call: Callable[[], Any]) -> list[Heads]:
    """The attentions of one forward pass, in order."""
    with Watching() as seen:
        call()
    return seen.heads


def off_diagonal_share(heads: Heads, queries_and_keys: bool = True) -> float:
    """Share of the variance of scores that is not along diagonals: 0 when they depend on i - j alone.

    Asked of a sequence of one repeated token, on visible pairs (j ≤ i); Su et al. 2021, eq. 16.
    """
    q, k = heads.query[0].double(), heads.key[0].double()
    if q.shape[0] != k.shape[0]:
        k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    length = min(q.shape[1], k.shape[1])
    scores = q[:, :length] @ k[:, :length].transpose(-1, -2)
    i, j = torch.tril_indices(length, length)
    distance, values = i - j, scores[:, i, j]
    count = torch.bincount(distance, minlength=length).double()
    means = torch.zeros(len(values), length, dtype=torch.double).index_add_(1, distance, values) / count
    left = (values - means[:, distance]).pow(2).sum(-1)
    total = (values - values.mean(-1, keepdim=True)).pow(2).sum(-1)
    floor = 1e-12 * values.pow(2).sum(-1)
    return float((left / total.clamp(min=1e-300)).where(total > floor, 0.0).median())
