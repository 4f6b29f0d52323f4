"""What training really used, beside the plain path: the loss and every parameter's gradient, judged by norms."""

from __future__ import annotations

import numpy as np

from limpid.maths.operation import Array
from limpid.maths.rounding import unit_roundoff
from limpid.trace.comparison import Range, compare_number, largest
from limpid.trace.end_to_end import EndToEnd
from limpid.trace.record import WORDS, Record
from limpid.trace.verdict import Beyond, Cause, Check, Holds, NotFinite, Unchecked, Verdict

TIMES = 4
"""The fast path may err this many times as much as the plain one: same formats, other order of summing."""


def check_fast_path(record: Record, exact: EndToEnd, *, plain_finite: bool) -> list[Check]:
    """Loss and gradients of the fast path.

    plain_finite   whether the step is finite up to here: if not, what is not finite here follows from that
    """
    with np.errstate(all="ignore"):
        return [
            _loss(record, exact.loss, plain_finite),
            *(_gradient(record, name, gradient, exact, plain_finite) for name, gradient in exact.gradients.items()),
        ]


def _loss(record: Record, exact: float, plain_finite: bool) -> Check:
    plain, fast = float(record.exact("plain/loss")), float(record.exact("fast/loss"))
    if not plain_finite and not np.isfinite([plain, fast, exact]).all():
        return Check("loss", "fast path", Unchecked(WHY, None), 1, 0)
    allowed = TIMES * (abs(plain - exact) + unit_roundoff(record.compute_format) * abs(exact))
    return compare_number("loss", "fast path", fast, exact, allowed, Range(record.summed_format))


WHY = "input not finite: the plain path's numbers are not"


def _gradient(record: Record, name: str, exact: Array, end_to_end: EndToEnd, plain_finite: bool) -> Check:
    """A gradient judged by norms: one entry alone may round badly."""
    shown = f"grad({name})"
    plain, fast = record.exact(f"plain/grad({name})"), record.exact(f"fast/grad({name})")
    known = np.isfinite(exact) & np.isfinite(plain)
    bad = known & ~np.isfinite(fast)
    verdict: Verdict | None = None
    if bad.any() and plain_finite:
        verdict = _not_finite(record, shown, exact, fast, bad, end_to_end)
    compared = known & ~bad
    count = int(compared.sum())
    if count == 0:
        return Check(shown, "fast path", verdict or Unchecked(WHY, None), exact.size, 0)
    distance, allowed = _distances(record, exact, plain, fast, compared)
    worst = distance / allowed
    if verdict is None:
        verdict = Holds(worst) if count == exact.size else Unchecked(WHY, worst)
        verdict = Beyond((), distance, 0.0, allowed, worst) if worst > 1 else verdict
    return Check(shown, "fast path", verdict, exact.size, count, worst, (), distance, 0.0, allowed)


def _distances(record: Record, exact: Array, plain: Array, fast: Array, compared: Array) -> tuple[float, float]:
    """‖fast - exact‖, and how large it may be."""
    if not compared.all():
        exact, plain, fast = exact[compared], plain[compared], fast[compared]
    error = np.linalg.norm(plain - exact) + unit_roundoff(record.compute_format) * np.linalg.norm(exact)
    return float(np.linalg.norm(fast - exact)), float(TIMES * error + np.finfo(np.float32).tiny)


def _not_finite(record: Record, shown: str, exact: Array, fast: Array, bad: Array, end_to_end: EndToEnd) -> NotFinite:
    """The fast path alone is not finite: an overflow of the loss scale's, or a fault of its kernels."""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
    limit, scale = largest(record.compute_format), record.loss_scale
    reach = scale * max(float(np.abs(gradient).max(initial=0.0)) for gradient in end_to_end.gradients.values())
    cause: Cause = "loss scale" if scale > 1 and reach >= limit and not record.meta["updated"] else "operation"
    word = WORDS[np.dtype(record.compute_format)]
    explanation = (
        f"the loss scale {scale:g} was too large: gradients reach {reach:.4g}, beyond the largest {word} number, "
        f"{limit:.6g}; the step was skipped, as it should be"
        if cause == "loss scale"
        else f"the plain path's gradient is finite there, {float(exact[at]):.4g}: a fused kernel is at fault"
    )
    return NotFinite(
        shown, at, float(fast[at]), int(bad.sum()), word, limit, float(exact[at]), cause, explanation
    )  # fmt: skip
