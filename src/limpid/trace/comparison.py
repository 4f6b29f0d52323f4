"""One array of the engine against what the mathematics expects, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float

from limpid.maths.operation import Array
from limpid.trace.finite import all_finite
from limpid.trace.record import WORDS
from limpid.trace.verdict import Beyond, Cause, Check, Holds, Kind, NotFinite, Unchecked, Verdict, address


def largest(dtype: Any) -> float:
    """The largest number of a format."""
    return float(ml_dtypes.finfo(dtype).max)


@dataclass(frozen=True)
class Range:
    """What the numbers of an array must not exceed while the engine computes them."""

    format: Any
    factor: float = 1.0  # the engine holds this many times the number that is compared
    loss_scale: float = 1.0  # how many times larger the loss scale makes what the engine holds
    skipped: bool = False  # whether the step was skipped

    @property
    def word(self) -> str:
        return WORDS[np.dtype(self.format)]

    @property
    def largest(self) -> float:
        """The format's own limit."""
        return largest(self.format)


@dataclass(frozen=True)
class Expected:
    """The mathematics' result from the engine's own inputs, how far rounding may lead away from it, and its range."""

    value: Float[Array, "..."]
    limit: Float[Array, "..."]
    range: Range
    on_the_way: Float[Array, "..."] | None = None  # magnitudes that are added up
    unknown: Bool[Array, "..."] | None = None  # entries that follow from numbers that are not finite
    why: str = ""  # which numbers those are
    too_large: str = ""  # an input with numbers that the format cannot hold


def compare(name: str, kind: Kind, engine: Array, expected: Expected) -> Check:
    """Compare every entry whose inputs are finite."""
    with np.errstate(all="ignore"):
        exact_engine = engine.astype(np.float64)
        share = np.abs(exact_engine - expected.value) / expected.limit
        if share.size == 0:
            return Check(name, kind, Holds(0.0), 0, 0)
        if expected.unknown is None and np.isfinite(share.max()) and all_finite(expected.limit):
            return _check(name, kind, exact_engine, expected, share, share.size)
        return _compare_partly(name, kind, exact_engine, expected, share)


def _compare_partly(name: str, kind: Kind, engine: Array, expected: Expected, share: Array) -> Check:
    """The same where some entries of the engine, or of what it was given, are not finite."""
    equal = engine == expected.value
    unknown = ~np.isfinite(expected.limit) & np.isfinite(engine) & ~equal
    if expected.unknown is not None:  # kernels multiply in blocks: what is not finite may leak into other rows
        unknown = unknown | expected.unknown | (~np.isfinite(engine) & ~equal)
    origin = ~np.isfinite(engine) & ~equal & ~unknown
    share = np.where(equal, 0.0, np.where(np.isnan(share), np.inf, share))  # an infinity that is meant is equal
    share = np.where(unknown | origin, -1.0, share)
    compared = int(np.count_nonzero(share >= 0))
    verdict: Verdict | None = None
    if origin.any():
        verdict = _not_finite(name if kind != "backward" else f"grad({name})", engine, expected, origin)
    return _check(name, kind, engine, expected, share, compared, verdict)


def _check(
    name: str, kind: Kind, engine: Array, expected: Expected, share: Array, compared: int,
    verdict: Verdict | None = None,
) -> Check:  # fmt: skip
    if compared == 0:
        return Check(name, kind, verdict or Unchecked(expected.why or "its bound is not finite", None), engine.size, 0)
    at = np.unravel_index(int(np.argmax(share)), share.shape)
    index, worst = tuple(int(i) for i in at), float(share[at])
    mine, exact = float(engine[at]), float(np.broadcast_to(expected.value, share.shape)[at])
    limit = float(np.broadcast_to(expected.limit, share.shape)[at])
    if verdict is None and worst > 1:
        verdict = Beyond(index, mine, exact, limit, worst)
    elif verdict is None and compared < engine.size:
        verdict = Unchecked(expected.why or "its bound is not finite", worst)
    return Check(name, kind, verdict or Holds(worst), engine.size, compared, worst, index, mine, exact, limit)


def _not_finite(quantity: str, engine: Array, expected: Expected, origin: Array) -> NotFinite:
    """The first entry of an origin, and why it is one."""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(origin)), origin.shape))
    exact = float(np.broadcast_to(expected.value, origin.shape)[at])
    limit = float(np.broadcast_to(expected.limit, origin.shape)[at])
    added = 0.0 if expected.on_the_way is None else float(np.broadcast_to(expected.on_the_way, origin.shape)[at])
    cause: Cause = "overflow" if expected.too_large else _cause(abs(exact) + limit, added, expected.range)
    return NotFinite(
        quantity, at, float(engine[at]), int(origin.sum()), expected.range.word, expected.range.largest, exact, cause,
        _explanation(cause, exact, expected.range, expected.too_large),
    )  # fmt: skip


def _cause(reach: float, added: float, allowed: Range) -> Cause:
    if not np.isfinite(reach):
        return "no value"
    held = reach * allowed.factor
    if held >= allowed.largest:
        of_the_scale = allowed.skipped and held < allowed.largest * allowed.loss_scale
        return "loss scale" if of_the_scale else "overflow"
    return "intermediate overflow" if added * allowed.factor >= allowed.largest else "operation"


def _explanation(cause: Cause, exact: float, allowed: Range, too_large: str) -> str:
    limit = f"the largest {allowed.word} number, {allowed.largest:.6g}"
    match cause:
        case "loss scale":
            return (
                f"the loss scale {allowed.loss_scale:g} was too large: {exact * allowed.factor:.4g} exceeds {limit}; "
                "the step was skipped, as it should be"
            )
        case "overflow" if too_large:
            return f"overflow: numbers of {too_large} exceed {limit}, to which it is cast"
        case "overflow":
            return f"overflow: the exact result {exact * allowed.factor:.4g} exceeds {limit}"
        case "intermediate overflow":
            return f"its inputs are finite and so is the exact result, {exact:.4g}: what is added up may exceed {limit}"
        case "no value":
            return "its inputs are finite, but the mathematics has no finite value there either"
    return f"its inputs are finite and so is the exact result, {exact:.4g}: the operation is at fault"


def compare_number(name: str, kind: Kind, engine: float, exact: float, limit: float, allowed: Range) -> Check:
    """One number, such as a norm."""
    return compare(name, kind, np.asarray(engine), Expected(np.asarray(exact), np.asarray(limit), allowed))


def given(name: str, array: Array, format_word: str, largest: float) -> Check | None:
    """A fault of what came into the step: nothing to compare, but it must be finite."""
    if all_finite(array):
        return None
    bad = ~np.isfinite(array)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    verdict = NotFinite(
        name, at, float(array[at]), int(bad.sum()), format_word, largest, float("nan"), "given",
        f"{address(name, at)} was so before the step",
    )  # fmt: skip
    return Check(name, "given", verdict, array.size, 0)
