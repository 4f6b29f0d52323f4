"""Low-rank factors: whether they move at all, and whether their change is in the base already."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from limpid.doctor.finding import Finding
from limpid.doctor.rule import Probe, Rule, Threshold, before_first_step, on_step

if TYPE_CHECKING:
    from limpid.doctor.exam import Exam
    from limpid.doctor.factors import Factors
    from limpid.doctor.history import History
    from limpid.doctor.step_record import StepRecord
    from limpid.doctor.watched import Watched

FAMILY = "low_rank"

NEVER_MOVE = Rule(
    "factors-never-move",
    FAMILY,
    detects="Low-rank factors that change nothing: both 0, never trained, or a B that stays 0.",
    equation=r"\partial L / \partial B = s\, \delta (A x)^\top,\; \partial L / \partial A = s\, B^\top \delta x^\top",
    source="Hu et al. 2021, section 4.1, arXiv:2106.09685",
    threshold="exact: A and B both 0 in every matrix, so that neither has a gradient; no factor is trained by any "
    "optimizer; or every B still 0 after {updates:g} updates at a rate above 0",
    thresholds={"updates": Threshold(2, "B moves at the first, at which A alone has no gradient; one may be skipped")},
    cost="one look at the factors, before the first step and at the next few",
    needs=(Probe.PARAMETERS, Probe.EVENTS),
    cause="the factors are not in the optimizer or are frozen, the adapter is switched off, or both begin at 0",
    fix="give the optimizer the factors once they are made, keep the adapter active, begin with A random and B 0",
    refuted_by="one B that is not 0 after an update",
    explains=(
        "weights-never-change",
        "parameters-not-in-optimizer",
        "parameters-frozen",
        "step-without-gradients",
        "gradient-cut",
        "loss-plateau",
    ),
)

APPLIED_TWICE = Rule(
    "adapter-applied-twice",
    FAMILY,
    detects="The change of an adapter is in the base weights already, and is added once more.",
    equation=r"c = \langle W, s B A \rangle / \lVert s B A \rVert^2 \approx 1;\; E[c] = 0 \;\text{without it}",
    source="projection of one matrix on another; its standard error: σ_W / ‖s B A‖ of independent weights, and the "
    "scatter of c between matrices",
    threshold="over all matrices, {matrices:g} or more, c above {half:g} and {errors:g} standard errors above 0",
    thresholds={
        "matrices": Threshold(4, "a scatter of fewer is not known"),
        "half": Threshold(0.5, "nearer to 1 than to 0: after merging the factors may go on"),
        "errors": Threshold(8, "Student of three degrees passes it once in 500; growth along W gives any c, unevenly"),
    },
    cost="two thin products per matrix, before the first step and every 50th",
    needs=(Probe.PARAMETERS, Probe.EVENTS),
    cause="the adapter was merged into the base and stays active, or is put on a model that it was merged into before",
    fix="start from the base that the adapter was made for, or set its B to 0 after merging",
    refuted_by="base weights that are those before the adapter was trained",
    explains=("loss-diverges", "gradient-explodes"),
)


@before_first_step(NEVER_MOVE)
def cannot_move(exam: Exam) -> Iterator[Finding]:
    from limpid.doctor.factors import factors_of

    pairs = factors_of(exam.model)
    if not pairs:
        return
    if not any(_moved(pair.a) or _moved(pair.b) for pair in pairs):
        says = f"A and B of all {len(pairs)} pairs of factors are 0: each one's gradient is a multiple of the other."
        yield _still(pairs, None, says)
    held = {id(parameter) for parameter in exam.held if parameter.requires_grad}
    if exam.optimizers and not any(id(one) in held for pair in pairs for one in (pair.a, pair.b)):
        trained = any(_moved(pair.a) and _moved(pair.b) for pair in pairs)
        meant = "an adapter that is trained already, and kept as it is under another part" if trained else None
        yield _still(pairs, None, f"no optimizer trains any of the {len(pairs)} pairs of factors.", meant)


@on_step(NEVER_MOVE, asks="sampled")
def never_moved(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    from limpid.doctor.factors import factors_of

    updates = history.moves
    if not record.updated or not record.sampled or not NEVER_MOVE["updates"] <= updates <= 20:
        return
    pairs = factors_of(watched.info.model)
    if pairs and not any(_moved(pair.b) for pair in pairs):
        says = f"after {updates} updates B is still 0 in all {len(pairs)} pairs of factors."
        frozen = not any(getattr(pair.b, "requires_grad", False) for pair in pairs)
        yield _still(pairs, record.number, says, "adapters whose turn comes later" if frozen else None)


def _moved(factor: object) -> bool:
    import torch

    return isinstance(factor, torch.Tensor) and (factor.is_meta or bool(factor.detach().any()))


def _still(pairs: Sequence[Factors], step: int | None, says: str, meant: str | None = None) -> Finding:
    return NEVER_MOVE.finding(
        severity="fault",
        step=step,
        where=f"{pairs[0].name} and others",
        says=says,
        meant=meant,
        evidence={"pairs": len(pairs)},
    )


@before_first_step(APPLIED_TWICE)
def applied_twice(exam: Exam) -> Iterator[Finding]:
    yield from _twice(exam, None)


@on_step(APPLIED_TWICE, asks="read")
def applied_twice_by_now(watched: Watched, record: StepRecord, history: History) -> Iterator[Finding]:
    if record.read:
        yield from _twice(watched, record.number)


def _twice(watched: Watched, step: int | None) -> Iterator[Finding]:
    """Where the base lies along the change of the adapter, against where chance would put it."""
    from limpid.doctor.factors import factors_of

    rule = APPLIED_TWICE
    pairs = [] if watched.info.sharded else [pair for pair in factors_of(watched.info.model) if pair.fits]
    sums = [one for one in map(_along, pairs) if one[0] > 0]
    if len(sums) < rule["matrices"]:
        return
    length, along, noise = (math.fsum(one[i] for one in sums) for i in range(3))
    share = along / length
    scatter = math.fsum((one[1] - share * one[0]) ** 2 for one in sums) * len(sums) / (len(sums) - 1)
    error = math.sqrt(noise + scatter) / length
    if share > rule["half"] and share > rule["errors"] * error:
        yield rule.finding(
            severity="fault",
            step=step,
            where=f"{pairs[0].name} and others",
            says=f"the base weights hold {share:.3g} ± {error:.2g} times the change B A of the adapter that is added "
            f"to them, over {len(sums)} matrices; weights without it would hold 0.",
            sure=0.95,
            evidence={"share": share, "error": error, "matrices": len(sums)},
        )


def _along(pair: Factors) -> tuple[float, float, float]:
    """‖sBA‖², ⟨W, sBA⟩ and the variance of that for weights W of their size that know nothing of it."""
    assert pair.base is not None
    a, b, base = (tensor.detach().double() for tensor in (pair.a, pair.b, pair.base))
    length = float(((b.T @ b) * (a @ a.T)).sum()) * pair.scale**2
    along = float(((b.T @ base) * a).sum()) * pair.scale
    return length, along, float(base.square().mean()) * length
