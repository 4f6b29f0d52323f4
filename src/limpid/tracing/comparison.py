"""One array of the engine against what the mathematics expects, entry by entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float

from limpid.maths.operation import Array
from limpid.tracing.ball import Ball, limit
from limpid.tracing.finite import all_finite
from limpid.tracing.parts import flat, parts
from limpid.tracing.tensor_file import WORDS
from limpid.tracing.verdict import Beyond, Cause, Check, Holds, Kind, NotFinite, Unchecked, Verdict, address


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
    reach: Float[Array, "..."]
    range: Range
    stored: Any = None  # the format that the engine then rounds to; None where `reach` covers that too
    on_the_way: Callable[[], Float[Array, "..."]] | None = None  # magnitudes that are added up
    unknown: Bool[Array, "..."] | None = None  # entries that follow from numbers that are not finite
    why: str = ""  # which numbers those are
    too_large: Callable[[], str] | None = None  # an input with numbers that the format cannot hold; "" where none has

    def limit(self, value: Float[Array, "*entry"], reach: Float[Array, "*entry"]) -> Float[Array, "*entry"]:
        """How far the engine's entries may lie from these of `value`, with those of `reach`."""
        return reach if self.stored is None else limit(Ball(value, reach), self.stored)


@dataclass(frozen=True)
class Worst:
    """The entry that lies nearest to its bound, or farthest beyond it."""

    at: int
    share: float  # |engine - exact| / limit
    engine: float
    exact: float
    limit: float


def compare(name: str, kind: Kind, engine: Array, expected: Expected) -> Check:
    """Compare every entry whose inputs are finite."""
    with np.errstate(all="ignore"):
        if engine.size == 0:
            return Check(name, kind, Holds(0.0), 0, 0)
        worst = None if expected.unknown is not None else worst_entry(engine, expected)
        if worst is None:
            return _compare_partly(name, kind, engine.astype(np.float64), expected)
        return checked(name, kind, engine.shape, worst)


def worst_entry(engine: Array, expected: Expected, before: Worst | None = None, start: int = 0) -> Worst | None:
    """The worst entry, or `before` where that is worse; None when some number is not finite.

    start   how many entries of a larger array come before these
    """
    rows, exact, reach = flat(engine), flat(expected.value), flat(expected.reach)
    for part in parts(engine.size):
        mine, value = rows[part].astype(np.float64), exact[part]
        limits = expected.limit(value, reach[part])
        share = np.abs(mine - value) / limits
        at = int(np.argmax(share))
        if not (np.isfinite(share[at]) and np.isfinite(limits.max())):
            return None
        if before is None or share[at] > before.share:
            numbers = (float(array[at]) for array in (share, mine, value, limits))
            before = Worst(start + part.start + at, *numbers)
    return before


def checked(name: str, kind: Kind, shape: tuple[int, ...], worst: Worst) -> Check:
    """The check of an array all of whose entries were compared."""
    index, entries = tuple(int(i) for i in np.unravel_index(worst.at, shape)), math.prod(shape)
    verdict: Verdict = Holds(worst.share)
    if worst.share > 1:
        verdict = Beyond(index, worst.engine, worst.exact, worst.limit, worst.share)
    return Check(name, kind, verdict, entries, entries, worst.share, index, worst.engine, worst.exact, worst.limit)


def _compare_partly(name: str, kind: Kind, engine: Array, expected: Expected) -> Check:
    """The same where some entries of the engine, or of what it was given, are not finite."""
    limits = expected.limit(expected.value, expected.reach)
    share = np.abs(engine - expected.value) / limits
    equal = engine == expected.value
    unknown = ~np.isfinite(limits) & np.isfinite(engine) & ~equal
    if expected.unknown is not None:  # kernels multiply in blocks: what is not finite may leak into other rows
        unknown = unknown | expected.unknown | (~np.isfinite(engine) & ~equal)
    origin = ~np.isfinite(engine) & ~equal & ~unknown
    share = np.where(equal, 0.0, np.where(np.isnan(share), np.inf, share))  # an infinity that is meant is equal
    share = np.where(unknown | origin, -1.0, share)
    compared = int(np.count_nonzero(share >= 0))
    verdict: Verdict | None = None
    if origin.any():
        verdict = _not_finite(name if kind != "backward" else f"grad({name})", engine, expected, limits, origin)
    if compared == 0:
        return Check(name, kind, verdict or Unchecked(expected.why or "its bound is not finite", None), engine.size, 0)
    at = int(np.argmax(share))
    numbers = (float(flat(array)[at]) for array in (share, engine, expected.value, limits))
    check = checked(name, kind, engine.shape, Worst(at, *numbers))
    if verdict is None and check.holds and compared < engine.size:
        verdict = Unchecked(expected.why or "its bound is not finite", check.worst)
    return replace(check, compared=compared, verdict=verdict or check.verdict)


def _not_finite(quantity: str, engine: Array, expected: Expected, limits: Array, origin: Array) -> NotFinite:
    """The first entry of an origin, and why it is one."""
    first = int(np.argmax(origin))
    at = tuple(int(i) for i in np.unravel_index(first, origin.shape))
    exact, limit = float(flat(expected.value)[first]), float(flat(limits)[first])
    added = 0.0 if expected.on_the_way is None else float(flat(expected.on_the_way())[first])
    too_large = "" if expected.too_large is None else expected.too_large()
    cause: Cause = "overflow" if too_large else _cause(exact, limit, added, expected.range)
    return NotFinite(
        quantity, at, float(engine[at]), int(origin.sum()), expected.range.word, expected.range.largest, exact, cause,
        _explanation(cause, exact, max(abs(exact), added), expected.range, too_large),
    )  # fmt: skip


def _cause(exact: float, limit: float, added: float, allowed: Range) -> Cause:
    if not np.isfinite(exact):
        return "no value"
    if not np.isfinite(limit):
        return "intermediate overflow"
    held, inside = (abs(exact) + limit) * allowed.factor, added * allowed.factor
    if max(held, inside) < allowed.largest:
        return "operation"
    if allowed.skipped and max(held, inside) < allowed.largest * allowed.loss_scale:
        return "loss scale"
    return "overflow" if held >= allowed.largest else "intermediate overflow"


def _explanation(cause: Cause, exact: float, held: float, allowed: Range, too_large: str) -> str:
    limit = f"the largest {allowed.word} number, {allowed.largest:.6g}"
    match cause:
        case "loss scale":
            return (
                f"the loss scale {allowed.loss_scale:g} was too large: {held * allowed.factor:.4g} exceeds {limit}; "
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
