"""Backward passes that are written by hand, each held against its own forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam

FAMILY = "custom_functions"
DECLARED = ("declared", "as declared")

NOT_ADJOINT = Rule(
    "backward-not-adjoint",
    FAMILY,
    detects="A custom autograd.Function whose backward pass is not the derivative of its forward pass.",
    equation=r"\langle \bar y, J v \rangle = \langle \bar x, v \rangle",
    source="definition of the adjoint; Griewank & Walther 2008, chapter 3",
    threshold="exact up to rounding along three random directions in each input, in float64 where it runs so; a notice "
    "where the two differ by less than {near:g}; no finding where the forward pass is constant between steps or "
    "gives its input back, for which every gradient is a surrogate, or where the backward pass is given a tensor that "
    "the forward pass has no use for",
    thresholds={"near": Threshold(0.01, "the slope of another GELU, tanh for erf, is no further off")},
    cost="some forward and backward passes of two calls of each custom Function, before the first step",
    needs=(Probe.BACKWARD,),
    cause="the incoming gradient, a term, a scale, a mask or a sign is missing in its backward",
    fix="derive its backward from its forward; torch.autograd.gradcheck in float64 confirms it; where it is meant, "
    "declare it: @limpid.surrogate",
    meant="surrogate gradients of spikes, gradients that are clipped, smoothed or scaled on their way",
    refuted_by="a ratio of 1 along random directions; a gradient that is another on purpose, which `limpid.surrogate` "
    "declares",
    explains=("gradient-is-not-the-gradient", "gradient-ascent", "loss-plateau", "loss-diverges"),
)


@before_first_step(NOT_ADJOINT)
def not_adjoint(exam: Exam) -> Iterator[Finding]:
    from limpid.adjoints.adjoint import Verdict

    said = set()
    for one in exam.adjoints:
        worst = one.worst
        if one.verdict is Verdict.SURROGATE and one.why.startswith(DECLARED):
            exam.skipped.note(f"{NOT_ADJOINT.slug} of {one.function}", one.said)
        if one.verdict is not Verdict.WRONG or worst is None or (one.function, one.source) in said:
            continue
        said.add((one.function, one.source))
        off = abs(worst.given - worst.expected) / max(abs(worst.expected), worst.size, 1e-300)
        yield NOT_ADJOINT.finding(
            severity="notice" if off < NOT_ADJOINT["near"] else "warning",
            where=f"{one.function} in {one.module}" if one.module else one.function,
            says=f"{one.said}, called at {one.source}.",
            evidence={"given": worst.given, "expected": worst.expected, "bound": worst.bound, "ratio": one.ratio},
        )
