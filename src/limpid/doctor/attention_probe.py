"""Attention seen as it is computed: queries, keys, the factor of their products, and what is visible.

A function mode looks at every torch function that Python calls; an attention is scaled_dot_product_attention, or a
product of (…, query, d) with (…, d, key) that reaches a softmax. Numbers that queries or keys are multiplied by on
their way from the projection belong to the factor of the scores, wherever they are applied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from limpid.doctor.finding import Skipped

PRODUCTS = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.__rmatmul__}
ADDED_PRODUCTS = {torch.baddbmm, Tensor.baddbmm, Tensor.baddbmm_}
ATTENDING = frozenset({F.scaled_dot_product_attention, torch.einsum} | PRODUCTS | ADDED_PRODUCTS)
VIEWS = {
    *("view", "reshape", "transpose", "permute", "contiguous", "split", "chunk", "unbind", "narrow", "select", "neg",),
    *("unflatten", "flatten", "squeeze", "unsqueeze", "expand", "repeat", "repeat_interleave", "detach", "clone",),
    *("to", "float", "half", "bfloat16", "type", "type_as", "roll", "flip", "dropout", "movedim", "swapaxes",),
    *("view_as_complex", "view_as_real", "__getitem__", "__get__", "__neg__",),
}  # fmt: skip
SUMS_OF_VECTORS = {
    *("cat", "concat", "stack", "add", "sub", "subtract", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__",),
    *("__isub__", "add_", "sub_",),
}  # fmt: skip
TIMES = {"mul", "multiply", "mul_", "__mul__", "__rmul__", "__imul__"}
OVER = {"div", "divide", "div_", "__truediv__", "__itruediv__"}
PASSED_ON = frozenset(VIEWS | SUMS_OF_VECTORS | TIMES | OVER)
"""Names of what passes on a number that vectors were multiplied by; all else makes new vectors."""
SOFTMAXES = {
    torch.softmax,
    F.softmax,
    Tensor.softmax,
    torch._C._nn.softmax if hasattr(torch._C._nn, "softmax") else F.softmax,
}


MASKED = -9e3
"""Below it and far from all other scores stands what was masked by a number: -1e4, -65504, -1e9."""
FEWEST = 4
"""Queries of every row and head that are looked at, at least."""


@dataclass(frozen=True)
class AttentionScores:
    """One attention of one forward pass."""

    query: Tensor  # (batch, head, query, d_head)
    key: Tensor  # (batch, head, key, d_head)
    factor: float  # s in scores = s q·k, as measured or given; NaN where nobody knows
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
    def half(self) -> bool:
        return self.dtype == torch.float16

    @property
    def normed(self) -> bool:
        """Whether all queries have one length: they were normed, and a factor of their own is a choice."""
        lengths = self.query.float().norm(dim=-1).flatten()
        return bool(lengths.std(correction=0) < 0.02 * lengths.mean())


SUMS = {
    "mul",
    "rmul",
    "imul",
    "add",
    "pow",
    "square",
    "matmul",
    "bmm",
    "linear",
    "sum",
    "mean",
    "exp",
    "baddbmm",
    "addmm",
}
"""Operations that go beyond a format's largest number; masks are filled with infinities on purpose."""
ANGLES = {torch.cos, Tensor.cos, torch.polar}


class AttentionProbe(TorchFunctionMode):
    """Collects the attentions of the calls made inside; passes everything on unchanged."""

    def __init__(self, room: int | None = None) -> None:
        """With `room`, scores are measured on so many entries of theirs: of every row and head some queries."""
        super().__init__()
        self.room = room
        self.attentions: list[AttentionScores] = []
        self.skipped = Skipped()
        self.turns = False  # whether angles were computed
        self.formats: set[torch.dtype] = set()  # of what was computed
        self.overflowed: str | None = None  # the first operation that made float16 infinities of numbers
        self.origin: dict[int, tuple[Tensor, Tensor, Tensor, Tensor, float]] = {}  # output, query, key, product, factor
        self.scaled: dict[int, tuple[Tensor, float]] = {}  # what was multiplied by a number since its projection

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SOFTMAXES:  # before, for weights may take the place of the scores
            with self.skipped.noting("attention"), torch._C.DisableTorchFunction(), torch.no_grad():
                self.softmax(args[0] if args else kwargs["input"])
        out = func(*args, **kwargs)
        try:
            self.look(func, args, kwargs, out)
        except Exception as error:  # an unusual call is not an attention
            self.skipped.failed("attention", error)
        return out

    def scale(self, value: Any) -> float:
        """The numbers that a vector was multiplied by since its projection; NaN where its parts differ in them."""
        return self.scaled[id(value)][1] if id(value) in self.scaled else 1.0

    def follow(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """Pass on what a vector was multiplied by; of a sum what all its parts were."""
        name = getattr(func, "__name__", "")
        if not args or name not in PASSED_ON:
            return
        values = args[0] if isinstance(args[0], tuple | list) else args[:2]
        factors = [self.scale(v) for v in values if isinstance(v, Tensor) and _number(v) is None]
        factor = factors[0] if factors else 1.0
        if name in SUMS_OF_VECTORS and any(abs(other - factor) > 1e-6 * abs(factor) for other in factors):
            factor = math.nan
        elif name in TIMES | OVER and len(args) == 2:
            factor = math.prod(factors)  # of two tensors; the second is a rotation, a gain, a mask
            number = next((_number(v) for v in args if _number(v) is not None), None)
            if number:
                factor *= number if name in TIMES else 1 / number
        if factor != 1.0:
            for made in out if isinstance(out, tuple | list) else (out,):
                if isinstance(made, Tensor) and (made.is_floating_point() or made.is_complex()):
                    self.scaled[id(made)] = (made, factor)

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self.follow(func, args, out)
        self.turns |= func in ANGLES
        if isinstance(out, Tensor) and out.is_floating_point():
            self.formats.add(out.dtype)
        if self.overflowed is None and isinstance(out, Tensor) and out.dtype == torch.float16:
            self.overflowed = _overflow(func, args, out)
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim < 3 or func in SOFTMAXES:
            return
        if getattr(func, "is_attention", False):  # (batch, position, head, d_head), and says so of itself
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self.attentions.append(_fused(*(one.transpose(1, 2) for one in args[:3])))
            return
        if func not in ATTENDING and not any(id(value) in self.origin for value in args[:2]):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if func is F.scaled_dot_product_attention:
                scores = _fused(*args, **kwargs)
                given = args[:2] if len(args) > 1 else (kwargs.get("query", *args), kwargs.get("key"))
                self.attentions.append(
                    replace(scores, factor=scores.factor * self.scale(given[0]) * self.scale(given[1]))
                )
            elif func in PRODUCTS and len(args) == 2:
                self.product(args[0], args[1], out)
            elif func in ADDED_PRODUCTS:
                self.product(args[1], args[2], out)
            elif func is torch.einsum and len(args) == 3:
                self.einsum(*args, out)
            else:
                for value in args[:2]:
                    origin = self.origin.get(id(value)) if isinstance(value, Tensor) else None
                    if origin is not None and out.numel() == value.numel():
                        self.origin[id(out)] = (out, *origin[1:])
                        break

    def softmax(self, scores: Tensor) -> None:
        """What is about to become weights: an attention, where it is a product of queries and keys."""
        origin = self.origin.get(id(scores))
        if origin is not None and scores.ndim >= 3:
            self.attentions.append(_explicit(scores, *origin[1:], self.room))

    def product(self, left: Tensor, right: Tensor, out: Tensor) -> None:
        if left.ndim >= 3 and left.ndim == right.ndim and left.shape[-1] == right.shape[-2] and left.shape[-1] <= 512:
            already = self.scale(left) * self.scale(right)
            self.scaled.pop(id(out), None)
            self.origin[id(out)] = (out, left.detach(), right.detach().transpose(-1, -2), out.detach(), already)

    def einsum(self, equation: str, left: Tensor, right: Tensor, out: Tensor) -> None:
        """A product of queries and keys, spelled in letters: one letter is summed, the last two are query and key."""
        inputs, _, made = equation.replace(" ", "").partition("->")
        first, _, second = inputs.partition(",")
        summed = (set(first) & set(second)) - set(made)
        batch, query, key = made[:-2], made[-2:-1], made[-1:]
        if len(summed) == 1 and query in set(first) - set(second) and key in set(second) - set(first):
            (d,) = summed
            already = self.scale(left) * self.scale(right)
            queries = torch.einsum(f"{first}->{batch}{query}{d}", left).detach()
            keys = torch.einsum(f"{second}->{batch}{key}{d}", right).detach()
            self.scaled.pop(id(out), None)
            self.origin[id(out)] = (out, queries, keys, out.detach(), already)


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
) -> AttentionScores:
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    blind = 0
    rows: tuple[int, ...] = ()
    if attn_mask is not None:
        visible = attn_mask if attn_mask.dtype == torch.bool else attn_mask > torch.finfo(attn_mask.dtype).min / 2
        blind, rows = _blind(~visible.any(-1))
    longest = query.float().norm(dim=-1).amax() * key.float().norm(dim=-1).amax()
    largest = abs(factor) * float(longest)
    return AttentionScores(query.detach(), key.detach(), factor, largest, False, blind, rows, query.dtype)


def _overflow(func: Any, args: tuple[Any, ...], out: Tensor) -> str | None:
    """The name of an operation of products or sums whose inputs are finite and whose output is not."""
    name = getattr(func, "__name__", "").strip("_")
    if name not in SUMS or not bool(torch.isinf(out).any()):
        return None
    given = [value for value in args if isinstance(value, Tensor) and value.is_floating_point()]
    return name if given and all(bool(torch.isfinite(value).all()) for value in given) else None


def _number(value: Any) -> float | None:
    """A number, or a tensor of one element."""
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 and value.is_floating_point() else None
    return float(value) if isinstance(value, int | float) else None


def _explicit(
    scores: Tensor, query: Tensor, key: Tensor, product: Tensor, already: float, room: int | None
) -> AttentionScores:
    if room is not None and scores.shape[-2] == query.shape[-2]:
        every = max(1, min(scores.numel() // room, scores.shape[-2] // FEWEST))
        scores, query = scores[..., every - 1 :: every, :], query[..., every - 1 :: every, :]
    blind, rows = _blind((scores.detach() == -math.inf).all(-1))
    inside = scores.detach().float()
    visible = torch.isfinite(inside)
    low = visible & (inside < MASKED)  # low but finite mask constants hide as -inf does
    if bool(low.any()) and not bool(((inside >= MASKED) & (inside < MASKED / 2)).any()):
        visible &= ~low
    raw = (query.float() @ key.float().transpose(-1, -2)).reshape(inside.shape)
    own = _factor(inside, raw, visible)
    seen, pure = (float(one.masked_fill(~visible, 0).abs().amax()) if one.numel() else 0.0 for one in (inside, raw))
    largest = max(seen, abs(own) * pure)
    if query.ndim > 4:  # queries in groups of the head of keys that they share
        key = key.expand(*query.shape[:-2], *key.shape[-2:]).flatten(1, -3)
        query = query.flatten(1, -3)
    return AttentionScores(query, key, own * already, largest, True, blind, rows, product.dtype)


def _factor(scores: Tensor, products: Tensor, visible: Tensor) -> float:
    """s of scores ≈ s q·k + b, where b is the same in all rows of the batch, as biases of positions are."""
    s, p = scores.masked_fill(~visible, 0), products.masked_fill(~visible, 0)
    common = visible.all(0)
    apart = [(x - x.mean(0)).masked_fill(~common, 0) for x in (s, p)] if len(s) > 1 else [s, p]
    if float(apart[1].pow(2).sum()) < 1e-6 * float(p.pow(2).sum()):  # rows are alike
        apart = [s, p]
    norm = float(apart[1].pow(2).sum())
    return float((apart[0] * apart[1]).sum()) / norm if norm else 1.0


def _blind(hidden: Tensor) -> tuple[int, tuple[int, ...]]:
    """Queries with nothing visible: how many, of which batch entries (heads counted once)."""
    while hidden.ndim > 2:
        hidden = hidden.any(1)
    if hidden.ndim < 2:
        hidden = hidden[None]
    rows = hidden.any(-1).nonzero()[:, 0].tolist()
    return int(hidden.sum()), tuple(rows[:16])


def off_diagonal_share(scores_of: AttentionScores, positions: Tensor | None = None) -> float:
    """Share of the variance of scores that is not along diagonals: 0 when they depend on p_i - p_j alone.

    Asked of a sequence of one repeated token, on visible pairs (j ≤ i); Su et al. 2021, eq. 16.
    positions   (position,) as the model is given them, where they are not 0, 1, 2, …
    """
    q, k = scores_of.query[0].double().cpu(), scores_of.key[0].double().cpu()
    if q.shape[0] != k.shape[0]:
        k = k.repeat_interleave(q.shape[0] // k.shape[0], 0)
    length = min(q.shape[1], k.shape[1])
    scores = q[:, :length] @ k[:, :length].transpose(-1, -2)
    i, j = torch.tril_indices(length, length)
    places = torch.arange(length) if positions is None else positions[:length].cpu()
    values = scores[:, i, j]
    distances, distance = (places[i] - places[j]).unique(return_inverse=True)
    count = torch.bincount(distance, minlength=len(distances)).double()
    means = torch.zeros(len(values), len(distances), dtype=torch.double).index_add_(1, distance, values) / count
    left = (values - means[:, distance]).pow(2).sum(-1)
    total = (values - values.mean(-1, keepdim=True)).pow(2).sum(-1)
    floor = 1e-12 * values.pow(2).sum(-1)
    return float((left / total.clamp(min=1e-300)).where(total > floor, 0.0).median())
